//! Explanations as people read them: where work stands, what keeps it, what would help, and
//! the terms behind that.

use std::time::Duration;

use cnlab_proto::{convert, scheduler::v1 as pb};
use prost_types::Timestamp;

use super::run::list::priority_word;
use crate::{
    console::Console,
    error::Result,
    output::{Document, Format, table::Facts},
    text,
};

/// Writes an explanation as the result of a command, and says how to ask for something else
/// where that would help.
///
/// # Errors
/// When it cannot be written.
pub fn show(console: &mut Console, explanation: &pb::Explanation, how: &str) -> Result<()> {
    console.result(
        || table(explanation),
        || vec![explanation.name.clone()],
        || Document::of("Explanation", "cnlab.scheduler.v1.Explanation", explanation),
    )?;
    if explanation.sooner.is_empty() || console.format() != Format::Table {
        return Ok(());
    }
    console.note(how)
}

/// From one moment to another; nothing where the second is not later.
#[must_use]
pub fn between(from: Option<&Timestamp>, to: Option<&Timestamp>) -> Option<Duration> {
    let (from, to) = (from?, to?);
    let micros = |at: &Timestamp| {
        let whole = i128::from(at.seconds).saturating_mul(1_000_000);
        whole.saturating_add(i128::from(at.nanos).div_euclid(1_000))
    };
    let passed = micros(to).saturating_sub(micros(from)).max(0);
    Some(Duration::from_micros(u64::try_from(passed).ok()?))
}

/// The option that asks for a change; empty where there is none.
#[must_use]
pub fn option(sooner: &pb::Sooner) -> String {
    match sooner.kind() {
        pb::ChangeKind::SmallerSlice | pb::ChangeKind::OtherGpu => {
            format!("--profile {}", sooner.profile)
        }
        pb::ChangeKind::Shorter => {
            sooner
                .max_runtime
                .as_ref()
                .map_or_else(String::new, |longest| {
                    let minutes = convert::decode_duration(longest).as_secs().div_euclid(60);
                    format!("--max-runtime {minutes}m")
                })
        }
        pb::ChangeKind::Priority => format!("--priority {}", priority_word(sooner.priority())),
        pb::ChangeKind::FewerGpus => format!("--gpus {}", sooner.gpus),
        pb::ChangeKind::AnyNode | pb::ChangeKind::Unspecified => String::new(),
    }
}

/// So many of a profile, as the option `--gpus` asks for.
#[must_use]
pub fn times(gpus: u32, profile: &str) -> String {
    if gpus > 1 {
        format!("{gpus} × {profile}")
    } else {
        profile.to_owned()
    }
}

fn sooner(explanation: &pb::Explanation) -> Vec<String> {
    let waits = matches!(
        explanation.standing(),
        pb::Standing::Waiting | pb::Standing::NoNode
    );
    if explanation.sooner.is_empty() && waits {
        return vec!["nothing else that could be asked for".to_owned()];
    }
    let lines = explanation.sooner.iter();
    lines
        .map(|sooner| match option(sooner).as_str() {
            "" => sooner.text.clone(),
            option => format!("{} ({option})", sooner.text),
        })
        .collect()
}

fn candidate(candidate: &pb::Candidate) -> String {
    let image = if candidate.image_ready {
        ", has the environment"
    } else {
        ""
    };
    format!(
        "{} on {}: {}% free{image}: {}",
        candidate.gpu_uuid, candidate.node_name, candidate.free_percent, candidate.text
    )
}

fn table(explanation: &pb::Explanation) -> String {
    let mut facts = Facts::default();
    facts.add("Name", explanation.name.as_str());
    facts.add("Id", explanation.workload_id.as_str());
    let slices = explanation.gpu_type.as_ref().map_or(1, |term| term.slices);
    facts.add("Profile", times(slices, &explanation.profile));
    facts.add("State", explanation.text.as_str());
    if let Some(blocker) = &explanation.blocker {
        facts.add("Blocked by", blocker.text.as_str());
    }
    facts.add_all("Sooner with", sooner(explanation));
    let start = explanation.start.unwrap_or_default();
    let ready = between(explanation.as_of.as_ref(), start.ready_at.as_ref());
    facts.add(
        "Ready",
        ready.map_or_else(String::new, |ready| format!("in {}", text::minutes(ready))),
    );
    if let Some(place) = &explanation.placement {
        facts.add(
            "Runs on",
            format!("{} of {}", place.gpu_uuids.join(", "), place.node_name),
        );
        facts.add("Why there", place.why.as_str());
        let left = between(explanation.as_of.as_ref(), place.expected_until.as_ref());
        facts.add(
            "Ends",
            left.map_or_else(String::new, |left| {
                format!("in {}, as far as can be told", text::minutes(left))
            }),
        );
    }
    if let Some(preemption) = &explanation.preemption {
        facts.add("Pre-empted", preemption.text.as_str());
    }
    terms(&mut facts, explanation);
    facts.add_all("Best GPUs", explanation.candidates.iter().map(candidate));
    if let Some(length) = &explanation.length {
        facts.add("Length", length.text.as_str());
    }
    facts.render()
}

/// The six terms.
fn terms(facts: &mut Facts, explanation: &pb::Explanation) {
    let six = [
        (
            "Priority",
            explanation.priority.as_ref().map(|term| &term.text),
        ),
        (
            "Deadline",
            explanation.deadline.as_ref().map(|term| &term.text),
        ),
        (
            "Fair share",
            explanation.fair_share.as_ref().map(|term| &term.text),
        ),
        (
            "GPU type",
            explanation.gpu_type.as_ref().map(|term| &term.text),
        ),
        (
            "Data",
            explanation.data_locality.as_ref().map(|term| &term.text),
        ),
        (
            "Queue",
            explanation.queue_depth.as_ref().map(|term| &term.text),
        ),
    ];
    for (label, text) in six {
        facts.add(label, text.cloned().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanos: i32) -> Timestamp {
        Timestamp { seconds, nanos }
    }

    #[test]
    fn changes_name_the_option_that_asks_for_them() {
        let minutes = |minutes: i64| prost_types::Duration {
            seconds: minutes * 60,
            nanos: 0,
        };
        let change = |kind: pb::ChangeKind| pb::Sooner {
            kind: kind.into(),
            profile: "h100-25pct".to_owned(),
            max_runtime: Some(minutes(90)),
            priority: pb::Priority::High.into(),
            gpus: 2,
            ..pb::Sooner::default()
        };
        for (kind, asks) in [
            (pb::ChangeKind::SmallerSlice, "--profile h100-25pct"),
            (pb::ChangeKind::OtherGpu, "--profile h100-25pct"),
            (pb::ChangeKind::Shorter, "--max-runtime 90m"),
            (pb::ChangeKind::Priority, "--priority high"),
            (pb::ChangeKind::FewerGpus, "--gpus 2"),
            (pb::ChangeKind::AnyNode, ""),
        ] {
            assert_eq!(option(&change(kind)), asks);
        }
    }

    #[test]
    fn time_does_not_run_backwards() {
        let (early, late) = (at(10, 900_000_000), at(12, 0));
        assert_eq!(
            between(Some(&early), Some(&late)),
            Some(Duration::from_millis(1_100))
        );
        assert_eq!(between(Some(&late), Some(&early)), Some(Duration::ZERO));
        assert_eq!(between(None, Some(&late)), None);
        let (first, last) = (at(i64::MIN, 0), at(i64::MAX, 0));
        assert!(between(Some(&first), Some(&last)).is_none());
    }
}
