//! Reads the trace: nodes from CSV, pods from gzipped CSV.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use flate2::read::GzDecoder;
use scheduler_core::cluster::{Demand, Kind, KindSet, Node};

/// Why a file of the trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It is no gzip stream of text.
    #[error("{file} cannot be unpacked")]
    Unpack {
        /// Its name.
        file: String,
        /// What the reader said.
        #[source]
        source: std::io::Error,
    },
    /// A column is absent.
    #[error("{file} has no column {column}")]
    Column {
        /// Its name.
        file: String,
        /// The column.
        column: &'static str,
    },
    /// A line has another number of fields than the header.
    #[error("line {line} of {file} has {found} fields instead of {expected}")]
    Fields {
        /// The file.
        file: String,
        /// Its line, from one.
        line: usize,
        /// Fields of the line.
        found: usize,
        /// Fields of the header.
        expected: usize,
    },
    /// A value is no number, or out of range.
    #[error("line {line} of {file}: {column} is {value:?}, not {wanted}")]
    Value {
        /// The file.
        file: String,
        /// Its line, from one.
        line: usize,
        /// The column.
        column: &'static str,
        /// What stands there.
        value: String,
        /// What may stand there.
        wanted: &'static str,
    },
    /// No such workload.
    #[error("there is no workload {0:?}")]
    Workload(String),
}

/// A node as it is when nothing runs on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// What it has.
    pub node: Node,
}

/// A task of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// What it asks for.
    pub demand: Demand,
}

/// The nodes, and the number of each GPU model by its name.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// All nodes, in the order of the file.
    pub hosts: Vec<Host>,
    /// The kind of each model.
    pub kinds: BTreeMap<String, Kind>,
}

/// The columns of a CSV file without quotes.
struct Table<'a> {
    file: &'a str,
    header: Vec<&'a str>,
    rows: Vec<(usize, Vec<&'a str>)>,
}

impl<'a> Table<'a> {
    fn read(file: &'a str, text: &'a str) -> Result<Self, TraceError> {
        let mut lines = text.lines().enumerate();
        let header: Vec<&str> = lines
            .next()
            .map(|(_, line)| line.split(',').collect())
            .unwrap_or_default();
        let mut rows = Vec::new();
        for (index, line) in lines {
            if line.is_empty() {
                continue;
            }
            let fields: Vec<&str> = line.split(',').collect();
            if fields.len() != header.len() {
                return Err(TraceError::Fields {
                    file: file.to_owned(),
                    line: index + 1,
                    found: fields.len(),
                    expected: header.len(),
                });
            }
            rows.push((index + 1, fields));
        }
        Ok(Self { file, header, rows })
    }

    fn find(&self, column: &str) -> Option<usize> {
        self.header.iter().position(|&name| name == column)
    }

    fn column(&self, column: &'static str) -> Result<Column<'a>, TraceError> {
        let index = self.find(column).ok_or_else(|| TraceError::Column {
            file: self.file.to_owned(),
            column,
        })?;
        Ok(Column {
            file: self.file,
            column,
            index,
        })
    }
}

struct Column<'a> {
    file: &'a str,
    column: &'static str,
    index: usize,
}

impl Column<'_> {
    fn text<'r>(&self, row: &(usize, Vec<&'r str>)) -> &'r str {
        row.1.get(self.index).copied().unwrap_or("")
    }

    fn number(&self, row: &(usize, Vec<&str>)) -> Result<u32, TraceError> {
        let number = self.text(row).parse();
        number.map_err(|_| self.refused(row, "a whole number below 2^32"))
    }

    fn refused(&self, row: &(usize, Vec<&str>), wanted: &'static str) -> TraceError {
        TraceError::Value {
            file: self.file.to_owned(),
            line: row.0,
            column: self.column,
            value: self.text(row).to_owned(),
            wanted,
        }
    }
}

/// Reads a list of nodes. Models are numbered in alphabetical order.
pub fn hosts(file: &str, text: &str) -> Result<Hosts, TraceError> {
    let table = Table::read(file, text)?;
    let (name, cpu) = (table.column("sn")?, table.column("cpu_milli")?);
    let (memory, gpus) = (table.column("memory_mib")?, table.column("gpu")?);
    let model = table.column("model")?;
    let names: BTreeSet<&str> = table.rows.iter().map(|row| model.text(row)).collect();
    let kinds: BTreeMap<String, Kind> = names
        .into_iter()
        .map(ToOwned::to_owned)
        .zip((0..Kind::LIMIT).filter_map(Kind::new))
        .collect();
    let mut hosts = Vec::with_capacity(table.rows.len());
    for row in &table.rows {
        let kind = kinds
            .get(model.text(row))
            .ok_or_else(|| model.refused(row, "one of at most 64 models"))?;
        let count = u8::try_from(gpus.number(row)?).unwrap_or(u8::MAX);
        let node = Node::new(*kind, cpu.number(row)?, memory.number(row)?, count)
            .map_err(|_| gpus.refused(row, "at most 16"))?;
        hosts.push(Host {
            name: name.text(row).to_owned(),
            node,
        });
    }
    Ok(Hosts { hosts, kinds })
}

/// Reads a list of pods. Among accepted models one that no node has says nothing.
pub fn pods(
    file: &str,
    text: &str,
    kinds: &BTreeMap<String, Kind>,
) -> Result<Vec<Pod>, TraceError> {
    let table = Table::read(file, text)?;
    let (name, cpu) = (table.column("name")?, table.column("cpu_milli")?);
    let (memory, gpus) = (table.column("memory_mib")?, table.column("num_gpu")?);
    let milli = table.column("gpu_milli")?;
    // The multigpu workloads have the first five columns only.
    let spec = table.column("gpu_spec").ok();
    let mut pods = Vec::with_capacity(table.rows.len());
    for row in &table.rows {
        let (cpu, memory) = (cpu.number(row)?, memory.number(row)?);
        let count = u8::try_from(gpus.number(row)?).unwrap_or(u8::MAX);
        let blocks = match milli.number(row)? {
            milli @ 0..=1000 if milli % 10 == 0 => u8::try_from(milli / 10).unwrap_or(u8::MAX),
            _ => return Err(milli.refused(row, "a multiple of 10 up to 1000")),
        };
        let demand = match (count, blocks) {
            (0, 0) => Ok(Demand::cpu_only(cpu, memory)),
            (1, 1..=100) => Demand::share(cpu, memory, blocks),
            (2.., 100) => Demand::whole(cpu, memory, count),
            _ => return Err(milli.refused(row, "a share that goes with num_gpu")),
        };
        let demand = demand.map_err(|_| gpus.refused(row, "at most 16"))?;
        let demand = match spec.as_ref().map_or("", |spec| spec.text(row)) {
            "" => demand,
            accepted => {
                let known: Vec<Kind> = accepted
                    .split('|')
                    .filter_map(|model| kinds.get(model).copied())
                    .collect();
                if let (Some(spec), true) = (spec.as_ref(), known.is_empty()) {
                    return Err(spec.refused(row, "models of which a node has one"));
                }
                demand.on(known.into_iter().collect::<KindSet>())
            }
        };
        pods.push(Pod {
            name: name.text(row).to_owned(),
            demand,
        });
    }
    Ok(pods)
}

/// Unpacks a gzip stream of text.
pub fn unpack(file: &str, bytes: &[u8]) -> Result<String, TraceError> {
    let mut text = String::new();
    GzDecoder::new(bytes)
        .read_to_string(&mut text)
        .map_err(|source| TraceError::Unpack {
            file: file.to_owned(),
            source,
        })?;
    Ok(text)
}
