//! Handshakes between servers. No message passes between two processes until one has sent a hello,
//! the other has answered, and both have compared their state with the peer's memory of it.

use super::network::Place;
use super::process::Process;
use super::stage::Event;
use super::world::World;
use lockmesh_core::Input;
use lockmesh_core::durability::setback::SetBack;
use lockmesh_core::raft::log::LogPosition;
use lockmesh_protocol::id::ServerId;
use std::time::Duration;

/// Interval at which a server greets all others, as its links do when they are re-established.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Time after an unanswered hello until the next, if there is something to send.
const HELLO_INTERVAL: Duration = Duration::from_millis(50);

/// A hello, or the answer to one.
#[derive(Clone, Debug)]
pub struct Hello {
    /// The sender, with its life number.
    pub from: (ServerId, u64),
    /// The receiver.
    pub to: ServerId,
    /// The sender's progress.
    position: LogPosition,
    /// The receiver's progress as the sender remembers it.
    remembers: Option<LogPosition>,
    /// In an answer: the sender's progress as the receiver remembered it in its hello.
    answers: Option<Option<LogPosition>>,
}

impl World {
    /// Re-establishes links to other servers: when a process starts, and again after a cut.
    pub(super) fn reconnect(&mut self, id: ServerId, life: u64) {
        let Some(process) = self.process(id).filter(|process| process.life == life) else { return };
        let others: Vec<_> =
            process.core().replica().state().servers().map(|row| row.id).filter(|to| *to != id).collect();
        others.into_iter().for_each(|to| self.send_hello(id, to, None));
        self.stage.after(RECONNECT_INTERVAL, Event::Reconnect(id, life));
    }

    /// Returns the life of another server to which messages pass; if none, sends a hello now and
    /// then.
    pub(super) fn linked(&mut self, from: ServerId, to: ServerId) -> Option<u64> {
        let life = self.process(to).map(|process| process.life);
        let now = self.stage.now;
        let process = self.process_mut(from)?;
        if life.is_some() && process.links.get(&to) == life.as_ref() {
            return life;
        }
        let is_due = process.hellos.get(&to).is_none_or(|last| now.since(*last) >= HELLO_INTERVAL);
        if is_due {
            self.send_hello(from, to, None);
        }
        None
    }

    fn send_hello(&mut self, from: ServerId, to: ServerId, answers: Option<Option<LogPosition>>) {
        let now = self.stage.now;
        let Some(process) = self.process_mut(from) else { return };
        process.hellos.insert(to, now);
        let (position, remembers) =
            (process.core().replica().log_position(), process.core().replica().peer_memory().of(to));
        let hello = Hello { from: (from, process.life), to, position, remembers, answers };
        self.stage.send(Place::Server(from), Place::Server(to), Event::Hello(Box::new(hello)));
    }

    /// Receives a hello or an answer.
    pub(super) fn hello(&mut self, hello: Hello) {
        let Hello { from: (from, life), to, position, remembers, answers } = hello;
        let Some(process) = self.process(to) else { return };
        if let Some(until) = process.stands_until.filter(|until| *until > self.stage.now) {
            return self.stage.at(until, Event::Hello(Box::new(hello)));
        }
        if process.knows_removed(from) {
            return self.report_removal(to, from);
        }
        let (own, memory) =
            (process.core().replica().log_position(), process.core().replica().peer_memory().of(from));
        let is_linked = process.links.get(&from) == Some(&life);
        if let Some(SetBack { known, .. }) = SetBack::find(to, own, from, remembers) {
            return self.post(to, Input::SetBack(from, known));
        }
        // Acknowledgements that the peer sent after its hello do not count.
        let known = answers.unwrap_or(memory);
        let is_welcome = SetBack::find(from, position, to, known).is_none();
        match answers {
            Some(_) if is_welcome => self.link(to, from, life),
            Some(_) => {}
            None if is_welcome => {
                self.send_hello(to, from, Some(remembers));
                if !is_linked {
                    self.send_hello(to, from, None);
                }
            }
            // The hello of this server tells the peer what is remembered of it.
            None => self.send_hello(to, from, None),
        }
    }

    fn link(&mut self, from: ServerId, to: ServerId, life: u64) {
        if let Some(process) = self.process_mut(from) {
            process.links.insert(to, life);
        }
    }

    /// Notifies a server of its removal.
    pub(super) fn report_removal(&mut self, by: ServerId, removed: ServerId) {
        self.stage.send(Place::Server(by), Place::Server(removed), Event::ToldRemoved(removed));
    }

    /// Returns a server's process, if one runs.
    pub(super) fn process(&self, id: ServerId) -> Option<&Process> {
        self.machines.get(&id)?.process.as_ref()
    }

    fn process_mut(&mut self, id: ServerId) -> Option<&mut Process> {
        self.machines.get_mut(&id)?.process.as_mut()
    }
}
