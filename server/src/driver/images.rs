//! What the driver does with images of the state: makes them, has them read, and takes another server's.

use super::Driver;
use crate::backup::{Question, Source};
use crate::images::{Fetch, Fetched, ImageSource};
use crate::store::DirtyRows;
use lockmesh_core::Input;
use lockmesh_core::raft::log::ImageMark;
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::time::Instant;

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// Those who wait for an image of at least this index.
    wanted: Vec<Wanted>,
    /// Whether a follower needs an image that is newer than the one on disk.
    is_wanted: bool,
    /// The newest word of an image that is being fetched.
    fetching: Option<(ServerId, PeerMessage)>,
    /// The rows of an image that the core has been given.
    arrived: Option<DirtyRows>,
}

#[derive(Debug)]
struct Wanted {
    index: LogIndex,
    question: Question,
    what: Reader,
}

#[derive(Clone, Copy, Debug)]
enum Reader {
    Operator,
    Server,
}

impl Driver {
    pub(super) fn checkpoint_if_due(&mut self, now: Instant) {
        let due = now.duration_since(self.last_checkpoint) >= self.storage.checkpoint_interval;
        let many = self.dirty.len() as u64 >= self.storage.checkpoint_changes;
        if !self.dirty.is_empty() && (due || many) {
            self.checkpoint(now);
        }
    }

    /// A follower needs an image: as soon as none is on its way, one is made.
    pub(super) fn make_image(&mut self) {
        self.images.is_wanted = true;
        self.checkpoint(Instant::now());
    }

    /// Begins a checkpoint, unless one is on its way.
    fn checkpoint(&mut self, now: Instant) {
        if self.store.image_is_idle() {
            self.last_checkpoint = now;
            self.images.is_wanted = false;
            self.store.checkpoint(self.core.image_mark(), self.dirty.take());
        }
    }

    /// A backup is of an image that holds everything applied up to now.
    pub(super) fn want_backup(&mut self, question: Question) {
        let index = self.core.image_mark().index;
        self.want(Wanted { index, question, what: Reader::Operator });
    }

    /// Another server wants the image that it was told of, or a newer one.
    pub(super) fn want_image(&mut self, least: LogIndex, question: Question) {
        self.want(Wanted { index: least, question, what: Reader::Server });
    }

    fn want(&mut self, wanted: Wanted) {
        let Question { call, replies, .. } = &wanted.question;
        let refusal = if !self.backups.has_room_beside(self.images.wanted.len()) {
            Some(Unavailable::Overloaded("too many backups are being read".into()))
        } else if wanted.index > self.core.image_mark().index {
            Some(Unavailable::Denied("this server has no image that is so new".into()))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.postman.answer(replies, *call, Response::Unavailable(refusal));
        }
        let is_there = wanted.index <= self.store.durable_image();
        self.images.wanted.push(wanted);
        if is_there {
            self.begin_reading(self.store.durable_image());
        } else {
            self.checkpoint(Instant::now());
        }
    }

    /// The image on disk is a newer one now.
    pub(super) fn image_is_durable(&mut self, index: LogIndex) {
        self.begin_reading(index);
        if self.images.is_wanted || !self.images.wanted.is_empty() {
            self.checkpoint(Instant::now());
        }
    }

    fn begin_reading(&mut self, durable: LogIndex) {
        let wanted = std::mem::take(&mut self.images.wanted);
        let (ready, later): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|wanted| wanted.index <= durable);
        self.images.wanted = later;
        for Wanted { question, what, .. } in ready {
            match (self.store.backup(), what) {
                (Ok(backup), Reader::Operator) => self.backups.begin(Source::Backup(backup), question),
                (Ok(backup), Reader::Server) => {
                    self.backups.begin(Source::Image(ImageSource::new(backup)), question);
                }
                (Err(error), _) => {
                    let why = Response::Unavailable(Unavailable::Disk(error.to_string()));
                    self.postman.answer(&question.replies, question.call, why);
                }
            }
        }
    }

    /// Another server says that this one is too far behind to follow its log.
    pub(super) fn fetch_image(&mut self, from: ServerId, message: PeerMessage) {
        let Some(mark) = &message.snapshot else { return };
        let least = mark.index;
        if least <= self.core.image_mark().index {
            return;
        }
        let begins = self.images.fetching.is_none();
        self.images.fetching = Some((from, message));
        if !begins {
            return;
        }
        let Some(address) = self.peers.address(from) else {
            self.images.fetching = None;
            return tracing::warn!(server = %from, "an image of a server of which nothing is known");
        };
        let mailbox = self.peers.mailbox().clone();
        self.peers.spawn(|endpoint| Fetch { endpoint, from, address, least }.run(mailbox));
    }

    /// The image is here, or was given up.
    pub(super) fn image_fetched(&mut self, fetched: Option<Box<Fetched>>) {
        let Some((from, message)) = self.images.fetching.take() else { return };
        let Some(fetched) = fetched else { return };
        let Fetched { mark, state, rows } = *fetched;
        self.images.arrived = Some(rows);
        self.handle(Input::Install(from, message, mark, state));
    }

    /// The turn is over: an image that the core did not take is of no use.
    pub(super) fn forget_arrived(&mut self) {
        self.images.arrived = None;
    }

    /// The core has taken the image that it was given: it takes the place of everything on disk too.
    ///
    /// # Panics
    /// Where the core takes an image that it was not given.
    pub(super) fn install(&mut self, mark: ImageMark) {
        let rows = self.images.arrived.take().expect("the core takes the image that it was given");
        self.dirty = DirtyRows::default();
        self.store.install(mark, rows);
        self.watches.touch(&Change::Cleared);
        self.notice_roster();
    }
}
