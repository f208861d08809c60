//! What an explanation tells beside the core's terms: data, candidates, lengths, places.

use std::cmp::Reverse;

use cnlab_model::Timestamp;
use scheduler_core::{
    explain::after,
    plan::{Priority, minutes},
    preempt::{Class, Environment, WorkKind},
    runtime_estimate::Basis,
};

use super::{Entry, Image, kind_of};
use crate::{
    app::explain::{Candidate, Data, Length, LengthOrigin, Placement, Preemption},
    cell::{
        Who,
        image::Held,
        site::{self, Site},
    },
};

/// How many candidates are named.
const TOP: usize = 3;

/// What goes before everything else that is done in a cell.
const FIRST: Class = Class {
    priority: Priority::Critical,
    kind: WorkKind::Inference,
    environment: Environment::Development,
};

fn has_image(site: &Site, who: &Who) -> bool {
    let mut ready = site.node.ready_images.iter();
    ready.any(|ready| ready == who.image())
}

fn has_family(site: &Site, who: &Who) -> bool {
    let family = &who.profile().gpu_type;
    site.shelves.iter().any(|shelf| shelf.family == *family)
}

impl Image {
    pub(super) fn data(&self, entry: &Entry) -> Data {
        let who = &entry.who;
        let image = who.image();
        let open = |site: &&Site| site.is_open() && has_family(site, who);
        let sites: Vec<&Site> = self.sites.values().filter(open).collect();
        let with_image = sites.iter().filter(|site| has_image(site, who)).count();
        let tied = entry.volume_on.and_then(|id| self.sites.get(&id));
        let text = match tied {
            Some(site) => {
                let built = if has_image(site, who) {
                    "is built"
                } else {
                    "is not built yet"
                };
                let node = &site.node.name;
                format!("its volume lies on {node}, where the environment of {image} {built}")
            }
            None => {
                let nodes = sites.len();
                format!(
                    "may run on any node; the environment of {image} is built on {with_image} of {nodes}"
                )
            }
        };
        Data {
            volume_node: tied.map(|site| site.node.name.clone()),
            nodes: sites.len(),
            with_image,
            text,
        }
    }

    /// The best GPUs of the wanted type as they are now.
    pub(super) fn candidates(&self, entry: &Entry) -> Vec<Candidate> {
        let who = &entry.who;
        let profile = who.profile();
        let mut found: Vec<(u8, Candidate)> = Vec::new();
        for site in self.sites.values() {
            let together = match who.gpus() {
                // Every GPU by itself.
                0 | 1 => 1,
                _ => site.together(&profile.gpu_type, |gpu| gpu.taken.is_empty()),
            };
            let of_family =
                |gpu: &&crate::store::record::Gpu| gpu.present && gpu.family == profile.gpu_type;
            for gpu in site.gpus.iter().filter(of_family) {
                let free = site::free(gpu).count();
                let (order, text) = if entry.volume_on.is_some_and(|on| on != site.id()) {
                    (4, "its volume lies on another node")
                } else if site.node.disk_bytes < who.storage_bytes() {
                    (3, "the disk of the node is too small")
                } else if !site.answers {
                    (2, "the node does not answer")
                } else if !site.is_open() {
                    (2, "the node takes no new work")
                } else if free < profile.percent {
                    (1, "too little of it is free")
                } else if together < who.gpus() {
                    (1, "too few of its node are entirely free")
                } else {
                    (0, "fits")
                };
                let candidate = Candidate {
                    node_name: site.node.name.clone(),
                    gpu_uuid: gpu.uuid.clone(),
                    free,
                    image_ready: has_image(site, who),
                    fits: order == 0,
                    text: text.to_owned(),
                };
                found.push((order, candidate));
            }
        }
        let key = |(order, candidate): &(u8, Candidate)| {
            let room = Reverse(candidate.free);
            (*order, room, !candidate.image_ready)
        };
        found.sort_by_key(key);
        let best = found.into_iter().take(TOP);
        best.map(|(_, candidate)| candidate).collect()
    }

    /// For how long somebody is planned, and from what that was learned.
    pub(super) fn planned_length(&self, entry: &Entry, now: Timestamp) -> Length {
        let planned = self.engine.plan().job(entry.job);
        let length = planned.map_or_else(|| self.length(&entry.who, now), |job| job.length);
        let origin = match &entry.who {
            Who::Server(_) => match self.held_for.past.len() {
                0 => LengthOrigin::Unknown,
                samples => LengthOrigin::History(samples),
            },
            Who::Run(run) => match self.lengths.length(&kind_of(run)).map(|known| known.basis) {
                Some(Basis::History { runs, .. }) => LengthOrigin::History(runs),
                Some(Basis::Declared) => LengthOrigin::Declared,
                Some(Basis::Outlived) | None => LengthOrigin::Unknown,
            },
        };
        let from = match (origin, &entry.who) {
            (LengthOrigin::History(1), _) => "as an earlier one like it took".to_owned(),
            (LengthOrigin::History(samples), _) => {
                format!("as {samples} earlier ones like it took")
            }
            (LengthOrigin::Declared, _) => "its longest time, and its start".to_owned(),
            (LengthOrigin::Unknown, Who::Run(_)) => {
                "since nothing is known of it; a longest time would tell".to_owned()
            }
            (LengthOrigin::Unknown, Who::Server(_)) => "since nothing is known of it".to_owned(),
        };
        Length {
            length,
            origin,
            text: format!("planned for {} min, {from}", minutes(length)),
        }
    }

    pub(super) fn placement(
        &self,
        entry: &Entry,
        held: &Held,
        until: Option<Timestamp>,
    ) -> Placement {
        let name = self.sites.get(&held.node).map(|site| &site.node.name);
        let why = entry.chosen.map_or_else(String::new, |chosen| {
            let why = if chosen.tied {
                "its volume lies there".to_owned()
            } else {
                "it leaves the most room that others can use".to_owned()
            };
            let taken = held.slices.first().map_or(0, |slice| slice.blocks.count());
            let (left, free) = (chosen.left, chosen.left.saturating_add(taken));
            let image = if chosen.image_ready {
                "; the environment was built there already"
            } else {
                ""
            };
            format!("{why}: of the GPU {free}% were free, {left}% are left{image}")
        });
        Placement {
            node: held.node,
            node_name: name.cloned().unwrap_or_default(),
            gpu_uuids: held
                .slices
                .iter()
                .map(|slice| slice.gpu_uuid.clone())
                .collect(),
            since: held.since,
            until,
            why,
        }
    }

    pub(super) fn preemption(&self, entry: &Entry, now: Timestamp) -> Preemption {
        let gives_way = self.engine.gives_way(entry.job);
        let from = self.engine.runs().yields_from(entry.job, FIRST);
        let text = match (&entry.who, from) {
            _ if gives_way => "is being stopped for work that goes before it".to_owned(),
            (Who::Server(_), _) => "never: somebody sits in front of it".to_owned(),
            (Who::Run(_), Some(from)) if from > now => {
                format!(
                    "for work of a higher priority, not before {}",
                    after(from, now)
                )
            }
            (Who::Run(_), Some(_)) => "for work of a higher priority, from now on".to_owned(),
            (Who::Run(_), None) => "never: nothing goes before it".to_owned(),
        };
        Preemption {
            possible: gives_way || from.is_some(),
            from: from.filter(|_| !gives_way),
            gives_way,
            text,
        }
    }
}
