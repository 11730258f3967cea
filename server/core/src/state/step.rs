//! One command in execution. The rules in the other files are functions on a [`Step`].
//!
//! Only [`Step::set`] changes a row: the change is made and listed together, so that the state and
//! its changes never diverge.

use super::State;
use super::acl;
use super::agent::register_agent;
use super::catalog::{deregister, register};
use super::deadlock::configure_deadlocks;
use super::entry::kv;
use super::gossip::rotate_gossip_key;
use super::lock::end_lock_delay;
use super::member::{
    announce_restart, end_former_sessions, end_restart, fail_node, leave_node, reap_member, reconcile,
};
use super::node::update_coordinate;
use super::prepared_query::write_query;
use super::queue::{acquire_locks, end_wait, grant_freed, note_freed};
use super::removed::{Removed, TreeBefore};
use super::restore::restore;
use super::rights::{configure_operator_hosts, refusal, restricted};
use super::roster::{
    admit_server, bootstrap, configure_autopilot, forget_server, raise_format, update_server,
};
use super::service_index::{ServiceTopic, move_service_indexes, note_services};
use super::session::{
    create_bound_session, create_session, destroy_session, end_of_process, expire_session, give_up_session,
};
use super::tombstone::reap_tombstones;
use super::txn::txn;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{AgentNumber, Key, LogIndex, Term, WallTime};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::collections::BTreeSet;

/// What a command adds to.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// The changed rows.
    pub changes: &'a mut Vec<Change>,
    /// The rows that were removed in bulk.
    pub removed: &'a mut Removed,
    /// The services that commands touched.
    pub services: &'a mut BTreeSet<ServiceTopic>,
}

/// One command in execution on the state.
pub(super) struct Step<'a> {
    pub(super) state: &'a mut State,
    /// The command's index as clients see it.
    pub(super) index: LogIndex,
    /// The command's index in the log.
    pub(super) log_index: LogIndex,
    /// The term that wrote the command.
    pub(super) term: Term,
    /// The time of the proposal, for display only.
    pub(super) at: WallTime,
    /// The agent that sent the command.
    pub(super) origin: Option<AgentNumber>,
    /// The client for which it was sent, or the agent itself.
    pub(super) caller: Caller,
    changes: &'a mut Vec<Change>,
    /// The rows that were removed in bulk.
    removed: &'a mut Removed,
    /// The services that commands touched.
    pub(super) touched_services: &'a mut BTreeSet<ServiceTopic>,
    /// Those of this command, whose indexes have not moved yet.
    pub(super) services: BTreeSet<ServiceTopic>,
    /// The keys with a queue that this command may have freed.
    pub(super) freed: BTreeSet<Key>,
    /// The keys with a queue that were held when this command wrote them.
    pub(super) vacated: BTreeSet<Key>,
    /// The undo list of the current attempt, in the order of its changes.
    undo: Option<Vec<Undo>>,
}

/// The inverse of a change.
enum Undo {
    Row(Change),
    Tree(TreeBefore),
}

impl<'a> Step<'a> {
    pub(super) fn new(
        state: &'a mut State,
        log_index: LogIndex,
        term: Term,
        at: WallTime,
        outputs: Outputs<'a>,
    ) -> Self {
        let Outputs { changes, removed, services: touched_services } = outputs;
        // With the base before this command: a restore changes it explicitly.
        let index = LogIndex(log_index.0 + state.index_base);
        let (freed, vacated, services) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (origin, caller, undo) = (None, Caller::Agent, None);
        Self {
            state,
            index,
            log_index,
            term,
            at,
            origin,
            caller,
            changes,
            removed,
            touched_services,
            services,
            freed,
            vacated,
            undo,
        }
    }

    /// `true` if the leader of this term decided the command, on the data of the last restore.
    pub(super) fn is_current(&self, term: Term, base: u64) -> bool {
        term == self.term && base == self.state.index_base
    }

    /// Executes a new command, and grants every lock with waiters that it freed.
    pub(super) fn execute(&mut self, command: &Command) -> Reply {
        let refused = refusal(self, command).map(Reply::Refused).or_else(|| acl::refusal(self, command));
        let reply = refused.unwrap_or_else(|| {
            let reply = self.carry_out(command);
            acl::without_hidden_results(self, reply)
        });
        // Last: no lock is granted that the same command acquires, or to a session that it ends.
        grant_freed(self);
        move_service_indexes(self);
        reply
    }

    pub(super) fn carry_out(&mut self, command: &Command) -> Reply {
        match command {
            Command::Kv(command) => kv(self, command),
            Command::CreateSession(session) => create_session(self, session),
            Command::CreateBoundSession(session, binding) => create_bound_session(self, session, binding),
            Command::EndOfProcess(session) => end_of_process(self, *session),
            Command::DestroySession(session) => destroy_session(self, *session),
            Command::GiveUpSession { session, silent_for } => give_up_session(self, *session, *silent_for),
            Command::Txn(ops) => txn(self, ops),
            Command::Register(registration) => register(self, registration),
            Command::Deregister(deregistration) => deregister(self, deregistration),
            Command::RegisterAgent(registration) => register_agent(self, registration),
            Command::ExpireSession { session, term, base } => expire_session(self, *session, *term, *base),
            Command::EndLockDelay { key, started_at_index, base } => {
                end_lock_delay(self, key, *started_at_index, *base)
            }
            Command::EndWait { key, queue_position, enqueued_at_index } => {
                end_wait(self, key, *queue_position, *enqueued_at_index)
            }
            Command::ReapTombstones { up_to } => reap_tombstones(self, *up_to),
            Command::Restore(part) => restore(self, part),
            Command::Bootstrap { cluster_id, servers, lease_key } => {
                bootstrap(self, cluster_id, servers, *lease_key)
            }
            Command::AdmitServer(server) => reply_or_refusal(admit_server(self, server)),
            Command::UpdateServer(server) => reply_or_refusal(update_server(self, server)),
            Command::ForgetServer(id) => forget_server(self, *id),
            Command::ConfigureAutopilot(autopilot, expected) => {
                configure_autopilot(self, autopilot, *expected)
            }
            Command::CorruptionCheck => Reply::Done,
            Command::RaiseFormat(format) => raise_format(self, *format),
            Command::FailNode(failure) => fail_node(self, failure),
            Command::EndFormerSessions { lease, window, term, base } => {
                end_former_sessions(self, *lease, *window, *term, *base)
            }
            Command::LeaveNode(leave) => leave_node(self, leave),
            Command::AnnounceRestart(lease) => announce_restart(self, *lease),
            Command::Reconcile { members, strangers } => reconcile(self, members, strangers),
            Command::ReapMember { lease, term, base } => reap_member(self, *lease, *term, *base),
            Command::EndRestart { agent, announced_at, term, base } => {
                end_restart(self, *agent, *announced_at, *term, *base)
            }
            Command::RotateGossipKey { from } => rotate_gossip_key(self, *from),
            Command::UpdateCoordinate { node, coordinate } => update_coordinate(self, node, coordinate),
            Command::PreparedQuery(command) => write_query(self, command),
            Command::ConfigureDeadlocks(policy) => configure_deadlocks(self, *policy),
            Command::Restricted(command) => restricted(self, command),
            Command::ConfigureOperatorHosts(hosts) => configure_operator_hosts(self, hosts),
            Command::Acl(command) => reply_or_refusal(acl::change_acl(self, command)),
            Command::AcquireLocks { locks, session, wait } => {
                let wait = (!wait.is_zero()).then_some(*wait);
                reply_or_refusal(acquire_locks(self, locks, *session, wait))
            }
        }
    }

    /// Changes a row, or removes a tree.
    pub(super) fn set(&mut self, change: Change) {
        if let Some(undo) = &mut self.undo {
            undo.push(match &change {
                Change::TreeDeleted(prefix) => Undo::Tree(self.state.keys.tree_before(prefix)),
                change => Undo::Row(self.state.inverse(change)),
            });
        }
        debug_assert!(!self.state.makes_again(&change), "it is made once: {change:?}");
        note_freed(self, &change);
        note_services(self, &change);
        match &change {
            // Handed over instead of freed: freeing very many rows would block the loop.
            Change::TreeDeleted(prefix) => self.removed.push(self.state.keys.take_tree(prefix)),
            change => self.state.set_row(change.clone()),
        }
        self.changes.push(change);
    }

    /// Records that this command changed a table.
    pub(super) fn touch(&mut self, table: Table) {
        // Once per command, so that a large one does not list the same row repeatedly.
        if self.state.table_index(table) != self.index {
            self.set(Change::TableIndex(table, self.index));
        }
    }

    /// Runs `work` and rolls its changes back if it fails.
    pub(super) fn attempt<T, E>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        debug_assert!(self.undo.is_none(), "attempts are not nested");
        let listed = self.changes.len();
        let services = self.services.clone();
        self.undo = Some(Vec::new());
        let outcome = work(self);
        let undo = self.undo.take().unwrap_or_default();
        if outcome.is_err() {
            // In reverse: a later change may be of a row that an earlier one set.
            undo.into_iter().rev().for_each(|undo| self.state.undo(undo));
            self.changes.truncate(listed);
            self.services = services;
        }
        outcome
    }
}

impl State {
    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Row(change) => self.set_row(change),
            Undo::Tree(before) => self.keys.bring_tree_back(before),
        }
    }
}

/// The reply to a command that may be refused.
pub(super) fn reply_or_refusal(outcome: Result<Reply, impl Into<Refusal>>) -> Reply {
    outcome.unwrap_or_else(|error| Reply::Refused(error.into()))
}
