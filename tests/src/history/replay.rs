//! Replays all writes in the order of the log against the model, and infers the outcomes of
//! unanswered ones.
//!
//! An answered write has its index. Every other observed index was created by an unanswered write,
//! or by an expired session: the first act that explains the observation is accepted. If an
//! answered write does not agree with the model, an unobserved act happened before it: again the
//! first few unanswered writes and ends of sessions that explain it are accepted. If such a choice
//! turns out wrong, the next one is tried. An index without an explanation is a violation.
//! Unanswered writes that explain nothing never happened.
//!
//! It takes linear time if clients are answered; each unanswered write adds a small search. A
//! search in the wrong place can be very long, so the depth increases step by step (iterative
//! deepening): everything is tried with few steps before anything is tried with many. An
//! explanation with two unobserved acts is then found before all those with one are tried.

use super::candidates::{Act, Candidates, Concern, Leaver, Parting};
use super::evidence::{Evidence, Snapshot};
use super::model::{Entry, Grant, Model, Place, Step, Undo};
use super::operation::{Moment, Operation, Query};
use super::order::{Floor, Times};
use super::timeline::{Stage, Timeline};
use super::verdict::Violation;
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of unobserved acts before one index: few are tried first, everywhere, and
/// then more.
const TOGETHER: usize = 4;
/// The maximum number of attempts to explain one index.
const TRIES: usize = 5_000;
/// The maximum number of earlier indexes that are revised if one has no explanation.
const RETREATS: usize = 16;
/// Their maximum distance.
const LOOK_BACK: usize = 2_000;
/// The maximum number of attempts in total; anything unexplained then is a violation.
const TIMEOUT: usize = 50_000;
/// The initial limit of a replay's steps, besides one for each index; each time that is too low,
/// ten times as many.
const FIRST_STEPS: usize = 10_000;

/// The result of a replay.
pub(super) struct Replayed {
    pub(super) timeline: Timeline,
    /// The positions of the unanswered writes that took effect.
    pub(super) placed: BTreeMap<u64, Place>,
    /// The number of sessions that ended without a request.
    pub(super) ends_inferred: u64,
    pub(super) grants: Vec<Grant>,
    /// The number of steps: indexes explained, including repetitions, and unobserved acts tried.
    pub(super) steps: u64,
    /// The unexplained index. The timeline ends there.
    pub(super) violation: Option<Violation>,
}

/// The facts of a history that a replay uses.
pub(super) struct Facts<'h> {
    pub(super) operations: &'h [Operation],
    pub(super) evidence: Evidence,
    pub(super) floors: BTreeMap<u64, Floor>,
    pub(super) times: Times,
}

struct Replay<'h> {
    facts: &'h Facts<'h>,
    answered: BTreeMap<u64, &'h Operation>,
    candidates: Candidates<'h>,
    /// Every index with a known act.
    indexes: Vec<u64>,
    model: Model,
    stages: Vec<(String, Stage)>,
    placed: Vec<(u64, Place)>,
    placed_numbers: BTreeSet<u64>,
    ends_inferred: u64,
    /// Choices with alternatives: the position in the list of indexes, and the number of
    /// explanations tried there.
    forks: BTreeMap<usize, usize>,
    /// The moment before each index.
    moments: Vec<Moments>,
    /// The positions from which earlier ones were revised.
    retreated: BTreeSet<usize>,
    /// The positions at which a closed lock may have been granted to waiters that left its queue:
    /// its key.
    parted: BTreeMap<usize, String>,
    together: usize,
    budget: usize,
    steps: usize,
    most_steps: usize,
}

/// The search for the explanation of one index.
struct Search<'h> {
    index: u64,
    /// The acts that may have happened there.
    acts: Vec<Act<'h>>,
    /// The unobserved acts that may have happened before.
    unseen: Vec<Act<'h>>,
    left_to_skip: usize,
    tries: usize,
    /// The error of the first explanation.
    error: Option<String>,
}

/// The lengths of all growing lists, to return to.
#[derive(Clone, Copy)]
struct Moments {
    model: usize,
    stages: usize,
    placed: usize,
    ends_inferred: u64,
}

/// Replays a history. It ends with a complete explanation, or when no replay was cut short.
pub(super) fn replay(facts: &Facts<'_>) -> Replayed {
    let (mut most_steps, mut steps) = (FIRST_STEPS, 0);
    let mut open: Vec<usize> = (1..=TOGETHER).collect();
    let mut unexplained = None;
    loop {
        let mut cut_short = Vec::new();
        for together in open {
            let (mut replayed, is_cut_short) = replay_with(facts, together, most_steps);
            steps += replayed.steps;
            replayed.steps = steps;
            cut_short.extend(is_cut_short.then_some(together));
            match &replayed.violation {
                None => return replayed,
                // The replay that tried most reports the violation.
                Some(_) if together == TOGETHER => unexplained = Some(replayed),
                Some(_) => {}
            }
        }
        if cut_short.is_empty() {
            let unexplained = unexplained.expect("most acts together were tried, too");
            return Replayed { steps, ..unexplained };
        }
        (open, most_steps) = (cut_short, most_steps * 10);
    }
}

/// Runs a replay with at most `together` unobserved acts at once; returns `true` if it would have
/// taken too many steps.
fn replay_with(facts: &Facts<'_>, together: usize, most_steps: usize) -> (Replayed, bool) {
    let answered: BTreeMap<u64, &Operation> =
        facts.operations.iter().filter_map(|operation| Some((operation.write_index()?, operation))).collect();
    let mut indexes: Vec<u64> = answered.keys().copied().chain(facts.evidence.indexes()).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let mut replay = Replay {
        facts,
        answered,
        candidates: Candidates::new(facts, together == TOGETHER),
        most_steps: most_steps.saturating_add(indexes.len()),
        indexes,
        model: Model::default(),
        stages: Vec::new(),
        placed: Vec::new(),
        placed_numbers: BTreeSet::new(),
        ends_inferred: 0,
        forks: BTreeMap::new(),
        moments: Vec::new(),
        retreated: BTreeSet::new(),
        parted: BTreeMap::new(),
        together,
        budget: TIMEOUT,
        steps: 0,
    };
    let violation = replay.run();
    let is_cut_short = violation.is_some() && replay.has_taken_too_many_steps();
    let replayed = Replayed {
        timeline: Timeline::new(replay.stages),
        placed: replay.placed.into_iter().collect(),
        ends_inferred: replay.ends_inferred,
        grants: replay.model.grants,
        steps: replay.steps as u64,
        violation,
    };
    (replayed, is_cut_short)
}

impl<'h> Replay<'h> {
    fn run(&mut self) -> Option<Violation> {
        let (mut at, mut skipped) = (0, 0);
        // The reported violation is the furthest one reached.
        let mut furthest: Option<(usize, Violation)> = None;
        while at < self.indexes.len() {
            self.moments.truncate(at);
            self.moments.push(self.moment());
            self.steps += 1;
            match self.explain(at, skipped) {
                Ok(()) => (at, skipped) = (at + 1, 0),
                Err(violation) => {
                    if furthest.as_ref().is_none_or(|(before, _)| *before < at) {
                        furthest = Some((at, violation));
                    }
                    let may_go_on = self.budget > 0 && !self.has_taken_too_many_steps();
                    let fork = self.forks.pop_last().filter(|_| may_go_on);
                    let Some(fork) = fork else { return furthest.map(|(_, violation)| violation) };
                    (at, skipped) = fork;
                    self.rewind(self.moments[at]);
                }
            }
        }
        None
    }

    /// Executes the acts of an index, by the first explanation after `skipped` others that agrees
    /// with everything.
    fn explain(&mut self, at: usize, skipped: usize) -> Result<(), Violation> {
        let index = self.indexes[at];
        let leavers = self.candidates.have_left(index, &self.model);
        let parting = Parting::of(&leavers, &self.model);
        if let Some(parting) = &parting {
            self.parted.insert(at, parting.key.clone());
        }
        let ways = parting.as_ref().map_or(1, |parting| parting.leave + 1);
        let moment = self.moment();
        let mut violation = None;
        // Each way in which they left is tried before another explanation of later acts.
        for number in skipped.. {
            self.rewind(moment);
            if number >= skipped + ways {
                break;
            }
            let opened_for = parting.as_ref().map(|parting| (parting.key.as_str(), number % ways));
            let explained = self.let_go(index, &leavers, opened_for);
            let explained = explained.map_err(|error| self.violation(index, &error));
            match explained.and_then(|()| self.explain_rest(at, number / ways)) {
                Ok(has_others) => {
                    if has_others || ways > 1 {
                        self.forks.insert(at, number + 1);
                    }
                    return Ok(());
                }
                Err(error) => drop(violation.get_or_insert(error)),
            }
        }
        Err(violation.expect("one way was tried"))
    }

    /// The same after the required departures; returns `true` if there may be other explanations.
    fn explain_rest(&mut self, at: usize, skipped: usize) -> Result<bool, Violation> {
        let index = self.indexes[at];
        let acts = match self.answered.get(&index) {
            Some(operation) => vec![Act::Write(operation)],
            None => self.candidates.explaining(index, &self.model, |number| self.is_placed(number)),
        };
        let mut search =
            Search { index, acts, unseen: Vec::new(), left_to_skip: skipped, tries: 0, error: None };
        if self.find(&mut search, 0) {
            return Ok(search.acts.len() > 1);
        }
        let mut concern = self.candidates.concern(index, &search.acts, &self.model);
        search.unseen =
            self.candidates.unseen(index, &mut concern, &self.model, |number| self.is_placed(number));
        for together in 1..=self.together {
            if self.find(&mut search, together) {
                return Ok(true);
            }
        }
        if self.retreated.insert(at) {
            self.retreat(at, &concern);
        }
        let error = search.error.as_deref().unwrap_or("no known write happened there");
        Err(self.violation(index, error))
    }

    /// Removes the waiters that were answered without a grant before an index. A closed lock may
    /// have opened while some of them still waited: it is granted to one after the other as they
    /// leave.
    fn let_go(
        &mut self,
        index: u64,
        leavers: &[Leaver],
        opened_for: Option<(&str, usize)>,
    ) -> Result<(), String> {
        let leaves = |leaver: &Leaver| opened_for.is_some_and(|(key, _)| leaver.key == key);
        let mut still_there = leavers.iter().filter(|leaver| leaves(leaver)).count();
        let step = self.unseen_step(index, 0, Moment(0), None);
        for leaver in leavers {
            if let Some((key, opened_for)) = opened_for.filter(|_| leaves(leaver)) {
                if still_there == opened_for {
                    self.carry_out(step, &Act::Open(key.to_owned()))?;
                }
                still_there -= 1;
            }
            // Its lock is released, which changes the state.
            let _ = self.carry_out(step, &Act::Leave(leaver.clone()));
        }
        Ok(())
    }

    /// Revises earlier indexes related to this one: an unobserved act may have happened even before
    /// those, though they agreed without it.
    fn retreat(&mut self, from: usize, concern: &Concern) {
        let bears = |at: &usize| {
            let index = self.indexes[*at];
            self.parted.get(at).is_some_and(|key| concern.has_key(key))
                || self.candidates.bears_on(index, self.answered.get(&index).copied(), concern)
        };
        for at in (0..from).rev().take(LOOK_BACK).filter(bears).take(RETREATS) {
            self.forks.entry(at).or_insert(1);
        }
    }

    /// Executes this many unobserved acts, and then one that explains the index; or nothing.
    fn find(&mut self, search: &mut Search<'h>, together: usize) -> bool {
        let moment = self.moment();
        if together == 0 {
            for act in search.acts.clone() {
                match self.carry_out_here(search.index, &act) {
                    Ok(()) if search.left_to_skip == 0 => return true,
                    Ok(()) => search.left_to_skip -= 1,
                    Err(reason) => drop(search.error.get_or_insert(reason)),
                }
                self.rewind(moment);
            }
            return false;
        }
        for act in search.unseen.clone() {
            search.tries += 1;
            if search.tries > TRIES || self.budget == 0 || self.has_taken_too_many_steps() {
                return false;
            }
            self.budget -= 1;
            self.steps += 1;
            if self.carry_out_unseen(search.index, &act).is_ok() && self.find(search, together - 1) {
                return true;
            }
            self.rewind(moment);
        }
        false
    }

    fn carry_out_here(&mut self, index: u64, act: &Act<'_>) -> Result<(), String> {
        if act.operation().is_some_and(|write| self.is_placed(write.number)) {
            return Err("it took effect before".into());
        }
        self.carry_out(self.step(index, act), act)?;
        self.agrees(index)?;
        let told = self.facts.evidence.grants_at(index);
        told.into_iter().try_for_each(|told| {
            let held = self.model.is_granted(index, told);
            held.map_err(|error| format!("#{}: {error}", told.by))
        })
    }

    fn carry_out_unseen(&mut self, index: u64, act: &Act<'_>) -> Result<(), String> {
        if act.operation().is_some_and(|write| self.is_placed(write.number)) {
            return Err("it took effect before".into());
        }
        let after = act.operation().map_or(0, |write| self.facts.floors[&write.number].index);
        let earliest = act.operation().map_or(Moment(0), |write| write.begun);
        let by = act.operation().map(|write| write.number);
        let before = self.model.mark();
        self.carry_out(self.unseen_step(index, after, earliest, by), act)?;
        match self.model.mark() == before {
            true => Err("it changes nothing".into()),
            false => Ok(()),
        }
    }

    fn unseen_step(&self, index: u64, after: u64, earliest: Moment, by: Option<u64>) -> Step {
        let place = Place::Between { after, before: index };
        Step { place, earliest, latest: self.facts.times.latest(index), by }
    }

    fn carry_out(&mut self, step: Step, act: &Act<'_>) -> Result<(), String> {
        let mark = self.model.mark();
        match act {
            Act::Write(operation) => {
                let write = operation.write().expect("only writes are replayed");
                let is_own_index = operation.write_index().map(Place::At) == Some(step.place);
                let told = operation.reply().filter(|_| is_own_index);
                self.model.carry_out(step, write, told)?;
                if !is_own_index {
                    self.placed.push((operation.number, step.place));
                    self.placed_numbers.insert(operation.number);
                }
            }
            Act::EndHolders(keys) => {
                for key in keys {
                    let holder = self.model.entry(key).and_then(|entry| entry.session.clone());
                    // If the holder cannot have expired, it did not.
                    holder.map(|holder| self.end(step, &holder));
                }
            }
            Act::Elsewhere => {}
            Act::Open(key) => self.model.open_and_grant(step, &key.clone())?,
            Act::Leave(leaver) => {
                let Leaver { key, session, asked } = leaver;
                if !self.model.leave_and_grant(step, key, session, *asked) {
                    return Err(format!("{session} neither waits for {key} nor holds it"));
                }
            }
            Act::End(session) => self.end(step, &session.clone())?,
            Act::EndHolder(key) => {
                let holder = self.model.entry(key).and_then(|entry| entry.session.clone());
                self.end(step, &holder.ok_or_else(|| format!("{key} is not held"))?)?;
            }
        }
        let changed = self.model.changes_since(mark).iter().filter_map(|change| match change {
            Undo::Entry(key, _) => Some(key.clone()),
            _ => None,
        });
        for key in changed.collect::<Vec<_>>() {
            let entry: Option<Entry> = self.model.entry(&key).cloned();
            self.stages.push((key, Stage { from: step.place, entry, by: step.by }));
        }
        Ok(())
    }

    /// Ends a session without a known request, if it may have expired.
    fn end(&mut self, step: Step, session: &str) -> Result<(), String> {
        let Some(wish) = self.model.session(session) else { return Err(format!("{session} does not live")) };
        self.candidates.may_end(session, wish, step.latest)?;
        self.model.end_session(step, session);
        self.ends_inferred += 1;
        Ok(())
    }

    /// Checks that the model agrees with all observations at this index.
    fn agrees(&self, index: u64) -> Result<(), String> {
        for sighting in self.facts.evidence.at(index) {
            let seen = &sighting.seen;
            match self.model.entry(&seen.key) {
                Some(entry) if entry.is(seen) => {}
                Some(entry) => {
                    return Err(format!("#{} saw {seen}, but it should be {entry}", sighting.by));
                }
                None => return Err(format!("#{} saw {seen}, but it should be absent", sighting.by)),
            }
        }
        for snapshot in self.facts.evidence.snapshots_at(index) {
            self.agrees_with(snapshot)?;
        }
        for key in self.facts.evidence.born_at(index) {
            if self.model.entry(key).is_none_or(|entry| entry.created != Place::At(index)) {
                return Err(format!("{key} was seen to have been created at {index}"));
            }
        }
        Ok(())
    }

    /// Checks that the requested keys match the answer, and that no others exist.
    fn agrees_with(&self, snapshot: &Snapshot) -> Result<(), String> {
        let by = snapshot.by;
        let unexpected = |key: &str| match snapshot.shown.iter().find(|seen| seen.key == key) {
            Some(seen) => self.model.entry(key).is_none_or(|entry| !entry.is(seen)),
            None => self.model.entry(key).is_some(),
        };
        let shown = snapshot.shown.iter().map(|seen| seen.key.as_str());
        let keys: Vec<&str> = match &snapshot.query {
            Query::Key(key) => vec![key],
            Query::Prefix(prefix) => {
                shown.chain(self.model.under(prefix).map(|(key, _)| key.as_str())).collect()
            }
            Query::Together(_) | Query::Session(_) => Vec::new(),
        };
        match keys.into_iter().find(|key| unexpected(key)) {
            None => Ok(()),
            Some(key) => match self.model.entry(key) {
                Some(entry) => Err(format!("#{by} saw otherwise, but there should be {key}={entry}")),
                None => Err(format!("#{by} saw otherwise, but {key} should be absent")),
            },
        }
    }

    fn step(&self, index: u64, act: &Act<'_>) -> Step {
        let times = &self.facts.times;
        let by = act.operation().map(|operation| operation.number);
        let seen = self.facts.evidence.at(index).map(|sighting| sighting.until);
        let latest = seen.min().map_or(times.latest(index), |until| until.min(times.latest(index)));
        Step { place: Place::At(index), earliest: times.earliest(index), latest, by }
    }

    fn violation(&self, index: u64, error: &str) -> Violation {
        let shown: Vec<_> = self.facts.evidence.at(index).collect();
        let snapshots = self.facts.evidence.snapshots_at(index).map(|snapshot| snapshot.by);
        let told = self.facts.evidence.grants_at(index).map(|told| told.by);
        let mut operations: Vec<u64> =
            shown.iter().map(|sighting| sighting.by).chain(snapshots).chain(told).collect();
        if let Some(operation) = self.answered.get(&index) {
            operations.insert(0, operation.number);
            let text = format!("{operation}: {error}");
            return Violation::new("answers agree with the model", &operations, text);
        }
        let mut text = format!("at index {index}: {error}");
        for sighting in shown {
            text.push_str(&format!("; #{} saw {}", sighting.by, sighting.seen));
            for writer in self.candidates.writers_of(&sighting.seen) {
                operations.push(writer.number);
                text.push_str(&format!("; the value is that of {writer}"));
                if let Some((_, place)) = self.placed.iter().find(|(number, _)| *number == writer.number) {
                    text.push_str(&format!(", which took effect at {place}"));
                }
            }
        }
        Violation::new("whatever is seen was written once", &operations, text)
    }

    fn has_taken_too_many_steps(&self) -> bool {
        self.steps >= self.most_steps
    }

    fn is_placed(&self, number: u64) -> bool {
        self.placed_numbers.contains(&number)
    }

    fn moment(&self) -> Moments {
        Moments {
            model: self.model.mark(),
            stages: self.stages.len(),
            placed: self.placed.len(),
            ends_inferred: self.ends_inferred,
        }
    }

    fn rewind(&mut self, moment: Moments) {
        self.model.rewind(moment.model);
        self.stages.truncate(moment.stages);
        for (number, _) in self.placed.drain(moment.placed..) {
            self.placed_numbers.remove(&number);
        }
        self.ends_inferred = moment.ends_inferred;
    }
}
