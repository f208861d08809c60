//! Room for several tasks that begin at one moment.

use std::collections::BTreeSet;

use cnlab_model::Timestamp;

use crate::{
    cluster::{Cluster, Demand, NodeIx, Place},
    plan::JobId,
};

use super::{Loss, Newcomer, Runs, room::Room, suitable, victims::cheapest};

impl Runs {
    /// Room for several tasks: what it costs each node to host one, two, ... of them, then the
    /// cheapest combination, then whoever turns out not to be needed stays.
    pub(super) fn gang(
        &self,
        cluster: &Cluster,
        newcomer: &Newcomer,
        tasks: u16,
        now: Timestamp,
    ) -> Option<(BTreeSet<JobId>, Vec<Place>)> {
        let demand = &newcomer.job.ask.demand;
        // What each number of tasks costs on the nodes seen so far, and per node how many of
        // them it hosts then.
        let mut least: Vec<Option<Loss>> = vec![None; usize::from(tasks).saturating_add(1)];
        *least.first_mut()? = Some(Loss::default());
        let mut hosted: Vec<(NodeIx, Vec<u16>)> = Vec::new();
        for (ix, node) in suitable(cluster, newcomer) {
            let costs = self.costs(ix, &Room::free(node), newcomer, tasks, now);
            if costs.len() <= 1 {
                continue;
            }
            let mut counts = vec![0; least.len()];
            // From the top, so that the smaller numbers are still those without this node.
            for total in (1..least.len()).rev() {
                let ways = costs.iter().zip(0_u16..).filter_map(|(cost, count)| {
                    let rest = total.checked_sub(count.into())?;
                    let before = least.get(rest).copied().flatten()?;
                    Some((before.plus(*cost), count))
                });
                if let Some((loss, count)) = ways.min()
                    && let (Some(slot), Some(hosts)) = (least.get_mut(total), counts.get_mut(total))
                {
                    *slot = Some(loss);
                    *hosts = count;
                }
            }
            hosted.push((ix, counts));
        }
        least.pop().flatten()?;
        let mut hosts: Vec<(NodeIx, u16)> = Vec::new();
        let mut total = usize::from(tasks);
        for (ix, counts) in hosted.iter().rev() {
            let count = counts.get(total).copied()?;
            total = total.checked_sub(count.into())?;
            if count > 0 {
                hosts.push((*ix, count));
            }
        }
        hosts.reverse();
        let mut victims = BTreeSet::new();
        for (ix, count) in &hosts {
            let room = Room::free(cluster.node(*ix)?);
            let candidates = self.candidates(*ix, newcomer.class(), now);
            let (_, ids) = cheapest(&room, &candidates, demand, (*count).into(), None)?;
            victims.extend(ids);
        }
        self.spare(cluster, &mut victims, &hosts, demand, now);
        let mut places = Vec::with_capacity(tasks.into());
        for (ix, count) in hosts {
            let mut room = self.room(cluster, ix, &victims)?;
            for _ in 0..count {
                let gpus = room.take(demand)?;
                places.push(Place { node: ix, gpus });
            }
        }
        Some((victims, places))
    }

    /// What it costs a node to host no task, one task and so on, as many as it can.
    fn costs(
        &self,
        ix: NodeIx,
        room: &Room,
        newcomer: &Newcomer,
        tasks: u16,
        now: Timestamp,
    ) -> Vec<Loss> {
        let demand = &newcomer.job.ask.demand;
        let candidates = self.candidates(ix, newcomer.class(), now);
        (0..=u32::from(tasks))
            .map_while(|count| cheapest(room, &candidates, demand, count, None))
            .map(|(loss, _)| loss)
            .collect()
    }

    /// Lets those stay, dearest first, without whom every host still has room.
    fn spare(
        &self,
        cluster: &Cluster,
        victims: &mut BTreeSet<JobId>,
        hosts: &[(NodeIx, u16)],
        demand: &Demand,
        now: Timestamp,
    ) {
        let mut order: Vec<(Loss, JobId)> = victims
            .iter()
            .filter_map(|id| Some((Loss::of(self.runs.get(id)?, now), *id)))
            .collect();
        order.sort_unstable();
        for (_, id) in order.into_iter().rev() {
            victims.remove(&id);
            let enough = hosts.iter().all(|(ix, count)| {
                self.room(cluster, *ix, victims)
                    .is_some_and(|room| room.tasks(demand) >= u32::from(*count))
            });
            if !enough {
                victims.insert(id);
            }
        }
    }
}
