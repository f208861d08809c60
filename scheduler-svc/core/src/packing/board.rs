//! Keeps, for each class, the score of every node, and recomputes only what changed.
//!
//! A decision equals an exhaustive scan: the highest score wins, of equals the first node.
//! A score may depend on nothing but the node that it is for.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "the innermost loop of every decision; all indices come from one list of nodes"
)]

use super::{Class, Free};

/// Rates a node for a class.
pub trait Score {
    /// The score, higher is better, or `None` when a task of the class does not fit, its memory
    /// aside. At least zero.
    fn score(&self, index: usize, node: &Free, class: &Class) -> Option<i16>;
}

/// Does not fit.
const NONE: i16 = -1;

/// The nodes, and what each is worth to each class.
#[derive(Debug, Clone)]
pub struct Board<S> {
    score: S,
    nodes: Vec<Free>,
    memory: Vec<u32>,
    rows: Vec<Option<Row>>,
    /// The nodes that changed, in order.
    log: Vec<u32>,
    /// For each node, its last place in the log, plus one.
    last: Vec<usize>,
}

#[derive(Debug, Clone)]
struct Row {
    seen: usize,
    scores: Vec<i16>,
}

impl<S: Score> Board<S> {
    /// A board for `nodes`, in the order in which ties are broken.
    #[must_use]
    pub fn new(nodes: Vec<Free>, score: S) -> Self {
        Self {
            score,
            memory: nodes.iter().map(|node| node.memory).collect(),
            last: vec![0; nodes.len()],
            nodes,
            rows: Vec::new(),
            log: Vec::new(),
        }
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Free] {
        &self.nodes
    }

    /// What rates them.
    pub fn scorer(&self) -> &S {
        &self.score
    }

    /// What rates them, to be told of a change. Follow it by [`Board::set`] for each node whose
    /// score changes by it, or by [`Board::forget`].
    pub fn scorer_mut(&mut self) -> &mut S {
        &mut self.score
    }

    /// Replaces what rates them.
    pub fn rescore(&mut self, score: S) {
        self.score = score;
        self.rows.clear();
        self.forget();
    }

    /// Replaces what is free on every node.
    pub fn replace(&mut self, nodes: Vec<Free>) {
        self.memory = nodes.iter().map(|node| node.memory).collect();
        self.last = vec![0; nodes.len()];
        self.nodes = nodes;
        self.forget();
    }

    /// Forgets all scores.
    pub fn forget(&mut self) {
        for row in self.rows.iter_mut().flatten() {
            row.seen = usize::MAX;
        }
        self.log.clear();
        self.last.fill(0);
    }

    /// Replaces what is free on a node.
    pub fn set(&mut self, index: usize, node: Free) {
        self.memory[index] = node.memory;
        self.nodes[index] = node;
        #[expect(clippy::cast_possible_truncation, reason = "nodes number below 2^32")]
        self.log.push(index as u32);
        self.last[index] = self.log.len();
    }

    /// The scores of all nodes for a class; `id` is the caller's number for it.
    fn row(&mut self, id: usize, class: &Class) -> &[i16] {
        if self.rows.len() <= id {
            self.rows.resize(id + 1, None);
        }
        let count = self.nodes.len();
        let row = self.rows[id].get_or_insert_with(|| Row {
            seen: usize::MAX,
            scores: vec![NONE; count],
        });
        if row.seen == usize::MAX || self.log.len() - row.seen > count {
            for (index, node) in self.nodes.iter().enumerate() {
                row.scores[index] = self.score.score(index, node, class).unwrap_or(NONE);
            }
        } else {
            for place in row.seen..self.log.len() {
                let index = self.log[place] as usize;
                if self.last[index] == place + 1 {
                    let node = &self.nodes[index];
                    row.scores[index] = self.score.score(index, node, class).unwrap_or(NONE);
                }
            }
        }
        row.seen = self.log.len();
        &row.scores
    }

    /// The node with the highest score among those where a task of the class and its memory
    /// fit; of equals the first.
    pub fn best(&mut self, id: usize, class: &Class, memory: u32) -> Option<usize> {
        let memories = std::mem::take(&mut self.memory);
        let row = self.row(id, class);
        let top = row.iter().copied().max().unwrap_or(NONE);
        let found = if top == NONE {
            None
        } else {
            let first = row
                .iter()
                .zip(&memories)
                .position(|(&score, &free)| score == top && free >= memory);
            first.or_else(|| second_best(row, &memories, memory))
        };
        self.memory = memories;
        found
    }

    /// How many nodes have room for a task.
    pub fn fitting(&mut self, id: usize, class: &Class, memory: u32) -> usize {
        let memories = std::mem::take(&mut self.memory);
        let row = self.row(id, class);
        let count = row
            .iter()
            .zip(&memories)
            .filter(|&(&score, &free)| score != NONE && free >= memory)
            .count();
        self.memory = memories;
        count
    }

    /// The n-th node, from zero, of those that have room for a task.
    pub fn nth_fitting(
        &mut self,
        id: usize,
        class: &Class,
        memory: u32,
        n: usize,
    ) -> Option<usize> {
        let memories = std::mem::take(&mut self.memory);
        let row = self.row(id, class);
        let found = row
            .iter()
            .zip(&memories)
            .enumerate()
            .filter(|&(_, (&score, &free))| score != NONE && free >= memory)
            .map(|(index, _)| index)
            .nth(n);
        self.memory = memories;
        found
    }
}

/// The slow way, for when the best nodes lack memory.
fn second_best(row: &[i16], memories: &[u32], memory: u32) -> Option<usize> {
    let mut best: Option<(i16, usize)> = None;
    for (index, (&score, &free)) in row.iter().zip(memories).enumerate() {
        if score != NONE && free >= memory && best.is_none_or(|(top, _)| score > top) {
            best = Some((score, index));
        }
    }
    best.map(|(_, index)| index)
}
