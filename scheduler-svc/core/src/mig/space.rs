//! Every layout that a GPU can have, as numbers, with the ways between them.

use std::collections::BTreeMap;

use cnlab_model::mig::{Grid, Layout, Shape};

/// A layout by its position among all of its grid, media engines disregarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct State(u16);

impl State {
    pub(super) const fn get(self) -> usize {
        self.0 as usize
    }
}

/// One way from a layout to a fuller one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// What is added.
    pub(super) shape: Shape,
    /// Where.
    pub(super) start: u8,
    /// What comes of it.
    pub(super) to: State,
}

/// The layouts of one grid and the steps between them: 723 of seven compute slices, 26 of
/// four.
///
/// **Invariant**: states are numbered in the order of their layouts; the steps of a state are
/// in the order of shapes, then start indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Space {
    grid: Grid,
    states: BTreeMap<Layout, State>,
    /// Of each state: what may be added.
    up: Vec<Vec<Step>>,
    /// Of each state: what remains when one of its instances leaves, by rising start index.
    down: Vec<Vec<State>>,
}

impl Space {
    /// Enumerates the layouts of a grid.
    pub(super) fn new(grid: Grid) -> Self {
        let plain = || Shape::ALL.into_iter().filter(|shape| !shape.media());
        let mut states = BTreeMap::from([(Layout::new(grid), State(0))]);
        let mut fresh = vec![Layout::new(grid)];
        while let Some(layout) = fresh.pop() {
            for shape in plain() {
                for next in layout
                    .starts(shape)
                    .filter_map(|at| layout.with(shape, at).ok())
                {
                    if states.insert(next, State(0)).is_none() {
                        fresh.push(next);
                    }
                }
            }
        }
        for (number, state) in (0..).zip(states.values_mut()) {
            *state = State(number);
        }
        let state_of = |layout: Layout| states.get(&layout).copied();
        let up = states
            .keys()
            .map(|layout| {
                let steps = plain().flat_map(|shape| {
                    layout.starts(shape).filter_map(move |start| {
                        let to = state_of(layout.with(shape, start).ok()?)?;
                        Some(Step { shape, start, to })
                    })
                });
                steps.collect()
            })
            .collect();
        let down = states
            .keys()
            .map(|layout| {
                layout
                    .instances()
                    .filter_map(|instance| state_of(layout.without(instance.start)))
                    .collect()
            })
            .collect();
        Self {
            grid,
            states,
            up,
            down,
        }
    }

    /// Which grid it is of.
    pub(super) const fn grid(&self) -> Grid {
        self.grid
    }

    /// The state of a layout of this grid.
    pub(super) fn state(&self, layout: Layout) -> Option<State> {
        self.states.get(&layout.plain()).copied()
    }

    /// Every state with what may be added to it and what remains when one instance leaves.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&[Step], &[State])> {
        self.up
            .iter()
            .zip(&self.down)
            .map(|(up, down)| (up.as_slice(), down.as_slice()))
    }

    /// What may be added to a state.
    pub(super) fn steps(&self, state: State) -> &[Step] {
        self.up.get(state.get()).map_or(&[], Vec::as_slice)
    }

    /// The layouts in the order of their states.
    pub(super) fn layouts(&self) -> impl Iterator<Item = Layout> {
        self.states.keys().copied()
    }

    /// How many states there are.
    pub(super) fn len(&self) -> usize {
        self.up.len()
    }
}
