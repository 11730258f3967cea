//! Sessions by time alone: none ends before a request for its end or its TTL, none is alive after
//! its end.

use super::candidates::kv_writes;
use super::operation::{KvWrite, Moment, Operation, Outcome, Query, Reply, Request, SessionWish, Write};
use super::verdict::Violation;
use std::collections::BTreeMap;

/// The known facts of a session.
#[derive(Default)]
struct Life<'h> {
    wish: Option<&'h SessionWish>,
    /// The answer to its creation. Before it the session need not exist.
    made: Option<&'h Operation>,
    /// The operation that showed it alive and began last.
    alive: Option<&'h Operation>,
    /// The renewal, or creation, that began last.
    renewed: Moment,
    /// The operation that showed it dead and ended first.
    dead: Option<&'h Operation>,
    /// The start of the first request to end it that may have been executed.
    asked_to_end: Option<Moment>,
    /// The first answered request to end it.
    ended: Option<&'h Operation>,
}

/// Checks all sessions.
pub(super) fn sessions(operations: &[Operation]) -> Vec<Violation> {
    let mut lives: BTreeMap<&str, Life<'_>> = BTreeMap::new();
    for operation in operations {
        born(&mut lives, operation);
    }
    for operation in operations {
        gather(&mut lives, operation);
    }
    let lives = lives.iter().filter(|(_, life)| life.wish.is_some());
    lives
        .flat_map(|(session, life)| [lives_again(session, life), died_early(session, life)])
        .flatten()
        .collect()
}

fn born<'h>(lives: &mut BTreeMap<&'h str, Life<'h>>, operation: &'h Operation) {
    let Some(Write::CreateSession(wish)) = operation.write() else { return };
    let id = match &operation.outcome {
        Outcome::Answered { reply: Reply::Session(id), .. } => id,
        Outcome::Unknown(_) => match &wish.id {
            Some(id) => id,
            None => return,
        },
        _ => return,
    };
    let life = lives.entry(id).or_default();
    life.wish = Some(wish);
    life.renewed = operation.begun;
    if operation.reply().is_some() {
        life.made = Some(operation);
    }
}

fn gather<'h>(lives: &mut BTreeMap<&'h str, Life<'h>>, operation: &'h Operation) {
    match (&operation.request, &operation.outcome) {
        (Request::Write(Write::DestroySession(id)), outcome)
            if !matches!(outcome, Outcome::CertainlyNot(_)) =>
        {
            let life = lives.entry(id).or_default();
            life.asked_to_end = Some(life.asked_to_end.unwrap_or(Moment(u64::MAX)).min(operation.begun));
            let was_there = life.made.is_some_and(|made| operation.begun > made.ended);
            if operation.reply().is_some()
                && was_there
                && life.ended.is_none_or(|ended| operation.ended < ended.ended)
            {
                life.ended = Some(operation);
            }
        }
        (Request::Renew(id), Outcome::Answered { reply: Reply::Alive(alive), .. }) => {
            let life = lives.entry(id).or_default();
            life.shows(operation, *alive);
            if *alive {
                life.renewed = life.renewed.max(operation.begun);
            }
        }
        (Request::Read(read), Outcome::Answered { reply: Reply::Alive(alive), .. }) if !read.stale => {
            if let Query::Session(id) = &read.query {
                lives.entry(id).or_default().shows(operation, *alive);
            }
        }
        (Request::Write(_), Outcome::Answered { reply, .. }) => {
            for write in kv_writes(operation) {
                let KvWrite::Acquire { session, .. } = write else { continue };
                let life = lives.entry(session).or_default();
                match reply {
                    Reply::Granted { .. } | Reply::Txn(_) => life.shows_alive(operation),
                    Reply::Refused(words) if words.contains("invalid session") => {
                        life.shows(operation, false);
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

impl<'h> Life<'h> {
    fn shows(&mut self, operation: &'h Operation, alive: bool) {
        match alive {
            true => self.shows_alive(operation),
            false if self.made.is_none_or(|made| operation.begun <= made.ended) => {}
            false if self.dead.is_none_or(|dead| operation.ended < dead.ended) => self.dead = Some(operation),
            false => {}
        }
    }

    fn shows_alive(&mut self, operation: &'h Operation) {
        if self.alive.is_none_or(|alive| alive.begun < operation.begun) {
            self.alive = Some(operation);
        }
    }
}

fn lives_again(session: &str, life: &Life<'_>) -> Option<Violation> {
    let alive = life.alive?;
    let end = [life.dead, life.ended].into_iter().flatten().min_by_key(|end| end.ended)?;
    (alive.begun > end.ended).then(|| {
        let text = format!("{session} lives after its end: {end}; then {alive}");
        Violation::new("a session that ended stays ended", &[end.number, alive.number], text)
    })
}

fn died_early(session: &str, life: &Life<'_>) -> Option<Violation> {
    let (dead, wish) = (life.dead?, life.wish?);
    let asked = life.asked_to_end.is_some_and(|asked| asked <= dead.ended);
    let over = wish.ttl_ms > 0 && dead.ended.0 >= life.renewed.0 + wish.ttl_ms * 1_000_000;
    (!asked && !over && !wish.fragile).then(|| {
        let text = format!("{session} was renewed at {} and no client ended it, yet: {dead}", life.renewed);
        Violation::new("a session lives until its end", &[dead.number], text)
    })
}
