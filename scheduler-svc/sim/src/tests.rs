//! Small parts of the grid, with the numbers that the release build gives.

use std::sync::OnceLock;

use scheduler_core::cluster::{Demand, GpuSet, Kind, Node};
use scheduler_core::packing::fgd::{self, Fgd, Popular};
use scheduler_core::packing::{Class, Free};

use crate::baseline::Baseline;
use crate::contender::Contender;
use crate::experiment::Workload;
use crate::grid;
use crate::prng::Prng;
use crate::replay::{Book, Illegal, Place, Step};
use crate::{openb, published, queue, trace};

fn default() -> &'static Workload {
    static WORKLOAD: OnceLock<Workload> = OnceLock::new();
    WORKLOAD.get_or_init(|| Workload::read("default").unwrap())
}

#[test]
fn reads_the_whole_trace() {
    let hosts = openb::hosts().unwrap();
    assert_eq!(hosts.hosts.len(), 1_213);
    let gpus: u32 = hosts.hosts.iter().map(|h| u32::from(h.node.gpus())).sum();
    assert_eq!(gpus, 6_212);
    let counts = published::PUBLISHED.map(|known| {
        let pods = openb::pods(known.workload, &hosts).unwrap();
        assert!(pods.is_sorted_by(|a, b| a.name < b.name));
        pods.len()
    });
    assert_eq!(
        counts,
        [
            8152, 7439, 7853, 8832, 9420, 8152, 8152, 8152, 8152, 8152, 8152, 8152, 8152, 8324,
            8508, 8746, 9061
        ]
    );
    assert_eq!(default().classes.len(), 91);
    // The published simulator counts 35 typical shapes in this list.
    assert_eq!(fgd::typical(&default().classes).len(), 35);
}

#[test]
fn says_what_is_wrong_with_a_file() {
    let hosts = |text: &str| trace::hosts("nodes.csv", text).unwrap_err().to_string();
    assert_eq!(
        hosts("sn,cpu_milli,memory_mib,gpu\n"),
        "nodes.csv has no column model"
    );
    assert_eq!(
        hosts("sn,cpu_milli,memory_mib,gpu,model\na,1,1\n"),
        "line 2 of nodes.csv has 3 fields instead of 5"
    );
    assert_eq!(
        hosts("sn,cpu_milli,memory_mib,gpu,model\na,1,1,17,T4\n"),
        "line 2 of nodes.csv: gpu is \"17\", not at most 16"
    );
    let kinds = openb::hosts().unwrap().kinds;
    let pods = |row: &str| {
        let text = format!("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n{row}\n");
        trace::pods("pods.csv", &text, &kinds)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        pods("p,-1,1,1,500,"),
        "line 2 of pods.csv: cpu_milli is \"-1\", not a whole number below 2^32"
    );
    assert_eq!(
        pods("p,1,1,1,505,"),
        "line 2 of pods.csv: gpu_milli is \"505\", not a multiple of 10 up to 1000"
    );
    assert_eq!(
        pods("p,1,1,2,500,"),
        "line 2 of pods.csv: gpu_milli is \"500\", not a share that goes with num_gpu"
    );
    assert_eq!(
        pods("p,1,1,1,500,H100"),
        "line 2 of pods.csv: gpu_spec is \"H100\", not models of which a node has one"
    );
    let unpacked = trace::unpack("pods.csv.gz", b"no gzip").unwrap_err();
    assert_eq!(unpacked.to_string(), "pods.csv.gz cannot be unpacked");
}

#[test]
fn arrivals_are_the_set_up_of_the_paper() {
    for name in ["default", "multigpu50", "gpushare100"] {
        let workload = Workload::read(name).unwrap();
        let run = workload.experiment(42);
        let blocks = |run: &crate::experiment::Experiment| -> u64 {
            let total =
                |a: &crate::experiment::Arrival| u64::from(workload.classes[a.class].class.total());
            run.arrivals.iter().map(total).sum()
        };
        let most = workload.capacity() * 13 / 10;
        assert!(blocks(&run) <= most && blocks(&run) > most - 800, "{name}");
        assert_eq!(run, workload.experiment(42));
        let other = workload.experiment(43);
        assert_ne!(run.arrivals, other.arrivals);
        assert_ne!(run.nodes, other.nodes);
    }
}

#[test]
fn random_numbers_are_the_same_for_ever() {
    let mut prng = Prng::new(42, "default", "arrivals");
    let drawn: Vec<usize> = (0..6).map(|_| prng.below(1000)).collect();
    assert_eq!(drawn, DRAWN);
    let mut counts = [0_u32; 7];
    for _ in 0..70_000 {
        counts[prng.below(7)] += 1;
    }
    assert!(
        counts.iter().all(|&n| n.abs_diff(10_000) < 400),
        "{counts:?}"
    );
}

/// What seed 42 gives.
const DRAWN: [usize; 6] = [333, 965, 239, 481, 46, 246];

#[test]
fn the_book_refuses_what_is_not_there() {
    let workload = default();
    let run = workload.experiment(42);
    let mut book = Book::new(workload, &run);
    let step = |node, gpus| Step {
        task: 0,
        moved: None,
        place: Some(Place { node, gpus }),
    };
    assert_eq!(
        book.step(&step(0, GpuSet::EMPTY)),
        Err(Illegal::Overcommit { task: 0, node: 0 })
    );
    assert_eq!(
        book.step(&step(usize::MAX, GpuSet::one(0))),
        Err(Illegal::Overcommit {
            task: 0,
            node: usize::MAX
        })
    );
    let dropped = Step {
        task: 0,
        moved: None,
        place: None,
    };
    assert_eq!(
        book.step(&dropped),
        Err(Illegal::Dropped { task: 0, node: 0 })
    );
}

/// The definition, by the letter: F before and after, as real numbers.
fn fragmentation(node: &Free, cpu: u32, gpus: &[u8], typical: &[Popular]) -> f64 {
    let all: f64 = typical.iter().map(|m| f64::from(m.count)).sum();
    let total: f64 = gpus.iter().map(|&r| f64::from(r) * 10.0).sum();
    typical
        .iter()
        .map(|m| {
            let roomy = gpus.iter().filter(|&&r| r >= m.class.blocks).count();
            let fits = m.class.gpus > 0
                && m.class.kinds.admits(node.kind)
                && cpu >= m.class.cpu
                && roomy >= usize::from(m.class.gpus);
            let lost = if fits {
                let small = gpus.iter().filter(|&&r| r < m.class.blocks);
                small.map(|&r| f64::from(r) * 10.0).sum()
            } else {
                total
            };
            f64::from(m.count) / all * lost
        })
        .sum()
}

#[test]
fn fgd_scores_are_the_definition() {
    let workload = Workload::read("gpuspec33").unwrap();
    let typical = fgd::typical(&workload.classes);
    let fgd = Fgd::new(&workload.classes);
    let mut prng = Prng::new(7, "test", "nodes");
    let mut rated = 0;
    for _ in 0..3_000 {
        let mut node = workload.nodes[prng.below(workload.nodes.len())];
        node.cpu = u32::try_from(prng.below(node.cpu as usize + 1)).unwrap();
        for gpu in 0..usize::from(node.count) {
            if prng.below(2) == 0 {
                node.gpus[gpu] = u8::try_from(prng.below(101)).unwrap();
            }
        }
        let class = workload.classes[prng.below(workload.classes.len())].class;
        let Some((score, set)) = fgd.rate(&node, &class) else {
            assert!(!node.fits(&class));
            continue;
        };
        rated += 1;
        let before = fragmentation(&node, node.cpu, node.gpus(), &typical);
        let exact = |set: GpuSet| {
            let after = node.take(&class, 0, set).unwrap();
            let after = fragmentation(&node, after.cpu, after.gpus(), &typical);
            100.0 / (1.0 + (-(before - after) / 1000.0).exp())
        };
        let close = |set| (exact(set) - f64::from(score) - 0.5).abs() <= 0.5 + 1e-6;
        assert!(close(set), "{node:?} {class:?}: {score} {}", exact(set));
        if class.is_shared() {
            // No GPU has a better score, and none before it an equal one.
            for gpu in (0..usize::from(node.count)).filter(|&g| node.gpus[g] >= class.blocks) {
                let other = exact(GpuSet::one(gpu)).floor();
                let chosen = f64::from(score);
                let better =
                    other > chosen || (other == chosen && GpuSet::one(gpu).bits() < set.bits());
                let edge = (exact(GpuSet::one(gpu)) - exact(GpuSet::one(gpu)).round()).abs() < 1e-6;
                assert!(!better || edge, "{node:?} {class:?} {gpu}");
            }
        }
    }
    assert!(rated > 1_000, "{rated}");
}

#[test]
fn small_clusters_end_as_they_must() {
    // Two GPUs on two nodes; a task of 60 blocks on the first leaves 40 there.
    let kind = Kind::new(0).unwrap();
    let node = Free::of(&Node::new(kind, 8_000, 8_192, 1).unwrap());
    let demand = Demand::share(1_000, 1_024, 60).unwrap();
    let class = Class::of(&demand);
    let left = node.take(&class, 1_024, GpuSet::one(0)).unwrap();
    assert_eq!((left.cpu, left.memory, left.gpus[0]), (7_000, 7_168, 40));
    assert_eq!(left.give(&class, 1_024, GpuSet::one(0)), node);
    assert!(!left.fits(&class) && node.fits(&class));
    assert_eq!(left.take(&class, 1_024, GpuSet::one(0)), None);
    assert_eq!(node.take(&class, 1_024, GpuSet::one(1)), None);
}

/// Allocated blocks when 100 % had arrived and at the end, seed 42, `default`.
const ENDS: [(Contender, u64, u64); 2] = [
    (Contender::Published(Baseline::Fgd), 591_629, 592_697),
    (Contender::PLAN, 597_933, 598_416),
];

/// The same on every eighth node, with as much less demand.
const SLICE_ENDS: [(Contender, u64, u64); 11] = [
    (Contender::Published(Baseline::Random), 66_058, 67_502),
    (Contender::Published(Baseline::DotProd), 68_886, 69_072),
    (Contender::Published(Baseline::Clustering), 70_852, 71_038),
    (Contender::Published(Baseline::Packing), 70_720, 70_906),
    (Contender::Published(Baseline::BestFit), 70_320, 70_506),
    (Contender::Published(Baseline::Fgd), 73_658, 73_744),
    (Contender::PLAN, 74_201, 74_356),
    (Contender::LEARNED, 73_742, 73_972),
    (Contender::MOVES, 73_871, 74_391),
    (Contender::QueuedFgd, 75_312, 75_653),
    (Contender::QUEUED, 75_798, 76_139),
];

#[test]
fn runs_end_with_the_same_blocks_as_ever() {
    assert_eq!(ends(default(), &ENDS.map(|end| end.0)), ENDS);
}

#[test]
fn runs_of_a_slice_end_with_the_same_blocks_as_ever() {
    let mut hosts = openb::hosts().unwrap();
    let pods = openb::pods("default", &hosts).unwrap();
    hosts.hosts = hosts.hosts.into_iter().step_by(8).collect();
    let slice = Workload::new("default", &hosts, &pods);
    let policies = SLICE_ENDS.map(|end| end.0);
    assert_eq!(ends(&slice, &policies), SLICE_ENDS);
}

fn ends(workload: &Workload, policies: &[Contender]) -> Vec<(Contender, u64, u64)> {
    let cells = grid::run(policies, std::slice::from_ref(workload), &[42], 1).unwrap();
    cells
        .iter()
        .map(|cell| {
            let outcome = cell.outcome;
            (policies[cell.policy], outcome.at_full, outcome.at_end)
        })
        .collect()
}

#[test]
fn a_queue_lets_the_largest_through_first() {
    let workload = default();
    let run = workload.experiment(42);
    // Nobody waits.
    assert_eq!(queue::reorder(workload, &run, 0), run);
    // All wait.
    let size = |a: &crate::experiment::Arrival| {
        let class = workload.classes[a.class].class;
        (class.total(), class.cpu)
    };
    let all = queue::reorder(workload, &run, usize::MAX);
    assert!(
        all.arrivals
            .is_sorted_by_key(|a| std::cmp::Reverse(size(a)))
    );
    // Some wait: the same tasks, and each at most so much earlier.
    let some = queue::reorder(workload, &run, 100);
    let sorted = |run: &crate::experiment::Experiment| {
        let mut arrivals: Vec<(usize, u32)> =
            run.arrivals.iter().map(|a| (a.class, a.memory)).collect();
        arrivals.sort_unstable();
        arrivals
    };
    assert_eq!(sorted(&some), sorted(&run));
    let first = run.arrivals[..101].iter().map(size).max().unwrap();
    assert_eq!(size(&some.arrivals[0]), first);
}

#[test]
fn threads_change_nothing() {
    let policies = [Contender::Published(Baseline::Packing)];
    let workloads = [default().clone()];
    let one = grid::run(&policies, &workloads, &[42, 43, 44], 1).unwrap();
    let two = grid::run(&policies, &workloads, &[42, 43, 44], 2).unwrap();
    assert_eq!(one, two);
}

#[test]
fn reproduces_the_published_means_of_a_workload() {
    // In a soak all ten seeds of the four policies that have to agree.
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a soak is, read by the test itself"
    )]
    let soak = std::env::var("CNLAB_SOAK_ROUNDS").is_ok();
    let (count, policies) = if soak {
        let all = [0, 3, 4, 5].map(|at| (at, Contender::Published(Baseline::ALL[at])));
        (10, all.to_vec())
    } else {
        (3, vec![(5, Contender::Published(Baseline::Fgd))])
    };
    let seeds: Vec<u64> = crate::experiment::SEEDS.take(count).collect();
    let contenders: Vec<Contender> = policies.iter().map(|p| p.1).collect();
    let cells = grid::run(&contenders, &[default().clone()], &seeds, 2).unwrap();
    let rows = crate::report::rows(&cells, &contenders, &["default".to_owned()]);
    for (at, policy) in policies {
        let (end, _) = rows[0].of(policy).unwrap();
        let published = f64::from(rows[0].known.means[at]) / 100.0;
        assert!(
            (end.mean - published).abs() <= 0.3,
            "{}: {} instead of {published}",
            policy.name(),
            end.mean
        );
    }
}
