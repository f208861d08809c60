//! Names that can be given back to other commands.

use std::collections::BTreeMap;

use cnlab_proto::scheduler::v1 as pb;

/// The shortest text that means this server among the given ones: its name, or
/// `owner/slug/name` where another project has the same name.
#[must_use]
pub fn servers(servers: &[pb::Server]) -> Vec<String> {
    let names = servers
        .iter()
        .map(|server| (server.project.as_str(), server.name.as_str()));
    shortest(&names.collect::<Vec<_>>())
}

/// The same for runs.
#[must_use]
pub fn runs(runs: &[pb::Run]) -> Vec<String> {
    let names = runs
        .iter()
        .map(|run| (run.project.as_str(), run.name.as_str()));
    shortest(&names.collect::<Vec<_>>())
}

/// The name of each node, or its id where another one has the same name.
#[must_use]
pub fn nodes(nodes: &[pb::Node]) -> Vec<String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes {
        *seen.entry(node.name.as_str()).or_default() += 1;
    }
    nodes
        .iter()
        .map(|node| match seen.get(node.name.as_str()) {
            Some(times) if *times > 1 => node.id.clone(),
            Some(_) | None => node.name.clone(),
        })
        .collect()
}

fn shortest(names: &[(&str, &str)]) -> Vec<String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, name) in names {
        *seen.entry(name).or_default() += 1;
    }
    names
        .iter()
        .map(|(project, name)| match seen.get(name) {
            Some(times) if *times > 1 => format!("{project}/{name}"),
            Some(_) | None => (*name).to_owned(),
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
