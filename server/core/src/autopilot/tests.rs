//! The autopilot of the first of several servers, which leads.

use super::{Autopilot, AutopilotInput, AutopilotView, Servers};
use crate::cluster::{Decision, SampleCluster};
use crate::corruption::CorruptionChecks;
use crate::durability::disk_watch::DiskWatch;
use crate::input::{CallToken, ServerRequest};
use crate::raft::engine::MemberChange;
use crate::raft::log::Membership;
use crate::raft::{ElectionTimeout, Progress, Replication};
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::time::Duration;

const OWN: ServerId = ServerId(1);
const SECOND: Duration = Duration::from_secs(1);
const LAST: LogIndex = LogIndex(100);

/// A leader of which every follower has the whole log.
struct Leader {
    now: Time,
    autopilot: Autopilot,
    cluster: SampleCluster,
    replication: Replication,
}

impl Leader {
    fn of(voters: &[u64]) -> Self {
        let replication = Replication { commit_index: LAST, last_index: LAST, ..Replication::default() };
        let cluster = SampleCluster { applied: LAST, ..SampleCluster::of(voters) };
        let (now, autopilot) = (Time(0) + SECOND, Autopilot::default());
        let mut leader = Self { now, autopilot, cluster, replication };
        leader.replicate_to_all();
        leader.handle(AutopilotInput::Start);
        leader.autopilot.settles_at(Some(LAST));
        leader
    }

    fn replicate_to_all(&mut self) {
        let others = self.cluster.membership.all().into_iter().filter(|id| *id != OWN);
        self.replication.progress =
            others.map(|id| (id, Progress { matched: LAST, snapshot: None })).collect();
    }

    fn with_servers<T>(&mut self, use_them: impl FnOnce(&mut Autopilot, Servers<'_>) -> T) -> T {
        let servers = Servers {
            cluster: self.cluster.view(),
            replication: self.replication.clone(),
            corruption: &CorruptionChecks::new(SECOND),
            disk: &DiskWatch::new(SECOND),
            election: ElectionTimeout::default(),
        };
        use_them(&mut self.autopilot, servers)
    }

    fn handle(&mut self, input: AutopilotInput) -> Vec<Decision> {
        let (now, mut decisions) = (self.now, Vec::new());
        self.with_servers(|autopilot, servers| autopilot.handle(&servers, now, input, &mut decisions));
        decisions
    }

    /// Advances time, with messages from these servers and a tick every half second.
    fn run(&mut self, time: Duration, heard: &[u64]) -> Vec<Decision> {
        let (end, mut decisions) = (self.now + time, Vec::new());
        while self.now < end {
            self.now = self.now + SECOND / 2;
            heard.iter().for_each(|id| self.autopilot.note_contact(self.now, ServerId(*id)));
            decisions.extend(self.handle(AutopilotInput::Tick));
            decisions.extend(self.handle(AutopilotInput::Manage(WallTime(0))));
        }
        decisions
    }

    fn transfer(&mut self, token: u64, to: Option<u64>) -> Vec<Decision> {
        self.handle(AutopilotInput::Request(ServerRequest::TransferLeader(
            CallToken(token),
            to.map(ServerId),
        )))
    }
}

fn is_denial(decision: &Decision, token: u64) -> bool {
    let denied = |response: &Response| matches!(response, Response::Unavailable(Unavailable::Denied(_)));
    matches!(decision, Decision::Reply(to, response) if to.0 == token && denied(response))
}

fn is_change(decision: &Decision, wanted: MemberChange) -> bool {
    matches!(decision, Decision::ChangeMembership(change, _) if *change == wanted)
}

#[test]
fn transfer_denied_only_after_timeout() {
    let mut leader = Leader::of(&[1, 2, 3]);
    assert!(matches!(leader.transfer(7, Some(2))[..], [Decision::TransferLeader(ServerId(2))]));
    assert!(leader.run(5 * SECOND, &[2, 3]).is_empty(), "it may still take over");
    assert!(matches!(&leader.run(SECOND / 2, &[2, 3])[..], [denied] if is_denial(denied, 7)));
}

/// `cargo sim 1274`: after an aborted transfer, an unfit leader had to wait 5 s before the next
/// one.
#[test]
fn aborted_transfer_allows_next() {
    let mut leader = Leader::of(&[1, 2, 3]);
    leader.transfer(7, Some(2));
    leader.replication.is_transferring = true;
    assert!(matches!(&leader.transfer(8, Some(3))[..], [denied] if is_denial(denied, 8)));
    leader.replication.is_transferring = false;
    leader.run(SECOND / 2, &[3]);
    let next = leader.transfer(9, None);
    assert!(
        matches!(&next[..], [Decision::TransferLeader(ServerId(3)), denied] if is_denial(denied, 7)),
        "the voter that is in contact, and the former caller hears of it: {next:?}"
    );
    assert!(matches!(
        &leader.handle(AutopilotInput::Stop)[..],
        [Decision::Reply(CallToken(9), Response::Done)]
    ));
}

#[test]
fn stable_caught_up_learner_promoted() {
    let mut leader = Leader::of(&[1, 2, 3]);
    leader.cluster.membership.learners = vec![ServerId(4)];
    leader.replicate_to_all();
    let waits = Progress { matched: LogIndex(1), snapshot: Some(LAST) };
    for progress in [Progress::default(), waits] {
        leader.replication.progress.insert(ServerId(4), progress);
        leader.replication.commit_index = LogIndex(3);
        assert!(leader.run(4 * SECOND, &[2, 3, 4]).is_empty(), "it lags by few entries: {progress:?}");
        let now = leader.now;
        let is_healthy = leader.with_servers(|autopilot, servers| {
            AutopilotView { autopilot, servers, now }.is_healthy(ServerId(4))
        });
        assert!(!is_healthy);
    }
    leader.replicate_to_all();
    assert!(leader.run(SECOND, &[2, 3, 4]).is_empty(), "not stable yet");
    let decisions = leader.run(SECOND / 2, &[2, 3, 4]);
    assert!(matches!(&decisions[..], [promoted] if is_change(promoted, MemberChange::Voter(ServerId(4)))));
}

#[test]
fn replaced_or_surplus_dead_voter_removed() {
    // One of three is needed as soon as it returns.
    let mut leader = Leader::of(&[1, 2, 3]);
    assert!(leader.run(400 * SECOND, &[2]).is_empty());
    let mut leader = Leader::of(&[1, 2, 3, 4]);
    assert!(leader.run(300 * SECOND, &[2, 3]).is_empty());
    let decisions = leader.run(SECOND, &[2, 3]);
    assert!(is_change(&decisions[0], MemberChange::Gone(ServerId(4))), "{decisions:?}");
    // It was dead when another server was promoted.
    let mut leader = Leader::of(&[1, 2, 3]);
    leader.cluster.membership.learners = vec![ServerId(4)];
    leader.replicate_to_all();
    let decisions = leader.run(15 * SECOND, &[2, 4]);
    assert!(is_change(&decisions[0], MemberChange::Voter(ServerId(4))));
    leader.cluster.membership = Membership::of_voters(&[1, 2, 3, 4].map(ServerId));
    let decisions = leader.run(SECOND, &[2, 4]);
    assert!(is_change(&decisions[0], MemberChange::Gone(ServerId(3))), "{decisions:?}");
}

#[test]
fn membership_change_waits_for_previous() {
    let mut leader = Leader::of(&[1, 2, 3, 4]);
    leader.run(SECOND, &[2, 3, 4]);
    let before = leader.cluster.membership.all();
    let applied = leader.handle(AutopilotInput::MembershipApplied(before, Some(CallToken(5))));
    assert!(matches!(applied[..], [Decision::SettleMembership]));
    leader.autopilot.settles_at(Some(LogIndex(101)));
    let remove = |token| AutopilotInput::Request(ServerRequest::RemoveServer(CallToken(token), ServerId(4)));
    assert!(leader.handle(AutopilotInput::Applied).is_empty());
    assert!(matches!(&leader.handle(remove(6))[..], [denied] if is_denial(denied, 6)));
    leader.cluster.applied = LogIndex(101);
    assert!(matches!(
        &leader.handle(AutopilotInput::Applied)[..],
        [Decision::Reply(CallToken(5), Response::Done)]
    ));
    assert!(
        matches!(&leader.handle(remove(7))[..], [gone] if is_change(gone, MemberChange::Gone(ServerId(4))))
    );
}

#[test]
fn removal_denied_without_remaining_quorum() {
    let mut leader = Leader::of(&[1, 2, 3]);
    leader.run(SECOND, &[2]);
    let remove = |token| AutopilotInput::Request(ServerRequest::RemoveServer(CallToken(token), ServerId(2)));
    assert!(
        matches!(&leader.handle(remove(1))[..], [denied] if is_denial(denied, 1)),
        "1 and 3 would remain"
    );
    leader.run(SECOND, &[2, 3]);
    assert!(
        matches!(&leader.handle(remove(2))[..], [gone] if is_change(gone, MemberChange::Gone(ServerId(2))))
    );
}
