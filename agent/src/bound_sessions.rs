//! The sessions of this host that end with a process. A task watches the processes, and executes
//! the orders of [`bound_sessions::BoundSessions`](pure::BoundSessions).
//!
//! A process is watched before its session is created, and the servers keep which process that is.
//! So neither a crash of the agent nor a lost reply leaves a session whose process nobody watches:
//! the list of bound sessions names it.

use crate::incarnation;
use crate::metrics;
use crate::process::{Process, ProcessError, SocketClient};
use crate::session_watches::finished;
use crate::upstream::calls::{EndSession, Read};
use crate::upstream::{BoxFuture, Upstream};
use lockmesh_agent_core::bound_sessions::{self as pure, Input, Orders};
use lockmesh_agent_core::quorum_client::EndReason;
use lockmesh_agent_core::session_watch::{READ_WAIT, ReadOrder};
use lockmesh_net::random::seed;
use lockmesh_protocol::id::{LogIndex, NodeName, SessionId};
use lockmesh_protocol::query::{Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::ProcessBinding;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// The maximum number of created sessions on their way to the task that watches.
const CREATED_MAX: usize = 64;

/// The process that a client binds a session to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedProcess {
    /// Its own, at the other end of the Unix socket.
    Client,
    /// Another one of its user.
    Named(u32),
}

/// The reason why a session cannot be bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// The kernel cannot tell who the client is.
    #[error("the kernel names the client on the Unix socket only: send the request to the agent's socket")]
    NotOnSocket,
    /// Another agent would have to see the process.
    #[error("a session is bound to a process of this agent's own node: leave out Node")]
    OtherNode,
    /// The maximum number of processes is watched.
    #[error("this agent watches {0} processes, its limit: raise `session.max_bound`, or end some sessions")]
    Full(usize),
    /// The process cannot be watched.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// A process that is watched for a session that is being created.
#[derive(Debug)]
pub(crate) struct BoundProcess {
    process: Process,
    /// Its place among the watched processes; those of an earlier agent process may have none.
    place: Option<OwnedSemaphorePermit>,
}

/// The bound sessions of one agent.
#[derive(Debug)]
pub struct BoundSessions {
    node: NodeName,
    boot_id: [u8; 16],
    most: usize,
    places: Arc<Semaphore>,
    created: mpsc::Sender<(SessionId, LogIndex, BoundProcess)>,
    stopping: watch::Sender<bool>,
}

impl BoundSessions {
    /// Starts to watch the processes of this node's sessions, for at most this many sessions.
    pub(crate) fn start(upstream: Upstream, node: NodeName, most: usize) -> Arc<Self> {
        let (created, receiver) = mpsc::channel(CREATED_MAX);
        let (stopping, stopped) = watch::channel(false);
        let boot_id = incarnation::boot_digest();
        let task = Task {
            upstream,
            node: node.clone(),
            boot_id,
            watches: BTreeMap::new(),
            exits: JoinSet::new(),
            ends: JoinSet::new(),
            reading: None,
        };
        tokio::spawn(task.run(receiver, stopped));
        let places = Arc::new(Semaphore::new(most));
        Arc::new(Self { node, boot_id, most, places, created, stopping })
    }

    /// Ends all watches. The sessions stay, for the agent's next process.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits until all watches have ended.
    #[cfg(test)]
    pub(crate) async fn stopped(&self) {
        self.created.closed().await;
    }

    /// Watches a process for a session of this node that a client is about to create.
    ///
    /// # Errors
    /// [`BindError`]; no session may be created.
    pub(crate) fn watch(
        &self,
        client: Option<SocketClient>,
        node: &NodeName,
        wanted: WantedProcess,
    ) -> Result<BoundProcess, BindError> {
        let client = client.ok_or(BindError::NotOnSocket)?;
        if node.folded() != self.node.folded() {
            return Err(BindError::OtherNode);
        }
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| BindError::Full(self.most))?;
        let process = match wanted {
            WantedProcess::Client => Process::of_client(client)?,
            WantedProcess::Named(pid) => Process::named_by(client, pid)?,
        };
        Ok(BoundProcess { process, place: Some(place) })
    }

    /// Returns the binding of a session to this process.
    pub(crate) fn binding(&self, bound: &BoundProcess, keeps_lock_delay: bool) -> ProcessBinding {
        let (pid, started_at) = (bound.process.pid(), bound.process.started_at());
        ProcessBinding { pid, started_at, boot_id: self.boot_id, keeps_lock_delay }
    }

    /// Takes over the watch for a session that was created at this index.
    pub(crate) fn created(&self, session: SessionId, index: LogIndex, process: BoundProcess) {
        // If there is no room, or the agent stops, the list of the servers has the session.
        let _ = self.created.try_send((session, index, process));
    }
}

type List = Option<(LogIndex, Vec<(SessionId, ProcessBinding)>)>;

/// The task that watches.
struct Task {
    upstream: Upstream,
    node: NodeName,
    boot_id: [u8; 16],
    /// The watches, by session.
    watches: BTreeMap<SessionId, AbortHandle>,
    exits: JoinSet<SessionId>,
    ends: JoinSet<(SessionId, Option<LogIndex>)>,
    reading: Option<BoxFuture<List>>,
}

impl Task {
    async fn run(
        mut self,
        mut created: mpsc::Receiver<(SessionId, LogIndex, BoundProcess)>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let (mut bound, mut orders) = pure::BoundSessions::new(seed());
        loop {
            self.execute(orders);
            metrics::BOUND_SESSIONS.set(i64::try_from(bound.len()).unwrap_or(i64::MAX));
            let input = tokio::select! {
                Some((session, index, process)) = created.recv() => {
                    self.watch(session, process);
                    Some(Input::Created(session, index))
                }
                // A watch that was ended has no result.
                Some(exited) = self.exits.join_next() => exited.ok().map(Input::Exited),
                Some(ended) = self.ends.join_next() => {
                    ended.ok().map(|(session, index)| Input::Ended(session, index))
                }
                list = finished(&mut self.reading) => Some(Input::Listed(list)),
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            orders = input.map(|input| bound.handle(input)).unwrap_or_default();
        }
    }

    fn execute(&mut self, orders: Orders) {
        let Orders { watch, end, forget, read } = orders;
        for (session, binding) in watch {
            let is_this_boot = binding.boot_id == self.boot_id;
            match Process::again(binding.pid, binding.started_at).filter(|_| is_this_boot) {
                Some(process) => self.watch(session, BoundProcess { process, place: None }),
                // It exited while no agent watched it.
                None => drop(self.exits.spawn(async move { session })),
            }
        }
        for (session, pause) in end {
            let upstream = self.upstream.clone();
            tracing::info!(%session, "the process of a session has exited: ending the session");
            self.ends.spawn(async move {
                sleep(pause).await;
                let ended = upstream.call(EndSession { session, reason: EndReason::ProcessExited }).await;
                (session, ended.ok().flatten().map(|applied| applied.index))
            });
        }
        for session in forget {
            if let Some(watch) = self.watches.remove(&session) {
                watch.abort();
            }
        }
        if let Some(order) = read {
            self.reading = Some(Box::pin(read_list(self.upstream.clone(), self.node.clone(), order)));
        }
    }

    /// Watches a process; replaces another watch of the session.
    fn watch(&mut self, session: SessionId, bound: BoundProcess) {
        let watch = self.exits.spawn(async move {
            let BoundProcess { process, place } = bound;
            process.exited().await;
            drop(place);
            session
        });
        if let Some(former) = self.watches.insert(session, watch) {
            former.abort();
        }
    }
}

/// Reads the bound sessions of a node from any server: nothing is ended because a list lacks it.
async fn read_list(upstream: Upstream, node: NodeName, order: ReadOrder) -> List {
    sleep(order.pause).await;
    let blocking = order.behind.map(|index| Blocking { index, wait: READ_WAIT });
    let read = Read { query: Query::Bindings(node), consistency: Consistency::Stale, blocking };
    let answer = upstream.call(read).await.ok()?;
    match &answer.rows {
        Rows::Bindings(list) => Some((answer.index, list.clone())),
        // A server of an older build.
        _ => None,
    }
}
