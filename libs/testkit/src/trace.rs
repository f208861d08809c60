//! Checks that a set of spans is one unbroken trace, and shows it as a tree.

use std::collections::BTreeMap;
use std::fmt;

use crate::SpanRecord;

/// Spans of one trace with exactly one root and no unknown parent.
#[derive(Debug, Clone)]
pub struct TraceTree {
    spans: Vec<SpanRecord>,
    /// Index of the root in `spans`.
    root: usize,
    /// Indices of the children of each span, by start time.
    children: Vec<Vec<usize>>,
}

impl TraceTree {
    /// Builds the tree.
    ///
    /// # Errors
    /// When the spans are of several traces, when one's parent is not among them, when there is
    /// not exactly one root, when two share an id, or when parents form a ring. The text names the
    /// spans at fault.
    pub fn build(mut spans: Vec<SpanRecord>) -> Result<Self, String> {
        spans.sort_by(|a, b| (a.start_ns, &a.span_id).cmp(&(b.start_ns, &b.span_id)));
        let Some(first) = spans.first() else {
            return Err("there are no spans".to_owned());
        };
        if let Some(other) = spans.iter().find(|span| span.trace_id != first.trace_id) {
            return Err(format!(
                "more than one trace: {} and {}",
                show(first),
                show(other)
            ));
        }
        let mut index = BTreeMap::new();
        for (at, span) in spans.iter().enumerate() {
            if index.insert(span.span_id.as_str(), at).is_some() {
                return Err(format!("the span id of {} is used twice", show(span)));
            }
        }
        let mut children = vec![Vec::new(); spans.len()];
        let mut roots = Vec::new();
        for (at, span) in spans.iter().enumerate() {
            let Some(parent) = &span.parent_span_id else {
                roots.push(at);
                continue;
            };
            match index
                .get(parent.as_str())
                .and_then(|parent| children.get_mut(*parent))
            {
                Some(siblings) => siblings.push(at),
                None => return Err(format!("the parent {parent} of {} is unknown", show(span))),
            }
        }
        let &[root] = roots.as_slice() else {
            let names: Vec<_> = roots
                .iter()
                .filter_map(|at| spans.get(*at))
                .map(show)
                .collect();
            return Err(format!(
                "expected one root, found {}: {}",
                roots.len(),
                names.join(", ")
            ));
        };
        let tree = Self {
            spans,
            root,
            children,
        };
        // Spans in a ring each have a known parent, and are still not below the root.
        if tree.walk().len() != tree.spans.len() {
            return Err("some spans are each other's parents".to_owned());
        }
        Ok(tree)
    }

    /// The span that has no parent.
    #[must_use]
    pub fn root(&self) -> &SpanRecord {
        &self.spans[self.root]
    }

    /// All spans, by start time.
    #[must_use]
    pub fn spans(&self) -> &[SpanRecord] {
        &self.spans
    }

    /// The first span, by start time, with this service and name.
    #[must_use]
    pub fn find(&self, service: &str, name: &str) -> Option<&SpanRecord> {
        self.spans
            .iter()
            .find(|span| span.service == service && span.name == name)
    }

    /// The services that took part, in the order in which they were first called.
    #[must_use]
    pub fn services(&self) -> Vec<&str> {
        let mut services: Vec<&str> = Vec::new();
        for (_, span) in self.walk() {
            if !services.contains(&span.service.as_str()) {
                services.push(&span.service);
            }
        }
        services
    }

    /// The spans from the root down to `span_id`; empty when there is no such span.
    #[must_use]
    pub fn path_to(&self, span_id: &str) -> Vec<&SpanRecord> {
        let by_id: BTreeMap<_, _> = self
            .spans
            .iter()
            .map(|span| (span.span_id.as_str(), span))
            .collect();
        let mut path = Vec::new();
        let mut next = by_id.get(span_id);
        while let Some(span) = next {
            path.push(*span);
            next = span.parent_span_id.as_deref().and_then(|id| by_id.get(id));
        }
        path.reverse();
        path
    }

    /// Depth and span, parents before children.
    fn walk(&self) -> Vec<(usize, &SpanRecord)> {
        let mut seen = Vec::new();
        let mut todo = vec![(0, self.root)];
        while let Some((depth, at)) = todo.pop() {
            seen.push((depth, &self.spans[at]));
            todo.extend(
                self.children[at]
                    .iter()
                    .rev()
                    .map(|child| (depth + 1, *child)),
            );
        }
        seen
    }
}

impl fmt::Display for TraceTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, span) in self.walk() {
            writeln!(f, "{:indent$}{}", "", show(span), indent = depth * 2)?;
        }
        Ok(())
    }
}

fn show(span: &SpanRecord) -> String {
    format!(
        "{} {} [{}/{}]",
        span.service, span.name, span.trace_id, span.span_id
    )
}
