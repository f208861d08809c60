//! How long a start takes, from the placement until the page answers (V-04), learned per
//! image and node.
//!
//! The likely time is the median of the latest starts of the image on the node in the same
//! condition; when there are none, of those on other nodes; else the catalogue's default.

use std::{collections::BTreeMap, time::Duration};

use cnlab_model::id::NodeId;

use crate::{
    estimate::{ImageDefaults, PastStart, RECENT},
    history::{Accuracy, History},
};

/// Where the starts were that an estimate rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartBasis {
    /// On this node.
    SameNode {
        /// How good such estimates were.
        accuracy: Option<Accuracy>,
    },
    /// On other nodes.
    OtherNodes {
        /// How good such estimates were.
        accuracy: Option<Accuracy>,
    },
    /// Nowhere yet: the catalogue's default.
    Catalogue,
}

/// How long a start takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartEstimate {
    /// As likely longer as shorter.
    pub likely: Duration,
    /// Nine of ten are ready by then.
    pub bound: Duration,
    /// Why.
    pub basis: StartBasis,
}

/// How many starts of an image on a node are remembered. The likely time follows the newest
/// of them only.
const STARTS: usize = RECENT;

/// How many pairs of image and node are remembered per condition of the environment.
const PLACES: usize = 4096;

type Place = (String, bool, Option<NodeId>);

/// Learns how long starts take.
#[derive(Debug, Default)]
pub struct StartEstimator {
    places: BTreeMap<Place, (u64, History)>,
    by_lesson: BTreeMap<u64, Place>,
    lessons: u64,
}

impl StartEstimator {
    /// Takes in a start that became ready.
    pub fn learn(&mut self, start: &PastStart) {
        for node in [Some(start.node), None] {
            let place = (start.image.clone(), start.environment_ready, node);
            self.lessons = self.lessons.saturating_add(1);
            let (lesson, history) = self
                .places
                .entry(place.clone())
                .or_insert_with(|| (self.lessons, History::new(STARTS)));
            self.by_lesson.remove(lesson);
            *lesson = self.lessons;
            history.observe(start.took);
            self.by_lesson.insert(self.lessons, place);
        }
        while self.places.len() > PLACES
            && let Some((_, oldest)) = self.by_lesson.pop_first()
        {
            self.places.remove(&oldest);
        }
    }

    /// How long a start of this image on this node takes; without a node, on any.
    #[must_use]
    pub fn expect(
        &self,
        image: &str,
        node: Option<NodeId>,
        environment_ready: bool,
        defaults: ImageDefaults,
    ) -> StartEstimate {
        let at = |node: Option<NodeId>| {
            let place = (image.to_owned(), environment_ready, node);
            let (_, history) = self.places.get(&place)?;
            Some((history.forecast(Duration::ZERO)?, history.accuracy()))
        };
        let same = node.and_then(|node| at(Some(node)));
        if let Some((forecast, accuracy)) = same {
            return StartEstimate {
                likely: forecast.likely,
                bound: forecast.bound,
                basis: StartBasis::SameNode { accuracy },
            };
        }
        if let Some((forecast, accuracy)) = at(None) {
            return StartEstimate {
                likely: forecast.likely,
                bound: forecast.bound,
                basis: StartBasis::OtherNodes { accuracy },
            };
        }
        let likely = if environment_ready {
            defaults.start
        } else {
            defaults.build.saturating_add(defaults.start)
        };
        StartEstimate {
            likely,
            bound: likely,
            basis: StartBasis::Catalogue,
        }
    }
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::Ulid;

    use super::*;

    const DEFAULTS: ImageDefaults = ImageDefaults {
        build: Duration::from_secs(60),
        start: Duration::from_secs(3),
    };

    fn node(n: u128) -> NodeId {
        NodeId::from_ulid(Ulid(n))
    }

    fn start(image: &str, at: u128, environment_ready: bool, took: u64) -> PastStart {
        PastStart {
            image: image.to_owned(),
            node: node(at),
            environment_ready,
            took: Duration::from_secs(took),
        }
    }

    #[test]
    fn a_start_takes_what_like_ones_took() {
        let mut starts = StartEstimator::default();
        for took in [4, 40, 5] {
            starts.learn(&start("a", 1, true, took));
        }
        starts.learn(&start("a", 2, false, 70));
        let likely = |image, at, ready| starts.expect(image, at, ready, DEFAULTS).likely.as_secs();
        assert_eq!(likely("a", Some(node(1)), true), 5);
        assert_eq!(likely("a", Some(node(3)), false), 70);
        assert_eq!(likely("a", None, true), 5);
        assert_eq!(likely("b", None, true), 3);
        assert_eq!(likely("b", Some(node(1)), false), 63);
        assert_eq!(
            starts.expect("b", None, true, DEFAULTS).basis,
            StartBasis::Catalogue
        );
    }

    #[test]
    fn the_error_is_told_and_follows_a_node_that_became_faster() {
        let mut starts = StartEstimator::default();
        for _ in 0..30 {
            starts.learn(&start("a", 1, true, 90));
        }
        for _ in 0..RECENT {
            starts.learn(&start("a", 1, true, 2));
        }
        let estimate = starts.expect("a", Some(node(1)), true, DEFAULTS);
        assert_eq!(estimate.likely, Duration::from_secs(2));
        let StartBasis::SameNode {
            accuracy: Some(accuracy),
        } = estimate.basis
        else {
            panic!("learned on this node: {estimate:?}");
        };
        // The first of the fast ones were forecast as slow; the bound held for all.
        assert_eq!(accuracy.checked, RECENT);
        assert_eq!(accuracy.within_bound_permille, 1000);
        assert_eq!(accuracy.median_error, Duration::from_secs(88));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut starts = StartEstimator::default();
        for n in 0..5000 {
            starts.learn(&start("a", n, true, 1));
        }
        assert_eq!(starts.places.len(), PLACES);
        assert_eq!(starts.by_lesson.len(), PLACES);
        assert!(starts.places.contains_key(&("a".to_owned(), true, None)));
    }
}
