use proptest::prelude::*;

use super::*;

fn kind(number: u8) -> Kind {
    Kind::new(number).unwrap()
}

fn node(gpus: u8) -> Node {
    Node::new(kind(0), 16_000, 65_536, gpus).unwrap()
}

fn share(blocks: u8) -> Demand {
    Demand::share(1_000, 1_024, blocks).unwrap()
}

#[test]
fn a_share_of_a_hundred_blocks_is_an_entire_gpu() {
    assert_eq!(share(100), Demand::whole(1_000, 1_024, 1).unwrap());
    assert_eq!(share(100).shape(), Shape::Whole(1));
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    assert_eq!(Demand::share(0, 0, 0), Err(InvalidDemand::Blocks(0)));
    assert_eq!(Demand::share(0, 0, 101), Err(InvalidDemand::Blocks(101)));
    assert_eq!(Demand::whole(0, 0, 0), Err(InvalidDemand::Gpus(0)));
    assert_eq!(Demand::whole(0, 0, 17), Err(InvalidDemand::Gpus(17)));
    assert_eq!(
        Node::new(kind(0), 0, 0, 17).unwrap_err(),
        InvalidDemand::Gpus(17)
    );
    assert_eq!(Kind::new(64), None);
}

#[test]
fn the_first_thing_that_is_missing_is_named() {
    let mut cell = Cluster::new();
    let ix = cell.add(node(2)).unwrap();
    let fit = |cell: &Cluster, demand: Demand| cell.node(ix).unwrap().fit(&demand);
    assert_eq!(fit(&cell, share(1)), Fit::Fits);
    assert_eq!(
        fit(&cell, share(1).on(KindSet::ANY.with(kind(63)))),
        Fit::Kind
    );
    assert_eq!(
        fit(
            &cell,
            share(1).on([kind(63), kind(0)].into_iter().collect())
        ),
        Fit::Fits
    );
    assert_eq!(fit(&cell, Demand::cpu_only(16_001, 0)), Fit::Cpu);
    assert_eq!(fit(&cell, Demand::cpu_only(0, 65_537)), Fit::Memory);
    assert_eq!(fit(&cell, Demand::whole(0, 0, 3).unwrap()), Fit::Gpus);
    let place = Place {
        node: ix,
        gpus: GpuSet::one(1),
    };
    cell.take(place, &share(1)).unwrap();
    assert_eq!(fit(&cell, Demand::whole(0, 0, 2).unwrap()), Fit::Gpus);
    assert_eq!(fit(&cell, share(99)), Fit::Fits);
    assert_eq!(cell.node(ix).unwrap().first_idle(1), Some(GpuSet::one(0)));
    cell.set_eligible(ix, false).unwrap();
    assert_eq!(fit(&cell, Demand::cpu_only(0, 0)), Fit::NotEligible);
}

#[test]
fn a_refused_change_changes_nothing() {
    let mut cell = Cluster::new();
    let ix = cell.add(node(2)).unwrap();
    let at = |gpus| Place { node: ix, gpus };
    cell.take(at(GpuSet::one(0)), &share(60)).unwrap();
    let before = cell.clone();
    for (refused, expected) in [
        (cell.take(at(GpuSet::one(0)), &share(41)), Refused::Blocks),
        (cell.take(at(GpuSet::one(2)), &share(1)), Refused::Shape),
        (cell.take(at(GpuSet::EMPTY), &share(1)), Refused::Shape),
        (
            cell.take(at(GpuSet::EMPTY), &Demand::cpu_only(15_001, 0)),
            Refused::Cpu,
        ),
        (
            cell.take(at(GpuSet::EMPTY), &Demand::cpu_only(0, 64_513)),
            Refused::Memory,
        ),
        (cell.give(at(GpuSet::one(1)), &share(60)), Refused::NotHeld),
        (cell.give(at(GpuSet::one(0)), &share(61)), Refused::NotHeld),
        (
            cell.give(at(GpuSet::EMPTY), &Demand::cpu_only(0, 1_025)),
            Refused::NotHeld,
        ),
        (
            cell.give(at(GpuSet::EMPTY), &Demand::cpu_only(1_001, 0)),
            Refused::NotHeld,
        ),
        (cell.remove(ix).map(drop), Refused::InUse),
        (cell.remove(NodeIx(9)).map(drop), Refused::NoNode(NodeIx(9))),
    ] {
        assert_eq!(refused, Err(expected));
    }
    assert_eq!(cell, before);
}

#[test]
fn a_node_that_shrank_offers_nothing_until_enough_came_back() {
    let mut cell = Cluster::new();
    let ix = cell.add(node(2)).unwrap();
    let place = Place {
        node: ix,
        gpus: GpuSet::one(1),
    };
    cell.take(place, &share(60)).unwrap();
    cell.take(place, &share(20)).unwrap();
    let mut blocks = [0; MAX_GPUS];
    blocks[1] = 70;
    cell.set_total(ix, 1_500, 1_500, blocks).unwrap();
    let shrunk = *cell.node(ix).unwrap();
    assert_eq!(shrunk.cpu_free(), 0);
    assert_eq!(shrunk.memory_free(), 0);
    assert_eq!(shrunk.blocks_free(), [0; MAX_GPUS]);
    cell.give(place, &share(20)).unwrap();
    let after = cell.node(ix).unwrap();
    assert_eq!((after.cpu_free(), after.memory_free()), (500, 476));
    assert_eq!(after.blocks_free()[..3], [0, 10, 0]);
    assert_eq!(cell.total().blocks, 70);
}

#[test]
fn the_lowest_vacant_index_is_given_out_first() {
    let mut cell = Cluster::new();
    for expected in 0..4 {
        assert_eq!(cell.add(node(1)), Ok(NodeIx(expected)));
    }
    cell.remove(NodeIx(2)).unwrap();
    cell.remove(NodeIx(1)).unwrap();
    assert_eq!((cell.count(), cell.bound()), (2, 4));
    assert_eq!(cell.node(NodeIx(1)), None);
    assert_eq!(
        cell.take(
            Place {
                node: NodeIx(1),
                gpus: GpuSet::one(0)
            },
            &share(1)
        ),
        Err(Refused::NoNode(NodeIx(1)))
    );
    assert_eq!(cell.add(node(1)), Ok(NodeIx(1)));
    assert_eq!(cell.add(node(1)), Ok(NodeIx(2)));
    assert_eq!(cell.add(node(1)), Ok(NodeIx(4)));
}

fn demands() -> impl Strategy<Value = Demand> {
    (0_u32..6_000, 0_u32..20_000, 0_u8..4, 1_u8..=100).prop_map(|(cpu, memory, gpus, blocks)| {
        match gpus {
            0 => Demand::cpu_only(cpu, memory),
            1 => Demand::share(cpu, memory, blocks).unwrap(),
            more => Demand::whole(cpu, memory, more).unwrap(),
        }
    })
}

proptest! {
    /// The book equals the sum of what was taken and not given back, whatever was tried.
    #[test]
    fn the_book_is_the_sum_of_what_is_held(
        steps in prop::collection::vec((0_u32..3, any::<u16>(), demands(), any::<bool>()), 1..120)
    ) {
        let mut cell = Cluster::new();
        for gpus in [0, 2, 8] {
            cell.add(node(gpus)).unwrap();
        }
        let mut held: Vec<(Place, Demand)> = Vec::new();
        for (ix, bits, demand, give) in steps {
            let gpus = (0..16).filter(|gpu| bits >> gpu & 1 == 1).take(demand.gpus().into());
            let place = Place { node: NodeIx(ix), gpus: gpus.fold(GpuSet::EMPTY, GpuSet::with) };
            if give && !held.is_empty() {
                let (place, demand) = held.swap_remove(usize::from(bits) % held.len());
                prop_assert_eq!(cell.give(place, &demand), Ok(()));
            } else if cell.take(place, &demand).is_ok() {
                held.push((place, demand));
            }
            for (ix, node) in cell.nodes() {
                let here = || held.iter().filter(|(place, _)| place.node == ix);
                let cpu: u32 = here().map(|(_, demand)| demand.cpu_milli()).sum();
                let memory: u32 = here().map(|(_, demand)| demand.memory_mib()).sum();
                prop_assert_eq!(node.cpu_free(), 16_000 - cpu);
                prop_assert_eq!(node.memory_free(), 65_536 - memory);
                for (gpu, free) in node.blocks_free().into_iter().enumerate() {
                    let blocks: u8 = here()
                        .filter(|(place, _)| place.gpus.has(gpu))
                        .map(|(_, demand)| demand.blocks())
                        .sum();
                    let total = if gpu < node.gpus().into() { 100 } else { 0 };
                    prop_assert_eq!(free, total - blocks);
                }
            }
            let mut sum = Sum::default();
            for (_, demand) in &held {
                sum.add(Sum::of(demand));
            }
            prop_assert_eq!(cell.held(), sum);
        }
    }
}
