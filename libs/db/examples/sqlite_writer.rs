//! Writes to an SQLite file until it fails or is killed, for the tests of crashes and full disks.
//!
//! `sqlite_writer <file>` prints one line per acknowledged transaction, and the error that
//! ended it, in the form `REASON: text; try: …`. With `patient` behind it, it goes on after an
//! error of the full disk.

use std::{io::Write, path::Path, process::ExitCode, time::Duration};

use cnlab_db::{DatabaseConfig, Db, DbError, kit_migrations, migrate, outbox};
use cnlab_model::{Fault, Timestamp};
use sea_orm_migration::{MigrationTrait, MigratorTrait};

const UNREAD: &str = "nobody reads the output";

struct Tables;

impl MigratorTrait for Tables {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        kit_migrations()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(file) = arguments.next() else {
        return ExitCode::from(2);
    };
    let patient = arguments.next().is_some();
    let Err(error) = write_for_ever(Path::new(&file), patient).await;
    match tell(&error) {
        Ok(()) => ExitCode::FAILURE,
        Err(_) => ExitCode::from(3),
    }
}

fn tell(error: &DbError) -> std::io::Result<()> {
    let hint = error.try_this().unwrap_or_default();
    let mut out = std::io::stdout();
    writeln!(out, "{}: {error}; try: {hint}", error.reason())?;
    out.flush()
}

async fn write_for_ever(file: &Path, patient: bool) -> Result<std::convert::Infallible, DbError> {
    let db = Db::connect(&DatabaseConfig::sqlite(file)).await?;
    migrate::<Tables>(&db).await?;
    let mut number = 0_u64;
    loop {
        let written = db
            .write(|tx| async move {
                let message = outbox::NewMessage {
                    topic: "crash".to_owned(),
                    aggregate: number.to_string(),
                    destination: "test".to_owned(),
                    payload: serde_json::json!({ "number": number, "fill": "x".repeat(2_000) }),
                    traceparent: None,
                    now: Timestamp(0),
                };
                outbox::push(&tx, message).await
            })
            .await;
        let id = match written {
            Err(error @ DbError::DiskFull { .. }) if patient => {
                tell(&error).map_err(|_| DbError::Config(UNREAD.to_owned()))?;
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            written => written?,
        };
        number += 1;
        let mut out = std::io::stdout();
        // The reader of these lines is gone with the test, and so is the reason to go on.
        if writeln!(out, "{id}").and_then(|()| out.flush()).is_err() {
            return Err(DbError::Config(UNREAD.to_owned()));
        }
    }
}
