//! This agent in the mesh: the socket, the clock and the connection to the servers around [`Mesh`],
//! which decides.
//!
//! **Invariant:** received datagrams are handled before a timer that reports their absence. If any
//! part fails, the servers detect failed hosts by missed renewals alone.

use crate::boot_clock::BootClock;
use crate::events::{Events, FireError, Fired};
use crate::mesh_questions::{Answer, Asked, Awaited, MeshRequest};
use crate::metrics;
use crate::upstream::Upstream;
use crate::upstream::calls::{Spread, Suspect};
use bytes::Bytes;
use lockmesh_agent_core::gossip::Counts;
use lockmesh_agent_core::gossip::mesh::{Mesh, Output, SYNC_TIMEOUT, SealCounts};
use lockmesh_net::datagram::DatagramSocket;
use lockmesh_net::random;
use lockmesh_protocol::gossip::MAX_DATAGRAM_BYTES;
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::gossip::verdict::Verdict;
use lockmesh_protocol::lease::{Challenge, LeaseId};
use lockmesh_protocol::time::Time;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// The maximum number of datagrams handled before the rest of the agent runs.
const BATCH: usize = 64;

/// The maximum number of batches handled before timers run.
const BATCHES: usize = 16;

/// The maximum number of queued replies to challenges.
const RENEWALS: usize = 64;

/// This agent as a member of the mesh, until its socket fails or the agent stops.
pub(crate) struct Member {
    socket: DatagramSocket,
    upstream: Upstream,
    clock: BootClock,
    /// `None` before the agent is registered.
    mesh: Option<Mesh>,
    /// The replies of servers; `None` for a failed request.
    answers: (mpsc::Sender<Option<MeshNews>>, mpsc::Receiver<Option<MeshNews>>),
    /// The events of this host, and those that its applications fire.
    events: Arc<Events>,
    fired: mpsc::Receiver<Fired>,
    /// Requests of servers to the mesh, and the challenges whose replies are awaited.
    wanted: mpsc::Receiver<MeshRequest>,
    awaited: Awaited,
    /// The replies of this host to challenges of other members.
    renewals: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    counted: (Counts, SealCounts),
}

impl Member {
    /// Creates a member that joins as soon as the agent is registered.
    pub(crate) fn new(
        socket: DatagramSocket,
        upstream: Upstream,
        (events, fired): (Arc<Events>, mpsc::Receiver<Fired>),
        wanted: mpsc::Receiver<MeshRequest>,
    ) -> Self {
        Self {
            socket,
            upstream,
            clock: BootClock::default(),
            mesh: None,
            answers: mpsc::channel(1),
            events,
            fired,
            wanted,
            awaited: Awaited::default(),
            renewals: mpsc::channel(RENEWALS),
            counted: Default::default(),
        }
    }

    /// Runs until the agent stops.
    pub(crate) async fn run(mut self, mut stopping: watch::Receiver<bool>) {
        let mut lease = self.upstream.lease();
        loop {
            let wakes_at = self.mesh.as_ref().and_then(Mesh::wakes_at);
            let mut output = Output::default();
            tokio::select! {
                _ = stopping.wait_for(|stops| *stops) => return,
                arrival = self.socket.arrival() => if arrival.is_err() { return },
                changed = lease.changed() => if changed.is_err() { return },
                Some(news) = self.answers.1.recv() => {
                    if let Some(mesh) = &mut self.mesh {
                        mesh.synced(self.clock.now(), news, &mut output);
                    }
                }
                Some(fired) = self.fired.recv() => self.fire(fired, &mut output),
                Some(wanted) = self.wanted.recv() => self.serve(wanted, &mut output),
                Some(Answer { to, answer }) = self.renewals.1.recv() => {
                    if let Some(mesh) = &mut self.mesh {
                        mesh.answer(self.clock.now(), to, &answer, &mut output);
                    }
                }
                () = self.clock.sleep_until(wakes_at) => {}
            }
            self.turn(output).await;
        }
    }

    async fn turn(&mut self, mut output: Output) {
        // With a new lease, this host is another member of the mesh.
        if let Some(lease) = self.upstream.registered_lease() {
            self.become_member(self.clock.now(), MemberId::of_agent(lease), &mut output);
        }
        // Before the timers: a reply that has arrived must not count as missing.
        self.receive_datagrams(&mut output).await;
        // Read after the datagrams, which may have taken a while.
        let now = self.clock.now();
        let Some(mesh) = &mut self.mesh else { return };
        mesh.tick(now, &mut output);
        if let Some(digest) = mesh.wants_sync(now) {
            self.sync(digest);
        }
        self.carry_out(now, output);
        self.count();
    }

    fn become_member(&mut self, now: Time, me: MemberId, output: &mut Output) {
        match &mut self.mesh {
            Some(mesh) => mesh.become_member(now, me, output),
            None => self.mesh = Some(Mesh::new(me, random::seed(), now)),
        }
    }

    /// Handles all received datagrams, up to the limit.
    async fn receive_datagrams(&mut self, output: &mut Output) {
        for _ in 0..BATCHES {
            let is_empty = self.take_batch(output);
            // A socket that is never empty must not block the rest of the agent.
            tokio::task::yield_now().await;
            if is_empty {
                return;
            }
        }
    }

    /// Handles a batch of received datagrams; returns `true` if the socket is empty.
    fn take_batch(&mut self, output: &mut Output) -> bool {
        // A byte more than allowed, so that a longer datagram is recognized and not cut.
        let (now, mut buffer) = (self.clock.now(), [0; MAX_DATAGRAM_BYTES + 1]);
        for _ in 0..BATCH {
            let Some(length) = self.socket.take(&mut buffer) else { return true };
            if let Some(mesh) = &mut self.mesh {
                mesh.receive(now, &buffer[..length], output);
            }
        }
        false
    }

    fn fire(&mut self, fired: Fired, output: &mut Output) {
        let Fired { event, outcome } = fired;
        let result = match &mut self.mesh {
            Some(mesh) => mesh.fire(self.clock.now(), event, output).map_err(FireError::TooMany),
            None => Err(FireError::NotMember),
        };
        // Clients list their event right after the answer.
        output.events.drain(..).for_each(|event| self.events.receive(event));
        // The caller may be gone; the event is on its way in any case.
        let _ = outcome.send(result);
    }

    fn serve(&mut self, wanted: MeshRequest, output: &mut Output) {
        match (wanted, &mut self.mesh) {
            (MeshRequest::Answer(asked), _) => self.challenge(asked, output),
            (MeshRequest::News(items), Some(mesh)) => mesh.receive_items(self.clock.now(), items, output),
            (MeshRequest::News(_), None) => {}
        }
    }

    /// Without a mesh the challenge is sent over a connection only.
    fn challenge(&mut self, asked: Asked, output: &mut Output) {
        if let Some(mesh) = &mut self.mesh {
            mesh.challenge(self.clock.now(), asked.challenge, output);
            self.awaited.push(asked);
        }
    }

    fn sync(&self, digest: RosterDigest) {
        let (upstream, answers) = (self.upstream.clone(), self.answers.0.clone());
        tokio::spawn(async move {
            let news = timeout(SYNC_TIMEOUT, upstream.sync_mesh(digest)).await;
            // There is no receiver any more if the agent stops.
            let _ = answers.send(news.ok().and_then(Result::ok)).await;
        });
    }

    fn carry_out(&mut self, now: Time, output: Output) {
        output.answers.into_iter().for_each(|answer| self.awaited.answered(answer));
        let Some(mesh) = &self.mesh else { return };
        for (to, packet) in output.packets {
            // Without one, the packet is lost, as any may be.
            let Ok(nonce) = random::bytes() else { continue };
            let sealed = mesh.seal(now, &packet, nonce);
            if !sealed.is_some_and(|datagram| self.socket.send(&datagram, to)) {
                metrics::MESH_EVENTS.with_label_values(&["unsent"]).inc();
            }
        }
        if !output.suspicions.is_empty() {
            self.suspect(output.suspicions);
        }
        output.challenges.into_iter().for_each(|(from, challenge)| self.answer(from, challenge));
        output.spread.into_iter().for_each(|item| self.spread(item));
        output.verdicts.iter().for_each(|verdict| self.log_verdict(mesh, verdict));
        output.events.into_iter().for_each(|event| self.events.receive(event));
    }

    fn suspect(&self, leases: Vec<LeaseId>) {
        let upstream = self.upstream.clone();
        tokio::spawn(async move {
            // A lost suspicion is harmless: other agents report it too, and the renewal is overdue
            // soon.
            if let Err(reason) = upstream.call(Suspect(leases)).await {
                tracing::debug!(%reason, "no server accepted a suspicion");
            }
        });
    }

    fn answer(&self, to: MemberId, challenge: Challenge) {
        let (upstream, renewals) = (self.upstream.clone(), self.renewals.0.clone());
        tokio::spawn(async move {
            if let Some(answer) = upstream.answer_challenge(challenge).await.node_answer() {
                // If the queue is full, the reply is lost, as any datagram may be.
                let _ = renewals.try_send(Answer { to, answer });
            }
        });
    }

    fn spread(&self, item: Bytes) {
        let upstream = self.upstream.clone();
        tokio::spawn(async move {
            // A lost request is harmless within one cell: gossip spreads the event.
            if let Err(reason) = upstream.call(Spread(item)).await {
                tracing::debug!(%reason, "no server passed an event on");
            }
        });
    }

    fn log_verdict(&self, mesh: &Mesh, verdict: &Verdict) {
        let window = verdict.window.as_str();
        if MemberId::of_agent(verdict.lease) == mesh.me() {
            tracing::warn!(
                window,
                "a majority of the servers failed this host: its sessions of this window ended, and it \
                 registers again"
            );
        } else {
            tracing::debug!(agent = verdict.lease.agent.0, window, "the servers failed a host");
        }
    }

    fn count(&mut self) {
        let Some(mesh) = &self.mesh else { return };
        let counts = mesh.counts();
        metrics::count_mesh(&self.counted, &counts);
        metrics::MESH_MEMBERS.set(mesh.others() as i64);
        metrics::MESH_PROBE_STRETCH.set(i64::from(mesh.stretch()));
        self.counted = counts;
    }
}
