//! Replication to the other servers: snapshot offers, the limit of log compaction, and leadership
//! transfers.

use super::{Autopilot, AutopilotView, DEAD_AFTER, Fetching, Servers};
use crate::cluster::{Decision, Turn};
use crate::input::CallToken;
use crate::raft::Progress;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::Response;
use std::time::Duration;

/// The maximum duration of a leadership transfer before it is aborted.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason to deny a transfer after that.
const NOT_TAKEN_OVER: &str = "the other server did not take over: see whether it is up to date";
/// Interval between snapshot offers to a server that has not installed the snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

impl Autopilot {
    pub(super) fn transfer_leader(
        &mut self,
        servers: &Servers<'_>,
        turn: &mut Turn<'_>,
        token: CallToken,
        to: Option<ServerId>,
    ) {
        let own = turn.view.id;
        let others: Vec<_> = turn.view.membership.voters.iter().copied().filter(|id| *id != own).collect();
        let is_well =
            |id: &ServerId| self.is_reliable(servers, turn.now, *id) && !servers.corruption.is_corrupt(*id);
        let well = others.iter().copied().filter(is_well);
        // The voter with the least to catch up: nothing can be written until it has caught up
        // (thesis, 3.10).
        let most_advanced = well.max_by_key(|id| servers.replication.of(*id).matched);
        match to.or(most_advanced) {
            Some(to) if to == own => turn.reply(token, Response::Done),
            // The engine would silently abort the first transfer, and its caller would wait for the
            // timeout.
            Some(_) if servers.replication.is_transferring => {
                turn.deny(token, "another transfer is under way");
            }
            Some(to) if others.contains(&to) => {
                turn.decide(Decision::TransferLeader(to));
                // The reply is sent when this server steps down or the transfer times out: the
                // engine reports neither.
                if let Some((former, _)) = self.transfer.replace((token, turn.now)) {
                    turn.deny(former, NOT_TAKEN_OVER);
                }
            }
            Some(_) => turn.deny(token, "that server has no vote"),
            None => turn.deny(token, "there is no other server that could lead"),
        }
    }

    /// Denies a transfer that takes too long. The engine aborts it after one election timeout
    /// without reporting it, and accepts the next one. A slow server may still take over after
    /// that.
    pub(super) fn end_late_transfer(&mut self, turn: &mut Turn<'_>) {
        let late = self.transfer.take_if(|(_, began)| turn.now.since(*began) > TRANSFER_TIMEOUT);
        if let Some((token, _)) = late {
            turn.deny(token, NOT_TAKEN_OVER);
        }
    }

    /// Transfers the leadership of an unfit leader to the most advanced voter that is fit, and to
    /// the next one when the engine aborts the transfer, after one election timeout. After the last
    /// voter, a leader with a stalled disk steps down; any other starts again with the first voter.
    pub(super) fn hand_over(&mut self, servers: &Servers<'_>, turn: &mut Turn<'_>) {
        if !turn.view.is_leader() || servers.replication.is_transferring {
            return;
        }
        let is_stalled = servers.disk.must_hand_over(turn.now);
        let durable = if is_stalled { servers.replication.persisted_index } else { LogIndex(0) };
        let matched = |id: ServerId| servers.replication.of(id).matched;
        let is_fit = |id: &ServerId| {
            matched(*id) > durable
                && self.is_reliable(servers, turn.now, *id)
                && !servers.corruption.is_corrupt(*id)
                && !self.tried.contains(id)
        };
        let voters = turn.view.membership.voters.iter().copied();
        match voters.filter(|id| *id != turn.view.id).filter(is_fit).max_by_key(|id| matched(*id)) {
            Some(to) => {
                let node = turn.view.node_of(to);
                tracing::warn!(server = to.0, %node, is_stalled, "handing over leadership");
                self.tried.insert(to);
                turn.decide(Decision::TransferLeader(to));
            }
            None if is_stalled => {
                tracing::warn!("stepping down: no voter took over from this leader with a stalled disk");
                turn.decide(Decision::StepDown);
            }
            None => self.tried.clear(),
        }
    }

    pub(super) fn offer_snapshots_again(&mut self, servers: &Servers<'_>, turn: &mut Turn<'_>) {
        for server in turn.view.membership.all() {
            let Progress { matched, snapshot } = servers.replication.of(server);
            if self.fetching.get(&server).is_some_and(|fetching| fetching.snapshot <= matched) {
                self.fetching.remove(&server);
            }
            let Some(snapshot) = snapshot else { continue };
            // The server already has the snapshot: a late rejection of an earlier index set the
            // engine back. The server will not report the snapshot again.
            if snapshot <= matched {
                // The engine then probes again from the server's index, which is all that is
                // needed.
                turn.decide(Decision::RetrySnapshot(server));
                continue;
            }
            // The first offer counts: the server may still be fetching that snapshot and needs the
            // log from there.
            let fetching = self.fetching.entry(server).or_insert(Fetching { snapshot, told: turn.now });
            // The offer or its reply may be lost, and the engine sends nothing else until it
            // receives a reply.
            if turn.now.since(fetching.told) > SNAPSHOT_TIMEOUT {
                fetching.told = turn.now;
                turn.decide(Decision::RetrySnapshot(server));
            }
        }
    }
}

impl AutopilotView<'_> {
    /// Returns the index up to which the log may be compacted after a durable snapshot. It keeps
    /// the entries that a follower still needs, up to a size limit: `least` is the index that the
    /// limit allows. For a follower that fetches a snapshot, the entries after that snapshot are
    /// kept longer, up to `least_fetching`: otherwise it would have to fetch another one.
    pub(crate) fn compaction_index(
        &self,
        snapshot: LogIndex,
        least: LogIndex,
        least_fetching: LogIndex,
    ) -> LogIndex {
        let Self { autopilot, servers, now } = self;
        let needed = |id: ServerId| {
            let Progress { matched, snapshot } = servers.replication.of(id);
            let fetching = autopilot.fetching.get(&id).map(|fetching| fetching.snapshot).or(snapshot);
            // Nothing extra is kept for a dead server: when it returns, it fetches a newer
            // snapshot.
            let is_there = autopilot.last_heard(*now, id).is_some_and(|last_heard| last_heard <= DEAD_AFTER);
            match fetching.filter(|_| is_there) {
                Some(snapshot) => snapshot.max(matched).max(least_fetching),
                None => matched.max(least),
            }
        };
        // Never past the snapshot itself: entries in neither the snapshot nor the log would be lost
        // (thesis, 5).
        servers.cluster.others().map(needed).fold(snapshot, LogIndex::min)
    }
}
