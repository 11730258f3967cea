//! The driver's stand-in until this server belongs to a quorum: answers who asks, and brings the meeting to its end.

use super::callers::Callers;
use super::joining::join;
use super::meeting::{Decision, Meeting};
use super::{News, Place, Record, RecordError};
use crate::mailbox::{Inbox, Mail, Mailbox, ReplySink, WakeList};
use crate::said::Said;
use lockmesh_net::Endpoint;
use lockmesh_protocol::forming::{Introduction, Standing};
use lockmesh_protocol::record::NewServer;
use lockmesh_protocol::rpc::{CallId, Request, Response, Status, Unavailable};
use lockmesh_protocol::time::Time;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How long nothing may be heard before it is looked again who is still here.
const PERIOD: Duration = Duration::from_millis(100);
/// How many mails are taken at once.
const MAILS_A_TURN: usize = 1_024;

/// What a server needs to find others.
#[derive(Debug)]
pub(crate) struct Lobby {
    pub(crate) folder: PathBuf,
    pub(crate) record: Record,
    pub(crate) me: NewServer,
    pub(crate) expect: u32,
    /// Where others may be.
    pub(crate) join: Vec<String>,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) mailbox: Mailbox,
    pub(crate) runtime: Handle,
}

/// The lobby at work.
struct Waiting<'a> {
    lobby: &'a mut Lobby,
    meeting: Meeting,
    callers: Callers,
    wakes: WakeList,
    /// The task that asks a cluster, and where it asks.
    joining: Option<(watch::Sender<Vec<String>>, AbortHandle)>,
    said: Said,
    began: Instant,
}

impl Lobby {
    /// Waits until this server belongs to a quorum, and keeps in the record that it does; its store is to be made next.
    /// None when the server was told to stop.
    pub(crate) fn wait(mut self, inbox: &Inbox) -> Result<Option<Record>, RecordError> {
        let standing = match &self.record.place {
            Place::Promised(formation) => Standing::Promised(formation.clone()),
            Place::Admitted(_) | Place::Member(_) => return Ok(Some(self.record)),
            Place::Free => Standing::Free,
        };
        let meeting = Meeting::new(self.me.clone(), self.expect, standing);
        let introduction = meeting.introduction(Time(0));
        let (endpoint, mailbox, runtime) =
            (Arc::clone(&self.endpoint), self.mailbox.clone(), self.runtime.clone());
        let mut callers = Callers::new(endpoint, mailbox, runtime, introduction);
        self.join.iter().for_each(|name| callers.look_at(name));
        if let Place::Promised(formation) = &self.record.place {
            formation.servers.iter().for_each(|server| callers.look_at(&server.address));
        }
        let (wakes, said, began) = (WakeList::default(), Said::default(), Instant::now());
        let waiting = Waiting { lobby: &mut self, meeting, callers, wakes, joining: None, said, began };
        Ok(waiting.run(inbox)?.then_some(self.record))
    }
}

impl Waiting<'_> {
    /// True at the end of the meeting, false when told to stop.
    fn run(mut self, inbox: &Inbox) -> Result<bool, RecordError> {
        let mut mails = Vec::new();
        loop {
            if self.decide()? {
                return Ok(true);
            }
            self.callers.say(self.meeting.introduction(self.now()));
            inbox.take(&mut mails, MAILS_A_TURN, Instant::now() + PERIOD);
            for mail in mails.drain(..) {
                match mail {
                    Mail::Call { call, request, replies } => self.answer(call, request, &replies),
                    Mail::Forming(News::Joined(joined)) => {
                        self.keep(Place::Admitted(joined.into()))?;
                        self.wakes.deliver();
                        return Ok(true);
                    }
                    Mail::Forming(News::Met(introduction)) => self.hear(introduction),
                    Mail::Forming(News::Resolved(name, addresses)) => self.callers.resolved(&name, addresses),
                    // A server that belongs to nothing leads nobody; a dropped sender says so.
                    Mail::Leave(_) => {}
                    Mail::Stop => return Ok(false),
                    _ => {}
                }
            }
            self.wakes.deliver();
        }
    }

    /// Does what follows from who is here; true when the quorum can begin.
    fn decide(&mut self) -> Result<bool, RecordError> {
        loop {
            match self.meeting.decide(self.now()) {
                Decision::Promise(formation) => {
                    tracing::info!(
                        cluster = formation.cluster_id,
                        "this server promises to found the cluster"
                    );
                    self.keep(Place::Promised(formation.clone()))?;
                    for server in &formation.servers {
                        self.callers.look_at(&server.address);
                    }
                    self.meeting.promised(formation);
                }
                Decision::Begin(formation) => {
                    tracing::info!(cluster = formation.cluster_id, "all have promised: the cluster begins");
                    return Ok(true);
                }
                Decision::Join(addresses) => {
                    self.begin_to_join(addresses);
                    return Ok(false);
                }
                Decision::Wait(what) => {
                    if self.said.is_new(&what) {
                        tracing::info!("{what}");
                    }
                    return Ok(false);
                }
                Decision::Trouble(what) => {
                    if self.said.is_new(&what) {
                        tracing::error!("no cluster comes to be: {what}");
                    }
                    return Ok(false);
                }
            }
        }
    }

    fn begin_to_join(&mut self, addresses: Vec<String>) {
        self.meeting.joins();
        if let Some((known, _)) = &self.joining {
            known.send_replace(addresses);
            return;
        }
        tracing::info!("there is a cluster: this server asks to be taken in");
        let Lobby { endpoint, mailbox, me, runtime, .. } = &*self.lobby;
        let (sender, addresses) = watch::channel(addresses);
        let task = runtime.spawn(join(Arc::clone(endpoint), mailbox.clone(), me.clone(), addresses));
        self.joining = Some((sender, task.abort_handle()));
    }

    fn hear(&mut self, introduction: Introduction) {
        self.callers.look_at(&introduction.server.address);
        introduction.knows.iter().for_each(|address| self.callers.look_at(address));
        self.meeting.hear(self.now(), introduction);
    }

    fn answer(&mut self, call: CallId, request: Request, replies: &ReplySink) {
        let response = match request {
            Request::Introduce(introduction) => {
                self.hear(introduction);
                Response::Introduced(self.meeting.introduction(self.now()))
            }
            Request::Invite(addresses) if self.meeting.is_free() => {
                tracing::info!(?addresses, "this server is told whom to join");
                addresses.iter().for_each(|address| self.callers.look_at(address));
                Response::Done
            }
            Request::Invite(_) => {
                let why = "this server founds a cluster: it cannot join another one";
                Response::Unavailable(Unavailable::Denied(why.into()))
            }
            Request::Status => Response::Status(Status::default()),
            _ => Response::Unavailable(Unavailable::NotLeader { leader: None }),
        };
        self.wakes.answer(replies, call, response);
    }

    fn keep(&mut self, place: Place) -> Result<(), RecordError> {
        self.lobby.record.place = place;
        self.lobby.record.write(&self.lobby.folder)
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_micros() as u64)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some((_, joining)) = &self.joining {
            joining.abort();
        }
    }
}
