//! Requests over the links, each tried again as long as that is safe and worth it.
//!
//! Commands, renewals, plain reads and waits for locks go to the leader, wherever it moves meanwhile; stale and blocking
//! reads go to the home server, which need not be another one.
//! **Invariants:** a command that may have been sent is only ever sent again under the same request id of the same
//! registration; when it cannot be, or its time is over, the caller hears that it is unknown whether it took effect.

use super::UpstreamOptions;
use super::fleet::{Fleet, Routes};
use super::flights::{FLIGHT_TIME, Flights, Wanted};
use super::link::Link;
use super::sequences::InUse;
use super::table::{CallError, Lane};
use lockmesh_agent_core::backoff::Backoff;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The way to the servers, with all that is under way on it.
#[derive(Debug)]
pub(super) struct Quorum {
    pub(super) fleet: Arc<Fleet>,
    pub(super) flights: Flights,
    hold_time: Duration,
    answer_time: Duration,
    /// Whether blocking reads shall wait no longer.
    hurry: watch::Sender<bool>,
}

/// What a failed attempt means for the next one.
enum Failure {
    /// Try again; the request certainly did nothing.
    Again(Unavailable),
    /// The same, at another server of the same kind: this one serves no more.
    Elsewhere,
    /// Try again; it may have taken effect.
    Sent,
    /// It certainly did nothing, and trying again would do harm or no good.
    Final(Unavailable),
}

/// Who is to answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addressee {
    Leader,
    Home,
}

impl Quorum {
    pub(super) fn start(options: UpstreamOptions) -> io::Result<Arc<Self>> {
        let (hold_time, answer_time) = (options.hold_time, options.answer_time);
        let (fleet, flights) = (Fleet::start(options)?, Flights::default());
        Ok(Arc::new(Self { fleet, flights, hold_time, answer_time, hurry: watch::Sender::default() }))
    }

    /// When a request that begins now is given up, if no server takes it.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.hold_time
    }

    /// Changes the state, exactly once.
    pub(super) async fn propose(&self, command: Command) -> Result<Applied, Unavailable> {
        let deadline = self.deadline();
        let mut request = Request::Propose(None, command);
        let mut backoff = retry_backoff();
        let mut was_sent = false;
        let mut sequence: Option<InUse<'_>> = None;
        loop {
            let leader = match self.find(Addressee::Leader, Some(deadline)).await {
                Ok(leader) => leader,
                Err(reason) => return Err(self.given_up(was_sent, reason)),
            };
            let Some(in_use) = self.sequence(&mut sequence, was_sent).await? else { continue };
            let Some(id) = in_use.request_id() else { continue };
            if let Request::Propose(request_id, _) = &mut request {
                *request_id = Some(id);
            }
            let registration = in_use.registration();
            let failure = match self.attempt(&leader, &request, Lane::Leader).await {
                Ok(Response::Applied(Applied { reply: Reply::Refused(Refusal::Forgotten), .. })) => {
                    self.fleet.forgotten(registration);
                    Failure::Again(no_leader())
                }
                Ok(Response::Applied(applied)) => return Ok(applied),
                Ok(other) => return Err(super::unexpected(&other)),
                Err(failure) => failure,
            };
            let reason = match failure {
                Failure::Final(reason) if !was_sent => return Err(reason),
                // Only a later attempt can tell what became of an earlier one.
                Failure::Final(reason) | Failure::Again(reason) => reason,
                Failure::Elsewhere => no_leader(),
                Failure::Sent => {
                    was_sent = true;
                    no_leader()
                }
            };
            self.pause(&mut backoff, deadline).await.map_err(|()| self.given_up(was_sent, reason))?;
        }
    }

    /// Asks what changes nothing, or the same however often it is asked, until there is an answer or `deadline` is
    /// past; without one, for ever.
    pub(super) async fn ask(
        &self,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Response, Unavailable> {
        let mut addressee = addressee(request);
        let mut backoff = retry_backoff();
        loop {
            let link = match self.find(addressee, deadline).await {
                Ok(link) => link,
                Err(reason) => return Err(self.given_up(false, reason)),
            };
            let reason = match self.attempt(&link, request, lane(request, addressee)).await {
                Ok(response) => return Ok(response),
                Err(Failure::Final(reason)) => return Err(reason),
                Err(Failure::Again(reason)) => {
                    // A home server that has lost the leader is no help; the leader itself is.
                    addressee = Addressee::Leader;
                    reason
                }
                Err(Failure::Elsewhere) => no_leader(),
                Err(Failure::Sent) if may_repeat(request) => no_leader(),
                Err(Failure::Sent) => return Err(self.given_up(true, no_leader())),
            };
            match deadline {
                Some(deadline) => {
                    self.pause(&mut backoff, deadline).await.map_err(|()| self.given_up(false, reason))?;
                }
                None => tokio::time::sleep(backoff.next_pause()).await,
            }
        }
    }

    /// Asks the home server once, and only if there is a connection.
    pub(super) async fn ask_now(&self, request: &Request) -> Result<Response, Unavailable> {
        let home = self.fleet.route_now(Routes::home).ok_or_else(no_leader)?;
        self.attempt(&home, request, Lane::Home).await.map_err(|failure| match failure {
            Failure::Again(reason) | Failure::Final(reason) => reason,
            Failure::Elsewhere => no_leader(),
            Failure::Sent => self.given_up(true, no_leader()),
        })
    }

    /// Reads; a blocking read shares its upstream call and keeps its own time.
    pub(super) async fn read(
        self: &Arc<Self>,
        query: Query,
        consistency: Consistency,
        blocking: Option<Blocking>,
    ) -> Result<Arc<Answer>, Unavailable> {
        let query = match blocking {
            // No state is older than index 0, so there is nothing to wait for.
            Some(Blocking { index, wait }) if index.0 > 0 => {
                let wanted = Wanted { query, consistency, index };
                let news = tokio::select! {
                    news = self.flights.wait(self, &wanted, wait) => news,
                    () = self.hurried() => None,
                };
                match news {
                    Some(news) => return news,
                    None => wanted.query,
                }
            }
            _ => query,
        };
        let request = Request::Read { query, consistency, blocking: None };
        match self.ask(&request, Some(self.deadline())).await? {
            Response::Answer(answer) => Ok(Arc::new(answer)),
            other => Err(super::unexpected(&other)),
        }
    }

    /// Waits for news from the leader, where they are known first, for as long as it takes.
    pub(super) async fn read_of_leader(
        &self,
        query: Query,
        blocking: Blocking,
    ) -> Result<Arc<Answer>, Unavailable> {
        let request = Request::Read { query, consistency: Consistency::Default, blocking: Some(blocking) };
        match self.ask(&request, None).await? {
            Response::Answer(answer) => Ok(Arc::new(answer)),
            other => Err(super::unexpected(&other)),
        }
    }

    /// Lets every blocking read be answered with what there is, now and from now on.
    pub(super) fn hurry(&self) {
        self.hurry.send_replace(true);
    }

    pub(super) async fn hurried(&self) {
        // The sender lives as long as this value, so the wait ends only when somebody is in a hurry.
        let _ = self.hurry.subscribe().wait_for(|hurry| *hurry).await;
    }

    /// Where to send a request, as soon as that is known. An error when it is not until `deadline`, or never again; and at
    /// once where the servers do not take this agent, which no waiting changes.
    async fn find(&self, addressee: Addressee, deadline: Option<Instant>) -> Result<Arc<Link>, Unavailable> {
        let pick = match addressee {
            Addressee::Leader => Routes::leader,
            Addressee::Home => Routes::home,
        };
        tokio::select! {
            biased;
            link = self.fleet.route(pick, deadline) => link.ok_or_else(no_leader),
            refusal = self.fleet.refusal() => Err(refusal),
        }
    }

    async fn attempt(&self, link: &Link, request: &Request, lane: Lane) -> Result<Response, Failure> {
        self.fleet.counters.attempts.fetch_add(1, Ordering::Relaxed);
        let patience = match lane {
            Lane::Parked => FLIGHT_TIME + self.answer_time,
            Lane::Leader | Lane::Home | Lane::Own => self.answer_time,
        };
        match link.table.call(request, lane, patience).await {
            Ok(Response::Unavailable(reason)) => Err(match reason {
                Unavailable::NotLeader { leader } => {
                    self.fleet.refused(link, leader.as_deref());
                    Failure::Again(Unavailable::NotLeader { leader })
                }
                Unavailable::Removed | Unavailable::Corrupt => {
                    self.fleet.removed(link.slot);
                    Failure::Elsewhere
                }
                Unavailable::Unknown(_) => Failure::Sent,
                Unavailable::Overloaded(_)
                | Unavailable::Disk(_)
                | Unavailable::Denied(_)
                | Unavailable::AnswerTooLong { .. }
                | Unavailable::NotAdmitted(_) => Failure::Final(reason),
            }),
            // Whoever is asked as the leader, and leads no more, knows less than what was wanted.
            Ok(Response::Status(status)) if lane == Lane::Leader && status.leader != Some(status.server) => {
                let leader = status.servers.iter().find(|server| Some(server.id) == status.leader);
                let leader = leader.map(|server| server.address.clone());
                self.fleet.refused(link, leader.as_deref());
                Err(Failure::Again(Unavailable::NotLeader { leader }))
            }
            Ok(response) => Ok(response),
            Err(CallError::Down) => Err(Failure::Again(no_leader())),
            Err(CallError::Lost) => Err(Failure::Sent),
            Err(CallError::TooLong(error)) => Err(Failure::Final(Unavailable::Denied(error.to_string()))),
        }
    }

    /// The command's sequence: the one it has, or a fresh one while it was certainly never sent. `None` when the
    /// agent has to register first.
    async fn sequence<'a, 'b>(
        &'a self,
        sequence: &'b mut Option<InUse<'a>>,
        was_sent: bool,
    ) -> Result<Option<&'b InUse<'a>>, Unavailable> {
        let is_of_this_registration =
            |sequence: &InUse<'_>| self.fleet.sequences.registration() == Some(sequence.registration());
        if !sequence.as_ref().is_some_and(is_of_this_registration) {
            if was_sent {
                let reason = "the agent had to register again before the servers answered";
                return Err(unknown(reason));
            }
            *sequence = self.fleet.sequences.enter().await?;
        }
        Ok(sequence.as_ref())
    }

    /// Waits before the next attempt; an error when there is no time for one.
    async fn pause(&self, backoff: &mut Backoff, deadline: Instant) -> Result<(), ()> {
        let pause = backoff.next_pause();
        if Instant::now() + pause >= deadline {
            return Err(());
        }
        self.fleet.counters.retries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
        Ok(())
    }

    fn given_up(&self, was_sent: bool, reason: Unavailable) -> Unavailable {
        match (self.fleet.is_closed(), was_sent) {
            (true, _) => Unavailable::Unknown("the agent is shutting down".into()),
            (false, true) => match reason {
                Unavailable::Disk(_) => unknown(&reason.to_string()),
                _ => unknown("the servers were lost before they answered"),
            },
            (false, false) => reason,
        }
    }
}

fn addressee(request: &Request) -> Addressee {
    match request {
        Request::Read { query: Query::Place { .. }, .. } => Addressee::Leader,
        Request::Read { blocking: Some(_), .. }
        | Request::Read { consistency: Consistency::Stale, .. }
        | Request::BackupPart { stale: true, .. } => Addressee::Home,
        _ => Addressee::Leader,
    }
}

fn lane(request: &Request, addressee: Addressee) -> Lane {
    match (request, addressee) {
        (Request::Read { blocking: Some(_), .. }, _) => Lane::Parked,
        // What cannot be repeated stays with the server that it was sent to.
        _ if !may_repeat(request) => Lane::Own,
        (_, Addressee::Leader) => Lane::Leader,
        (_, Addressee::Home) => Lane::Home,
    }
}

/// Whether a request that may have been carried out may be sent once more.
fn may_repeat(request: &Request) -> bool {
    match request {
        Request::Read { .. }
        | Request::Renew(_)
        | Request::Status
        | Request::Autopilot
        | Request::BackupPart { .. }
        | Request::AddServer(_)
        | Request::RemoveServer(_) => true,
        Request::Propose(id, _) => id.is_some(),
        // A second transfer would move the leadership on from where the first one brought it; of what is not named
        // here nothing is known.
        _ => false,
    }
}

/// Attempts wait for a leader to be known, and not for a time; the pause only keeps the pace of what goes wrong.
fn retry_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(2), Duration::from_millis(25), super::seed())
}

fn no_leader() -> Unavailable {
    Unavailable::NotLeader { leader: None }
}

fn unknown(why: &str) -> Unavailable {
    Unavailable::Unknown(format!(
        "No cluster leader: {why}, so it is unknown whether the request took effect"
    ))
}
