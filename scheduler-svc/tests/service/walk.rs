//! A random walk through everything at once: whatever happens, no block is held twice, fences
//! only grow, and in the end everything is given back (INV-1, INV-2).

use std::collections::BTreeMap;

use cnlab_model::Blocks;
use cnlab_proto::{
    node::v1::WorkloadState,
    scheduler::v1::{self as pb, ServerState},
};
use cnlab_testkit::{GENEROUS, wait_until};

use crate::{
    on_both,
    peers::PeerNode,
    world::{Database, World, ada, ask, blocks, by, fence},
};

const STEPS: usize = 80;
const NAMES: u64 = 9;
const SEED: u64 = 20_260_101;

/// Numbers that repeat with their seed (the constants are those of MMIX).
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

async fn servers(world: &World) -> Vec<pb::Server> {
    let list = by(&ada(), pb::ListServersRequest::default());
    world
        .servers()
        .list_servers(list)
        .await
        .unwrap()
        .into_inner()
        .servers
}

/// Checks what must hold after every step.
fn check(servers: &[pb::Server], fences: &mut BTreeMap<u64, String>) {
    let mut taken: BTreeMap<String, Blocks> = BTreeMap::new();
    for server in servers.iter().filter(|server| server.grant.is_some()) {
        let grant = server.grant.clone().unwrap();
        let gpu = taken.entry(grant.slices[0].gpu_uuid.clone()).or_default();
        assert!(!gpu.overlaps(blocks(server)), "{servers:#?}");
        *gpu = gpu.union(blocks(server));
        let known = fences.entry(fence(server)).or_insert(grant.id.clone());
        assert_eq!(*known, grant.id, "one fence, one grant");
    }
}

/// Lets a node report something about a workload that it has.
async fn report(world: &World, node: &PeerNode, dice: &mut Dice) {
    let states = [
        WorkloadState::BuildingEnvironment,
        WorkloadState::Starting,
        WorkloadState::Ready,
        WorkloadState::Ready,
        WorkloadState::Failed,
        WorkloadState::Stopped,
    ];
    let ids: Vec<String> = node.state().workloads.keys().cloned().collect();
    if ids.is_empty() {
        return;
    }
    let id = &ids[usize::try_from(dice.below(ids.len() as u64)).unwrap()];
    let state = states[usize::try_from(dice.below(states.len() as u64)).unwrap()];
    // A stop that is under way may have taken it away since.
    let Some(said) = node.try_moved(id, state, "") else {
        return;
    };
    if matches!(state, WorkloadState::Failed | WorkloadState::Stopped) {
        node.state().workloads.remove(id);
    }
    world.report(node, said).await;
}

async fn whatever_happens_no_block_is_held_twice(database: Database) {
    let mut world = World::start(database).await;
    let nodes = [
        world.node("one", &["H100"]).await,
        world.node("two", &["H100", "A100"]).await,
    ];
    let me = ada();
    let mut dice = Dice(SEED);
    let mut fences = BTreeMap::new();
    for step in 0..STEPS {
        let name = format!("s{}", dice.below(NAMES));
        let node = &nodes[usize::from(dice.below(2) == 1)];
        // Refusals are part of the walk: the name is taken, the state does not allow it.
        match dice.below(12) {
            0..=3 => {
                let profiles = ["h100-25pct", "h100-full", "a100-50pct"];
                let profile = profiles[usize::try_from(dice.below(3)).unwrap()].to_owned();
                let _ = world
                    .create(
                        &me,
                        pb::CreateServerRequest {
                            profile,
                            ..ask(&name)
                        },
                    )
                    .await;
            }
            4 => drop(world.start_server(&me, &name).await),
            5 => drop(world.stop_server(&me, &name).await),
            6 => drop(world.delete_server(&me, &name).await),
            7..=9 => report(&world, node, &mut dice).await,
            10 => drop(world.renew(node).await),
            _ if step % 3 == 0 => {
                world.stop().await;
                world.start_again().await;
            }
            _ => {}
        }
        check(&servers(&world).await, &mut fences);
    }
    assert!(fences.len() > 5, "the walk went somewhere: {fences:?}");

    for server in servers(&world).await {
        if server.state() != ServerState::Deleting {
            world.delete_server(&me, &server.id).await.unwrap();
        }
    }
    wait_until(GENEROUS, "everything to be gone", async || {
        servers(&world).await.is_empty()
    })
    .await
    .unwrap();
    for node in &nodes {
        assert!(node.workloads().is_empty(), "nothing runs without a record");
        assert!(world.renew(node).await.end_workload_ids.is_empty());
    }
    for n in 0..2 {
        let whole = pb::CreateServerRequest {
            profile: "h100-full".to_owned(),
            ..ask(&format!("whole-{n}"))
        };
        let server = world.create(&me, whole).await.unwrap();
        assert_eq!(
            server.state(),
            ServerState::Provisioning,
            "all blocks came back"
        );
    }
    wait_until(GENEROUS, "all usage of the walk to end", async || {
        let open = world
            .billing
            .intervals()
            .values()
            .filter(|one| one.ended_at.is_none())
            .count();
        open == 2
    })
    .await
    .unwrap();
}

on_both!(whatever_happens_no_block_is_held_twice);
