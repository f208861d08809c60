//! The nodes of the image: they come, are heard of, are cordoned, and fall silent.

use cnlab_model::{Timestamp, id::NodeId};
use scheduler_core::cluster::NodeIx;

use super::{Image, MIB, silent_before};
use crate::{
    cell::site::{self, Shelf, Site},
    store::record::{Cordon, Gpu, Node},
};

impl Image {
    /// A node has registered. Answers `false` when the image has to be read anew: its GPUs are
    /// not those that it had.
    pub(crate) fn registered(&mut self, node: Node, gpus: &[Gpu], now: Timestamp) -> bool {
        let Some(site) = self.sites.get_mut(&node.id) else {
            let first_of_family = gpus.iter().any(|gpu| {
                self.offered
                    .iter()
                    .all(|offered| offered.gpu_type != gpu.family)
            });
            let moved = gpus.iter().any(|gpu| {
                !gpu.simulated
                    && self
                        .sites
                        .values()
                        .any(|site| site.place_of(&gpu.uuid).is_some())
            });
            if first_of_family || moved {
                return false;
            }
            let id = node.id;
            self.put(node, gpus.to_vec(), now);
            self.reopen(id, now);
            return true;
        };
        let same_machine = site.node.disk_bytes == node.disk_bytes
            && site.node.cpu_milli == node.cpu_milli
            && site.node.memory_bytes == node.memory_bytes;
        if !same_machine || !site.has_same_gpus(gpus) {
            return false;
        }
        let (id, at, disk_free) = (node.id, node.last_seen_at, node.disk_free_bytes);
        site.node = Node {
            last_seen_at: site.node.last_seen_at,
            // Of which a node says nothing.
            cordon: site.node.cordon.take(),
            ..node
        };
        self.heard_of(id, disk_free, at, now)
    }

    /// A node has this mark of an operator now, or none. Answers `false` for one that is not
    /// known.
    pub(crate) fn marked(&mut self, id: NodeId, cordon: Option<Cordon>, now: Timestamp) -> bool {
        let Some(site) = self.sites.get_mut(&id) else {
            return false;
        };
        let was_open = site.is_open();
        site.node.cordon = cordon;
        if site.is_open() != was_open {
            self.reopen(id, now);
        }
        true
    }

    /// A node was heard of. Answers `false` for one that is not known.
    pub(crate) fn heard_of(
        &mut self,
        id: NodeId,
        disk_free: u64,
        at: Timestamp,
        now: Timestamp,
    ) -> bool {
        let Some(site) = self.sites.get_mut(&id) else {
            return false;
        };
        self.heard.remove(&(site.node.last_seen_at, id));
        site.node.last_seen_at = at.min(now);
        site.node.disk_free_bytes = disk_free;
        self.heard.insert((site.node.last_seen_at, id));
        if !site.answers {
            site.answers = true;
            self.reopen(id, now);
        }
        true
    }

    /// An image's environment is built on a node.
    pub(crate) fn image_ready(&mut self, id: NodeId, image: &str) {
        if let Some(site) = self.sites.get_mut(&id)
            && site.node.ready_images.iter().all(|ready| ready != image)
        {
            site.node.ready_images.push(image.to_owned());
        }
    }

    /// Lets time pass: nodes fall silent. Answers whether any did.
    pub(crate) fn pass(&mut self, now: Timestamp) -> bool {
        let mut fell = false;
        let before = silent_before(now, self.ttl);
        while let Some((at, id)) = self.heard.first().copied()
            && at < before
        {
            self.heard.pop_first();
            fell = true;
            if let Some(site) = self.sites.get_mut(&id) {
                site.answers = false;
            }
            self.reopen(id, now);
        }
        fell
    }

    /// When the next node falls silent if it is not heard of.
    pub(crate) fn silence_at(&self) -> Option<Timestamp> {
        self.heard.first().map(|(at, _)| at.plus(self.ttl))
    }

    /// Tells the engine whether a node can get new work.
    pub(super) fn reopen(&mut self, id: NodeId, now: Timestamp) {
        let Some(site) = self.sites.get(&id) else {
            return;
        };
        let open = site.is_open();
        let shelves: Vec<NodeIx> = site.shelves.iter().map(|shelf| shelf.ix).collect();
        for ix in shelves {
            // It was given by the engine.
            let _known = self.engine.set_eligible(ix, open, now);
        }
        if open {
            self.retry_parked(now);
        } else {
            self.park_hopeless(now);
        }
    }

    pub(super) fn put(&mut self, node: Node, gpus: Vec<Gpu>, now: Timestamp) {
        let id = node.id;
        let mut site = Site {
            node,
            shelves: Vec::new(),
            answers: true,
            gpus,
        };
        for (family, on_it) in site::shelves(&site.gpus) {
            let Some(kind) = self.kinds.of(&family, site.node.disk_bytes) else {
                tracing::error!(cnlab.node_id = %id, family, "too many kinds of GPUs: these are not used");
                continue;
            };
            let gpus: Vec<&Gpu> = on_it.iter().filter_map(|at| site.gpus.get(*at)).collect();
            let smallest = gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0);
            let Some(core) = site::core_node(kind, &site.node, &gpus, &self.offered) else {
                continue;
            };
            self.engine.set_vram(kind, smallest / MIB);
            if let Some(pool) = self.teams.pool(&family) {
                self.engine.set_pool(kind, pool);
            }
            match self.engine.add_node(core, now) {
                Ok(ix) => {
                    self.owners.insert(ix, id);
                    site.shelves.push(Shelf {
                        ix,
                        family,
                        gpus: on_it,
                    });
                }
                Err(error) => tracing::error!(cnlab.node_id = %id, %error, "a node is not used"),
            }
        }
        self.heard.insert((site.node.last_seen_at, id));
        self.sites.insert(id, site);
    }
}
