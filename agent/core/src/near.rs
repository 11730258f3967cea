//! Rows sorted by the estimated round trip time from a node (network coordinates), as
//! `/v1/coordinate` has it.
//!
//! The rows of nodes without a coordinate come last, and rows of the same distance keep their
//! order. If the node to start from has no coordinate, all rows keep their order.

use core::net::IpAddr;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Answer, Rows};
use lockmesh_protocol::record::{Coordinate, Node};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The node from which distances are measured.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Its name.
    pub node: NodeName,
    /// The answers with the coordinates of all nodes.
    pub coordinates: Vec<Arc<Answer>>,
}

impl Origin {
    /// Sorts rows by their distance; only rows that belong to nodes change their order.
    pub fn sort(&self, rows: &mut Rows) {
        match rows {
            Rows::Nodes(rows) => self.sort_by(rows, |row| &row.name),
            Rows::Checks(rows) => self.sort_by(rows, |row| &row.node),
            Rows::Instances(rows) => self.sort_by(rows, |row| &row.node.name),
            _ => {}
        }
    }

    /// Sorts rows by the distance of their nodes.
    pub fn sort_by<T>(&self, rows: &mut [T], node: fn(&T) -> &NodeName) {
        let mut of_node: BTreeMap<NodeName, &Coordinate> = BTreeMap::new();
        for answer in &self.coordinates {
            // A server of an earlier build knows no coordinates.
            let Rows::Coordinates(coordinates) = &answer.rows else { return };
            of_node.extend(coordinates.iter().map(|(node, coordinate)| (node.folded(), &**coordinate)));
        }
        let Some(from) = of_node.get(&self.node.folded()) else { return };
        rows.sort_by_cached_key(|row| {
            let to = of_node.get(&node(row).folded());
            to.map_or(Duration::MAX, |to| from.distance_to(to))
        });
    }
}

/// Returns `true` for rows that belong to nodes.
pub fn is_of_nodes(rows: &Rows) -> bool {
    matches!(rows, Rows::Nodes(_) | Rows::Checks(_) | Rows::Instances(_))
}

/// Returns the first node with this address.
pub fn node_at(address: IpAddr, nodes: &[Arc<Answer>]) -> Option<NodeName> {
    let mut nodes = nodes.iter().flat_map(|answer| match &answer.rows {
        Rows::Nodes(nodes) => nodes.as_slice(),
        _ => &[],
    });
    let is_there = |node: &&Arc<Node>| node.address.parse::<IpAddr>().is_ok_and(|known| known == address);
    nodes.find(is_there).map(|node| node.name.clone())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lockmesh_protocol::id::LogIndex;
    use lockmesh_protocol::record::Finite;

    fn answer(rows: Rows) -> Arc<Answer> {
        Arc::new(Answer {
            index: LogIndex(1),
            rows,
            known_leader: true,
            last_contact: Duration::ZERO,
            is_filtered: false,
        })
    }

    /// A node to start from, with the distances of some nodes on one line; the last one is in an
    /// answer of its own.
    pub(crate) fn origin(node: &str, distances: &[(&str, f64)]) -> Origin {
        let at = |(node, distance): &(&str, f64)| {
            let mut coordinate = Coordinate::default();
            coordinate.vec[3] = Finite::try_from(*distance).expect("it is finite");
            (NodeName::from(*node), Arc::new(coordinate))
        };
        let (last, first) = distances.split_last().expect("there is a node");
        let lists = [first, &[*last]].map(|list| Rows::Coordinates(list.iter().map(at).collect()));
        Origin { node: node.into(), coordinates: lists.map(answer).into() }
    }

    fn sorted(origin: &Origin) -> String {
        let node = |name: &str| Arc::new(Node::of(name.into(), String::new(), "10.0.0.1"));
        let mut rows = Rows::Nodes(["unknown", "a", "b", "c", "e"].map(node).into());
        origin.sort(&mut rows);
        let Rows::Nodes(nodes) = rows else { unreachable!("they are nodes") };
        nodes.iter().map(|node| node.name.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn sorts_by_distance_unknown_last() {
        let origin = |node| origin(node, &[("C", 0.1), ("b", 0.5), ("a", 0.5), ("e", 0.0)]);
        assert_eq!(sorted(&origin("E")), "e c a b unknown");
        assert_eq!(sorted(&origin("b")), "a b c e unknown");
        assert_eq!(sorted(&origin("other")), "unknown a b c e");
        let mut older = origin("e");
        older.coordinates.push(answer(Rows::Keys(Vec::new())));
        assert_eq!(sorted(&older), "unknown a b c e", "a server without coordinates");
    }

    #[test]
    fn finds_first_node_at_address() {
        let node = |name: &str, address: &str| Arc::new(Node::of(name.into(), String::new(), address));
        let first = answer(Rows::Nodes(vec![node("name", "host"), node("a", "10.0.0.1")]));
        let nodes = [first, answer(Rows::Nodes(vec![node("b", "10.0.0.1"), node("c", "::1")]))];
        let at = |address: &str| node_at(address.parse().expect("it is an address"), &nodes);
        assert_eq!(at("10.0.0.1"), Some("a".into()));
        assert_eq!(at("::1"), Some("c".into()));
        assert_eq!(at("10.0.0.2"), None);
    }
}
