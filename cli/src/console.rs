//! Where a command writes: data to stdout, words and the live line to stderr.
//!
//! **Invariants**: text goes out without control characters other than line feeds, so that a
//! hostile name cannot touch the terminal; the live line is gone before anything else is
//! written, and nothing of it is left at the end.

use std::{
    fmt,
    io::{self, BufRead as _, IsTerminal as _, Write},
};

use crate::{
    environment::Environment,
    error::{Exit, Failure, Result},
    output::{self, Document, Format},
    text,
};

/// Columns assumed where the terminal does not say.
const DEFAULT_COLUMNS: usize = 80;
/// Erases the line and goes to its beginning.
const ERASE: &str = "\r\u{1b}[2K";

/// Both output streams and how they are to be used.
pub struct Console {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    format: Format,
    quiet: bool,
    /// Both stdin and stderr are a terminal, so that a question can be asked.
    interactive: bool,
    /// Stdout is a terminal.
    out_is_terminal: bool,
    /// The live line can be rewritten in place.
    live: bool,
    /// Something stands on the live line.
    shown: bool,
    /// What the last progress line on a pipe was about.
    last_phase: Option<String>,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("format", &self.format)
            .field("quiet", &self.quiet)
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

impl Console {
    /// The streams of this process.
    #[must_use]
    pub fn of_process(environment: &Environment, format: Format, quiet: bool) -> Self {
        let err_is_terminal = io::stderr().is_terminal();
        Self {
            out: Box::new(io::stdout()),
            err: Box::new(io::stderr()),
            format,
            quiet,
            interactive: err_is_terminal && io::stdin().is_terminal(),
            out_is_terminal: io::stdout().is_terminal(),
            live: err_is_terminal && environment.cursor_control,
            shown: false,
            last_phase: None,
        }
    }

    /// Streams of the caller's choice, treated as pipes.
    #[must_use]
    pub fn of_writers(
        out: Box<dyn Write + Send>,
        err: Box<dyn Write + Send>,
        format: Format,
    ) -> Self {
        Self {
            out,
            err,
            format,
            quiet: false,
            interactive: false,
            out_is_terminal: false,
            live: false,
            shown: false,
            last_phase: None,
        }
    }

    /// The form in which results are wanted.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Whether stdout is a terminal.
    #[must_use]
    pub const fn out_is_terminal(&self) -> bool {
        self.out_is_terminal
    }

    /// Whether somebody can answer a question.
    #[must_use]
    pub const fn interactive(&self) -> bool {
        self.interactive
    }

    /// Whether the live line is rewritten in place, so that it may be refreshed often.
    #[must_use]
    pub const fn live(&self) -> bool {
        self.live && !self.quiet
    }

    /// Writes lines of data.
    ///
    /// # Errors
    /// When stdout cannot be written to.
    pub fn data(&mut self, lines: &str) -> Result<()> {
        self.settle()?;
        let safe = text::lines(lines);
        let end = if safe.ends_with('\n') || safe.is_empty() {
            ""
        } else {
            "\n"
        };
        write!(self.out, "{safe}{end}")
            .and_then(|()| self.out.flush())
            .map_err(|error| unwritable(&error))
    }

    /// Writes text that is safe already, as it is.
    ///
    /// # Errors
    /// When stdout cannot be written to.
    pub fn raw(&mut self, text: &str) -> Result<()> {
        self.settle()?;
        self.out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush())
            .map_err(|error| unwritable(&error))
    }

    /// Writes the line only where people read stdout.
    ///
    /// # Errors
    /// When stdout cannot be written to.
    pub fn milestone(&mut self, line: &str) -> Result<()> {
        if self.format == Format::Table {
            self.data(line)
        } else {
            Ok(())
        }
    }

    /// Writes the result in the form that was asked for.
    ///
    /// # Errors
    /// When stdout cannot be written to, or the document cannot be made.
    pub fn result(
        &mut self,
        table: impl FnOnce() -> String,
        names: impl FnOnce() -> Vec<String>,
        document: impl FnOnce() -> Result<Document>,
    ) -> Result<()> {
        match self.format {
            Format::Table => {
                let table = table();
                if table.is_empty() {
                    Ok(())
                } else {
                    self.data(&table)
                }
            }
            Format::Name => names().iter().try_for_each(|name| {
                let name = text::one_line(name).into_owned();
                self.data(&name)
            }),
            format @ (Format::Json | Format::Yaml) => {
                let text = document()?.render(format)?;
                self.raw(&text)
            }
        }
    }

    /// Writes one document of a stream of documents.
    ///
    /// # Errors
    /// When stdout cannot be written to.
    pub fn stream_item(&mut self, document: Document) -> Result<()> {
        let text = if self.format == Format::Yaml {
            format!("---\n{}", document.render(Format::Yaml)?)
        } else {
            output::json::render_line(&document.into_value())?
        };
        self.raw(&text)
    }

    /// Writes words for people to stderr, unless they asked for quiet.
    ///
    /// # Errors
    /// When stderr cannot be written to.
    pub fn note(&mut self, line: &str) -> Result<()> {
        if self.quiet { Ok(()) } else { self.words(line) }
    }

    /// Shows where something stands: on a terminal in one line that is rewritten, elsewhere
    /// in one line per `phase`.
    ///
    /// # Errors
    /// When stderr cannot be written to.
    pub fn progress(&mut self, phase: &str, line: &str) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        if self.live {
            let safe = text::one_line(line);
            let short = text::cut(&safe, columns().saturating_sub(1));
            self.shown = true;
            return write!(self.err, "{ERASE}{short}")
                .and_then(|()| self.err.flush())
                .map_err(|error| unwritable(&error));
        }
        if self.last_phase.as_deref() == Some(phase) {
            return Ok(());
        }
        self.last_phase = Some(phase.to_owned());
        let line = text::one_line(line).into_owned();
        self.words(&line)
    }

    /// Asks for yes or no; anything but yes is no.
    ///
    /// # Errors
    /// When the terminal cannot be read or written.
    pub fn confirm(&mut self, question: &str) -> Result<bool> {
        self.settle()?;
        write!(self.err, "{} [y/N] ", text::one_line(question))
            .and_then(|()| self.err.flush())
            .map_err(|error| unwritable(&error))?;
        let mut answer = String::new();
        io::stdin()
            .lock()
            .read_line(&mut answer)
            .map_err(|error| Failure::local("the answer cannot be read", &error))?;
        Ok(matches!(
            answer.trim().to_ascii_lowercase().as_str(),
            "y" | "yes"
        ))
    }

    /// Takes the live line away.
    ///
    /// # Errors
    /// When stderr cannot be written to.
    pub fn settle(&mut self) -> Result<()> {
        if !self.shown {
            return Ok(());
        }
        self.shown = false;
        write!(self.err, "{ERASE}")
            .and_then(|()| self.err.flush())
            .map_err(|error| unwritable(&error))
    }

    /// Writes a failure in the form that was asked for. There is nobody to tell if that fails.
    pub fn failure(&mut self, failure: &Failure) {
        let _ = self.settle();
        if failure.facts().silent {
            return;
        }
        let text = match self.format {
            Format::Table | Format::Name => text_of(failure),
            format @ (Format::Json | Format::Yaml) => output::failure(failure)
                .render(format)
                .unwrap_or_else(|_| text_of(failure)),
        };
        let _ = self
            .err
            .write_all(text.as_bytes())
            .and_then(|()| self.err.flush());
    }

    fn words(&mut self, lines: &str) -> Result<()> {
        self.settle()?;
        let safe = text::lines(lines);
        writeln!(self.err, "{}", safe.trim_end_matches('\n'))
            .and_then(|()| self.err.flush())
            .map_err(|error| unwritable(&error))
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.settle();
    }
}

/// The error form: further lines of a value are indented under it.
fn text_of(failure: &Failure) -> String {
    let facts = failure.facts();
    let mut all = format!(
        "error[{}]: {}\n",
        text::one_line(&facts.reason),
        text::one_line(&facts.message)
    );
    for (label, value) in [
        ("cause", &facts.cause),
        ("try", &facts.try_this),
        ("trace", &facts.trace_id),
    ] {
        let Some(value) = value else { continue };
        let mut lines = value
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        all.push_str(&format!("  {label}: {}\n", text::one_line(first)));
        for line in lines {
            all.push_str(&format!("    {}\n", text::one_line(line)));
        }
    }
    all
}

/// A reader that went away, as in `cnlab … | head`, is no news to anybody.
fn unwritable(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::silent(Exit::Error);
    }
    Failure::local("the output cannot be written", error)
}

#[cfg(unix)]
fn columns() -> usize {
    rustix::termios::tcgetwinsize(io::stderr())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
        .unwrap_or(DEFAULT_COLUMNS)
}

#[cfg(not(unix))]
fn columns() -> usize {
    DEFAULT_COLUMNS
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Kept {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn console(format: Format) -> (Console, Kept, Kept) {
        let (out, err) = (Kept::default(), Kept::default());
        (
            Console::of_writers(Box::new(out.clone()), Box::new(err.clone()), format),
            out,
            err,
        )
    }

    #[test]
    fn a_pipe_gets_one_line_per_phase() {
        let (mut console, out, err) = console(Format::Table);
        for (phase, line) in [("a", "a 0s"), ("a", "a 1s"), ("b", "b 2s"), ("b", "b 3s")] {
            console.progress(phase, line).unwrap();
        }
        assert_eq!(err.text(), "a 0s\nb 2s\n");
        assert_eq!(out.text(), "");
    }

    #[test]
    fn the_live_line_is_gone_before_data_comes() {
        let (mut console, out, err) = console(Format::Table);
        console.live = true;
        console.progress("a", "a 0s").unwrap();
        console.progress("a", "a 1s").unwrap();
        console.data("✓ Ready: x").unwrap();
        assert_eq!(err.text(), format!("{ERASE}a 0s{ERASE}a 1s{ERASE}"));
        assert_eq!(out.text(), "✓ Ready: x\n");
    }

    #[test]
    fn the_error_form_keeps_every_part_and_no_control_character() {
        let failure = Failure::new(Exit::Conflict, "SERVER_EXISTS", "server \u{1b}[2J exists")
            .caused_by("first line\nsecond line\u{7}\n")
            .try_this("another name")
            .traced(Some("0af7".to_owned()));
        let (mut console, _, err) = console(Format::Table);
        console.failure(&failure);
        assert_eq!(
            err.text(),
            "error[SERVER_EXISTS]: server \\u{1b}[2J exists\n  cause: first line\n    second line\\u{7}\n  \
             try: another name\n  trace: 0af7\n"
        );
    }

    #[test]
    fn machine_forms_get_a_document_and_no_milestones() {
        let failure = Failure::new(Exit::NotFound, "SERVER_NOT_FOUND", "there is no server a");
        let (mut console, out, err) = console(Format::Json);
        console.milestone("✓ Ready").unwrap();
        console.failure(&failure);
        assert_eq!(out.text(), "");
        let said: serde_json::Value = serde_json::from_str(&err.text()).unwrap();
        assert_eq!(said["apiVersion"], "cnlab/v1");
        assert_eq!(said["kind"], "Error");
        assert_eq!(said["exitCode"], 3);
    }
}
