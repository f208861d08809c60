//! Numbers about the scheduler, for dashboards.

use std::time::Duration;

use cnlab_service::metrics::{Count, Durations, Level};

/// The instruments of this service. Made once, when the service is built.
#[derive(Debug)]
pub(crate) struct Metrics {
    start: Durations,
    decisions: Count,
    lost_races: Count,
    reads: Count,
    queue: Level,
    queued_runs: Level,
    ended_runs: Count,
    outbox: Level,
    taken: Level,
    blocks: Level,
}

/// How a decision came out, as a label.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    Place,
    Queue,
    Reject,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            start: Durations::named(
                "cnlab_scheduler_start_seconds",
                "from the grant of a slice until the page answers",
            ),
            decisions: Count::named(
                "cnlab_scheduler_decisions_total",
                "decisions on servers and runs that want a slice, by outcome",
            ),
            lost_races: Count::named(
                "cnlab_scheduler_lost_races_total",
                "placements whose GPU was changed by somebody else meanwhile",
            ),
            reads: Count::named(
                "cnlab_scheduler_cell_reads_total",
                "how often the cell was read anew from its rows",
            ),
            queue: Level::named(
                "cnlab_scheduler_queue_servers",
                "servers that wait for a slice",
            ),
            queued_runs: Level::named(
                "cnlab_scheduler_queue_runs",
                "runs that wait for a slice, for the first time or again",
            ),
            ended_runs: Count::named(
                "cnlab_scheduler_ended_runs_total",
                "attempts of runs that ended, by outcome; those that begin anew are requeued",
            ),
            outbox: Level::named(
                "cnlab_scheduler_outbox_messages",
                "messages for other services that are not delivered yet",
            ),
            taken: Level::named(
                "cnlab_scheduler_taken_blocks",
                "blocks that are granted, by GPU type",
            ),
            blocks: Level::named(
                "cnlab_scheduler_gpu_blocks",
                "blocks of all GPUs that are there, by GPU type",
            ),
        }
    }

    pub(crate) fn started(&self, took: Duration, environment_ready: bool) {
        let built = if environment_ready { "ready" } else { "built" };
        self.start.record(took, &[("environment", built)]);
    }

    pub(crate) fn read(&self) {
        self.reads.add(1, &[]);
    }

    pub(crate) fn decided(&self, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Place => "place",
            Outcome::Queue => "queue",
            Outcome::Reject => "reject",
        };
        self.decisions.add(1, &[("outcome", outcome)]);
    }

    pub(crate) fn lost_race(&self) {
        self.lost_races.add(1, &[]);
    }

    pub(crate) fn run_ended(&self, outcome: &'static str) {
        self.ended_runs.add(1, &[("outcome", outcome)]);
    }

    pub(crate) fn backlog(&self, servers: u64, runs: u64, outbox: u64) {
        self.queue.set(servers, &[]);
        self.queued_runs.set(runs, &[]);
        self.outbox.set(outbox, &[]);
    }

    pub(crate) fn capacity(&self, gpu_type: &str, taken: u64, blocks: u64) {
        let labels = [("gpu_type", gpu_type)];
        self.taken.set(taken, &labels);
        self.blocks.set(blocks, &labels);
    }
}
