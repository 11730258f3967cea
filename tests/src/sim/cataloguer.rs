//! A client that writes the catalog: a node of its own with a check and a service, and sessions
//! that depend on them.
//!
//! Its sessions end by its own acts (a check turns critical or is removed, the node is removed), or
//! together with its agent's node. The locks that they held are released with them, which the
//! invariants see in the changes.

use super::checks::{ALIAS, PAGE, PROBE, SCRIPT};
use super::client::Wish;
use super::stage::Stage;
use bytes::Bytes;
use lockmesh_protocol::command::{Command, Deregistration, KvCommand, NewEntry, Registration};
use lockmesh_protocol::id::{CheckId, NodeName, SessionId};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::node_command::NodeCommand;
use lockmesh_protocol::record::{Behavior, Check, CheckStatus, Node, SERF_HEALTH, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use std::time::Duration;

/// The check that its sessions depend on.
const CHECK: &str = "web";

/// The state of the client.
#[derive(Debug)]
pub struct Cataloguer {
    node: NodeName,
    /// The node of its agent.
    own_node: NodeName,
    session: Option<SessionId>,
    served: bool,
}

impl Cataloguer {
    /// Returns a client that writes about a node of its own.
    pub fn new(place: usize) -> Self {
        let (node, own_node) = (format!("x{place}").into(), format!("n{place}").into());
        Self { node, own_node, session: None, served: false }
    }

    /// Returns `true` if it was served since the storm ended.
    pub fn is_content(&self) -> bool {
        self.served
    }

    /// Returns the next request, if any.
    pub fn wish(&mut self, stage: &mut Stage) -> Option<Wish> {
        if self.served {
            return None;
        }
        let status = *stage.draw.pick(&[CheckStatus::Passing, CheckStatus::Passing, CheckStatus::Critical]);
        let command = match (stage.draw.below(10), self.session) {
            (0, _) => self.deregister(None),
            (1, _) => self.deregister(Some(CHECK.into())),
            (4, _) if stage.plan.clients.rewrites_health => Command::Register(self.strange_health()),
            (3, _) if stage.plan.clients.has_checks => Command::Register(self.foreign()),
            (2..=4, _) => Command::Register(self.registration(status)),
            (5, Some(session)) => Command::DestroySession(session),
            (6..=9, Some(session)) => {
                let key = format!("aux/{}", stage.draw.below(3)).as_str().into();
                Command::Kv(KvCommand::Acquire(NewEntry { key, value: Bytes::new(), flags: 0 }, session))
            }
            (_, None) => self.session(stage),
            _ => Command::Register(self.registration(CheckStatus::Passing)),
        };
        // No random draw, so that a seed gives the same storm as without it.
        let command = match (stage.now.0 % 20, self.health_of_another(stage)) {
            (1, Some(health)) if !stage.calm => Command::Register(health).restricted(),
            (0..=7, _) => command.restricted(),
            _ => command,
        };
        Some(Wish::new(stage.now, Request::Propose(None, command)))
    }

    /// Returns a registration that fails another agent's node, if that is not alive.
    fn health_of_another(&self, stage: &Stage) -> Option<Registration> {
        let number = stage.now.0 / 20 % stage.plan.clients.agents as u64;
        let node = Some(NodeName::from(format!("N{number}")));
        let node = node.filter(|node| node.folded() != self.own_node)?;
        let check = Check::of(node.clone(), SERF_HEALTH.into(), CheckStatus::Critical);
        let node = Node::of(node, String::new(), "127.0.0.1");
        Some(Registration { node, skip_node_update: true, service: None, checks: vec![check] })
    }

    fn deregister(&self, check: Option<CheckId>) -> Command {
        Command::Deregister(Deregistration { node: self.node.clone(), service: None, check })
    }

    fn registration(&self, status: CheckStatus) -> Registration {
        let node = Node::of(self.node.clone(), String::new(), "127.0.0.1");
        let check = Check::of(self.node.clone(), CHECK.into(), status);
        Registration { node, skip_node_update: false, service: None, checks: vec![check] }
    }

    /// Returns a registration that no agent makes for its own node. It ends no session, and stays
    /// until the leader reconciles the catalog with the roster.
    fn strange_health(&self) -> Registration {
        let node = Node::of(self.own_node.clone(), String::new(), "127.0.0.1");
        let check = Check::of(self.own_node.clone(), SERF_HEALTH.into(), CheckStatus::Warning);
        Registration { node, skip_node_update: true, service: None, checks: vec![check] }
    }

    /// Returns a registration on an agent's node that its agent did not make, and removes.
    fn foreign(&self) -> Registration {
        let node = Node::of(self.own_node.clone(), String::new(), "127.0.0.1");
        let check = Check::of(self.own_node.clone(), "foreign".into(), CheckStatus::Passing);
        Registration { node, skip_node_update: true, service: None, checks: vec![check] }
    }

    fn session(&self, stage: &mut Stage) -> Command {
        // A session depends on the own check of another node, or on the health of the agent's node.
        let (node, check, health_window) = match stage.draw.below(2) {
            0 if stage.plan.clients.has_checks => {
                let check = *stage.draw.pick(&[SCRIPT, PAGE, PROBE, ALIAS]);
                (&self.own_node, check, HealthWindow::Default)
            }
            0 => (&self.node, CHECK, HealthWindow::Default),
            _ => (&self.own_node, SERF_HEALTH, *stage.draw.pick(&HealthWindow::ALL)),
        };
        let bytes = (u128::from(stage.draw.bits()) << 64 | u128::from(stage.draw.bits())).to_be_bytes();
        Command::CreateSession(SessionSpec {
            id: SessionId::from_random(bytes),
            name: String::new(),
            node: node.clone(),
            lock_delay: stage.draw.duration(Duration::ZERO, Duration::from_millis(500)),
            behavior: *stage.draw.pick(&[Behavior::Release, Behavior::Delete]),
            ttl_text: String::new(),
            ttl: None,
            checks: Vec::new(),
            node_checks: vec![check.into()],
            service_checks: None,
            health_window,
        })
    }

    /// Receives the response to a request.
    pub fn receive_response(&mut self, stage: &Stage, wish: &Wish, response: &Response) {
        self.served |= stage.calm;
        let Request::Propose(_, command) = &wish.request else { return };
        match (command, response) {
            (Command::CreateSession(new), Response::Applied(Applied { reply: Reply::Session(_), .. })) => {
                self.session = Some(new.id);
            }
            // If the command ended the session, the next acquire would show it; the client creates
            // a new one.
            (
                Command::DestroySession(_)
                | Command::Deregister(_)
                | Command::Restricted(NodeCommand::DestroySession(_) | NodeCommand::Deregister(_)),
                _,
            ) => self.session = None,
            (Command::Kv(_), Response::Applied(Applied { reply: Reply::Refused(_), .. })) => {
                self.session = None;
            }
            _ => {}
        }
    }
}
