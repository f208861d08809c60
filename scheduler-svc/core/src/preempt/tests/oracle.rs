//! Every set of candidates tried on small cells, judged by an account of its own.

use super::{soak::rounds, *};

/// A cell as plain numbers.
#[derive(Debug, Clone)]
struct Cell {
    /// Kind, eligible, processors, memory, GPUs.
    nodes: Vec<(u8, bool, u32, u32, u8)>,
    runs: Vec<Run>,
}

#[derive(Debug, Clone)]
struct Run {
    id: u64,
    /// Per task: node and GPUs.
    tasks: Vec<(usize, Vec<usize>)>,
    cpu: u32,
    memory: u32,
    gpus: u8,
    blocks: u8,
    priority: u32,
    serves: bool,
    learns: bool,
    since: i64,
    checkpoint: Option<i64>,
    fixed: bool,
}

#[derive(Debug, Clone)]
struct Wish {
    cpu: u32,
    memory: u32,
    gpus: u8,
    blocks: u8,
    kinds: Option<u8>,
    tasks: u16,
    priority: u32,
    serves: bool,
}

const NOW: i64 = 100;

impl Cell {
    /// How many tasks of a wish fit when these runs are gone, by counting.
    fn tasks(&self, wish: &Wish, gone: &[bool]) -> u32 {
        (0..self.nodes.len())
            .map(|node| self.tasks_on(node, wish, gone))
            .sum()
    }

    fn tasks_on(&self, node: usize, wish: &Wish, gone: &[bool]) -> u32 {
        let (kind, eligible, cpu, memory, gpus) = self.nodes[node];
        if !eligible || wish.kinds.is_some_and(|wanted| wanted != kind) {
            return 0;
        }
        let (mut cpu, mut memory) = (i64::from(cpu), i64::from(memory));
        let mut free = vec![100_i32; gpus.into()];
        for (run, gone) in self.runs.iter().zip(gone) {
            for (_, on) in run.tasks.iter().filter(|task| task.0 == node && !gone) {
                cpu -= i64::from(run.cpu);
                memory -= i64::from(run.memory);
                for gpu in on {
                    free[*gpu] -= i32::from(run.blocks);
                }
            }
        }
        // Put tasks there one by one.
        let mut count = 0;
        while count < u32::from(wish.tasks) {
            cpu -= i64::from(wish.cpu);
            memory -= i64::from(wish.memory);
            let mut wanted = wish.gpus;
            for free in &mut free {
                if wanted > 0 && *free >= i32::from(wish.blocks) {
                    *free -= i32::from(wish.blocks);
                    wanted -= 1;
                }
            }
            if cpu < 0 || memory < 0 || wanted > 0 {
                break;
            }
            count += 1;
        }
        count
    }

    fn may_go(&self, run: &Run, wish: &Wish) -> bool {
        let before = wish.priority > run.priority
            || (wish.priority == run.priority && wish.serves && run.learns);
        before && !run.fixed && NOW >= run.since + 10
    }

    fn unsaved(run: &Run) -> u128 {
        let saved = run.checkpoint.map_or(run.since, |at| at.max(run.since));
        u128::try_from((NOW - saved).max(0)).unwrap()
    }

    /// Lost block-minutes, victims, priorities, processor-minutes.
    fn loss(&self, gone: &[bool]) -> (u128, u32, u32, u128) {
        let mut loss = (0, 0, 0, 0);
        for (run, _) in self.runs.iter().zip(gone).filter(|(_, gone)| **gone) {
            let gpus: usize = run.tasks.iter().map(|task| task.1.len()).sum();
            loss.0 += Self::unsaved(run) * u128::from(run.blocks) * gpus as u128;
            loss.1 += 1;
            loss.2 += run.priority + 1;
            loss.3 += Self::unsaved(run) * u128::from(run.cpu) * run.tasks.len() as u128;
        }
        loss
    }

    /// The least loss of all sets that make room.
    fn least(&self, wish: &Wish) -> Option<(u128, u32, u32, u128)> {
        let candidates: Vec<usize> = (0..self.runs.len())
            .filter(|index| self.may_go(&self.runs[*index], wish))
            .collect();
        (0_u32..1 << candidates.len())
            .filter_map(|set| {
                let mut gone = vec![false; self.runs.len()];
                for (bit, index) in candidates.iter().enumerate() {
                    gone[*index] = set >> bit & 1 == 1;
                }
                // One task has to fit on one node, several together on all.
                let enough = self.tasks(wish, &gone) >= wish.tasks.into();
                enough.then(|| self.loss(&gone))
            })
            .min()
    }

    /// The same as the code under test sees it.
    fn build(&self) -> (Cluster, Runs) {
        let mut cluster = Cluster::new();
        for (number, eligible, cpu, memory, gpus) in &self.nodes {
            let ix = cluster
                .add(Node::new(kind(*number), *cpu, *memory, *gpus).unwrap())
                .unwrap();
            cluster.set_eligible(ix, *eligible).unwrap();
        }
        let mut runs = Runs::new(MIN_RUN);
        for run in &self.runs {
            let demand = demand(run.cpu, run.memory, run.gpus, run.blocks);
            let mut job = job(run.id, demand, priority(run.priority));
            job.ask.tasks = u16::try_from(run.tasks.len()).unwrap();
            let places: Vec<Place> = run
                .tasks
                .iter()
                .map(|(node, gpus)| place(u32::try_from(*node).unwrap(), gpus))
                .collect();
            for place in &places {
                cluster.take(*place, &demand).unwrap();
            }
            let mut running = training(job, places, at(run.since));
            if run.serves {
                running.kind = WorkKind::Inference;
                running.environment = Environment::Production;
            } else if !run.learns {
                running.kind = WorkKind::Evaluation;
            }
            running.checkpoint = run.checkpoint.map(at);
            running.fixed = run.fixed;
            runs.insert(running);
        }
        (cluster, runs)
    }
}

fn priority(level: u32) -> Priority {
    [
        Priority::Low,
        Priority::Normal,
        Priority::High,
        Priority::Critical,
    ][level as usize]
}

fn demand(cpu: u32, memory: u32, gpus: u8, blocks: u8) -> Demand {
    match (gpus, blocks) {
        (0, _) => Demand::cpu_only(cpu, memory),
        (1, 1..100) => Demand::share(cpu, memory, blocks).unwrap(),
        _ => Demand::whole(cpu, memory, gpus).unwrap(),
    }
}

fn wish_of(wish: &Wish) -> Newcomer {
    let mut demand = demand(wish.cpu, wish.memory, wish.gpus, wish.blocks);
    if let Some(number) = wish.kinds {
        demand = demand.on(KindSet::ANY.with(kind(number)));
    }
    let mut job = job(1_000, demand, priority(wish.priority));
    job.ask.tasks = wish.tasks;
    let mut newcomer = newcomer(job);
    if wish.serves {
        newcomer.kind = WorkKind::Inference;
        newcomer.environment = Environment::Production;
    }
    newcomer
}

/// GPUs and blocks of each: none, a share, or entire ones.
fn shape() -> impl Strategy<Value = (u8, u8)> {
    prop_oneof![
        1 => Just((0, 0)),
        6 => (1_u8..100).prop_map(|blocks| (1, blocks)),
        3 => (1_u8..3).prop_map(|gpus| (gpus, 100)),
    ]
}

/// A run before it has a place: processors, memory, GPUs and blocks, tasks, priority, what it
/// does, since, checkpoint, fixed, and where to begin to look.
type Seed = (
    (u32, u32, (u8, u8), usize),
    (u32, u8, i64, Option<i64>, bool),
    usize,
);

fn seed(tasks: std::ops::Range<usize>) -> impl Strategy<Value = Seed> {
    (
        (0_u32..6, 0_u32..6, shape(), tasks),
        (
            0_u32..4,
            0_u8..3,
            0_i64..100,
            prop::option::of(0_i64..110),
            prop::bool::weighted(0.05),
        ),
        0_usize..8,
    )
}

/// Mostly small shares of low priority that ran for a while.
fn crowded() -> impl Strategy<Value = Seed> {
    let shape = prop_oneof![
        8 => (5_u8..60).prop_map(|blocks| (1, blocks)),
        1 => (1_u8..3).prop_map(|gpus| (gpus, 100)),
    ];
    (
        (0_u32..3, 0_u32..3, shape, 1_usize..2),
        (0_u32..3, 0_u8..3, 0_i64..90, Just(None), Just(false)),
        0_usize..8,
    )
}

/// Puts the seeds where there is room, and leaves out those for which there is none.
fn cell_of(nodes: Vec<(u8, bool, u32, u32, u8)>, seeds: Vec<Seed>, most: usize) -> Cell {
    let mut cell = Cell {
        nodes,
        runs: Vec::new(),
    };
    for ((cpu, memory, (gpus, blocks), tasks), (level, does, since, checkpoint, fixed), from) in
        seeds
    {
        let mut run = Run {
            id: cell.runs.len() as u64,
            tasks: Vec::new(),
            cpu,
            memory,
            gpus,
            blocks,
            priority: level,
            serves: does == 0,
            learns: does == 1,
            since,
            checkpoint,
            fixed,
        };
        if cell.runs.len() == most {
            break;
        }
        cell.runs.push(run.clone());
        for task in 0..tasks {
            let found = (0..cell.nodes.len()).find_map(|step| {
                let node = (from + task + step) % cell.nodes.len();
                cell.fitting(node, &run).map(|on| (node, on))
            });
            if let Some(found) = found {
                run.tasks.push(found);
                *cell.runs.last_mut().unwrap() = run.clone();
            }
        }
        if run.tasks.len() < tasks {
            cell.runs.pop();
        }
    }
    cell
}

impl Cell {
    /// GPUs of a node on which one more task of a run has room, eligible or not.
    fn fitting(&self, node: usize, run: &Run) -> Option<Vec<usize>> {
        let (_, _, cpu, memory, gpus) = self.nodes[node];
        let on_node = || {
            self.runs
                .iter()
                .flat_map(|other| other.tasks.iter().map(move |task| (other, task)))
                .filter(move |(_, task)| task.0 == node)
        };
        let used = |amount: fn(&Run) -> u32| on_node().map(|(other, _)| amount(other)).sum::<u32>();
        if used(|run| run.cpu) + run.cpu > cpu || used(|run| run.memory) + run.memory > memory {
            return None;
        }
        let wanted = usize::from(run.gpus);
        let free = |gpu: usize| {
            100 - on_node()
                .filter(|(_, task)| task.1.contains(&gpu))
                .map(|(other, _)| i32::from(other.blocks))
                .sum::<i32>()
        };
        let on: Vec<usize> = (0..gpus.into())
            .filter(|gpu| free(*gpu) >= i32::from(run.blocks))
            .take(wanted)
            .collect();
        (on.len() == wanted).then_some(on)
    }
}

fn wish(tasks: std::ops::Range<u16>) -> impl Strategy<Value = Wish> {
    (
        (0_u32..10, 0_u32..10, shape()),
        (
            prop::option::weighted(0.2, 0_u8..2),
            tasks,
            0_u32..4,
            any::<bool>(),
        ),
    )
        .prop_map(
            |((cpu, memory, (gpus, blocks)), (kinds, tasks, priority, serves))| Wish {
                cpu,
                memory,
                gpus,
                blocks,
                kinds,
                tasks,
                priority,
                serves,
            },
        )
}

fn nodes() -> impl Strategy<Value = Vec<(u8, bool, u32, u32, u8)>> {
    prop::collection::vec(
        (
            0_u8..2,
            prop::bool::weighted(0.9),
            6_u32..16,
            6_u32..16,
            0_u8..4,
        ),
        1..4,
    )
}

/// Compares with the oracle and carries the answer out. Returns both losses of GPU time.
fn check(cell: &Cell, wish: &Wish) -> Option<(u128, u128)> {
    let (mut cluster, mut runs) = cell.build();
    let newcomer = wish_of(wish);
    let got = runs.reclaim(&cluster, &newcomer, at(NOW));
    let least = cell.least(wish);
    assert_eq!(got.is_some(), least.is_some(), "{cell:?} {wish:?} {got:?}");
    let (got, least) = (got?, least?);
    let gone: Vec<bool> = cell
        .runs
        .iter()
        .map(|run| got.victims.iter().any(|victim| victim.job.0 == run.id))
        .collect();
    assert_eq!(gone.iter().filter(|gone| **gone).count(), got.victims.len());
    for (run, _) in cell.runs.iter().zip(&gone).filter(|(_, gone)| **gone) {
        assert!(cell.may_go(run, wish), "{run:?} gave way to {wish:?}");
    }
    let minute = u128::from(MINUTE.unsigned_abs());
    let loss = cell.loss(&gone);
    assert_eq!(
        (
            got.loss.gpu,
            got.loss.victims,
            got.loss.priorities,
            got.loss.cpu
        ),
        (loss.0 * minute, loss.1, loss.2, loss.3 * minute)
    );
    assert!(loss >= least, "better than the best: a fault of the oracle");
    // Nobody gave way for nothing.
    for index in (0..gone.len()).filter(|index| gone[*index]) {
        let mut one_less = gone.clone();
        one_less[index] = false;
        assert!(cell.tasks(wish, &one_less) < wish.tasks.into() || wish.tasks > 1);
    }
    // The book agrees that it can be done.
    for victim in &got.victims {
        let running = runs.remove(victim.job).unwrap();
        for place in &running.places {
            cluster.give(*place, &running.job.ask.demand).unwrap();
        }
    }
    assert_eq!(got.places.len(), usize::from(wish.tasks));
    for place in &got.places {
        let node = cluster.node(place.node).unwrap();
        assert!(node.fits(&newcomer.job.ask.demand));
        cluster.take(*place, &newcomer.job.ask.demand).unwrap();
    }
    Some((loss.0, least.0))
        .filter(|_| loss == least || wish.tasks > 1)
        .or_else(|| panic!("{loss:?} is not the least, {least:?}: {cell:?} {wish:?} {got:?}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300 * rounds()))]

    #[test]
    fn one_task_makes_the_least_of_all_sets_give_way(
        nodes in nodes(),
        // Up to twelve runs, all on one node at worst, some with tasks on several.
        seeds in prop::collection::vec(seed(1..3), 0..16),
        wish in wish(1..2),
    ) {
        check(&cell_of(nodes, seeds, 12), &wish);
    }

    #[test]
    fn crowded_gpus_make_the_least_of_all_sets_give_way(
        gpus in prop::collection::vec(1_u8..4, 1..3),
        seeds in prop::collection::vec(crowded(), 6..30),
        wish in wish(1..2),
        needy: bool,
    ) {
        // Enough processors and memory for everything, or just not.
        let each = if needy { 14 } else { 100 };
        let nodes = gpus.into_iter().map(|gpus| (0, true, each, each, gpus)).collect();
        let wish = Wish { priority: 3, kinds: None, ..wish };
        check(&cell_of(nodes, seeds, 12), &wish);
    }

    #[test]
    fn gangs_make_the_least_give_way_where_each_runs_on_one_node(
        nodes in nodes(),
        seeds in prop::collection::vec(seed(1..2), 0..12),
        wish in wish(2..5),
    ) {
        if let Some((got, least)) = check(&cell_of(nodes, seeds, 9), &wish) {
            prop_assert_eq!(got, least);
        }
    }

    #[test]
    fn gangs_find_a_way_also_among_gangs(
        nodes in nodes(),
        seeds in prop::collection::vec(seed(1..4), 0..12),
        wish in wish(2..5),
    ) {
        check(&cell_of(nodes, seeds, 9), &wish);
    }
}
