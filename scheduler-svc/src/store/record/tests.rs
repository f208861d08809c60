use cnlab_model::id::Ulid;

use super::*;

#[test]
fn every_state_survives_its_row_and_an_unknown_one_is_refused() {
    let mut server = Server {
        id: ServerId::from_ulid(Ulid(1)),
        name: "a".parse().unwrap(),
        project: "o/p".parse().unwrap(),
        owner: UserId::from_ulid(Ulid(2)),
        team: TeamId::from_ulid(Ulid(9)),
        profile: Profile {
            name: "p".to_owned(),
            gpu_type: "H100".to_owned(),
            percent: 25,
            memory_bytes: u64::from(u32::MAX) + 1,
            cpu_milli: u32::MAX,
        },
        gpus: 2,
        image: "i".to_owned(),
        image_reference: "r".to_owned(),
        install_heavy: true,
        storage_bytes: 1,
        volume: VolumeId::from_ulid(Ulid(3)),
        state: State::Queued,
        phase_detail: "d".to_owned(),
        grant: Some(GrantId::from_ulid(Ulid(4))),
        node: Some(NodeId::from_ulid(Ulid(5))),
        created_at: Timestamp(1),
        queued_at: Some(Timestamp(2)),
        started_at: None,
        ready_at: Some(Timestamp(3)),
        stopped_at: None,
        expected_at: Some(Timestamp(4)),
        failure: Some(Failure::default()),
        runtime: Some(RuntimeFacts::default()),
        sequence: 6,
        traceparent: None,
        version: 7,
    };
    let phases = [
        Phase::SendingToNode,
        Phase::BuildingEnvironment,
        Phase::Starting,
        Phase::WaitingForPage,
    ];
    let states = [
        State::Queued,
        State::Ready,
        State::Stopping,
        State::Stopped,
        State::Failed,
        State::Deleting,
        State::Deleted,
    ];
    let provisioning = phases.map(|phase| State::Provisioning { phase });
    for state in states.into_iter().chain(provisioning) {
        server.state = state;
        let row = entity::server::Model::from(&server);
        assert_eq!(row.live_name.is_none(), state == State::Deleted);
        assert_eq!(Server::try_from(row).unwrap(), server);
    }
    for (state, phase) in [
        ("gone", None),
        ("ready", Some("starting")),
        ("provisioning", None),
    ] {
        let row = entity::server::Model {
            state: state.to_owned(),
            phase: phase.map(str::to_owned),
            ..entity::server::Model::from(&server)
        };
        let error = Server::try_from(row).unwrap_err();
        assert!(error.to_string().contains("makes no sense"), "{error}");
    }
}
