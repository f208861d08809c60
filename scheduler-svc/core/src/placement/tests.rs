use super::*;
use crate::cluster::Kind;

fn cell(gpus: &[u8]) -> Cluster {
    let mut cell = Cluster::new();
    for gpus in gpus {
        let node = Node::new(Kind::new(0).unwrap(), 64_000, 262_144, *gpus).unwrap();
        cell.add(node).unwrap();
    }
    cell
}

fn share(blocks: u8) -> Demand {
    Demand::share(1_000, 1_024, blocks).unwrap()
}

fn place(node: u32, gpu: usize) -> Place {
    Place {
        node: NodeIx(node),
        gpus: GpuSet::one(gpu),
    }
}

#[test]
fn a_share_goes_to_the_fullest_gpu_with_room_then_to_the_lowest_index() {
    let mut cell = cell(&[2, 2, 2]);
    cell.take(place(1, 1), &share(40)).unwrap();
    cell.take(place(2, 0), &share(40)).unwrap();
    let best = |cell: &Cluster, blocks| scan(&BestFit, cell, &share(blocks)).unwrap().place;
    assert_eq!(best(&cell, 60), place(1, 1));
    assert_eq!(best(&cell, 61), place(0, 0));
    cell.take(place(2, 1), &share(41)).unwrap();
    assert_eq!(best(&cell, 59), place(2, 1));
}

#[test]
fn entire_gpus_and_processors_go_where_fewest_gpus_are_free() {
    let mut cell = cell(&[8, 4, 4, 0]);
    let two = Demand::whole(1_000, 1_024, 2).unwrap();
    let found = scan(&BestFit, &cell, &two).unwrap().place;
    assert_eq!(found.node, NodeIx(1));
    assert_eq!(found.gpus, GpuSet::one(0).with(1));
    let five = Demand::whole(1_000, 1_024, 5).unwrap();
    assert_eq!(scan(&BestFit, &cell, &five).unwrap().place.node, NodeIx(0));
    let nine = Demand::whole(1_000, 1_024, 9).unwrap();
    assert_eq!(scan(&BestFit, &cell, &nine), None);
    let cpu = Demand::cpu_only(64_000, 0);
    assert_eq!(scan(&BestFit, &cell, &cpu).unwrap().place.node, NodeIx(3));
    cell.take(
        Place {
            node: NodeIx(3),
            gpus: GpuSet::EMPTY,
        },
        &cpu,
    )
    .unwrap();
    assert_eq!(scan(&BestFit, &cell, &cpu).unwrap().place.node, NodeIx(1));
}
