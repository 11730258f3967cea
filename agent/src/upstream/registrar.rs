//! Registers the agent with the leader: at the start, and whenever the servers do not know it any more.

use super::fleet::{Fleet, Routes};
use super::link::Link;
use super::table::{CallError, Lane};
use lockmesh_agent_core::backoff::Backoff;
use lockmesh_agent_core::request_ids::Registration;

use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a registration's answer is waited for.
const REGISTER_TIME: Duration = Duration::from_secs(10);

/// Registers as often as it is needed, until the fleet is closed.
pub(super) async fn keep_registered(fleet: Arc<Fleet>, registration: AgentRegistration) {
    let request = Request::Propose(None, Command::RegisterAgent(registration.clone()));
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(250), super::seed());
    let mut said = String::new();
    loop {
        let Some(leader) = fleet.route(Routes::leader_to_register_with, None).await else { return };
        match register(&fleet, &leader, &request).await {
            Ok(registered) => {
                let node = &registration.node.name;
                let Registration { number, generation } = registered;
                tracing::info!(agent = number.0, generation = generation.0, %node, "registered");
                fleet.counters.registrations.fetch_add(1, Ordering::Relaxed);
                fleet.registered(registered);
                backoff.reset();
                said.clear();
            }
            Err(reason) => {
                if said != reason {
                    tracing::warn!("this agent is not registered yet: {reason}");
                    said = reason;
                }
                tokio::time::sleep(backoff.next_pause()).await;
            }
        }
    }
}

async fn register(fleet: &Arc<Fleet>, leader: &Link, request: &Request) -> Result<Registration, String> {
    match leader.table.call(request, Lane::Leader, REGISTER_TIME).await {
        Ok(Response::Applied(Applied { reply: Reply::Agent { number, generation }, .. })) => {
            Ok(Registration { number, generation })
        }
        Ok(Response::Applied(Applied { reply: Reply::Refused(refusal), .. })) => {
            fleet.denied(&refusal.to_string());
            Err(refusal.to_string())
        }
        Ok(Response::Unavailable(reason)) => {
            match &reason {
                Unavailable::NotLeader { leader: hint } => fleet.refused(leader, hint.as_deref()),
                Unavailable::Removed | Unavailable::Corrupt => fleet.removed(leader.slot),
                Unavailable::Denied(why) => fleet.denied(why),
                _ => {}
            }
            Err(reason.to_string())
        }
        Ok(other) => Err(format!("an answer that fits no registration: {other:?}")),
        Err(error @ (CallError::Down | CallError::Lost | CallError::TooLong(_))) => Err(error.to_string()),
    }
}
