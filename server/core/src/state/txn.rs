//! Transactions: operations in order, each seeing the effects of the earlier ones, applied all or
//! none.
//!
//! Operations are validated alone first. Then every operation is tried, and if any fails, all
//! failures are reported and nothing is applied.

use super::State;
use super::catalog::{node_is_well_formed, service_is_well_formed};
use super::error::OpError;
use super::step::Step;
use super::txn_catalog::{write_check, write_node, write_service};
use super::txn_kv::write_kv;
use lockmesh_protocol::command::{CatalogVerb, KvVerb, TxnKv, TxnOp};
use lockmesh_protocol::reply::{Reply, TxnError, TxnResult};

pub(super) fn txn(step: &mut Step<'_>, ops: &[TxnOp]) -> Reply {
    // All failures are reported, so all operations are tried; and none of the successes may
    // remain.
    let outcome = step.state.validate(ops).and_then(|()| {
        step.attempt(|step| run(ops, |op| if op.is_write() { write(step, op) } else { step.state.read(op) }))
    });
    outcome.map_or_else(Reply::TxnFailed, Reply::Txn)
}

fn write(step: &mut Step<'_>, op: &TxnOp) -> Result<Vec<TxnResult>, OpError> {
    match op {
        TxnOp::Kv(op) => write_kv(step, op),
        TxnOp::Node { verb, node, expected } => write_node(step, verb, node, *expected),
        TxnOp::Service { verb, service, expected } => write_service(step, verb, service, *expected),
        TxnOp::Check { verb, check, expected } => write_check(step, verb, check, *expected),
    }
}

impl State {
    /// Runs a read-only transaction.
    pub(super) fn read_txn(&self, ops: &[TxnOp]) -> Result<Vec<TxnResult>, Vec<TxnError>> {
        self.validate(ops)?;
        run(ops, |op| if op.is_write() { Err(OpError::WriteInRead) } else { self.read(op) })
    }

    fn read(&self, op: &TxnOp) -> Result<Vec<TxnResult>, OpError> {
        match op {
            TxnOp::Kv(op) => self.keys.read_kv(op),
            TxnOp::Node { node, .. } => self.catalog.read_node(node),
            TxnOp::Service { service, .. } => self.catalog.read_service(&service.node, &service.id),
            TxnOp::Check { check, .. } => self.catalog.read_check(&check.node, &check.id),
        }
    }

    fn validate(&self, ops: &[TxnOp]) -> Result<(), Vec<TxnError>> {
        run(ops, |op| self.may_be_tried(op).map(|()| Vec::new())).map(|_| ())
    }

    fn may_be_tried(&self, op: &TxnOp) -> Result<(), OpError> {
        match op {
            TxnOp::Kv(op) => self.kv_may_be_tried(op),
            TxnOp::Node { verb: CatalogVerb::Get, .. }
            | TxnOp::Service { verb: CatalogVerb::Get, .. }
            | TxnOp::Check { .. } => Ok(()),
            TxnOp::Node { node, .. } => Ok(node_is_well_formed(node)?),
            TxnOp::Service { service, .. } => Ok(service_is_well_formed(service)?),
        }
    }

    fn kv_may_be_tried(&self, op: &TxnKv) -> Result<(), OpError> {
        if op.key.as_str().is_empty() && op.verb != KvVerb::DeleteTree {
            return Err(OpError::NoKey);
        }
        match &op.verb {
            KvVerb::Unknown(word) => Err(OpError::UnknownKvVerb(word.clone())),
            // Reported before any operation is tried, as in Consul.
            KvVerb::Lock if self.keys.delays.contains_key(&op.key) => Err(OpError::Delayed(op.key.clone())),
            _ => Ok(()),
        }
    }
}

/// Tries every operation, even after a failure, and returns all results, or else all failures.
fn run(
    ops: &[TxnOp],
    mut try_op: impl FnMut(&TxnOp) -> Result<Vec<TxnResult>, OpError>,
) -> Result<Vec<TxnResult>, Vec<TxnError>> {
    let (mut results, mut errors) = (Vec::new(), Vec::new());
    for (op_index, op) in (0u32..).zip(ops) {
        match try_op(op) {
            Ok(more) => results.extend(more),
            Err(error) => errors.push(TxnError { op_index, what: error.to_string() }),
        }
    }
    if errors.is_empty() { Ok(results) } else { Err(errors) }
}
