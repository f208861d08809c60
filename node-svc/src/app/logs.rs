//! What a workload wrote: the last lines, and what follows.

use std::{
    io::{self, SeekFrom},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _},
    sync::mpsc,
    task::JoinHandle,
};

use super::{Node, life::Life};

const CHUNK: usize = 32 * 1024;
const POLL: Duration = Duration::from_millis(200);

/// How far back the last lines are looked for: a workload may write lines without an end.
const FARTHEST: u64 = 8 << 20;

/// Chunks of a log on their way to a slow reader.
const WAITING: usize = 16;

impl Node {
    /// Reads a life's log in a task of its own: its chunks, and how the reading ended.
    pub(crate) fn logs(
        &self,
        life: Arc<Life>,
        follow: bool,
        tail_lines: u32,
    ) -> (mpsc::Receiver<Bytes>, JoinHandle<io::Result<()>>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let stop = self.runtime.tasks.token().clone();
        let reading = self.runtime.tasks.spawn("log", async move {
            tokio::select! {
                sent = send(&life, follow, tail_lines, &sender) => sent,
                () = stop.cancelled() => Ok(()),
            }
        });
        (receiver, reading)
    }
}

/// Sends a life's log until it is read (and, when following, until the life is over), or until
/// nobody listens.
///
/// # Errors
/// When the log cannot be read.
pub(crate) async fn send(
    life: &Life,
    follow: bool,
    tail_lines: u32,
    to: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let path = life.folder.join("log");
    let mut at = match tail_lines {
        0 => 0,
        lines => tokio::select! {
            start = start_of_last(&path, lines) => start?,
            () = to.closed() => return Ok(()),
        },
    };
    loop {
        // Asked before reading: what was written before the end is then read for certain.
        let over = life.is_over();
        at = send_from(&path, at, to).await?;
        if !follow || over || to.is_closed() {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = to.closed() => return Ok(()),
        }
    }
}

/// Opens a log; there is none before the process starts.
async fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    match File::open(path).await {
        Ok(file) => {
            let length = file.metadata().await?.len();
            Ok(Some((file, length)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn send_from(path: &Path, at: u64, to: &mpsc::Sender<Bytes>) -> io::Result<u64> {
    let Some((mut file, length)) = open(path).await? else {
        return Ok(0);
    };
    // A log that is shorter than what was read of it was begun anew.
    let mut at = if length < at { 0 } else { at };
    file.seek(SeekFrom::Start(at)).await?;
    loop {
        let mut chunk = vec![0; CHUNK];
        let read = file.read(&mut chunk).await?;
        if read == 0 {
            return Ok(at);
        }
        chunk.truncate(read);
        at = at.saturating_add(u64::try_from(read).unwrap_or(0));
        if to.send(Bytes::from(chunk)).await.is_err() {
            return Ok(at);
        }
    }
}

/// Where the last lines begin, found from the end so that a long log costs nothing. Where they
/// would begin more than [`FARTHEST`] before the end, as many of them as lie behind that.
async fn start_of_last(path: &Path, lines: u32) -> io::Result<u64> {
    let Some((mut file, length)) = open(path).await? else {
        return Ok(0);
    };
    let step = u64::try_from(CHUNK).unwrap_or(u64::MAX);
    let farthest = length.saturating_sub(FARTHEST);
    let mut left = lines;
    let mut end = length;
    let mut first = None;
    while end > farthest {
        let start = end.saturating_sub(step).max(farthest);
        file.seek(SeekFrom::Start(start)).await?;
        let mut chunk = vec![0; usize::try_from(end - start).unwrap_or(CHUNK)];
        match file.read_exact(&mut chunk).await {
            // It was begun anew meanwhile.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
            read => drop(read?),
        }
        for (index, byte) in chunk.iter().enumerate().rev() {
            let position = start.saturating_add(u64::try_from(index).unwrap_or(0));
            // The break that ends the last line does not begin another.
            if *byte == b'\n' && position + 1 != length {
                first = Some(position + 1);
                left = left.saturating_sub(1);
                if left == 0 {
                    return Ok(position + 1);
                }
            }
        }
        end = start;
    }
    if farthest == 0 {
        return Ok(0);
    }
    // Rather the end of one endless line than nothing.
    Ok(first.unwrap_or(farthest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_found_across_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let lines: Vec<String> = (0..20_000).map(|n| format!("line {n}")).collect();
        for ending in ["", "\n"] {
            std::fs::write(&path, lines.join("\n") + ending).unwrap();
            let all = std::fs::read(&path).unwrap();
            for count in [1_u32, 2, 9_000, 20_000, 30_000] {
                let at = usize::try_from(start_of_last(&path, count).await.unwrap()).unwrap();
                let tail = String::from_utf8(all[at..].to_vec()).unwrap();
                let wanted = lines.len().saturating_sub(usize::try_from(count).unwrap());
                assert_eq!(tail.lines().count(), lines.len() - wanted);
                assert_eq!(tail.lines().next().unwrap(), lines[wanted]);
            }
        }
        assert_eq!(
            start_of_last(&folder.path().join("none"), 5).await.unwrap(),
            0
        );
    }

    #[tokio::test]
    async fn the_search_for_the_last_lines_gives_up_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        // A hole of a terabyte, then text: only its end may be looked at.
        let far = 1 << 40;
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(far).unwrap();
        assert_eq!(start_of_last(&path, 1).await.unwrap(), far - FARTHEST);
        std::os::unix::fs::FileExt::write_all_at(&file, b"\none\ntwo\n", far).unwrap();
        assert_eq!(start_of_last(&path, 1).await.unwrap(), far + 5);
        assert_eq!(start_of_last(&path, 100).await.unwrap(), far + 1);
    }
}
