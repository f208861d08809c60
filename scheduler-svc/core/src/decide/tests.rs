use cnlab_model::id::Ulid;
use proptest::prelude::*;

use super::*;
use crate::snapshot::Holder;

const FAMILIES: [&str; 2] = ["H100", "A100"];
const NOW: Timestamp = Timestamp(1_000_000_000_000);

fn node_id(n: u128) -> NodeId {
    NodeId::from_ulid(Ulid(n))
}

fn gpu(family: &str, taken: &[u8]) -> Gpu {
    let mut free = Blocks::ALL;
    let holders = taken
        .iter()
        .filter_map(|count| {
            let blocks = free.lowest(*count)?;
            free = free.minus(blocks);
            Some(Holder {
                blocks,
                since: Timestamp(NOW.0 - 60_000_000),
            })
        })
        .collect();
    Gpu {
        family: family.to_owned(),
        memory_bytes: 80_000_000_123,
        holders,
    }
}

fn node(n: u128, gpus: impl IntoIterator<Item = Gpu>) -> Node {
    Node {
        id: node_id(n),
        answers: true,
        disk_bytes: 1 << 40,
        gpus: gpus
            .into_iter()
            .enumerate()
            .map(|(index, gpu)| (format!("GPU-{n}-{index}"), gpu))
            .collect(),
    }
}

fn ask(family: &str, blocks: u8) -> Request {
    Request {
        family: family.to_owned(),
        blocks,
        storage_bytes: 50_000_000_000,
        volume_on: None,
    }
}

fn placement(decided: &Decided) -> &Placement {
    match &decided.decision {
        Decision::Place(placement) => placement,
        Decision::Queue { .. } | Decision::Reject { .. } => panic!("{decided:?}"),
    }
}

#[test]
fn the_fullest_gpu_with_room_is_taken_then_the_lowest_id() {
    let snapshot = Snapshot::new([
        node(2, [gpu("H100", &[30]), gpu("H100", &[50])]),
        node(
            1,
            [gpu("H100", &[90]), gpu("H100", &[50]), gpu("A100", &[70])],
        ),
    ]);
    let decided = decide(&snapshot, &ask("H100", 25), NOW);
    let placed = placement(&decided);
    assert_eq!((placed.node, placed.gpu.as_str()), (node_id(1), "GPU-1-1"));
    assert_eq!(placed.blocks.to_string(), "50-74");
    assert_eq!(placed.vram_bytes, 25 * 800_000_001);
    assert_eq!(decided.explanation.considered, 5);
    assert_eq!(decided.explanation.top.len(), 3);
    assert_eq!(decided.explanation.top[0].gpu, placed.gpu);
}

#[test]
fn a_whole_gpu_profile_takes_an_empty_gpu() {
    let snapshot = Snapshot::new([node(1, [gpu("H100", &[1]), gpu("H100", &[])])]);
    let decided = decide(&snapshot, &ask("H100", 100), NOW);
    assert_eq!(placement(&decided).gpu, "GPU-1-1");
    assert_eq!(placement(&decided).blocks, Blocks::ALL);
}

#[test]
fn what_can_never_start_is_rejected_with_the_reason() {
    let reason =
        |snapshot: &Snapshot, request: &Request| match decide(snapshot, request, NOW).decision {
            Decision::Reject { reason } => reason.to_string(),
            other @ (Decision::Place(_) | Decision::Queue { .. }) => panic!("{other:?}"),
        };
    let here = Snapshot::new([node(1, [gpu("H100", &[])])]);
    assert_eq!(
        reason(&Snapshot::default(), &ask("H100", 25)),
        "no node has joined yet"
    );
    assert_eq!(
        reason(&here, &ask("A100", 25)),
        "no node has a GPU of type A100"
    );
    assert_eq!(
        reason(&here, &ask("H100", 0)),
        "a slice has 1 to 100 blocks, not 0"
    );
    let mut large = ask("H100", 25);
    large.storage_bytes = 2_000_000_000_000;
    assert!(reason(&here, &large).starts_with("a volume of 2 TB is larger than every disk"));
    let mut elsewhere = ask("H100", 25);
    elsewhere.volume_on = Some(node_id(7));
    assert!(reason(&here, &elsewhere).contains("has left"));
}

#[test]
fn a_volume_pins_its_server() {
    let snapshot = Snapshot::new([node(1, [gpu("H100", &[60])]), node(2, [gpu("H100", &[10])])]);
    let mut request = ask("H100", 25);
    request.volume_on = Some(node_id(2));
    assert_eq!(
        placement(&decide(&snapshot, &request, NOW)).node,
        node_id(2)
    );
}

#[test]
fn a_silent_node_gets_nothing_new_and_is_waited_for() {
    let mut silent = node(1, [gpu("H100", &[])]);
    silent.answers = false;
    let decided = decide(&Snapshot::new([silent]), &ask("H100", 25), NOW);
    let Decision::Queue { eta, reason } = decided.decision else {
        panic!("{decided:?}");
    };
    assert_eq!(eta, None);
    assert!(reason.to_string().contains("to answer again"));
}

fn any_gpu() -> impl Strategy<Value = Gpu> {
    (0..FAMILIES.len(), proptest::collection::vec(1_u8..60, 0..5))
        .prop_map(|(family, taken)| gpu(FAMILIES[family], &taken))
}

prop_compose! {
    fn any_nodes()(
        nodes in proptest::collection::vec(
            (proptest::collection::vec(any_gpu(), 0..4), any::<bool>()), 0..5)
    ) -> Vec<Node> {
        nodes.into_iter().zip(1..).map(|((gpus, answers), n)| {
            let mut node = node(n, gpus);
            node.answers = answers;
            node
        }).collect()
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    (
        0..FAMILIES.len(),
        0_u8..=101,
        proptest::option::of(1_u128..6),
    )
        .prop_map(|(family, blocks, pinned)| Request {
            volume_on: pinned.map(node_id),
            ..ask(FAMILIES[family], blocks)
        })
}

proptest! {
    #[test]
    fn asking_twice_gives_the_same_answer(nodes in any_nodes(), request in any_request()) {
        let snapshot = Snapshot::new(nodes);
        prop_assert_eq!(decide(&snapshot, &request, NOW), decide(&snapshot, &request, NOW));
    }

    #[test]
    fn the_order_of_nodes_does_not_matter(
        (nodes, shuffled) in any_nodes().prop_flat_map(|nodes| (Just(nodes.clone()), Just(nodes).prop_shuffle())),
        request in any_request()
    ) {
        prop_assert_eq!(
            decide(&Snapshot::new(nodes), &request, NOW),
            decide(&Snapshot::new(shuffled), &request, NOW)
        );
    }

    #[test]
    fn a_placement_never_exceeds_the_book_of_its_gpu(nodes in any_nodes(), request in any_request()) {
        let snapshot = Snapshot::new(nodes);
        if let Decision::Place(placed) = decide(&snapshot, &request, NOW).decision {
            let node = snapshot.node(placed.node).unwrap();
            let gpu = &node.gpus[&placed.gpu];
            prop_assert!(node.answers);
            prop_assert_eq!(placed.blocks.count(), request.blocks);
            prop_assert!(placed.blocks.minus(gpu.free()).is_empty());
            prop_assert_eq!(&gpu.family, &request.family);
            prop_assert!(placed.vram_bytes <= gpu.memory_bytes);
            prop_assert!(request.volume_on.is_none_or(|pinned| pinned == placed.node));
            if request.blocks == BLOCKS_PER_GPU {
                prop_assert!(gpu.holders.is_empty());
            }
        }
    }

    #[test]
    fn memory_limits_of_a_full_gpu_never_exceed_it(memory: u64, shares in proptest::collection::vec(1_u8..30, 0..20)) {
        let mut left = BLOCKS_PER_GPU;
        let mut sum = 0_u64;
        for share in shares.into_iter().take_while(|share| {
            left = left.saturating_sub(*share);
            left > 0
        }) {
            sum += vram_bytes(memory, share);
        }
        prop_assert!(sum <= memory);
    }

    #[test]
    fn more_capacity_never_turns_place_into_queue(
        nodes in any_nodes(),
        extra in any_gpu(),
        at in 1_u128..8,
        request in any_request()
    ) {
        let before = decide(&Snapshot::new(nodes.clone()), &request, NOW).decision;
        let mut more = nodes;
        match more.iter_mut().find(|node| node.id == node_id(at)) {
            Some(node) => {
                node.gpus.insert("GPU-extra".to_owned(), extra);
            }
            None => more.push(node(at, [extra])),
        }
        let mut freed = more.clone();
        for gpu in freed.iter_mut().flat_map(|node| node.gpus.values_mut()) {
            gpu.holders.pop();
        }
        if matches!(before, Decision::Place(_)) {
            for snapshot in [Snapshot::new(more), Snapshot::new(freed)] {
                prop_assert!(matches!(decide(&snapshot, &request, NOW).decision, Decision::Place(_)));
            }
        }
    }

    #[test]
    fn a_busy_cell_always_has_an_expected_wait(nodes in any_nodes(), request in any_request()) {
        let mut snapshot = Snapshot::new(nodes);
        snapshot.queue = vec![ask("H100", 100), ask("A100", 3)];
        if let Decision::Queue { eta, reason } = decide(&snapshot, &request, NOW).decision {
            prop_assert_eq!(eta.is_some(), matches!(reason, QueueReason::Busy { .. }));
        }
    }
}
