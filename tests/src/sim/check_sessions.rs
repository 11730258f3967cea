//! Sessions that depend on the checks of an agent end in time, and the bound of each step:
//!
//! 1. **A target that fails is found**: after its interval and the time-out of its run, as many
//!    times as its threshold requires. In addition, each run may wait for a place, for as long as
//!    another run may take. This counts while the agent runs.
//! 2. **A session ends within [`COMMIT_BOUND`]** after the run, the report or the registration that
//!    makes its check critical, or the check's end. The time without a leader that can commit and
//!    that the agent follows is not counted, nor is a loss on its connection. A write that failed
//!    is repeated after up to [`RETRY_WITHIN`], which is added.
//!
//! After a restore, the agent finds what differs in the catalog at its next comparison.

use super::bounds::Undisturbed;
use super::checks::{ALIAS, PAGE, PROBE, PROBES, RETRY_WITHIN, RUN_TIMEOUT, SCRIPT};
use super::held::place_of;
use super::marks::Mark;
use super::world::World;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, SessionId, Term};
use lockmesh_protocol::node_command::NodeCommand;
use lockmesh_protocol::record::{CheckStatus, Session};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time from the end of a check's fitness to the end of its sessions.
const COMMIT_BOUND: Duration = Duration::from_secs(3);

/// Maximum time after a restore until the agent has compared its node with the catalog.
const COMPARISON_BOUND: Duration = Duration::from_secs(120);

/// Time allowed beside the intervals and time-outs of runs: clocks drift, and agents take turns.
const RUN_SLACK: Duration = Duration::from_secs(1);

/// The sessions of the log.
#[derive(Debug, Default)]
pub(super) struct CheckSessions {
    sessions: BTreeMap<SessionId, Arc<Session>>,
    /// The time of the last restore.
    restored: Option<Time>,
}

impl World {
    /// Checks the bounds of the checks of an agent, and of the sessions that depend on them.
    pub(super) fn judge_check_sessions(&mut self, agent: usize, was_away: bool, quiet: Option<Undisturbed>) {
        if !self.stage.plan.clients.has_checks {
            return;
        }
        let now = self.stage.now;
        let checks = &mut self.agents[agent].checks;
        if was_away {
            checks.down.values_mut().for_each(|since| *since = now);
        }
        for (id, failures, interval) in PROBES {
            let is_critical = checks.findings.status(id).is_none_or(|status| status == CheckStatus::Critical);
            let Some(since) = checks.down.get(id).filter(|_| !is_critical) else { continue };
            if now.since(*since) > (interval + 2 * RUN_TIMEOUT) * failures + RUN_SLACK {
                let what = format!("agent {agent}: the target of check {id} has failed since {since:?}");
                self.judge.object("failures_are_found", what);
            }
        }
        let late = quiet.and_then(|Undisturbed(since)| self.late_session(agent, since));
        if let Some(what) = late {
            self.judge.object("sessions_end_with_their_checks", what);
        }
    }

    /// Returns a session that should have ended with a check of an agent, which has been
    /// undisturbed since `quiet`.
    fn late_session(&self, agent: usize, quiet: Time) -> Option<String> {
        let (now, checks) = (self.stage.now, &self.agents[agent].checks);
        let restored = self.check_sessions.restored.map_or(Time(0), |at| at + COMPARISON_BOUND);
        let of_agent = |session: &&Arc<Session>| place_of(&session.spec.node) == Some(agent);
        self.judge.history.state().sessions().filter(of_agent).find_map(|session| {
            let unfit =
                session.spec.all_checks().filter_map(|id| Some((id, checks.findings.unfit_since(id)?)));
            let (id, (since, _)) = unfit.min_by_key(|(_, since)| *since)?;
            let from = since.max(quiet).max(restored);
            let retried = checks.sync_failed.map_or(from, |at| (at + RETRY_WITHIN).min(from + RETRY_WITHIN));
            let (session, unfit) = (session.spec.id, now.since(since));
            (now.since(from.max(retried)) > COMMIT_BOUND)
                .then(|| format!("session {session} lives {unfit:?} after its check {id} of agent {agent}"))
        })
    }

    /// Notes an applied entry, which may end sessions with their checks.
    pub(super) fn note_for_check_sessions(&mut self, index: LogIndex) {
        let past = self.judge.history.at(index).filter(|_| self.stage.plan.clients.has_checks);
        let Some(past) = past else { return };
        let known = &mut self.check_sessions;
        let mut ended = Vec::new();
        for change in &past.changes {
            match change {
                Change::Session(id, Some(session)) => drop(known.sessions.insert(*id, session.clone())),
                Change::Session(id, None) => ended.extend(known.sessions.remove(id)),
                Change::Cleared => {
                    known.sessions.clear();
                    known.restored = Some(self.stage.now);
                }
                _ => {}
            }
        }
        let command = past.proposal.as_ref().map(|proposal| &proposal.command);
        if matches!(command, Some(Command::Register(_) | Command::Restricted(NodeCommand::Register(_)))) {
            let term = past.entry.term;
            ended.iter().for_each(|session| self.note_end(session, term));
        }
    }

    /// Notes that a write of a check ended a session, in this term.
    fn note_end(&mut self, session: &Session, term: Term) {
        let Some(agent) = place_of(&session.spec.node) else { return };
        let findings = &self.agents[agent].checks.findings;
        let mut unfit = session.spec.all_checks().filter_map(|id| Some((id, findings.unfit_since(id)?)));
        let Some((check, (since, behind))) = unfit.next() else { return };
        self.stage.hit(match check.as_str() {
            SCRIPT => Mark::EndedWithScript,
            PAGE => Mark::EndedWithPage,
            PROBE => Mark::EndedWithService,
            ALIAS => Mark::EndedWithAlias,
            _ => return,
        });
        let is_elected = self.judge.history.at(behind).is_some_and(|past| past.entry.term != term);
        if is_elected {
            self.stage.hit(Mark::EndedAfterElection);
        }
        let (id, after) = (session.spec.id, self.stage.now.since(since));
        self.stage
            .log(|| format!("session {id} ends {after:?} after its check {check}, elected: {is_elected}"));
    }
}
