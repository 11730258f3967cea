//! Registers the agent with the leader: at the start, and whenever the servers do not know it any more.

use super::backoff::Backoff;
use super::fleet::{Fleet, Routes};
use super::link::Link;
use super::table::{CallError, Lane};
use super::window::Life;
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
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(250));
    let mut said = String::new();
    loop {
        let Some(leader) = fleet.route(Routes::leader_to_register_with, None).await else { return };
        match register(&fleet, &leader, &request).await {
            Ok(life) => {
                let node = &registration.node.name;
                tracing::info!(agent = life.number.0, generation = life.generation.0, %node, "registered");
                fleet.counters.registrations.fetch_add(1, Ordering::Relaxed);
                fleet.registered(life);
                backoff.reset();
                said.clear();
            }
            Err(reason) => {
                if said != reason {
                    tracing::warn!("this agent is not registered yet: {reason}");
                    said = reason;
                }
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

async fn register(fleet: &Arc<Fleet>, leader: &Link, request: &Request) -> Result<Life, String> {
    match leader.table.call(request, Lane::Leader, REGISTER_TIME).await {
        Ok(Response::Applied(Applied { reply: Reply::Agent { number, generation }, .. })) => {
            Ok(Life { number, generation })
        }
        Ok(Response::Applied(Applied { reply: Reply::Refused(refusal), .. })) => {
            fleet.denied(&refusal.to_string());
            Err(refusal.to_string())
        }
        Ok(Response::Unavailable(reason)) => {
            match &reason {
                Unavailable::NotLeader { leader: hint } => fleet.refused(leader, hint.as_deref()),
                Unavailable::Removed => fleet.removed(leader.place),
                Unavailable::Denied(why) => fleet.denied(why),
                _ => {}
            }
            Err(reason.to_string())
        }
        Ok(other) => Err(format!("an answer that fits no registration: {other:?}")),
        Err(error @ (CallError::Down | CallError::Lost | CallError::TooLong(_))) => Err(error.to_string()),
    }
}
