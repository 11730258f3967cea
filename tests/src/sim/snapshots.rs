//! Snapshot transfer between servers: real requests to the real frontend, through the simulated
//! network.
//!
//! The product's own [`SnapshotDownload`] decides on requests, retries and giving up. This module
//! loses and delays requests and replies, slows readers down, and lets either server crash in
//! between.

use super::machine::Fetch;
use super::marks::Mark;
use super::network::Place;
use super::process::DriverEvent;
use super::stage::{Ask, Event, Requester};
use super::world::World;
use lockmesh_core::frontend::{OpenReader, PartWanted, SnapshotFetch};
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_server::snapshot::{CheckpointSource, DownloadStep, PART_TIMEOUT, SnapshotDownload};
use std::time::Duration;

/// Time after which a connection on which something was lost is known to be dead.
const CONNECTION_TIMEOUT: Duration = Duration::from_millis(1_500);

impl World {
    /// Starts a process's fetch of a snapshot.
    pub(super) fn begin_fetch(&mut self, id: ServerId, SnapshotFetch { from, least }: SnapshotFetch) {
        self.stage.hit(Mark::Snapshot);
        self.stage.log(|| format!("server {id} fetches a snapshot of server {from}"));
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        let download = SnapshotDownload::new(self.stage.now, least, machine.lives);
        machine.fetch = Some(Fetch { from, download, call: 0, was_interrupted: false });
        self.ask_for_part(id);
    }

    /// Requests a part again.
    pub(super) fn fetch_again(&mut self, id: ServerId, life: u64) {
        if self.machines[&id].lives == life {
            self.ask_for_part(id);
        }
    }

    fn ask_for_part(&mut self, id: ServerId) {
        let call = self.stage.call();
        let Some(fetch) = self.machines.get_mut(&id).and_then(|machine| machine.fetch.as_mut()) else {
            return;
        };
        fetch.call = call;
        let (from, request) = (fetch.from, fetch.download.request());
        let client = Caller::Agent;
        let ask = Ask { by: Requester::Server(id), call, client, request, bound: LogIndex(0) };
        let sent = self.stage.send(Place::Server(id), Place::Server(from), Event::Ask(from, Box::new(ask)));
        self.await_part(id, call, sent);
    }

    /// Schedules the timeout of a request for a part; it is shorter if the reply was lost in
    /// transit.
    pub(super) fn await_part(&mut self, id: ServerId, call: u64, is_on_its_way: bool) {
        let wait = if is_on_its_way { PART_TIMEOUT } else { CONNECTION_TIMEOUT };
        self.stage.after(wait, Event::Tired(Requester::Server(id), call));
    }

    /// Returns the time until which events of a fetch must wait because its process is paused;
    /// `None` if the fetch no longer exists.
    fn fetch_stands(&self, id: ServerId, call: u64) -> Option<Time> {
        let machine = self.machines.get(&id)?;
        machine.fetch.as_ref().filter(|fetch| fetch.call == call)?;
        Some(machine.process.as_ref()?.stands_until.unwrap_or_default())
    }

    /// Receives the other server's reply.
    pub(super) fn part_heard(&mut self, id: ServerId, call: u64, from: ServerId, response: Response) {
        let Some(stands_until) = self.fetch_stands(id, call) else { return };
        if stands_until > self.stage.now {
            let answer = Event::Answer(Requester::Server(id), call, from, Box::new(response));
            return self.stage.at(stands_until, answer);
        }
        self.go_on_with_fetch(id, |download, now| download.answered(now, response));
    }

    /// No reply has arrived.
    pub(super) fn part_lost(&mut self, id: ServerId, call: u64) {
        let Some(stands_until) = self.fetch_stands(id, call) else { return };
        if stands_until > self.stage.now {
            return self.stage.at(stands_until, Event::Tired(Requester::Server(id), call));
        }
        self.go_on_with_fetch(id, |download, now| download.lost(now, "no reply".into()));
    }

    fn go_on_with_fetch(
        &mut self,
        id: ServerId,
        what: impl FnOnce(&mut SnapshotDownload, Time) -> DownloadStep,
    ) {
        let now = self.stage.now;
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        let (life, fetch) = (machine.lives, machine.fetch.as_mut().expect("it was just seen"));
        // Any later reply belongs to an earlier request.
        fetch.call = 0;
        let parts = fetch.download.part_count();
        let step = what(&mut fetch.download, now);
        if matches!(step, DownloadStep::Ask | DownloadStep::Done(_))
            && std::mem::take(&mut fetch.was_interrupted)
        {
            self.stage.hit(Mark::FetchInterrupted);
        }
        if matches!(step, DownloadStep::AskAgain(..)) && parts > 0 {
            fetch.was_interrupted = fetch.download.part_count() > 0;
            if !fetch.was_interrupted {
                self.stage.hit(Mark::FetchBegunAnew);
            }
        }
        match step {
            DownloadStep::Ask => self.ask_for_part(id),
            DownloadStep::AskAgain(after, _) => self.stage.after(after, Event::Fetch(id, life)),
            DownloadStep::Done(fetched) => self.end_fetch(id, Some(fetched)),
            DownloadStep::GiveUp(_) => {
                self.stage.hit(Mark::FetchFailed);
                self.end_fetch(id, None);
            }
        }
    }

    fn end_fetch(&mut self, id: ServerId, fetched: Option<Box<lockmesh_server::snapshot::Fetched>>) {
        self.machines.get_mut(&id).expect("the machine exists").fetch = None;
        self.post(id, DriverEvent::Snapshot(fetched));
    }

    /// Opens a reader of the checkpoint on a process's disk, and reads its first part.
    pub(super) fn open_reader(&mut self, id: ServerId, reader: OpenReader) {
        let OpenReader { number: reader, kind, first: to } = reader;
        let part_bytes = self.stage.plan.disk.part_bytes;
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        let Some(process) = &mut machine.process else { return };
        match machine.disk.backup() {
            Ok(checkpoint) => {
                let source = CheckpointSource::new(kind, checkpoint.in_parts_of(part_bytes));
                process.readers.begin(self.stage.now, reader, source);
                self.read_later(id, PartWanted { reader, number: 0, to });
            }
            Err(why) => {
                process.reader_failed(&mut self.stage, reader);
                if let Some(given) = process.give(to, Response::Unavailable(Unavailable::Disk(why))) {
                    self.give(id, given);
                }
            }
        }
    }

    /// Schedules the read of a part.
    pub(super) fn read_later(&mut self, id: ServerId, part: PartWanted) {
        let life = self.machines[&id].lives;
        let wait = self.stage.plan.faults.fetch / 8;
        let wait = self.stage.around(wait);
        self.stage.after(wait, Event::Read(id, life, part));
    }

    /// A reader has read a part.
    pub(super) fn read(&mut self, id: ServerId, life: u64, part: PartWanted) {
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        let Some(process) = machine.process.as_mut().filter(|process| process.life == life) else { return };
        if let Some(until) = process.stands_until.filter(|until| *until > self.stage.now) {
            return self.stage.at(until, Event::Read(id, life, part));
        }
        let response = process.readers.answer(self.stage.now, part.reader, part.number);
        if let Some(given) = process.give(part.to, response) {
            self.give(id, given);
        }
    }
}
