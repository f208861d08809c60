use cnlab_model::id::{ServerId, Ulid};
use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn server(n: u8) -> WorkloadId {
    WorkloadId::Server(ServerId::from_ulid(Ulid(n.into())))
}

fn gpus() -> Vec<GpuSize> {
    ["GPU-a", "GPU-b"]
        .map(|uuid| GpuSize {
            uuid: uuid.to_owned(),
            memory_bytes: 100 * GIB,
        })
        .to_vec()
}

fn book() -> Book {
    Book::default().with_gpus(&gpus())
}

fn ask(n: u8, fence: u64, gpu: &str, blocks: &str) -> Ask {
    let blocks: Blocks = blocks.parse().unwrap();
    Ask {
        workload: server(n),
        fence,
        slices: vec![Slice {
            gpu: gpu.to_owned(),
            blocks,
            vram_bytes: u64::from(blocks.count()) * GIB,
        }],
    }
}

/// Both GPUs, entirely.
fn both(n: u8, fence: u64) -> Ask {
    let mut both = ask(n, fence, "GPU-a", "0-99");
    both.slices.extend(ask(n, fence, "GPU-b", "0-99").slices);
    both
}

fn holder(n: u8, fence: u64) -> Holder {
    Holder {
        workload: server(n),
        fence,
    }
}

#[test]
fn disjoint_grants_may_arrive_in_either_order() {
    let (book, effects) = carve(&book(), &ask(1, 9, "GPU-a", "0-24")).unwrap();
    assert!(effects.persist && effects.end_first.is_empty());
    let (book, effects) = carve(&book, &ask(2, 8, "GPU-a", "25-49")).unwrap();
    assert!(effects.end_first.is_empty());
    assert_eq!(book.free_blocks("GPU-a").to_string(), "50-99");
    assert_eq!(book.high_water("GPU-a"), 9);
    assert_eq!(book.high_water("GPU-b"), 0);
}

#[test]
fn a_newer_fence_displaces_and_waits_until_the_older_is_gone() {
    let (book, _) = carve(&book(), &ask(1, 1, "GPU-a", "0-49")).unwrap();
    let (book, effects) = carve(&book, &ask(2, 2, "GPU-a", "40-59")).unwrap();
    assert_eq!(effects.end_first, [holder(1, 1)]);
    assert!(!book.holds(holder(1, 1)));
    assert!(book.holds(holder(2, 2)));
    assert_eq!(book.in_the_way(holder(2, 2)), [holder(1, 1)]);
    let book = book.free(holder(1, 1));
    assert!(book.in_the_way(holder(2, 2)).is_empty());
}

#[test]
fn older_and_equal_fences_are_refused_even_after_the_claim_is_over() {
    let (book, _) = carve(&book(), &ask(1, 5, "GPU-a", "0-9")).unwrap();
    let book = book.free(holder(1, 5));
    for fence in [4, 5] {
        assert_eq!(
            carve(&book, &ask(2, fence, "GPU-a", "9-10")),
            Err(Refused::FenceTooLow { fence, seen: 5 })
        );
    }
    assert!(carve(&book, &ask(2, 6, "GPU-a", "9-10")).is_ok());
}

#[test]
fn a_workload_has_one_life_across_gpus() {
    let (book, _) = carve(&book(), &ask(1, 5, "GPU-a", "0-9")).unwrap();
    assert_eq!(
        carve(&book, &ask(1, 4, "GPU-b", "0-9")),
        Err(Refused::FenceTooLow { fence: 4, seen: 5 })
    );
    let (book, effects) = carve(&book, &ask(1, 6, "GPU-b", "0-9")).unwrap();
    assert_eq!(effects.end_first, [holder(1, 5)]);
    assert_eq!(book.holders(), [holder(1, 5), holder(1, 6)]);
}

#[test]
fn nothing_unknown_empty_or_too_large_gets_in() {
    let mut large = ask(1, 1, "GPU-a", "0");
    large.slices[0].vram_bytes = 101 * GIB;
    assert!(matches!(
        carve(&book(), &large),
        Err(Refused::MemoryTooLarge { .. })
    ));
    assert!(matches!(
        carve(&book(), &ask(1, 1, "GPU-x", "0")),
        Err(Refused::UnknownGpu { .. })
    ));
    assert_eq!(
        carve(&book(), &ask(1, 1, "GPU-a", "")),
        Err(Refused::NoBlocks)
    );
    assert_eq!(
        carve(&book(), &ask(1, 0, "GPU-a", "0")),
        Err(Refused::NoFence)
    );
}

#[test]
fn several_gpus_are_held_together_or_not_at_all() {
    let (one, _) = carve(&book(), &ask(1, 7, "GPU-b", "0-9")).unwrap();
    // The mark of the other GPU alone refuses all of it.
    let refused = carve(&one, &both(2, 6));
    assert_eq!(refused, Err(Refused::FenceTooLow { fence: 6, seen: 7 }));
    let (two, effects) = carve(&one, &both(2, 8)).unwrap();
    assert_eq!(effects.end_first, [holder(1, 7)]);
    assert!(two.free_blocks("GPU-a").is_empty() && two.holds(holder(2, 8)));
    // Who loses one of them has lost the others, too.
    let (three, effects) = carve(&two, &ask(3, 9, "GPU-a", "0")).unwrap();
    assert_eq!(effects.end_first, [holder(2, 8)]);
    assert!(!three.holds(holder(2, 8)));
    let free = three.free(holder(2, 8)).free(holder(1, 7));
    assert_eq!(free.free_blocks("GPU-b"), Blocks::ALL);
    let mut twice = both(4, 10);
    twice.slices[1].gpu = "GPU-a".to_owned();
    assert!(matches!(
        carve(&free, &twice),
        Err(Refused::GpuTwice { .. })
    ));
    twice.slices.clear();
    assert_eq!(carve(&free, &twice), Err(Refused::NoBlocks));
}

#[test]
fn a_gpu_that_disappears_keeps_its_marks() {
    let (book, _) = carve(&book(), &ask(1, 5, "GPU-a", "0-9")).unwrap();
    let gone = book.with_gpus(&gpus()[1..]);
    assert!(matches!(
        carve(&gone, &ask(2, 6, "GPU-a", "0")),
        Err(Refused::UnknownGpu { .. })
    ));
    let back = gone.with_gpus(&gpus());
    assert!(matches!(
        carve(&back, &ask(2, 5, "GPU-a", "0")),
        Err(Refused::FenceTooLow { .. })
    ));
}

#[test]
fn the_book_survives_its_file() {
    let (book, _) = carve(&book(), &ask(1, u64::MAX, "GPU-a", "0-24,50")).unwrap();
    let text = serde_json::to_string(&book).unwrap();
    assert_eq!(serde_json::from_str::<Book>(&text).unwrap(), book);
}

#[derive(Debug, Clone)]
enum Action {
    Ask(Ask),
    Free(Holder),
}

fn action() -> impl Strategy<Value = Action> {
    let slice =
        (0_usize..2, 0_u8..100, 1_u8..60, 0_u64..120).prop_map(|(gpu, first, count, vram)| {
            let count = count.min(100 - first);
            Slice {
                gpu: gpus()[gpu].uuid.clone(),
                blocks: Blocks::range(first, count).unwrap(),
                vram_bytes: vram * GIB,
            }
        });
    // Two of them lie on one GPU now and then, which is refused.
    let claim = (1_u8..5, 0_u64..12, proptest::collection::vec(slice, 1..3)).prop_map(
        |(n, fence, slices)| {
            let workload = server(n);
            Action::Ask(Ask {
                workload,
                fence,
                slices,
            })
        },
    );
    let free = (1_u8..5, 0_u64..12).prop_map(|(n, fence)| Action::Free(holder(n, fence)));
    prop_oneof![3 => claim, 1 => free]
}

proptest! {
    #[test]
    fn held_claims_never_overlap_and_fences_never_fall(actions in proptest::collection::vec(action(), 0..40)) {
        let mut book = book();
        for action in actions {
            let before = book.clone();
            match action {
                Action::Ask(ask) => {
                    let Ok((next, effects)) = carve(&book, &ask) else { continue };
                    let me = Holder { workload: ask.workload, fence: ask.fence };
                    prop_assert!(next.holds(me));
                    prop_assert_eq!(&effects.end_first, &next.in_the_way(me));
                    // Twice is once.
                    let (again, repeated) = carve(&next, &ask).unwrap();
                    prop_assert_eq!(&again, &next);
                    prop_assert!(!repeated.persist);
                    prop_assert_eq!(repeated.end_first, effects.end_first);
                    book = next;
                }
                Action::Free(holder) => {
                    book = book.free(holder);
                    prop_assert_eq!(&book.clone().free(holder), &book);
                }
            }
            for holder in book.holders() {
                let held: Vec<bool> = book.claims_of(holder).map(|claim| claim.leaving).collect();
                prop_assert!(held.iter().all(|leaving| *leaving == held[0]), "all or nothing");
            }
            for (uuid, page) in &book.gpus {
                prop_assert!(book.high_water(uuid) >= before.high_water(uuid));
                let mut taken = Blocks::EMPTY;
                let mut vram = 0;
                for claim in page.claims.iter().filter(|claim| !claim.leaving) {
                    prop_assert!(!claim.blocks.overlaps(taken));
                    taken = taken.union(claim.blocks);
                    vram += claim.vram_bytes;
                    prop_assert!(claim.fence <= page.seen(claim.blocks));
                }
                prop_assert!(vram <= page.memory_bytes);
                for block in 0..BLOCKS_PER_GPU {
                    let block = Blocks::range(block, 1).unwrap();
                    prop_assert!(page.seen(block) >= before.gpus[uuid].seen(block));
                }
            }
        }
    }
}
