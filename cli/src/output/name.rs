//! Names that can be given back to other commands.

use std::collections::BTreeMap;

use cnlab_proto::scheduler::v1 as pb;

/// The shortest text that means this server among the given ones: its name, or
/// `owner/slug/name` where another project has the same name.
#[must_use]
pub fn servers(servers: &[pb::Server]) -> Vec<String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for server in servers {
        *seen.entry(server.name.as_str()).or_default() += 1;
    }
    servers
        .iter()
        .map(|server| {
            if seen
                .get(server.name.as_str())
                .is_some_and(|times| *times > 1)
            {
                format!("{}/{}", server.project, server.name)
            } else {
                server.name.clone()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ambiguous_names_get_their_project() {
        let server = |project: &str, name: &str| pb::Server {
            project: project.to_owned(),
            name: name.to_owned(),
            ..pb::Server::default()
        };
        assert_eq!(
            servers(&[
                server("a/x", "one"),
                server("b/y", "one"),
                server("a/x", "two")
            ]),
            ["a/x/one", "b/y/one", "two"]
        );
    }
}
