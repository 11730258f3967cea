//! The audit log of the servers: lines of the leader with the target `audit`, at level INFO.
//!
//! | event | lines |
//! |---|---|
//! | an operator's command took effect | all |
//! | a command was refused because its client or its host has no right | a burst of [`LINES_AT_ONCE`], then [`LINES_PER_SECOND`] |
//! | a session of another node was ended | the same |
//!
//! A line names the node of the agent that sent the command. The agent's own audit log names the
//! client.

use crate::proposal::Proposal;
use crate::state::State;
use lockmesh_protocol::acl::{AclCommand, Who};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, RestoreStep};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::node_command::NodeCommand;
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;

/// The maximum number of limited lines at once.
const LINES_AT_ONCE: u64 = 100;

/// The maximum number of limited lines per second, on average.
const LINES_PER_SECOND: u64 = 10;

/// The quota of limited lines.
#[derive(Debug)]
pub(super) struct Audit {
    quota: TokenBucket,
    suppressed: u64,
}

/// The contents of a line.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    node: NodeName,
    /// The client, by the accessor id of its token or by its user.
    client: String,
    action: &'static str,
    /// The object of the action, in the debug format: it has no control characters.
    object: String,
    result: String,
    is_limited: bool,
}

impl Default for Audit {
    fn default() -> Self {
        Self { quota: TokenBucket::full(Time(0), LINES_AT_ONCE, LINES_PER_SECOND), suppressed: 0 }
    }
}

impl Audit {
    /// Logs an applied command.
    pub(super) fn applied(
        &mut self,
        now: Time,
        state: &State,
        (proposal, applied): (&Proposal, &Applied),
        changes: &[Change],
    ) {
        let Some(line) = line(state, (proposal, applied), changes) else { return };
        if line.is_limited && !self.quota.takes(now, 1) {
            self.suppressed += 1;
            return;
        }
        let suppressed = Some(std::mem::take(&mut self.suppressed)).filter(|count| *count > 0);
        let (Line { node, client, action, object, result, .. }, index) = (line, applied.index.0);
        tracing::info!(target: "audit", %node, client, action, object, result, index, suppressed, "operator command");
    }
}

fn line(state: &State, (proposal, applied): (&Proposal, &Applied), changes: &[Change]) -> Option<Line> {
    let action = action_of(&proposal.command)?;
    let node = &state.agent(proposal.request.as_ref()?.agent)?.node;
    let line = |action, object, result: String, is_limited| {
        let client = client_of(state, node, proposal);
        Some(Line { node: node.clone(), client, action, object, result, is_limited })
    };
    let object = || object_of(&proposal.command);
    match &applied.reply {
        Reply::Refused(
            refusal @ (Refusal::OtherNode(_) | Refusal::NotOperatorHost(_) | Refusal::NoAccess(_)),
        ) => line(action, object(), refusal.to_string(), true),
        _ if is_about_nodes(&proposal.command) => {
            let foreign = changes.iter().find_map(|change| match change {
                Change::Loss(_, Some(loss)) if loss.node.folded() != node.folded() => Some(loss),
                _ => None,
            })?;
            let object = format!("{} of {:?}", foreign.session, foreign.node);
            line("end session", object, "done".into(), true)
        }
        Reply::Refused(refusal) => line(action, object(), refusal.to_string(), true),
        _ => line(action, object(), "done".into(), false),
    }
}

/// The client in words: `agent` for the agent itself, or if requests have no callers.
fn client_of(state: &State, node: &NodeName, proposal: &Proposal) -> String {
    match state.acl().rights(&proposal.caller, node, proposal.at).map(|rights| rights.who) {
        Ok(Who::Agent(_)) => "agent".into(),
        Ok(Who::Anonymous) => "anonymous".into(),
        Ok(Who::Token(accessor)) => accessor,
        Ok(Who::Peer { uid, .. }) => format!("unix:{node}:{uid}"),
        Err(_) => "unknown token".into(),
    }
}

fn is_about_nodes(command: &Command) -> bool {
    matches!(command, Command::Restricted(_)) || command.is_about_nodes()
}

/// The name of a command that may have a line.
fn action_of(command: &Command) -> Option<&'static str> {
    match command {
        Command::Restore(RestoreStep::Commit { .. }) => Some("restore"),
        Command::ConfigureAutopilot(..) => Some("configure autopilot"),
        Command::RotateGossipKey { .. } => Some("rotate gossip key"),
        Command::ConfigureDeadlocks(_) => Some("configure deadlocks"),
        Command::ConfigureOperatorHosts(_) => Some("configure operator hosts"),
        Command::LeaveNode(leave) if leave.lease.is_none() => Some("force-leave"),
        Command::Acl(command) => Some(action_of_acl(command)),
        Command::Restricted(NodeCommand::DestroySession(_)) | Command::DestroySession(_) => {
            Some("end session")
        }
        command => is_about_nodes(command).then_some("write node"),
    }
}

fn object_of(command: &Command) -> String {
    match command {
        Command::ConfigureDeadlocks(policy) => format!("{policy:?}"),
        Command::ConfigureOperatorHosts(hosts) => format!("{hosts:?}"),
        Command::LeaveNode(leave) => format!("{:?}", leave.node),
        Command::Restricted(NodeCommand::DestroySession(session)) => session.to_string(),
        Command::Acl(command) => object_of_acl(command),
        _ => String::new(),
    }
}

fn action_of_acl(command: &AclCommand) -> &'static str {
    match command {
        AclCommand::Configure(_) => "configure acl",
        AclCommand::Bootstrap(..) => "bootstrap acl",
        AclCommand::CreateToken(_) => "create token",
        AclCommand::UpdateToken(_) => "update token",
        AclCommand::DeleteToken(_) => "delete token",
        AclCommand::CreatePolicy(_) => "create policy",
        AclCommand::UpdatePolicy(_) => "update policy",
        AclCommand::DeletePolicy(_) => "delete policy",
        AclCommand::CreateRole(_) => "create role",
        AclCommand::UpdateRole(_) => "update role",
        AclCommand::DeleteRole(_) => "delete role",
        AclCommand::SetAuthMethod(..) => "set auth method",
        AclCommand::DeleteAuthMethod(_) => "delete auth method",
        AclCommand::CreateBindingRule(_) => "create binding rule",
        AclCommand::UpdateBindingRule(_) => "update binding rule",
        AclCommand::DeleteBindingRule(_) => "delete binding rule",
        AclCommand::ExpireTokens(_) => "expire tokens",
    }
}

/// The id of the changed row. A secret is never part of a line.
fn object_of_acl(command: &AclCommand) -> String {
    match command {
        AclCommand::Configure(change) => format!("{change:?}"),
        AclCommand::Bootstrap(token, _) | AclCommand::CreateToken(token) | AclCommand::UpdateToken(token) => {
            format!("{:?}", token.accessor)
        }
        AclCommand::CreatePolicy(policy) | AclCommand::UpdatePolicy(policy) => {
            format!("{:?} {:?}", policy.id, policy.name)
        }
        AclCommand::CreateRole(role) | AclCommand::UpdateRole(role) => {
            format!("{:?} {:?}", role.id, role.name)
        }
        AclCommand::DeleteToken(id) | AclCommand::DeletePolicy(id) | AclCommand::DeleteRole(id) => {
            format!("{id:?}")
        }
        AclCommand::SetAuthMethod(name, _) | AclCommand::DeleteAuthMethod(name) => format!("{name:?}"),
        AclCommand::CreateBindingRule(rule) | AclCommand::UpdateBindingRule(rule) => {
            format!("{:?} {:?} {:?}", rule.id, rule.selector, rule.bind_name)
        }
        AclCommand::DeleteBindingRule(id) => format!("{id:?}"),
        AclCommand::ExpireTokens(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::command::{AgentRegistration, Deregistration};
    use lockmesh_protocol::deadlock::DeadlockPolicy;
    use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, SessionId, Term, WallTime};
    use lockmesh_protocol::lease::LeaseKey;
    use lockmesh_protocol::record::{Node, SessionSpec};

    /// Two agents, on the nodes a and b.
    struct Story(State, u64);

    impl Story {
        fn new() -> Self {
            let mut story = Self(State::new(), 0);
            let (cluster_id, servers, lease_key) = ("c".into(), Vec::new(), LeaseKey([7; 32]));
            story.apply(None, Command::Bootstrap { cluster_id, servers, lease_key });
            for node in ["a", "b"] {
                let id = format!("5a0f2b6e-3c60-4d3f-9d5c-{:0>12}", u64::from(node == "b"));
                let node = Node::of(node.into(), id, "10.0.0.1");
                story.apply(None, Command::RegisterAgent(AgentRegistration::of(node)));
            }
            story
        }

        fn apply(&mut self, agent: Option<u32>, command: Command) -> Option<(String, String)> {
            self.1 += 1;
            let request = agent.map(|agent| RequestId {
                agent: AgentNumber(agent),
                generation: Generation(1),
                sequence: self.1,
                lowest: self.1,
            });
            let (mut changes, proposal) = (Vec::new(), Proposal::new(request, WallTime(1), command));
            let applied = self.0.apply(LogIndex(self.1), Term(1), &proposal, &mut changes);
            let line = line(&self.0, (&proposal, &applied), &changes)?;
            Some((format!("{} {} {}", line.node, line.action, line.object), line.result))
        }
    }

    fn session_of(node: &str, id: SessionId) -> Command {
        Command::CreateSession(SessionSpec {
            id,
            name: String::new(),
            node: node.into(),
            lock_delay: Default::default(),
            behavior: Default::default(),
            ttl_text: String::new(),
            ttl: None,
            checks: Vec::new(),
            node_checks: Vec::new(),
            service_checks: None,
            health_window: Default::default(),
        })
    }

    #[test]
    fn operator_commands_and_refusals_have_lines() {
        let mut story = Story::new();
        let said = |line: Option<(String, String)>| line.expect("it has a line");
        let policy = || Command::ConfigureDeadlocks(DeadlockPolicy::Refuse);
        assert_eq!(
            said(story.apply(Some(1), policy())),
            ("a configure deadlocks Refuse".into(), "done".into())
        );
        let hosts = Command::ConfigureOperatorHosts(["a\n".into(), "a".into()].into());
        assert_eq!(said(story.apply(Some(1), hosts)).0, r#"a configure operator hosts {"a", "a\n"}"#);
        assert!(said(story.apply(Some(2), policy())).1.contains("not an operator host"));
        let gone = Deregistration { node: "b".into(), service: None, check: None };
        let (action, result) = said(story.apply(Some(1), Command::Deregister(gone).restricted()));
        assert!(action == "a write node " && result.contains("another agent"), "{action}: {result}");
    }

    #[test]
    fn end_of_foreign_session_has_line() {
        let mut story = Story::new();
        let [first, second] = [[1; 16], [2; 16]].map(SessionId::from_random);
        assert_eq!(story.apply(Some(1), session_of("a", first)), None);
        assert_eq!(story.apply(Some(1), session_of("a", second)), None);
        assert_eq!(story.apply(Some(1), Command::DestroySession(first)), None, "it is the node's own");
        let line = story.apply(Some(2), Command::DestroySession(second)).expect("it has a line");
        assert_eq!(line, (format!("b end session {second} of \"a\""), "done".into()));
        assert_eq!(story.apply(Some(2), Command::DestroySession(second)), None, "it has ended");
    }
}
