use proptest::prelude::*;

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

/// Every node and GPU that a demand fits on, the best one first, from the words of the rule.
fn by_hand(cell: &Cluster, demand: &Demand) -> Option<Place> {
    let mut all = Vec::new();
    for (node, state) in cell.nodes().filter(|(_, state)| state.fits(demand)) {
        let free = state.blocks_free();
        let idle: Vec<usize> = (0..16).filter(|gpu| free[*gpu] == 100).collect();
        match demand.shape() {
            Shape::CpuOnly => {
                let free: u32 = free.iter().map(|free| u32::from(*free)).sum();
                all.push((free / 8, node, GpuSet::EMPTY));
            }
            Shape::Share(blocks) => {
                for gpu in (0..16).filter(|gpu| free[*gpu] >= blocks) {
                    all.push((u32::from(free[gpu] - blocks), node, GpuSet::one(gpu)));
                }
            }
            Shape::Whole(gpus) => {
                let taken = idle.iter().take(gpus.into()).copied();
                let left = u32::try_from(idle.len()).unwrap() - u32::from(gpus);
                all.push((left, node, taken.fold(GpuSet::EMPTY, GpuSet::with)));
            }
        }
    }
    all.sort_unstable();
    all.first().map(|(_, node, gpus)| Place {
        node: *node,
        gpus: *gpus,
    })
}

fn demands() -> impl Strategy<Value = Demand> {
    (0_u32..20_000, 0_u32..80_000, 0_u8..6, 1_u8..=100).prop_map(|(cpu, memory, gpus, blocks)| {
        match gpus {
            0 => Demand::cpu_only(cpu, memory),
            1..4 => Demand::share(cpu, memory, blocks).unwrap(),
            more => Demand::whole(cpu, memory, more - 3).unwrap(),
        }
    })
}

proptest! {
    #[test]
    fn best_fit_is_what_it_says(
        gpus in prop::collection::vec(prop::sample::select(vec![0_u8, 1, 2, 8, 16]), 1..6),
        demands in prop::collection::vec(demands(), 1..60),
    ) {
        let mut cell = cell(&gpus);
        for demand in &demands {
            let found = scan(&BestFit, &cell, demand).map(|choice| choice.place);
            prop_assert_eq!(found, by_hand(&cell, demand));
            if let Some(place) = found {
                prop_assert_eq!(cell.take(place, demand), Ok(()));
            }
        }
    }
}
