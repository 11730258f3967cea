//! An agent's report on its node's lease depends on an acknowledgement of that very lease (I5 of
//! the design), and counts from the send time of the renewal (half of I1), or from the announcement
//! of a restart.

use super::{AgentEvent, Fact, Invariant, Scene, ensure};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::lease::{HealthWindow, LeaseId, RESTART_WINDOW};
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// The send times of renewals, and the acknowledged renewals.
#[derive(Debug, Default)]
pub(super) struct LeaseDeadline {
    sent: BTreeMap<(LeaseId, u64), Time>,
    /// The send time of the newest renewal whose acknowledgement was received.
    acknowledged: BTreeMap<LeaseId, Time>,
    /// The time at which a restart was first announced under each lease.
    announced: BTreeMap<LeaseId, Time>,
}

impl LeaseDeadline {
    fn believes(&self, lease: LeaseId, until: [Time; 3]) -> Result<(), String> {
        for window in HealthWindow::ALL {
            let until = until[window as usize];
            if until == Time(0) {
                continue;
            }
            let renewed = self.acknowledged.get(&lease).map(|sent| *sent + window.validity());
            let restarting = self.announced.get(&lease).map(|sent| *sent + RESTART_WINDOW);
            let Some(latest) = renewed.max(restarting) else {
                return Err(format!("{lease:?} is believed in, but no renewal of it was acknowledged"));
            };
            ensure(until <= latest, || {
                let late = until.since(latest);
                format!("{lease:?} is believed in {late:?} longer than {window:?} since its renewal was sent")
            })?;
        }
        Ok(())
    }
}

impl Invariant for LeaseDeadline {
    fn name(&self) -> &'static str {
        "lease_deadline"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Agent { event: AgentEvent::Sent { request, .. }, .. } => {
                if let Some(renewal) = request.renewal() {
                    self.sent.insert((renewal.lease, renewal.sequence), scene.now);
                }
                if let Request::Propose(_, Command::AnnounceRestart(lease)) = request {
                    self.announced.entry(*lease).or_insert(scene.now);
                }
            }
            Fact::Agent {
                event: AgentEvent::Replied { response: Response::LeaseRenewed(ack), .. }, ..
            } => {
                let Some(sent) = self.sent.get(&(ack.lease, ack.sequence)) else {
                    return Err(format!("{ack:?} acknowledges a renewal that was never sent"));
                };
                let newest = self.acknowledged.entry(ack.lease).or_default();
                *newest = (*newest).max(*sent);
            }
            Fact::NodeBelieved { lease, until } => return self.believes(*lease, *until),
            _ => {}
        }
        Ok(())
    }
}
