//! An upper bound of what any schedule can accept, whoever knows everything beforehand.
//!
//! Jobs may be interrupted and moved at will, may run in part, and a part counts in part; only
//! the GPUs, the release times, the deadlines and that a job uses no more GPUs at once than it
//! asks for remain. That is a maximum flow: work of a job → moments between releases and
//! deadlines → GPUs of that moment.

use std::collections::VecDeque;

/// One job of the bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) gpus: u64,
    pub(crate) length: u64,
    pub(crate) release: u64,
    pub(crate) deadline: u64,
}

struct Edge {
    to: usize,
    room: u64,
}

/// Dinic's algorithm.
struct Network {
    edges: Vec<Edge>,
    from: Vec<Vec<usize>>,
    level: Vec<usize>,
    next: Vec<usize>,
}

impl Network {
    fn new(points: usize) -> Self {
        Self {
            edges: Vec::new(),
            from: vec![Vec::new(); points],
            level: vec![0; points],
            next: vec![0; points],
        }
    }

    fn connect(&mut self, from: usize, to: usize, room: u64) {
        self.from[from].push(self.edges.len());
        self.edges.push(Edge { to, room });
        self.from[to].push(self.edges.len());
        self.edges.push(Edge { to: from, room: 0 });
    }

    fn layer(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(usize::MAX);
        self.level[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(point) = queue.pop_front() {
            for edge in &self.from[point] {
                let Edge { to, room } = self.edges[*edge];
                if room > 0 && self.level[to] == usize::MAX {
                    self.level[to] = self.level[point] + 1;
                    queue.push_back(to);
                }
            }
        }
        self.level[sink] != usize::MAX
    }

    fn push(&mut self, point: usize, sink: usize, most: u64) -> u64 {
        if point == sink {
            return most;
        }
        let mut pushed = 0;
        while pushed < most && self.next[point] < self.from[point].len() {
            let edge = self.from[point][self.next[point]];
            let Edge { to, room } = self.edges[edge];
            let mut through = 0;
            if room > 0 && self.level[to] == self.level[point] + 1 {
                through = self.push(to, sink, room.min(most - pushed));
                self.edges[edge].room -= through;
                self.edges[edge ^ 1].room += through;
                pushed += through;
            }
            if through == 0 || self.edges[edge].room == 0 {
                self.next[point] += 1;
            }
        }
        pushed
    }

    fn most(&mut self, source: usize, sink: usize) -> u64 {
        let mut flow = 0;
        while self.layer(source, sink) {
            self.next.fill(0);
            flow += self.push(source, sink, u64::MAX);
        }
        flow
    }
}

/// GPU-seconds that can be accepted at most.
pub(crate) fn bound(jobs: &[Work], gpus: u64) -> u64 {
    let mut moments: Vec<u64> = jobs
        .iter()
        .flat_map(|job| [job.release, job.deadline])
        .collect();
    moments.sort_unstable();
    moments.dedup();
    let spans = moments.len().saturating_sub(1);
    let (source, sink) = (0, 1);
    let mut network = Network::new(2 + jobs.len() + spans);
    for (index, job) in jobs.iter().enumerate() {
        let work = job.gpus * job.length;
        network.connect(source, 2 + index, work);
        for span in 0..spans {
            let (from, until) = (moments[span], moments[span + 1]);
            if job.release <= from && until <= job.deadline {
                let room = job.gpus * (until - from);
                network.connect(2 + index, 2 + jobs.len() + span, room);
            }
        }
    }
    for span in 0..spans {
        let room = gpus * (moments[span + 1] - moments[span]);
        network.connect(2 + jobs.len() + span, sink, room);
    }
    network.most(source, sink)
}
