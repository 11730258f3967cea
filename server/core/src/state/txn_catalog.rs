//! Transaction operations on nodes, services and checks. A deregistration or a critical check in a
//! transaction ends sessions as outside of one.

use super::catalog::Catalog;
use super::check::{check_id, delete_check, ensure_check};
use super::error::{OpError, Row};
use super::node::{delete_node, ensure_node};
use super::service::{delete_service, ensure_service, service_id};
use super::step::Step;
use lockmesh_protocol::command::CatalogVerb;
use lockmesh_protocol::id::{CheckId, LogIndex, NodeName, ServiceId};
use lockmesh_protocol::record::{Check, LossCause, Node, Service};
use lockmesh_protocol::reply::TxnResult;

pub(super) fn write_node(
    step: &mut Step<'_>,
    verb: &CatalogVerb,
    node: &Node,
    expected: LogIndex,
) -> Result<Vec<TxnResult>, OpError> {
    let current = step.state.catalog.nodes.get(&node.name.folded()).map(|node| node.modify_index);
    let stale = |verb| Err(OpError::Stale { verb, row: Row::Node(node.name.clone()) });
    match verb {
        CatalogVerb::Cas if current.unwrap_or_default() != expected => stale("set"),
        CatalogVerb::DeleteCas if current != Some(expected) => stale("delete"),
        CatalogVerb::Set | CatalogVerb::Cas => {
            ensure_node(step, node)?;
            step.state.catalog.read_node(node)
        }
        CatalogVerb::Delete | CatalogVerb::DeleteCas => {
            delete_node(step, &node.name, &LossCause::NodeDeregistered);
            Ok(Vec::new())
        }
        CatalogVerb::Get => step.state.catalog.read_node(node),
        CatalogVerb::Unknown(word) => Err(OpError::UnknownVerb { table: "Node", word: word.clone() }),
    }
}

pub(super) fn write_service(
    step: &mut Step<'_>,
    verb: &CatalogVerb,
    service: &Service,
    expected: LogIndex,
) -> Result<Vec<TxnResult>, OpError> {
    let (node, id) = (&service.node, service_id(service));
    let current = step.state.catalog.service(node, &id).map(|service| service.modify_index);
    let stale = |verb| Err(OpError::Stale { verb, row: Row::Service(node.clone(), id.clone()) });
    match verb {
        CatalogVerb::Cas if current.unwrap_or_default() != expected => stale("set"),
        CatalogVerb::DeleteCas if current != Some(expected) => stale("delete"),
        CatalogVerb::Set | CatalogVerb::Cas => {
            ensure_service(step, service)?;
            step.state.catalog.read_service(node, &id)
        }
        CatalogVerb::Delete | CatalogVerb::DeleteCas => {
            delete_service(step, node, &id);
            Ok(Vec::new())
        }
        CatalogVerb::Get => step.state.catalog.read_service(node, &id),
        CatalogVerb::Unknown(word) => Err(OpError::UnknownVerb { table: "Service", word: word.clone() }),
    }
}

pub(super) fn write_check(
    step: &mut Step<'_>,
    verb: &CatalogVerb,
    check: &Check,
    expected: LogIndex,
) -> Result<Vec<TxnResult>, OpError> {
    let (node, id) = (&check.node, check_id(check));
    let current = step.state.catalog.check_of(node, &id).map(|check| check.modify_index);
    let stale = |verb| Err(OpError::Stale { verb, row: Row::Check(node.clone(), id.clone()) });
    match verb {
        CatalogVerb::Cas if current.unwrap_or_default() != expected => stale("set"),
        CatalogVerb::DeleteCas if current != Some(expected) => stale("delete"),
        CatalogVerb::Set | CatalogVerb::Cas => {
            ensure_check(step, check)?;
            step.state.catalog.read_check(node, &id)
        }
        CatalogVerb::Delete | CatalogVerb::DeleteCas => {
            delete_check(step, node, &id);
            Ok(Vec::new())
        }
        CatalogVerb::Get => step.state.catalog.read_check(node, &id),
        CatalogVerb::Unknown(word) => Err(OpError::UnknownVerb { table: "Check", word: word.clone() }),
    }
}

impl Catalog {
    pub(super) fn read_node(&self, node: &Node) -> Result<Vec<TxnResult>, OpError> {
        let found = self.node_by_id_or_name(&node.id, &node.name);
        let found = found.ok_or_else(|| OpError::Absent(Row::Node(node.name.clone())))?;
        Ok(vec![TxnResult::Node(found.clone())])
    }

    pub(super) fn read_service(&self, node: &NodeName, id: &ServiceId) -> Result<Vec<TxnResult>, OpError> {
        let found = self.service(node, id);
        let found = found.ok_or_else(|| OpError::Absent(Row::Service(node.clone(), id.clone())))?;
        Ok(vec![TxnResult::Service(found.clone())])
    }

    pub(super) fn read_check(&self, node: &NodeName, id: &CheckId) -> Result<Vec<TxnResult>, OpError> {
        let found = self.check_of(node, id);
        let found = found.ok_or_else(|| OpError::Absent(Row::Check(node.clone(), id.clone())))?;
        Ok(vec![TxnResult::Check(found.clone())])
    }
}
