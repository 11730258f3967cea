//! No session expires sooner than its window after an acknowledged renewal, in true time and
//! allowing for the fastest clock. A renewal counts from its acknowledgement if the same leader
//! also decides the expiry, and otherwise from its arrival: the next leader may have begun before
//! that acknowledgement.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{ServerId, SessionId, Term};
use lockmesh_protocol::record::LossCause;
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The last guarantee to each session, and the time at which a session expired.
#[derive(Debug, Default)]
pub(super) struct Ttl {
    promised: BTreeMap<SessionId, Promise>,
    expired: BTreeMap<SessionId, Time>,
    /// The leader of each term.
    leaders: BTreeMap<Term, ServerId>,
}

/// A guaranteed lifetime of a session.
#[derive(Clone, Copy, Debug)]
struct Promise {
    /// The creation, or the arrival of its last acknowledged renewal.
    since: Time,
    ttl: Duration,
    /// The last acknowledgement of a renewal, and its server.
    acknowledged: Option<(Time, ServerId)>,
}

impl Promise {
    /// Returns the time from which it counts for the leader that decided the expiry.
    fn counts_from(&self, leader: Option<ServerId>) -> Time {
        let acknowledged = self.acknowledged.filter(|(_, by)| Some(*by) == leader);
        acknowledged.map_or(self.since, |(at, _)| at.max(self.since))
    }
}

impl Ttl {
    fn entry(&mut self, past: &Past, scene: &Scene<'_>) -> Result<(), String> {
        // Session ends in a restored backup are long past.
        let restores = is_restore(&past.changes);
        for change in &past.changes {
            match change {
                Change::Session(id, Some(session)) if session.spec.ttl.is_some() => {
                    let ttl = session.spec.ttl.unwrap_or_default();
                    self.promised.insert(*id, Promise { since: past.at, ttl, acknowledged: None });
                }
                Change::Loss(_, Some(loss)) if !restores && loss.cause != LossCause::KeyDeleted => {
                    let promise = self.promised.remove(&loss.session);
                    if loss.cause == LossCause::TtlExpired {
                        let why = || format!("{} has no TTL and expired", loss.session);
                        let promise = promise.ok_or_else(why)?;
                        self.expired.insert(loss.session, past.at);
                        let since = promise.counts_from(self.decided_by(past));
                        is_kept(&loss.session, (since, promise.ttl), past.at, scene)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Ttl {
    /// Returns the leader that proposed an expiry.
    fn decided_by(&self, past: &Past) -> Option<ServerId> {
        match past.proposal.as_ref()?.command {
            Command::ExpireSession { term, .. } => self.leaders.get(&term).copied(),
            _ => None,
        }
    }
}

/// Checks that an expired session lived as long as it was guaranteed.
fn is_kept(
    id: &SessionId,
    (since, ttl): (Time, Duration),
    expired: Time,
    scene: &Scene<'_>,
) -> Result<(), String> {
    let window = ttl * scene.plan.core.ttl_multiplier;
    let (passed, least) = (expired.since(since), scene.at_least(window, since));
    ensure(passed >= least, || format!("{id} expired {passed:?} after a promise of {window:?}"))
}

impl Invariant for Ttl {
    fn name(&self) -> &'static str {
        "ttl"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(past, scene),
            Fact::Leases { server, turn } => {
                self.leaders.extend(turn.serves.map(|term| (term, *server)));
                Ok(())
            }
            Fact::Given { given, server, .. } => {
                let Response::Renewed(Some(session)) = &given.response else { return Ok(()) };
                let came = given.asked.came;
                if let Some(promise) = self.promised.get_mut(&session.spec.id) {
                    promise.since = came.max(promise.since);
                    promise.acknowledged = Some((scene.now, *server));
                } else if let Some(expired) = self.expired.get(&session.spec.id) {
                    // The reply is late: it must still have been true when the renewal arrived.
                    is_kept(&session.spec.id, (came, session.spec.ttl.unwrap_or_default()), *expired, scene)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
