//! Reads the other nodes whose checks this agent's aliases follow.

use super::checks_of;
use crate::upstream::Upstream;
use crate::upstream::calls::Read;
use lockmesh_agent_core::registry::{AliasedNode, Input};
use lockmesh_protocol::id::{LogIndex, NodeName};
use lockmesh_protocol::query::{Blocking, Consistency, Query, Rows};
use lockmesh_protocol::rpc::Unavailable;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The maximum time that a read waits for a change.
const READ_WAIT: Duration = Duration::from_secs(60);
/// The pause after a failed read, and the minimum time between two reads of a node.
const READ_PAUSE: Duration = Duration::from_secs(1);
/// The results that may wait for the registry.
const RESULTS: usize = 16;

/// The nodes that are read, each by a task of its own.
#[derive(Debug)]
pub(super) struct AliasedNodes {
    upstream: Upstream,
    tasks: BTreeMap<NodeName, JoinHandle<()>>,
    sender: mpsc::Sender<Input>,
    results: mpsc::Receiver<Input>,
}

impl AliasedNodes {
    pub(super) fn new(upstream: Upstream) -> Self {
        let (sender, results) = mpsc::channel(RESULTS);
        Self { upstream, tasks: BTreeMap::new(), sender, results }
    }

    /// Reads these nodes from now on, and no others.
    pub(super) fn follow(&mut self, nodes: BTreeSet<NodeName>) {
        self.tasks.retain(|node, task| {
            let is_followed = nodes.contains(node);
            if !is_followed {
                // It may wait for a change for another minute.
                task.abort();
            }
            is_followed
        });
        for node in nodes {
            self.tasks.entry(node.clone()).or_insert_with(|| {
                tokio::spawn(read_again_and_again(self.upstream.clone(), node, self.sender.clone()))
            });
        }
    }

    /// Returns the next result.
    pub(super) async fn next(&mut self) -> Input {
        match self.results.recv().await {
            Some(input) => input,
            // This value holds a sender, so the channel is open.
            None => std::future::pending().await,
        }
    }
}

impl Drop for AliasedNodes {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}

async fn read_again_and_again(upstream: Upstream, node: NodeName, results: mpsc::Sender<Input>) {
    let mut index = LogIndex(0);
    loop {
        let found = read(&upstream, &node, &mut index).await;
        if results.send(Input::Aliased(node.clone(), found)).await.is_err() {
            return;
        }
        tokio::time::sleep(READ_PAUSE).await;
    }
}

/// Waits for a change of the node's checks since an index, and returns them with its services.
async fn read(
    upstream: &Upstream,
    node: &NodeName,
    index: &mut LogIndex,
) -> Result<AliasedNode, Unavailable> {
    let blocking = (*index > LogIndex(0)).then_some(Blocking { index: *index, wait: READ_WAIT });
    let query = Query::NodeChecks(node.clone());
    let answers = upstream.read_all(Read { query, consistency: Consistency::Default, blocking }).await?;
    let mut checks = Vec::new();
    for answer in &answers {
        checks.extend_from_slice(checks_of(&answer.rows)?);
        *index = answer.index;
    }
    // An empty list of checks leaves open if the node and its service exist.
    let query = Query::Node(node.clone());
    let read = Read { query, consistency: Consistency::Default, blocking: None };
    let (mut exists, mut services) = (false, BTreeSet::new());
    for answer in upstream.read_all(read).await? {
        if let Rows::Node(Some((_, of_node))) = &answer.rows {
            exists = true;
            services.extend(of_node.iter().map(|service| service.id.folded()));
        }
    }
    Ok(AliasedNode { exists, services, checks })
}
