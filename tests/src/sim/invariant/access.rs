//! Access control: by effects, with rights evaluated in a simple way of its own.
//!
//! Once the settings enforce the lists, a command that touches a key, a session or the lists
//! without the right at its log entry changes nothing. A deleted token and a changed policy count
//! from their own entries. An agent's own commands write no key.

use super::{Fact, Invariant, Scene, ensure, is_bookkeeping};
use crate::sim::history::Past;
use lockmesh_protocol::acl::peer::{PeerField, SelectorStep};
use lockmesh_protocol::acl::{
    AclCommand, AclMode, BindingRule, Caller, Level, Policy, Resource, SecretHash, Token, UnixPeer,
};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, TxnOp};
use lockmesh_protocol::id::{NodeName, SessionId};
use lockmesh_protocol::node_command::NodeCommand;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The lists and the sessions, according to the changes.
#[derive(Debug, Default)]
pub(super) struct AccessControl {
    is_enforced: bool,
    tokens: BTreeMap<String, Arc<Token>>,
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<BindingRule>>,
    sessions: BTreeMap<SessionId, NodeName>,
}

/// An object that a command writes.
type Object = (Resource, String);

impl AccessControl {
    fn entry(&self, past: &Past) -> Result<(), String> {
        let Some(proposal) = past.proposal.as_ref().filter(|proposal| proposal.request.is_some()) else {
            return Ok(());
        };
        if !self.is_enforced || past.changes.iter().all(is_bookkeeping) {
            return Ok(());
        }
        let objects = self.objects_of(&proposal.command);
        let missing = objects.iter().find(|object| !self.may_write(&proposal.caller, object));
        ensure(missing.is_none(), || {
            format!(
                "{:?} has no right to {missing:?}, but {:?} took effect",
                proposal.caller, proposal.command
            )
        })
    }

    fn may_write(&self, caller: &Caller, (resource, name): &Object) -> bool {
        let hash = match caller {
            // Its own sessions are another invariant's: it creates none.
            Caller::Agent => return *resource == Resource::Session,
            Caller::Anonymous => return false,
            Caller::Peer(peer) => return self.may_bound_user_write(peer, resource, name),
            Caller::Token(hash) => hash,
        };
        let mut tokens = self.tokens.values();
        let Some(token) = tokens.find(|token| SecretHash::of(&token.secret) == *hash) else { return false };
        self.permits(&token.links.policies, *resource, name)
    }

    /// All binding rules of the simulator select a user by its number.
    fn may_bound_user_write(&self, peer: &UnixPeer, resource: &Resource, name: &str) -> bool {
        let selects = |rule: &&Arc<BindingRule>| matches!(rule.spec.steps.as_slice(), [SelectorStep::Has(PeerField::Uid, uid)] if *uid == peer.uid.to_string());
        let names = self.bindings.values().filter(selects).map(|rule| rule.spec.bind_name.as_str());
        let names: Vec<&str> = names.collect();
        let bound = self.policies.values().filter(|policy| names.contains(&policy.name.as_str()));
        let ids: Vec<String> = bound.map(|policy| policy.id.clone()).collect();
        self.permits(&ids, *resource, name)
    }

    fn permits(&self, policies: &[String], resource: Resource, name: &str) -> bool {
        let policies = policies.iter().filter_map(|id| self.policies.get(id));
        let rules = policies.flat_map(|policy| policy.rules.as_slice());
        let of_object = rules.filter(|rule| rule.resource == resource);
        let mut best: Option<(bool, usize, Level)> = None;
        for rule in of_object {
            let is_exact = !rule.is_prefix && rule.label == name;
            if is_exact || rule.is_prefix && name.starts_with(&rule.label) {
                best = best.max(Some((is_exact, rule.label.len(), rule.level)));
            }
        }
        best.is_some_and(|(_, _, level)| level == Level::Write)
    }

    fn objects_of(&self, command: &Command) -> Vec<Object> {
        let key = |key: &dyn ToString| (Resource::Key, key.to_string());
        let session =
            |id: &SessionId| self.sessions.get(id).map(|node| (Resource::Session, node.to_string()));
        match command {
            Command::Kv(command) => match command {
                KvCommand::Set(new)
                | KvCommand::Cas(new, _)
                | KvCommand::Acquire(new, _)
                | KvCommand::Enqueue { new, .. } => vec![key(&new.key)],
                // Any agent releases what its client did not receive.
                KvCommand::Release(..) | KvCommand::Leave { .. } | KvCommand::StopWaiting { .. } => {
                    Vec::new()
                }
                KvCommand::Delete(name) | KvCommand::DeleteCas(name, _) | KvCommand::DeleteTree(name) => {
                    vec![key(name)]
                }
            },
            Command::AcquireLocks { locks, .. } => locks.iter().map(|lock| key(&lock.key)).collect(),
            Command::CreateSession(spec) | Command::CreateBoundSession(spec, _) => {
                vec![(Resource::Session, spec.node.to_string())]
            }
            Command::DestroySession(id) | Command::Restricted(NodeCommand::DestroySession(id)) => {
                session(id).into_iter().collect()
            }
            Command::Txn(ops) => ops
                .iter()
                .filter_map(|op| match op {
                    TxnOp::Kv(op) if op.verb.is_write() && op.verb != KvVerb::Unlock => Some(key(&op.key)),
                    _ => None,
                })
                .collect(),
            Command::Acl(AclCommand::Bootstrap(..)) => Vec::new(),
            Command::Acl(_) | Command::Restore(_) => vec![(Resource::Acl, String::new())],
            _ => Vec::new(),
        }
    }

    fn note(&mut self, change: &Change) {
        match change {
            Change::AclSettings(settings) => self.is_enforced = settings.mode == AclMode::Enforce,
            Change::Token(id, Some(token)) => _ = self.tokens.insert(id.clone(), token.clone()),
            Change::Token(id, None) => _ = self.tokens.remove(id),
            Change::Policy(id, Some(policy)) => _ = self.policies.insert(id.clone(), policy.clone()),
            Change::Policy(id, None) => _ = self.policies.remove(id),
            Change::BindingRule(id, Some(rule)) => _ = self.bindings.insert(id.clone(), rule.clone()),
            Change::BindingRule(id, None) => _ = self.bindings.remove(id),
            Change::Session(id, Some(session)) => _ = self.sessions.insert(*id, session.spec.node.clone()),
            Change::Session(id, None) => _ = self.sessions.remove(id),
            Change::Cleared => *self = Self::default(),
            _ => {}
        }
    }
}

impl Invariant for AccessControl {
    fn name(&self) -> &'static str {
        "access"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        let (changes, seen) = match fact {
            Fact::Applied(past) => (past.changes.as_slice(), self.entry(past)),
            Fact::Strange { changes } => (*changes, Ok(())),
            _ => return Ok(()),
        };
        changes.iter().for_each(|change| self.note(change));
        seen
    }
}
