//! Exactly once: a repeated command returns the kept reply and has no effect (idempotent retry).
//!
//! An agent numbers its commands, and sends with each one the lowest sequence that it may still
//! repeat. Replies below that are dropped, and commands below it are rejected: a late duplicate
//! must never be taken for a new command.

use super::rows::put;
use super::step::Step;
use crate::proposal::Proposal;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, TxnOp};
use lockmesh_protocol::id::{AgentNumber, Fence, Key, RequestId, SessionId};
use lockmesh_protocol::node_command::NodeCommand;
use lockmesh_protocol::record::RequestedLock;
use lockmesh_protocol::reply::{Applied, Refusal, Reply, TxnResult};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The maximum number of kept replies per agent; an agent with more commands in flight loses the
/// oldest.
pub const REPLIES_KEPT: usize = 4_096;

/// The kept replies of all agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Replies(BTreeMap<AgentNumber, KeptReplies>);

/// The replies that an agent may still request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptReplies {
    /// Everything below this sequence is forgotten.
    pub(super) lowest: u64,
    /// The replies, by sequence.
    pub(super) kept: BTreeMap<u64, Arc<Applied>>,
}

impl Replies {
    pub(super) fn of(&self, agent: AgentNumber) -> Option<&KeptReplies> {
        self.0.get(&agent)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&AgentNumber, &KeptReplies)> {
        self.0.iter()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        self.iter().flat_map(|(agent, replies)| replies.rows(*agent))
    }

    pub(super) fn load(&mut self, agent: AgentNumber, sequence: u64, reply: Option<Arc<Applied>>) {
        self.change(agent, |replies| put(&mut replies.kept, sequence, reply));
    }

    pub(super) fn load_lowest(&mut self, agent: AgentNumber, lowest: u64) {
        self.change(agent, |replies| replies.lowest = lowest);
    }

    fn change(&mut self, agent: AgentNumber, change: impl FnOnce(&mut KeptReplies)) {
        let replies = self.0.entry(agent).or_default();
        change(replies);
        // Empty maps are removed, or a state rebuilt from its rows would differ.
        if replies.lowest == 0 && replies.kept.is_empty() {
            self.0.remove(&agent);
        }
    }
}

impl KeptReplies {
    fn rows(&self, agent: AgentNumber) -> impl Iterator<Item = Change> + '_ {
        let lowest = (self.lowest != 0).then_some(Change::LowestSequence(agent, self.lowest));
        let kept = self.kept.iter();
        lowest
            .into_iter()
            .chain(kept.map(move |(sequence, row)| Change::Reply(agent, *sequence, Some(row.clone()))))
    }

    fn oldest(&self) -> Option<u64> {
        self.kept.first_key_value().map(|(sequence, _)| *sequence)
    }
}

/// Replies to a proposal, and executes it if it is new.
pub(super) fn answer(step: &mut Step<'_>, proposal: &Proposal) -> Arc<Applied> {
    // Commands of the leader itself and registrations: executing one twice does no harm.
    let Some(request) = &proposal.request else {
        let reply = step.execute(&proposal.command);
        return Arc::new(Applied { index: step.index, reply });
    };
    if !is_of_present_life(step, request) {
        return forgotten(step);
    }
    // Also for a repeated command: the agent's lowest sequence holds in any case.
    forget_below(step, request.agent, request.lowest);
    let replies = step.state.replies.of(request.agent);
    // Its reply was dropped, so it may have been executed: it must not be executed again.
    if replies.is_some_and(|replies| request.sequence < replies.lowest) {
        return forgotten(step);
    }
    if let Some(kept) = replies.and_then(|replies| replies.kept.get(&request.sequence)) {
        return repeated(step, &proposal.command, kept.clone());
    }
    step.origin = Some(request.agent);
    step.caller = proposal.caller.clone();
    let reply = step.execute(&proposal.command);
    let applied = Arc::new(Applied { index: step.index, reply });
    // In one entry with the command: no crash can separate the effect from its reply.
    keep(step, request, applied.clone());
    applied
}

/// Drops everything of an agent's earlier generations.
pub(super) fn forget_all(step: &mut Step<'_>, agent: AgentNumber) {
    let Some(replies) = step.state.replies.of(agent) else { return };
    let had_lowest = replies.lowest != 0;
    for sequence in replies.kept.keys().copied().collect::<Vec<_>>() {
        step.set(Change::Reply(agent, sequence, None));
    }
    if had_lowest {
        step.set(Change::LowestSequence(agent, 0));
    }
}

fn is_of_present_life(step: &Step<'_>, request: &RequestId) -> bool {
    let agent = step.state.members.agents.get(&request.agent);
    // A lowest sequence above the request's own is invalid.
    request.lowest <= request.sequence && agent.is_some_and(|agent| agent.generation == request.generation)
}

fn forgotten(step: &Step<'_>) -> Arc<Applied> {
    Arc::new(Applied { index: step.index, reply: Reply::Refused(Refusal::Forgotten) })
}

/// Returns a kept reply unchanged, except for a grant that no longer holds: no client may rely
/// on it.
fn repeated(step: &Step<'_>, command: &Command, kept: Arc<Applied>) -> Arc<Applied> {
    match (command, &kept.reply) {
        (
            Command::Kv(KvCommand::Acquire(new, session) | KvCommand::Enqueue { new, session, .. }),
            Reply::Granted { fence },
        ) if !stands(step, &new.key, *session, *fence) => {
            Arc::new(Applied { index: step.index, reply: Reply::Succeeded(false) })
        }
        (Command::AcquireLocks { locks, session, .. }, Reply::Granted { .. } | Reply::GrantedAll(_))
            if !all_stand(step, locks, *session, &kept.reply) =>
        {
            Arc::new(Applied { index: step.index, reply: Reply::Succeeded(false) })
        }
        // The transaction's other operations took effect, so it did not fail either.
        (Command::Txn(ops) | Command::Restricted(NodeCommand::Txn(ops)), Reply::Txn(results))
            if !locks_stand(step, ops, results) =>
        {
            forgotten(step)
        }
        _ => kept,
    }
}

fn all_stand(step: &Step<'_>, locks: &[RequestedLock], session: SessionId, granted: &Reply) -> bool {
    let fences = match granted {
        Reply::Granted { fence } => std::slice::from_ref(fence),
        Reply::GrantedAll(fences) => fences,
        _ => return true,
    };
    locks.iter().zip(fences).all(|(lock, fence)| stands(step, &lock.key, session, *fence))
}

fn locks_stand(step: &Step<'_>, ops: &[TxnOp], results: &[TxnResult]) -> bool {
    let locked = ops.iter().filter_map(|op| match op {
        TxnOp::Kv(op) if op.verb == KvVerb::Lock => Some(&op.key),
        _ => None,
    });
    let locked: BTreeSet<&Key> = locked.collect();
    results.iter().all(|result| match result {
        TxnResult::Kv(entry) if locked.contains(&entry.key) => {
            let lock = &entry.lock;
            // `None` in the result of an unlock that followed in the same transaction.
            lock.session.is_none_or(|session| stands(step, &entry.key, session, lock.fence))
        }
        _ => true,
    })
}

fn stands(step: &Step<'_>, key: &Key, session: SessionId, fence: Fence) -> bool {
    let entry = step.state.keys.entries.get(key.as_str());
    let is_held = step.state.keys.mode_held(key, session).is_some();
    entry.is_some_and(|entry| is_held && entry.lock.fence == fence)
}

fn keep(step: &mut Step<'_>, request: &RequestId, applied: Arc<Applied>) {
    step.set(Change::Reply(request.agent, request.sequence, Some(applied)));
    // A memory limit. Evicted sequences are rejected from now on, never taken for new ones.
    if let Some(replies) = step.state.replies.of(request.agent)
        && replies.kept.len() > REPLIES_KEPT
        && let Some(oldest) = replies.oldest()
    {
        forget_below(step, request.agent, oldest + 1);
    }
}

fn forget_below(step: &mut Step<'_>, agent: AgentNumber, lowest: u64) {
    let replies = step.state.replies.of(agent);
    // Commands arrive out of order: a late one carries an older lowest sequence.
    if lowest <= replies.map_or(0, |replies| replies.lowest) {
        return;
    }
    let oldest = |step: &Step<'_>| step.state.replies.of(agent).and_then(KeptReplies::oldest);
    while let Some(first) = oldest(step).filter(|first| *first < lowest) {
        step.set(Change::Reply(agent, first, None));
    }
    step.set(Change::LowestSequence(agent, lowest));
}
