//! `docs/configuration.md` against the code: keys and meanings from the `config.rs` files,
//! defaults from what the real binaries print.
//!
//! **Invariant**: a key that a binary prints and no documented field explains fails the test,
//! and so does a field without a comment.

use std::{fmt::Write as _, fs, path::PathBuf, process::Command};

use cnlab_testkit::ScratchDir;
use cnlab_tests::cli::binary;
use toml::{Table, Value};

use crate::{
    root,
    rust_source::{Field, Item, Source},
};

/// The services in the order of the page.
const SERVICES: &[&str] = &[
    "gateway",
    "scheduler-svc",
    "node-svc",
    "billing-svc",
    "migration-svc",
    "cloud-svc",
];

/// Where the parts of a configuration that several services have are described.
const SHARED: &[&str] = &["libs/service/src/config.rs", "libs/db/src/config.rs"];

/// Stands in for a deployment's key; a configuration without one is not printed.
const KEY: &str = "stands-in-for-the-key-of-a-deployment";

const PAGE: &str = "docs/configuration.md";

const INTRODUCTION: &str = include_str!("configuration.md");

#[test]
fn the_configuration_page_says_what_the_code_does() {
    let made = page();
    let path = root().join(PAGE);
    if std::env::var_os("REWRITE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let differs = made
        .lines()
        .zip(kept.lines())
        .find(|(made, kept)| made != kept);
    assert!(
        made == kept,
        "{PAGE} differs from the code, first in {differs:?}: accept with \
         REWRITE=1 cargo test -p cnlab-tests --test conformance"
    );
}

/// Every `toml` block that begins with `# /etc/cnlab/<service>.toml`, with the variables of the
/// block for its `.env` file, is a configuration that the service takes.
#[test]
fn the_files_of_the_deployment_guide_make_sense() {
    let guide = fs::read_to_string(root().join("docs/guide/deployment.md")).unwrap();
    let block = |service: &str, extension: &str| {
        let head = format!("\n# /etc/cnlab/{service}.{extension}\n");
        let (_, rest) = guide.split_once(&head)?;
        Some(rest.split("\n```").next().unwrap_or_default().to_owned())
    };
    let folder = ScratchDir::new("deployment").unwrap();
    for service in ["gateway", "scheduler-svc", "node-svc", "billing-svc"] {
        let file = folder.path().join(format!("{service}.toml"));
        fs::write(&file, block(service, "toml").unwrap()).unwrap();
        let variables = block(service, "env").unwrap();
        let output = Command::new(binary(service).unwrap())
            .arg("check-config")
            .arg("--config")
            .arg(&file)
            .env_clear()
            .envs(variables.lines().map(|line| {
                let (name, value) = line.split_once('=').unwrap();
                // The guide does not print a key that somebody might use.
                (name, if value == "the-key" { KEY } else { value })
            }))
            .output()
            .unwrap();
        assert!(output.status.success(), "{service}: {output:?}");
    }
}

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let shared = Source::read(SHARED.iter().map(|path| root().join(path)));
    let printed: Vec<(&str, Table)> = SERVICES
        .iter()
        .map(|service| (*service, print_config(service)))
        .collect();

    page.push_str("\n## Every service: `[common]`\n\n");
    page.push_str(
        "Each service listens on a port of its own:\n\n| service | `common.listen` |\n|---|---|\n",
    );
    for (service, config) in &printed {
        let listen = config["common"]["listen"].as_str().unwrap();
        writeln!(page, "| {service} | `{listen}` |").unwrap();
    }
    let (_, first) = printed.first().unwrap();
    let mut common = Section::new("common");
    common.fill(&shared, "CommonConfig", first["common"].as_table().unwrap());
    common.flatten();
    for row in &mut common.rows {
        // It differs from service to service, as the list above says.
        if row.key == "common.listen" {
            row.default = "see above".to_owned();
        }
    }
    common.write(&mut page);

    for (service, mut config) in printed {
        let source = own_files(service)
            .iter()
            .fold(shared.clone(), |source, file| source.with(file));
        let variable = service.replace('-', "_").to_uppercase();
        writeln!(page, "\n## {service}\n").unwrap();
        writeln!(
            page,
            "Variables begin with `CNLAB_{variable}__`; the table `[common]` above applies."
        )
        .unwrap();
        config.remove("common").unwrap();
        let mut own = Section::new("");
        own.skip.push("common".to_owned());
        own.fill(&source, "Config", &config);
        own.write(&mut page);
    }
    page
}

/// Where a service describes its own configuration.
fn own_files(service: &str) -> Vec<PathBuf> {
    let folder = root().join(service).join("src");
    let inner = fs::read_dir(folder.join("config")).into_iter().flatten();
    let mut files: Vec<PathBuf> = inner.map(|file| file.unwrap().path()).collect();
    files.push(folder.join("config.rs"));
    files.sort();
    files
}

/// What `print-config` of a service prints when nothing but a key is given.
fn print_config(service: &str) -> Table {
    let variable = format!(
        "CNLAB_{}__COMMON__INTERNAL_KEY",
        service.replace('-', "_").to_uppercase()
    );
    let output = Command::new(binary(service).unwrap())
        .arg("print-config")
        .env_clear()
        .env(variable, KEY)
        .output()
        .unwrap();
    assert!(output.status.success(), "{service}: {output:?}");
    toml::from_str(std::str::from_utf8(&output.stdout).unwrap()).unwrap()
}

/// One line of a table.
struct Row {
    key: String,
    kind: String,
    default: String,
    meaning: String,
}

/// The keys of one table of a configuration, and the tables inside it.
struct Section {
    path: String,
    doc: String,
    rows: Vec<Row>,
    inner: Vec<Section>,
    /// A list of tables: what holds when it is not given.
    list: Option<String>,
    /// Fields that are described elsewhere.
    skip: Vec<String>,
}

impl Section {
    fn new(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            doc: String::new(),
            rows: Vec::new(),
            inner: Vec::new(),
            list: None,
            skip: Vec::new(),
        }
    }

    fn fill(&mut self, source: &Source, name: &str, printed: &Table) {
        let Some(Item::Struct { doc, fields }) = source.item(name) else {
            panic!("no file of the configuration has a struct {name}");
        };
        self.doc.clone_from(doc);
        let known: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        for key in printed.keys() {
            assert!(
                known.contains(&key.as_str()),
                "{name} is said to have no field {key}, and yet it is printed"
            );
        }
        for field in fields {
            if self.skip.contains(&field.name) {
                continue;
            }
            assert!(
                !field.doc.is_empty(),
                "{name}.{} has no comment that says what it is",
                field.name
            );
            self.add(source, field, printed.get(&field.name));
        }
    }

    fn add(&mut self, source: &Source, field: &Field, printed: Option<&Value>) {
        let key = if self.path.is_empty() {
            field.name.clone()
        } else {
            format!("{}.{}", self.path, field.name)
        };
        let inside = |wrapper: &str| {
            field
                .kind
                .strip_prefix(wrapper)
                .and_then(|rest| rest.strip_prefix('<')?.strip_suffix('>'))
        };
        if let Some(element) = inside("Vec")
            && source.item(element).is_some()
        {
            let mut section = Self::new(&key);
            section.fill(source, element, &Table::new());
            section.doc.clone_from(&field.doc);
            let default = Table::from_iter([(field.name.clone(), printed.unwrap().clone())]);
            let mut outer = Table::new();
            match self.path.rsplit_once('.') {
                _ if self.path.is_empty() => outer = default,
                None => drop(outer.insert(self.path.clone(), Value::Table(default))),
                Some(_) => panic!("{key}: a list of tables so deep is not foreseen"),
            }
            section.list = Some(toml::to_string(&outer).unwrap());
            self.inner.push(section);
        } else if let Some(Item::Struct { .. }) = source.item(&field.kind) {
            let mut section = Self::new(&key);
            let empty = Table::new();
            section.fill(
                source,
                &field.kind,
                printed.map_or(&empty, |value| value.as_table().unwrap()),
            );
            if section.doc.is_empty() {
                section.doc.clone_from(&field.doc);
            }
            self.inner.push(section);
        } else {
            let optional = inside("Option");
            let kind = optional.unwrap_or(&field.kind);
            let default = match printed {
                Some(Value::String(text)) if kind == "Secret" && text == "***" => {
                    "required".to_owned()
                }
                Some(Value::String(text)) if text.is_empty() => "none".to_owned(),
                Some(Value::Table(table)) if table.is_empty() => "none".to_owned(),
                Some(value) => format!("`{value}`"),
                None if optional.is_some() || kind.starts_with("BTreeMap") => "none".to_owned(),
                // Inside a list of tables, where nothing is printed for a missing entry.
                None if self.path.contains('.') => {
                    if field.has_default { "`1`" } else { "required" }.to_owned()
                }
                None => panic!(
                    "{key} is not printed, and yet it is not optional (are the binaries up to date?)"
                ),
            };
            self.rows.push(Row {
                kind: kind_in_words(source, &key, kind),
                default,
                meaning: meaning(source, field, kind),
                key,
            });
        }
    }

    /// Takes the keys of the tables inside in.
    fn flatten(&mut self) {
        for mut section in std::mem::take(&mut self.inner) {
            section.flatten();
            self.rows.append(&mut section.rows);
        }
    }

    fn write(&self, page: &mut String) {
        if !self.path.is_empty() && self.path != "common" {
            let name = if self.list.is_some() {
                format!("[[{}]]", self.path)
            } else {
                format!("[{}]", self.path)
            };
            writeln!(page, "\n### `{name}`\n\n{}", self.doc).unwrap();
        }
        if !self.rows.is_empty() {
            page.push_str("\n| key | value | default | meaning |\n|---|---|---|---|\n");
            for row in &self.rows {
                writeln!(
                    page,
                    "| `{}` | {} | {} | {} |",
                    row.key, row.kind, row.default, row.meaning
                )
                .unwrap();
            }
        }
        if let Some(list) = &self.list {
            writeln!(page, "\nWithout an entry:\n\n```toml\n{}\n```", list.trim()).unwrap();
        }
        for section in &self.inner {
            section.write(page);
        }
    }
}

/// How a type is written that is more than its variants.
fn written(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "GpuLimit" => "amount of GPUs, `\"unlimited\"`",
        "CountLimit" => "whole number, `\"unlimited\"`",
        "BTreeMap<String, GpuLimit>" => "amounts of GPUs by type of GPU",
        _ => return None,
    })
}

/// What a value looks like, for people.
fn kind_in_words(source: &Source, key: &str, kind: &str) -> String {
    if let Some(words) = written(kind) {
        return words.to_owned();
    }
    if let Some(Item::Enum { variants, .. }) = source.item(kind) {
        return variants
            .iter()
            .map(|(name, _)| format!("`\"{name}\"`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    match kind {
        "String" => "text",
        "TeamId" => "id, `team_…`",
        "PathBuf" => "path",
        "Secret" => "secret",
        "Span" => "span",
        "ByteSize" => "size",
        "SocketAddr" => "address and port",
        "bool" => "`true`, `false`",
        "u16" | "u32" | "u64" | "usize" => "whole number",
        other => panic!("{key}: say in the conformance test how a {other} is written"),
    }
    .to_owned()
}

fn meaning(source: &Source, field: &Field, kind: &str) -> String {
    let mut text = field.doc.clone();
    if written(kind).is_none()
        && let Some(Item::Enum { variants, .. }) = source.item(kind)
    {
        for (name, doc) in variants {
            let doc = doc.trim_end_matches('.');
            write!(text, " `{name}`: {}{}.", doc[..1].to_lowercase(), &doc[1..]).unwrap();
        }
    }
    text.replace('|', "\\|")
}
