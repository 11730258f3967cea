//! Logs and counts of events: elections, grants, session ends, retries.

use super::held::place_of;
use super::history::Past;
use super::marks::Mark;
use super::process::Given;
use super::world::World;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::deadlock::Deadlocks;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::record::{Behavior, LossCause};
use lockmesh_protocol::reply::{Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::time::Duration;

/// A renewal that takes longer than this was delayed by something.
const LONG: Duration = Duration::from_millis(500);

impl World {
    /// Notes a new leader.
    pub(super) fn notice_leader(&mut self, id: ServerId) {
        let machine = &self.machines[&id];
        if !machine.serves() {
            return;
        }
        let process = machine.process.as_ref().expect("it serves");
        let term = process.core().replica().log_status().term;
        if self.led.is_some_and(|(_, last)| term <= last) {
            return;
        }
        self.led = Some((id, term));
        self.held.fault_everywhere(self.stage.now);
        self.stage.hit(Mark::Election);
        self.stage.log(|| format!("server {id} leads in term {term}"));
        if self.stage.network.is_cut() {
            self.stage.hit(Mark::LedUnderPartition);
        }
        if self.machines.values().filter(|machine| machine.serves()).count() > 1 {
            self.stage.hit(Mark::TwoLeaders);
        }
        if self.machines.values().any(|machine| machine.fetch.is_some()) {
            self.stage.hit(Mark::ElectionDuringSnapshot);
        }
        if !self.questions.is_empty() {
            self.stage.hit(Mark::ElectionDuringCheck);
        }
    }

    /// Notes the current voters as a leader sees them, and a leader that stepped down.
    pub(super) fn notice_members(&mut self, id: ServerId, served: bool) {
        let Some(process) = &self.machines[&id].process else { return };
        let members = process.core().replica().membership();
        if served && !members.all().contains(&id) {
            self.stage.hit(Mark::RemovedLeader);
        }
        if process.core().replica().is_serving() && members.voters != self.voters {
            let promoted = members.voters.iter().filter(|id| !self.voters.contains(id)).count();
            self.voters = members.voters.clone();
            let voters = self.voters.clone();
            (0..promoted).for_each(|_| self.stage.hit(Mark::Promoted));
            self.stage.log(|| format!("servers {voters:?} vote"));
        }
    }

    /// Notes a server's reply to a client.
    pub(super) fn note_given(&mut self, id: ServerId, given: &Given, serves: bool) {
        let (came, hung) = (given.asked.came, &self.machines[&id].disk);
        let has_waited = self.stage.now.since(came) >= LONG && hung.has_hung_since(came);
        let request = &given.asked.ask.request;
        let renews = matches!(request, Request::Renew(_)) || request.renewal().is_some();
        if has_waited && renews {
            self.stage.hit(Mark::RenewalBehindDisk);
        }
        match (&given.asked.ask.request, &given.response) {
            (Request::Read { consistency: Consistency::Stale, .. }, Response::Answer(_)) => {
                self.stage.hit(Mark::ReadStale);
            }
            (Request::Read { .. }, Response::Answer(_)) => {
                self.stage.hit(Mark::ReadFresh);
                if !serves {
                    self.stage.hit(Mark::FollowerRead);
                }
            }
            (Request::Read { .. }, Response::Unavailable(_)) => self.stage.hit(Mark::ReadRefused),
            (Request::Renew(session), Response::Renewed(Some(_))) => {
                self.stage.hit(Mark::Renewed);
                let before = self.renewers.insert(*session, id);
                if before.is_some_and(|before| before != id) {
                    self.stage.hit(Mark::RenewedAcrossElection);
                }
            }
            (Request::Renew(_), Response::Unavailable(Unavailable::Unknown(why)))
                if why.contains("decided") =>
            {
                self.stage.hit(Mark::RenewalTooLate);
            }
            _ => {}
        }
    }

    /// Notes an entry that was applied for the first time.
    pub(super) fn note_past(&mut self, index: LogIndex) {
        let past = self.judge.history.at(index).expect("it was just applied").clone();
        // Of a restore, note only that it happened: the rest is long past.
        let restored = past.changes.iter().find(|change| **change == Change::Cleared);
        for change in restored.map_or(past.changes.as_slice(), std::slice::from_ref) {
            self.note_change(&past, change);
        }
        self.note_reply(&past);
        let Some(proposal) = &past.proposal else { return };
        self.note_queries(&past, &proposal.command);
        if let Command::ForgetServer(server) = proposal.command {
            self.stage.hit(Mark::ReplacedDead);
            self.stage.log(|| format!("server {server} is no longer a member"));
        }
        if let Some(request) = &proposal.request
            && self.judge.history.places_of(request).len() > 1
        {
            self.note_retry(&past);
        }
    }

    fn note_change(&mut self, past: &Past, change: &Change) {
        match change {
            Change::Entry(key, Some(entry))
                if entry.lock.session.is_some() && entry.lock.granted_at == past.at_wall() =>
            {
                let (holder, fence) = (entry.lock.session, entry.lock.fence);
                self.stage.log(|| format!("{key} is granted to {holder:?} under {fence}"));
            }
            Change::Loss(_, Some(loss)) => {
                self.stage.log(|| {
                    format!("session {} ends: {:?}, {} keys", loss.session, loss.cause, loss.key_count)
                });
                match loss.cause {
                    LossCause::TtlExpired => self.stage.hit(Mark::Expired),
                    LossCause::CheckCritical(_) | LossCause::CheckFailed { .. } => {
                        self.stage.hit(Mark::EndedByCheck);
                    }
                    LossCause::NodeDeregistered => self.stage.hit(Mark::EndedWithNode),
                    LossCause::NodeFailed { .. } => self.stage.hit(Mark::NodeFailed),
                    LossCause::NodeForcedToLeave => self.stage.hit(Mark::ForcedToLeave),
                    LossCause::CheckDeregistered(_)
                    | LossCause::Destroyed
                    | LossCause::HostReplaced
                    | LossCause::NodeLeft
                    | LossCause::NodeReaped
                    | LossCause::GivenUp { .. }
                    | LossCause::KeyDeleted => {}
                    LossCause::ProcessExited { pid } => {
                        let place = place_of(&loss.node);
                        if place.is_some_and(|place| self.agents[place].processes.runs(pid)) {
                            let what = format!("session {} ended, but its process {pid} lives", loss.session);
                            self.judge.object("bound_sessions", what);
                        }
                    }
                }
            }
            Change::Deadlocks(row) => self.note_deadlock(past, row),
            Change::Cleared => {
                self.stage.hit(Mark::Restored);
                self.stage.log(|| "a backup replaces the whole state".into());
            }
            Change::LockDelay(key, None) => {
                self.stage.hit(Mark::DelayEnded);
                self.stage.log(|| format!("{key} can be locked again"));
                if let Some(Command::EndLockDelay { started_at_index, .. }) =
                    past.proposal.as_ref().map(|p| &p.command)
                {
                    let began = self.judge.history.answered(*started_at_index).map(|began| began.entry.term);
                    if began.is_some_and(|began| began < past.entry.term) {
                        self.stage.hit(Mark::DelayAcrossElection);
                    }
                }
            }
            _ => {}
        }
    }

    fn note_deadlock(&mut self, past: &Past, row: &Deadlocks) {
        let command = past.proposal.as_ref().map(|proposal| &proposal.command);
        let Some(newest) = row.newest.last() else { return };
        if !matches!(command, Some(Command::ConfigureDeadlocks(_))) {
            self.stage.hit(if newest.is_refused { Mark::DeadlockRefused } else { Mark::Deadlock });
            self.stage.log(|| format!("a deadlock: {newest:?}"));
        }
    }

    fn note_reply(&mut self, past: &Past) {
        let (Some(proposal), Some(reply)) = (&past.proposal, &past.reply) else { return };
        if let (Command::CreateSession(new), Reply::Session(_)) = (&proposal.command, &reply.reply)
            && new.behavior == Behavior::Delete
        {
            self.stage.hit(Mark::DeleteBehavior);
        }
        match &reply.reply {
            Reply::Refused(Refusal::OtherNode(_)) => self.stage.hit(Mark::OtherNodeRefused),
            Reply::Refused(Refusal::NotOperatorHost(_)) => self.stage.hit(Mark::OtherHostRefused),
            _ => {}
        }
        let leaves =
            |change: &Change| matches!(change, Change::Waiter(.., None) | Change::LockRequest(_, None));
        let gives_up = || past.changes.iter().any(leaves);
        let frees = || past.changes.iter().any(|change| matches!(change, Change::Entry(..)));
        match (&proposal.command, &reply.reply) {
            (Command::EndWait { .. }, _) if gives_up() => self.stage.hit(Mark::WaitEnded),
            (Command::Kv(KvCommand::Leave { .. }), _) if frees() => self.stage.hit(Mark::LeftUnheard),
            _ => {}
        }
    }

    /// Notes prepared queries that were deleted with their session.
    fn note_queries(&mut self, past: &Past, command: &Command) {
        let ended = past.changes.iter().filter(|change| matches!(change, Change::PreparedQuery(_, None)));
        if matches!(command, Command::PreparedQuery(_) | Command::Restore(_)) {
            return;
        }
        for _ in ended {
            self.stage.hit(Mark::QueryEndedWithSession);
            match command {
                Command::FailNode(_) => self.stage.hit(Mark::QueryEndedWithNode),
                Command::ExpireSession { .. } => self.stage.hit(Mark::QueryEndedByExpiry),
                _ => {}
            }
        }
    }

    fn note_retry(&mut self, past: &Past) {
        let (Some(proposal), Some(reply)) = (&past.proposal, &past.reply) else { return };
        match (&proposal.command, &reply.reply) {
            _ if reply.index < past.index => self.stage.hit(Mark::RetryAnswered),
            (_, Reply::Refused(Refusal::Forgotten)) => self.stage.hit(Mark::RetryForgotten),
            (Command::Kv(KvCommand::Acquire(..)), Reply::Succeeded(false)) => {
                self.stage.hit(Mark::RetryOfLostGrant);
            }
            _ => {}
        }
    }
}
