//! Takes up what an earlier node-svc left: records on disk, processes that live on, claims
//! without a life.

use std::{fs, io, path::Path, sync::Arc};

use cnlab_service::StartError;
use node_core::{Holder, WorkloadId, book};

use super::{
    Node, ask,
    drive::Begin,
    life::{Life, Record},
};
use crate::disk;

/// What is found on disk.
#[derive(Debug, Default)]
struct Found {
    records: Vec<Record>,
    /// Lives whose record cannot be read.
    damaged: Vec<Holder>,
}

impl Node {
    /// Recovers. Returns when every life is known again; drivers go on in tasks of their own.
    pub(super) async fn recover(self: &Arc<Self>) -> Result<(), StartError> {
        let folder = self.workloads_folder();
        let found = tokio::task::spawn_blocking(move || read_all(&folder))
            .await
            .map_err(|error| StartError::new("reading the workloads failed").caused_by(error))?
            .map_err(|error| {
                StartError::new("the records of the workloads cannot be read").caused_by(error)
            })?;
        for holder in found.damaged {
            tracing::error!(workload = %holder.workload, fence = holder.fence, "the record of a workload is damaged; ending what it ran");
            self.give_up(holder).await;
        }
        let mut living = Vec::new();
        for record in found.records {
            let holder = record.holder;
            let life = Arc::new(Life::new(self.life_folder(holder), record, String::new()));
            self.lives().insert(holder, Arc::clone(&life));
            // The scheduler may have missed the last change.
            self.changed(&life);
            if !life.is_over() {
                living.push(life);
            }
        }
        let node = Arc::clone(self);
        let claimed: Vec<_> = living.iter().map(Arc::clone).collect();
        tokio::task::spawn_blocking(move || node.claim_again(&claimed))
            .await
            .map_err(|error| StartError::new("recovering the GPU book failed").caused_by(error))?
            .map_err(|error| StartError::new("the GPU book cannot be kept").caused_by(error))?;
        for holder in self.unknown_holders() {
            tracing::warn!(workload = %holder.workload, fence = holder.fence, "a claim without a workload is given back");
            self.give_up(holder).await;
        }
        for life in living {
            self.spawn_driver(life, Begin::Found);
        }
        Ok(())
    }

    /// Enters the claims of lives that were written down just before their fence was.
    fn claim_again(&self, living: &[Arc<Life>]) -> io::Result<()> {
        let mut book = self
            .book
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut next = book.clone();
        for life in living {
            let known = next.holders().contains(&life.holder);
            let record = life.snapshot().record;
            if known {
                continue;
            }
            match record
                .launch
                .as_ref()
                .map(|launch| book::carve(&next, &ask(life.holder, launch)))
            {
                Some(Ok((carved, _))) => next = carved,
                // Its place is taken or its GPU gone: it may not go on.
                Some(Err(refused)) => {
                    tracing::warn!(workload = %life.holder.workload, %refused, "a workload lost its slice");
                    life.stop.cancel();
                }
                None => {}
            }
        }
        if next != *book {
            self.keep_book(&next)?;
            *book = next;
        }
        Ok(())
    }

    fn unknown_holders(&self) -> Vec<Holder> {
        let holders = self
            .book
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .holders();
        let lives = self.lives();
        holders
            .into_iter()
            .filter(|holder| lives.get(holder).is_none_or(|life| life.is_over()))
            .collect()
    }

    /// Ends what may run of a life without a record, and gives its slice back.
    async fn give_up(self: &Arc<Self>, holder: Holder) {
        if let Err(failure) = self.runner().end_lost(holder).await {
            // Its blocks stay taken: better unused than used twice.
            tracing::error!(workload = %holder.workload, cause = %failure.cause, "processes of an unknown workload do not end");
            return;
        }
        if let Err(error) = self.gpus().detach(holder).await {
            tracing::warn!(%error, "a slice could not be detached");
        }
        if let Err(error) = self.free(holder) {
            tracing::warn!(%error, "the freed slice could not be kept on disk");
        }
    }
}

fn read_all(folder: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    let workloads = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        other => other?,
    };
    for workload in workloads {
        let workload = workload?;
        let Ok(id) = workload.file_name().to_string_lossy().parse::<WorkloadId>() else {
            continue;
        };
        for life in fs::read_dir(workload.path())? {
            let life = life?.path();
            let Some(fence) = life
                .file_name()
                .and_then(|name| name.to_str()?.parse::<u64>().ok())
            else {
                continue;
            };
            let holder = Holder {
                workload: id,
                fence,
            };
            let path = life.join("record.json");
            match disk::read_json::<Record>(&path) {
                Ok(Some(record)) if record.holder == holder => found.records.push(record),
                // Interrupted before its record was there: it never began.
                Ok(None) => disk::remove_dir(&life)?,
                Ok(Some(_)) | Err(_) => {
                    fs::rename(&path, life.join("record.damaged"))?;
                    found.damaged.push(holder);
                }
            }
        }
    }
    Ok(found)
}
