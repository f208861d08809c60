//! Reads structs and enums with their comments out of Rust files, as far as configurations
//! need it: one field or variant a line, as rustfmt writes them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A field of a struct.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// Its type, as written.
    pub(crate) kind: String,
    /// Its comment in one line.
    pub(crate) doc: String,
    /// Whether serde has a default for it alone.
    pub(crate) has_default: bool,
}

/// Something with a name.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Struct {
        doc: String,
        fields: Vec<Field>,
    },
    /// Names as serde writes them, with their comments.
    Enum {
        variants: Vec<(String, String)>,
    },
}

/// The structs and enums of some files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source(BTreeMap<String, Item>);

impl Source {
    /// Those of these files.
    pub(crate) fn read(files: impl IntoIterator<Item = PathBuf>) -> Self {
        files
            .into_iter()
            .fold(Self::default(), |all, file| all.with(&file))
    }

    /// And those of one more.
    pub(crate) fn with(mut self, file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap();
        self.parse(text.split("#[cfg(test)]").next().unwrap_or_default());
        self
    }

    /// The item of this name.
    pub(crate) fn item(&self, name: &str) -> Option<&Item> {
        self.0.get(name)
    }

    fn parse(&mut self, text: &str) {
        let mut doc = Vec::new();
        let mut has_default = false;
        let mut open: Option<(String, Item)> = None;
        for line in text.lines() {
            let code = line.trim();
            if let Some(comment) = code.strip_prefix("///") {
                doc.push(comment.trim().to_owned());
                continue;
            }
            if code.starts_with("#[") {
                has_default |= code.starts_with("#[serde(default");
                continue;
            }
            match &mut open {
                Some(_) if line == "}" => {
                    if let Some((name, item)) = open.take() {
                        self.0.insert(name, item);
                    }
                }
                Some((_, Item::Struct { fields, .. })) => {
                    if let Some((name, kind)) = code
                        .strip_prefix("pub ")
                        .and_then(|field| field.strip_suffix(',')?.split_once(": "))
                    {
                        fields.push(Field {
                            name: name.to_owned(),
                            kind: kind.to_owned(),
                            doc: one_line(&doc),
                            has_default,
                        });
                    }
                }
                Some((_, Item::Enum { variants })) => {
                    if let Some(name) = code.strip_suffix(',') {
                        variants.push((name.to_lowercase(), one_line(&doc)));
                    }
                }
                None => {
                    let opened = |keyword: &str| {
                        let name = line.strip_prefix(keyword)?.strip_suffix(" {")?;
                        Some(name.to_owned())
                    };
                    if let Some(name) = opened("pub struct ") {
                        let doc = one_line(&doc);
                        open = Some((
                            name,
                            Item::Struct {
                                doc,
                                fields: Vec::new(),
                            },
                        ));
                    } else if let Some(name) = opened("pub enum ") {
                        open = Some((
                            name,
                            Item::Enum {
                                variants: Vec::new(),
                            },
                        ));
                    }
                }
            }
            doc.clear();
            has_default = false;
        }
    }
}

/// A comment in one line, with links of rustdoc as plain code.
fn one_line(doc: &[String]) -> String {
    doc.iter()
        .filter(|line| !line.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join(" ")
        .replace("[`", "`")
        .replace("`]", "`")
}
