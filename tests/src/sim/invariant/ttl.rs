//! No session expires sooner than its window after a renewal that was acknowledged: in true time,
//! allowing for the fastest clock. A renewal counts from when it came to the server.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::record::LossCause;
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The last promise to each session: when it was made, and for which TTL; and when a session
/// expired.
#[derive(Debug, Default)]
pub(super) struct Ttl {
    promised: BTreeMap<SessionId, (Time, Duration)>,
    expired: BTreeMap<SessionId, Time>,
}

impl Ttl {
    fn entry(&mut self, past: &Past, scene: &Scene<'_>) -> Result<(), String> {
        // What a backup tells of sessions that ended is long past.
        let restores = is_restore(&past.changes);
        for change in &past.changes {
            match change {
                Change::Session(id, Some(session)) if session.spec.ttl.is_some() => {
                    let ttl = session.spec.ttl.unwrap_or_default();
                    self.promised.insert(*id, (past.at, ttl));
                }
                Change::Loss(_, Some(loss)) if !restores => {
                    let promise = self.promised.remove(&loss.session);
                    if loss.cause == LossCause::TtlExpired {
                        let why = || format!("{} has no TTL and expired", loss.session);
                        let (since, ttl) = promise.ok_or_else(why)?;
                        self.expired.insert(loss.session, past.at);
                        is_kept(&loss.session, (since, ttl), past.at, scene)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether a session that expired lived as long as it was promised.
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
            Fact::Given { given, .. } => {
                let Response::Renewed(Some(session)) = &given.response else { return Ok(()) };
                let came = given.asked.came;
                if let Some((since, _)) = self.promised.get_mut(&session.spec.id) {
                    *since = came.max(*since);
                } else if let Some(expired) = self.expired.get(&session.spec.id) {
                    // The answer came late: it still must have been true when the question came.
                    is_kept(&session.spec.id, (came, session.spec.ttl.unwrap_or_default()), *expired, scene)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
