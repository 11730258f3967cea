//! Scenarios of the holder: its inputs, its outputs, and its deadlines. Time is set by the
//! scenario.

mod acquiring;
mod giving_back;
mod node_lease;
mod sessions;
mod several;
mod silence;
mod slots;
mod watching;

use bytes::Bytes;
use lockmesh_client::holder::{
    Acquisition, CreatedSession, EndReason, Event, Goal, Grant, GuardState, HoldId, Holder, HolderRequest,
    Input, LockGoal, Moment, NodeLease, NodeLeaseState, Notice, Outbox, Request, Response, SessionUse,
    WaitLimit,
};
use lockmesh_client::{Acquired, Entry, Error, HealthWindow, LOCK_FLAGS, Loss, Read, SessionOptions};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// The TTL of every session here; valid for 9.5 s after a renewal was sent.
const TTL: Duration = Duration::from_secs(10);
const BELIEF: Duration = Duration::from_millis(9_500);

/// The hold that scenarios acquire by default.
const JOB: HoldId = HoldId(1);

/// A holder and a scripted agent, which acknowledges renewals automatically unless disabled.
struct Story {
    holder: Holder,
    now: Moment,
    renews: bool,
    /// Set if reads beside an acquire are answered, with this session as the holder.
    answers_checks: bool,
    seen_holder: &'static str,
    checks: u32,
    /// Set if the agent knows its node's lease; otherwise it rejects queries about it.
    has_node_lease: bool,
    asked: Vec<(HolderRequest, Request)>,
    events: Vec<Event>,
    notices: Vec<Notice>,
    /// The names of all requests sent, except renewals.
    log: Vec<&'static str>,
}

impl Story {
    fn begin(session_use: SessionUse) -> Self {
        let options = SessionOptions::named("story").ttl(TTL);
        Self::with_options(options, session_use)
    }

    fn with_options(options: SessionOptions, session_use: SessionUse) -> Self {
        Self {
            holder: Holder::new(options, session_use, 7),
            now: Moment::default() + SECOND,
            renews: true,
            answers_checks: true,
            seen_holder: "S2",
            checks: 0,
            has_node_lease: false,
            asked: Vec::new(),
            events: Vec::new(),
            notices: Vec::new(),
            log: Vec::new(),
        }
    }

    /// Starts a scenario in which a lock is wanted and its session was created at once.
    fn wanting(wait_limit: WaitLimit) -> Self {
        let mut story = Self::begin(SessionUse::OneHold);
        story.handle_input(Input::Acquire(JOB, wanted(wait_limit)));
        story.answer("create", Ok(Response::Created("S1".into())));
        story
    }

    /// Starts a scenario in which a lock was just granted under its own session, and its watch is
    /// in flight.
    fn holding() -> Self {
        let mut story = Self::wanting(WaitLimit::Endless);
        story.grant(5);
        story
    }

    /// Starts a scenario with a new shared session.
    fn keeping() -> Self {
        let mut story = Self::begin(SessionUse::Shared);
        story.handle_input(Input::Keep);
        story.answer("create", Ok(Response::Created("S1".into())));
        assert!(matches!(&story.events[..], [Event::Kept(Ok(id))] if id == "S1"));
        story.events.clear();
        story
    }

    /// Answers the read and the request of an acquisition with a grant.
    fn grant(&mut self, fence: u64) {
        let looks = self.asked.iter().rposition(|(_, request)| word(request) == "get");
        let (look, _) = self.asked.remove(looks.expect("it looks"));
        self.handle_input(Input::Answered(look, nothing_there()));
        self.answer("acquire", granted(fence));
        let Some(Event::Acquired(_, Ok(Some(Grant { fences, .. })))) = self.events.last() else {
            panic!("{:?}", self.events)
        };
        assert_eq!(*fences, [fence]);
        self.events.clear();
    }

    fn handle_input(&mut self, input: Input) {
        let answered = if let Input::Answered(number, _) = &input { Some(*number) } else { None };
        let mut outbox = Outbox::default();
        self.holder.handle(self.now, input, &mut outbox);
        let Outbox { cancelled, requests, events, notices } = outbox;
        for number in cancelled.into_iter().filter(|number| Some(*number) != answered) {
            let under_way = self.asked.iter().position(|(asked, _)| *asked == number);
            self.asked.remove(under_way.expect("only requests in flight are cancelled"));
        }
        let is_logged = |word: &&str| !["renew", "node lease", "check"].contains(word);
        self.checks += requests.iter().filter(|(_, request)| word(request) == "check").count() as u32;
        self.log.extend(requests.iter().map(|(_, request)| word(request)).filter(is_logged));
        self.asked.extend(requests);
        self.events.extend(events);
        self.notices.extend(notices);
        if self.renews && self.asked().contains(&"renew") {
            self.answer("renew", Ok(Response::Found(true)));
        }
        if self.answers_checks && self.asked().contains(&"check") {
            self.answer("check", job_held_by(self.seen_holder, 8));
        }
        if !self.has_node_lease && self.asked().contains(&"node lease") {
            self.answer("node lease", Err(no_such_endpoint()));
        }
    }

    /// Answers the oldest request of this name.
    fn answer(&mut self, what: &str, result: Result<Response, Error>) {
        let at = self.asked.iter().position(|(_, request)| word(request) == what);
        let at = at.unwrap_or_else(|| panic!("no request to {what}: {:?}", self.asked));
        let (number, _) = self.asked.remove(at);
        self.handle_input(Input::Answered(number, result));
    }

    /// Returns the requests in flight.
    fn asked(&self) -> Vec<&'static str> {
        self.asked.iter().map(|(_, request)| word(request)).collect()
    }

    /// Returns the oldest request of this name.
    fn request(&self, what: &str) -> &Request {
        let found = self.asked.iter().find(|(_, request)| word(request) == what);
        &found.unwrap_or_else(|| panic!("no request to {what}: {:?}", self.asked)).1
    }

    /// Advances the time, and ticks the holder at its wake-up times.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.holder.wakes_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.handle_input(Input::Tick);
        }
        self.now = end;
    }

    /// Advances the time while nothing runs on this host.
    fn suspend(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    fn is_held(&self) -> bool {
        self.holder.is_held(JOB, self.now)
    }

    fn remaining(&self) -> Duration {
        self.holder.remaining(JOB, self.now)
    }

    /// Returns the reported loss of the hold.
    fn told_loss(&self) -> Option<&Loss> {
        self.events.iter().find_map(|event| match event {
            Event::Lost(JOB, loss) => Some(loss),
            _ => None,
        })
    }

    /// Returns the reported outcome of the release.
    fn told_release(&self) -> Option<&Result<bool, Error>> {
        self.events.iter().find_map(|event| match event {
            Event::Released(JOB, result) => Some(result),
            _ => None,
        })
    }

    /// Returns the reported outcome of the acquisition.
    fn told_acquired(&self) -> Option<&Result<Option<Grant>, Error>> {
        self.events.iter().find_map(|event| match event {
            Event::Acquired(JOB, result) => Some(result),
            _ => None,
        })
    }
}

fn word(request: &Request) -> &'static str {
    match request {
        Request::CreateSession(_) => "create",
        Request::Renew(..) => "renew",
        Request::FindSession(..) => "find",
        Request::NodeLease(..) => "node lease",
        Request::EndSession(_, EndReason::Closed) => "destroy",
        Request::EndSession(_, EndReason::GivenUp(_)) => "give up",
        Request::Get(_, read) if *read == Read::stale() => "check",
        Request::Get(..) | Request::GetHeld(..) => "get",
        Request::GetAll(wanted) if wanted.read == Read::stale() => "check",
        Request::GetAll(_) => "get",
        Request::List(..) => "list",
        Request::Acquire(..) | Request::AcquireShared(..) | Request::AcquireAll(..) => "acquire",
        Request::Release(..) | Request::ReleaseAll(..) => "release",
        Request::Cas(..) => "cas",
        Request::Delete(_) => "delete",
    }
}

fn wanted(wait_limit: WaitLimit) -> Acquisition {
    let goal = Goal::Lock(LockGoal {
        key: "job".into(),
        value: Bytes::from("me"),
        flags: LOCK_FLAGS,
        is_shared: false,
    });
    Acquisition { goal, wait_limit, watch_retries: None }
}

fn granted(fence: u64) -> Result<Response, Error> {
    Ok(Response::Acquired(Acquired::Granted { fence: Some(fence) }))
}

fn refused(delay: Option<Duration>) -> Result<Response, Error> {
    Ok(Response::Acquired(Acquired::Refused { delay }))
}

fn nothing_there() -> Result<Response, Error> {
    Ok(Response::Entries(Vec::new(), 3))
}

fn job_held_by(session: &str, index: u64) -> Result<Response, Error> {
    let session = Some(session.to_owned()).filter(|session| !session.is_empty());
    let entry = Entry { key: "job".into(), flags: LOCK_FLAGS, session, ..Entry::default() };
    Ok(Response::Entries(vec![entry], index))
}

/// An error with an unknown outcome.
fn unheard() -> Error {
    Error::UnknownOutcome { status: 500, text: "no answer".into() }
}

/// An error that certainly had no effect.
fn not_done() -> Error {
    Error::Unavailable { status: 500, text: "No cluster leader".into() }
}

/// The error of an agent without node leases.
fn no_such_endpoint() -> Error {
    Error::Refused { status: 404, text: "Invalid URL path: not a recognized HTTP API endpoint".into() }
}

fn invalid_session() -> Error {
    Error::Refused { status: 500, text: "invalid session \"S1\"".into() }
}
