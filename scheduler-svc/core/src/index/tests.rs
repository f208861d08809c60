use super::*;
use crate::{
    cluster::{GpuSet, Kind, KindSet, Shape},
    fragmentation::{Definition, Gradient, Popularity},
    placement::{BestFit, scan},
};

/// SplitMix64, so that a seed is all that a failure needs to be repeated.
struct Mix(u64);

impl Mix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(((self.next() >> 32) * u64::from(bound)) >> 32).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len().try_into().unwrap()) as usize]
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

fn kind(number: u32) -> Kind {
    Kind::new(number.try_into().unwrap()).unwrap()
}

fn demand(mix: &mut Mix) -> Demand {
    let cpu = mix.below(12) * 1_000;
    let memory = mix.pick(&[0, 4_096, 8_192, 16_384]);
    let demand = match mix.below(10) {
        0 => Demand::cpu_only(cpu, memory),
        1..6 => Demand::share(cpu, memory, u8::try_from(1 + mix.below(100)).unwrap()).unwrap(),
        6..9 => Demand::whole(cpu, memory, 1).unwrap(),
        _ => Demand::whole(cpu, memory, mix.pick(&[2, 4, 8])).unwrap(),
    };
    match mix.below(6) {
        0 => demand.on(KindSet::ANY.with(kind(0))),
        1 => demand.on(KindSet::ANY.with(kind(1)).with(kind(2))),
        _ => demand,
    }
}

/// Demands of which some differ only in memory.
fn demands(mix: &mut Mix, count: usize) -> Vec<Demand> {
    let mut demands: Vec<Demand> = Vec::new();
    while demands.len() < count {
        let mut next = demand(mix);
        if mix.percent(50) && !demands.is_empty() {
            let like = mix.pick(&demands);
            let (cpu, memory) = (like.cpu_milli(), mix.below(20_000));
            next = match like.shape() {
                Shape::CpuOnly => Demand::cpu_only(cpu, memory),
                Shape::Share(blocks) => Demand::share(cpu, memory, blocks).unwrap(),
                Shape::Whole(gpus) => Demand::whole(cpu, memory, gpus).unwrap(),
            };
            next = next.on(like.kinds());
        }
        demands.push(next);
    }
    demands
}

fn node(mix: &mut Mix) -> Node {
    let gpus = mix.pick(&[0, 1, 2, 4, 8, 8]);
    let cpu = u32::from(gpus) * 8_000 + 16_000;
    Node::new(
        kind(mix.below(3)),
        cpu,
        u32::from(gpus) * 16_384 + 16_384,
        gpus,
    )
    .unwrap()
}

fn cell(mix: &mut Mix, nodes: usize) -> Cluster {
    let mut cell = Cluster::new();
    for _ in 0..nodes {
        cell.add(node(mix)).unwrap();
    }
    cell
}

fn popularity(mix: &mut Mix) -> Popularity {
    Popularity::weighted(
        (0..8)
            .map(|_| (demand(mix), mix.next() % 50))
            .collect::<Vec<_>>(),
    )
}

/// A random history; every answer is compared with the search through all nodes.
struct History<'a, R, S> {
    mix: Mix,
    index: Index<R>,
    scanned: &'a S,
    demands: Vec<Demand>,
    held: Vec<(Place, Demand)>,
    placed: usize,
    refused: usize,
}

impl<R: Rule, S: Rule> History<'_, R, S> {
    fn step(&mut self) {
        let bound = u32::try_from(self.index.cluster().bound()).unwrap();
        let ix = NodeIx(self.mix.below(bound));
        match self.mix.below(100) {
            0..55 => self.arrive(),
            55..75 => {
                if !self.held.is_empty() {
                    let at = self.mix.below(self.held.len().try_into().unwrap()) as usize;
                    let (place, demand) = self.held.swap_remove(at);
                    self.index.give(place, &demand).unwrap();
                }
            }
            75..80 => {
                let open = self.mix.percent(70);
                let known = self.index.cluster().node(ix).is_some();
                assert_eq!(self.index.set_eligible(ix, open).is_ok(), known);
            }
            80..83 => drop(self.index.add(node(&mut self.mix)).unwrap()),
            83..86 => drop(self.index.remove(ix)),
            86..90 => {
                let mut blocks = [0; MAX_GPUS];
                let gpus = self.mix.below(9) as usize;
                blocks[..gpus].fill(100);
                if self.mix.percent(30) {
                    blocks[0] = 50;
                }
                let cpu = self.mix.below(80) * 1_000;
                let known = self.index.cluster().node(ix).is_some();
                let done = self
                    .index
                    .set_total(ix, cpu, self.mix.below(100_000), blocks);
                assert_eq!(done.is_ok(), known);
            }
            _ => self.ask_some(),
        }
    }

    fn arrive(&mut self) {
        let demand = self.mix.pick(&self.demands);
        let found = self.index.place(&demand);
        assert_eq!(
            found,
            scan(self.scanned, self.index.cluster(), &demand),
            "{demand}"
        );
        let Some(choice) = found else {
            let fits = self
                .index
                .cluster()
                .nodes()
                .any(|(_, node)| node.fits(&demand));
            assert!(!fits, "{demand}");
            self.refused += 1;
            return;
        };
        self.placed += 1;
        self.index.take(choice.place, &demand).unwrap();
        self.held.push((choice.place, demand));
    }

    /// Asks with a filter, against a cluster whose other nodes are closed.
    fn ask_some(&mut self) {
        let demand = self.mix.pick(&self.demands);
        let odd = self.mix.below(2);
        let admits = |ix: NodeIx| ix.0 % 3 != odd;
        let found = self.index.place_where(&demand, |ix, _| admits(ix));
        let mut some = self.index.cluster().clone();
        let others: Vec<_> = some
            .nodes()
            .map(|(ix, _)| ix)
            .filter(|ix| !admits(*ix))
            .collect();
        for ix in others {
            some.set_eligible(ix, false).unwrap();
        }
        assert_eq!(found, scan(self.scanned, &some, &demand), "{demand}");
    }
}

/// Runs a history and says how many arrivals were placed and how many were not.
fn run<R: Rule, S: Rule>(
    seed: u64,
    nodes: usize,
    steps: usize,
    rule: R,
    scanned: &S,
) -> (usize, usize) {
    println!("seed {seed}, {nodes} nodes, {steps} steps");
    let mut mix = Mix(seed);
    let mut history = History {
        index: Index::new(cell(&mut mix, nodes), rule),
        demands: demands(&mut mix, 30),
        mix,
        scanned,
        held: Vec::new(),
        placed: 0,
        refused: 0,
    };
    for _ in 0..steps {
        history.step();
    }
    (history.placed, history.refused)
}

fn rounds() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "longer runs are asked for from outside"
    )]
    let rounds = std::env::var("CNLAB_SOAK_ROUNDS");
    rounds.map_or(4, |rounds| rounds.parse().unwrap())
}

#[test]
fn best_fit_is_that_of_the_scan() {
    let (mut placed, mut refused) = (0, 0);
    for seed in 0..rounds() {
        for nodes in [1, 6, 15, 33] {
            let counts = run(seed, nodes, 1_500, BestFit, &BestFit);
            (placed, refused) = (placed + counts.0, refused + counts.1);
        }
    }
    assert!(
        placed > 5_000 && refused > 500,
        "{placed} placed, {refused} refused"
    );
}

#[test]
fn the_gradient_is_that_of_the_definition() {
    let (mut placed, mut refused) = (0, 0);
    for seed in 100..100 + rounds() {
        let popularity = popularity(&mut Mix(seed));
        let definition = Definition::new(popularity.clone());
        for nodes in [1, 6, 33] {
            let counts = run(seed, nodes, 600, Gradient::new(&popularity), &definition);
            (placed, refused) = (placed + counts.0, refused + counts.1);
        }
    }
    assert!(
        placed > 1_500 && refused > 200,
        "{placed} placed, {refused} refused"
    );
}

/// Levels of maxima begin above 16, 256 and 4,096 nodes; histories make them grow into one.
#[test]
fn large_cells_too() {
    let popularity = popularity(&mut Mix(7));
    let gradient = Gradient::new(&popularity);
    for nodes in [250, 300, 4_090] {
        run(nodes as u64, nodes, 120, gradient.clone(), &gradient);
        run(nodes as u64, nodes, 120, BestFit, &BestFit);
    }
}

/// With fewer columns than demands the oldest is given away, and comes back right.
#[test]
fn a_demand_without_a_column_is_answered_again() {
    let mut mix = Mix(1);
    let mut index = Index::with_columns(cell(&mut mix, 40), BestFit, 7);
    let demands = demands(&mut mix, 12);
    for _ in 0..500 {
        let demand = mix.pick(&demands);
        let found = index.place(&demand);
        assert_eq!(found, scan(&BestFit, index.cluster(), &demand));
        if let Some(choice) = found {
            index.take(choice.place, &demand).unwrap();
            if index.cluster().held().blocks > 2_000 {
                index.give(choice.place, &demand).unwrap();
            }
        }
    }
    assert_eq!(index.columns(), 7);
}

#[test]
fn another_rule_answers_from_then_on() {
    let mut mix = Mix(3);
    let popularity = popularity(&mut mix);
    let mut index = Index::new(cell(&mut mix, 20), Gradient::new(&Popularity::default()));
    let demand = Demand::share(1_000, 0, 40).unwrap();
    index.place(&demand);
    index.set_rule(Gradient::new(&popularity));
    let expected = scan(&Definition::new(popularity), index.cluster(), &demand);
    assert_eq!(index.place(&demand), expected);
}

/// A cell in the middle of a history: nodes of many states.
fn used_cell(seed: u64) -> (Mix, Vec<Node>) {
    let mut mix = Mix(seed);
    let mut index = Index::new(cell(&mut mix, 24), BestFit);
    for _ in 0..120 {
        let demand = demand(&mut mix);
        if let Some(choice) = index.place(&demand) {
            index.take(choice.place, &demand).unwrap();
        }
    }
    let nodes = index.cluster().nodes().map(|(_, node)| *node).collect();
    (mix, nodes)
}

fn of(nodes: &[Node]) -> Cluster {
    let mut cell = Cluster::new();
    for node in nodes {
        cell.add(*node).unwrap();
    }
    cell
}

fn shuffled(mix: &mut Mix, nodes: &[Node]) -> Vec<Node> {
    let mut nodes = nodes.to_vec();
    for last in (1..nodes.len()).rev() {
        nodes.swap(last, mix.below(u32::try_from(last).unwrap() + 1) as usize);
    }
    nodes
}

/// The order of the nodes decides only between equals: the rank stays, and the node taken is
/// the first of those that have it.
#[test]
fn another_order_of_nodes_changes_only_which_equal_is_taken() {
    for seed in 0..20 {
        let (mut mix, nodes) = used_cell(seed);
        let rule = Gradient::new(&popularity(&mut mix));
        let nodes_again = shuffled(&mut mix, &nodes);
        let mut one = Index::new(of(&nodes), rule.clone());
        let mut other = Index::new(of(&nodes_again), rule.clone());
        for _ in 0..30 {
            let demand = demand(&mut mix);
            let (found, again) = (one.place(&demand), other.place(&demand));
            assert_eq!(
                found.map(|choice| choice.rank),
                again.map(|choice| choice.rank)
            );
            if let Some(again) = again {
                let ranks = nodes_again.iter().map(|node| rule.rank(node, &demand));
                let first = ranks
                    .clone()
                    .position(|rank| Some(rank) == ranks.clone().max());
                assert_eq!(Some(again.place.node.get()), first);
                let state = nodes_again[again.place.node.get()];
                assert!(state.after(again.place.gpus, &demand).is_ok());
            }
        }
    }
}

#[test]
fn more_capacity_never_turns_a_place_into_none() {
    for seed in 0..20 {
        let (mut mix, nodes) = used_cell(seed);
        let rule = Gradient::new(&popularity(&mut mix));
        for _ in 0..20 {
            let demand = demand(&mut mix);
            let mut index = Index::new(of(&nodes), rule.clone());
            let before = index.place(&demand);
            let ix = NodeIx(mix.below(24));
            match mix.below(3) {
                0 => {
                    index.add(node(&mut mix)).unwrap();
                }
                1 => {
                    index.set_eligible(ix, true).unwrap();
                    index
                        .set_total(ix, 1 << 20, 1 << 20, [100; MAX_GPUS])
                        .unwrap();
                }
                _ => {
                    let held = u32::try_from(nodes[ix.get()].held().cpu_milli).unwrap();
                    let place = Place {
                        node: ix,
                        gpus: GpuSet::EMPTY,
                    };
                    index.give(place, &Demand::cpu_only(held, 0)).unwrap();
                }
            }
            assert!(
                before.is_none() || index.place(&demand).is_some(),
                "seed {seed}"
            );
        }
    }
}
