//! The id of whatever runs on a node: a server's or a run's.

pub use cnlab_model::id::WorkloadId;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_round_trip_and_others_are_refused() {
        for text in [
            "srv_00000000000000000000000007",
            "run_00000000000000000000000007",
        ] {
            assert_eq!(text.parse::<WorkloadId>().unwrap().to_string(), text);
        }
        for wrong in [
            "vol_00000000000000000000000007",
            "../etc",
            "",
            "srv_../../x",
        ] {
            assert!(wrong.parse::<WorkloadId>().is_err(), "{wrong}");
        }
    }
}
