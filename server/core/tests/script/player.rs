//! Plays commands on a state and checks it.

use super::{acl, commands, queries, show};
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::{Command, RestoreStep};
use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, Term, WallTime};
use lockmesh_protocol::reply::Reply;

/// A state with its history.
#[derive(Default)]
pub(crate) struct Player {
    state: State,
    /// The state as rebuilt from its changes.
    rebuilt: State,
    history: Vec<(LogIndex, Term, Proposal)>,
    term: u64,
    backup: Vec<Change>,
    restores: u64,
}

impl Player {
    /// Plays one line and returns its effects as lines.
    pub(crate) fn play(&mut self, line: &str) -> Result<Vec<String>, String> {
        let lines = self.played(line)?;
        Ok(lines.iter().map(|line| show::with_words(line)).collect())
    }

    fn played(&mut self, line: &str) -> Result<Vec<String>, String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "term" => {
                self.term = rest.parse::<u64>().map_err(|_| "which term?")? - 1;
                Ok(Vec::new())
            }
            "save" => Ok(self.save(rest)),
            "restore" => self.restore(),
            "again" => {
                let (_, _, proposal) = self.history.last().cloned().ok_or("nothing was played yet")?;
                Ok(self.apply(proposal))
            }
            "restore-part" | "restore-commit" | "restore-begin" => self.restore_step(verb, rest),
            "as" => {
                let (request, rest) = rest.split_once(' ').ok_or("which request id?")?;
                let command = commands::command(rest)?.ok_or("what command?")?;
                Ok(self.propose(Some(request_id(request)?), command))
            }
            // `by t1 as 1.1.1 put a x`
            "by" if let Some((name, (request, line))) =
                rest.split_once(" as ").and_then(|(name, rest)| Some((name, rest.split_once(' ')?))) =>
            {
                let command = commands::command(line)?.ok_or("what command?")?;
                let proposal = Proposal::new(Some(request_id(request)?), WallTime(1_000), command);
                Ok(self.apply(acl::by(acl::caller(name), proposal)))
            }
            _ => match commands::command(line)? {
                Some(command) => Ok(self.propose(None, command)),
                None => queries::answer(&self.state, line)?.ok_or_else(|| format!("what is {verb:?}?")),
            },
        }
    }

    /// The same log gives the same state, replies and changes.
    pub(crate) fn replay(&self) {
        let (mut once, mut twice) = (State::new(), State::new());
        for (index, term, proposal) in &self.history {
            let (mut changes_once, mut changes_twice) = (Vec::new(), Vec::new());
            let reply_once = once.apply(*index, *term, proposal, &mut changes_once);
            let reply_twice = twice.apply(*index, *term, proposal, &mut changes_twice);
            assert_eq!(reply_once, reply_twice);
            assert_eq!(changes_once, changes_twice);
        }
        assert_eq!(once, self.state);
    }

    fn propose(&mut self, request: Option<RequestId>, command: Command) -> Vec<String> {
        self.apply(Proposal::new(request, WallTime(1_000), command))
    }

    fn apply(&mut self, proposal: Proposal) -> Vec<String> {
        let index = LogIndex(self.history.len() as u64 + 1);
        let term = Term(self.term + 1);
        let mut changes = Vec::new();
        let applied = self.state.apply(index, term, &proposal, &mut changes);
        self.history.push((index, term, proposal));
        let seen = LogIndex(index.0 + self.state.index_base());
        let kept = if applied.index == seen { String::new() } else { format!(" (of {})", applied.index) };
        let mut lines: Vec<String> =
            show::reply(&applied.reply).iter().map(|line| format!("{seen}: {line}{kept}")).collect();
        let (mut short, mut rows) = (Vec::new(), Vec::new());
        for change in &changes {
            match show::short(change, seen) {
                Some(text) => short.push(text),
                None => rows.push(show::change(change)),
            }
        }
        if !short.is_empty() {
            *lines.last_mut().expect("a reply") += &format!(" [{}]", short.join(", "));
        }
        lines.extend(rows);
        changes.into_iter().for_each(|change| self.rebuilt.load(change));
        self.watch_over();
        lines
    }

    fn watch_over(&self) {
        self.state.check().expect("the invariants hold");
        assert_eq!(self.state, self.rebuilt, "the changes give another state");
        let mut from_rows = State::new();
        self.state.rows().for_each(|row| from_rows.load(row));
        assert_eq!(self.state, from_rows, "the rows give another state");
    }

    /// Makes a backup. `save cluster=other` pretends that it is from another cluster, `save
    /// table=1000` that its index is 1000. `save without=check` omits rows whose line contains that
    /// word.
    fn save(&mut self, options: &str) -> Vec<String> {
        self.backup = self.state.rows().collect();
        if let Some(cluster) = options.strip_prefix("cluster=") {
            self.backup.push(Change::ClusterId(cluster.into()));
        }
        if let Some(index) = options.strip_prefix("table=").and_then(|index| index.parse().ok()) {
            self.backup.push(Change::TableIndex(Table::Entries, LogIndex(index)));
        }
        if let Some(word) = options.strip_prefix("without=") {
            self.backup.retain(|row| !show::with_words(&show::change(row)).contains(word));
        }
        vec![format!("a backup of {} rows", self.backup.len())]
    }

    /// Restores the backup in two parts; shows only the last step.
    fn restore(&mut self) -> Result<Vec<String>, String> {
        self.restores += 1;
        let id = self.restores;
        let half = self.backup.len() / 2;
        let parts = [self.backup[..half].to_vec(), self.backup[half..].to_vec()];
        self.done(RestoreStep::Begin { id })?;
        for (number, rows) in (0..).zip(parts) {
            self.done(RestoreStep::Part { id, number, rows })?;
        }
        Ok(self.propose(None, Command::Restore(RestoreStep::Commit { id, parts: 2 })))
    }

    fn done(&mut self, step: RestoreStep) -> Result<(), String> {
        let lines = self.propose(None, Command::Restore(step));
        let done = show::reply(&Reply::Done).join("");
        if lines[0].ends_with(&done) { Ok(()) } else { Err(lines.join("\n")) }
    }

    /// One step of a manual restore: `restore-begin 7`, `restore-part 7 0`, `restore-commit 7 1`.
    fn restore_step(&mut self, verb: &str, rest: &str) -> Result<Vec<String>, String> {
        let mut numbers = rest.split(' ').map(|word| word.parse::<u64>().map_err(|_| "a number is missing"));
        let id = numbers.next().ok_or("which restore?")??;
        let number =
            u32::try_from(numbers.next().transpose()?.unwrap_or_default()).map_err(|_| "too large")?;
        let step = match verb {
            "restore-begin" => RestoreStep::Begin { id },
            "restore-part" => RestoreStep::Part { id, number, rows: self.backup.clone() },
            _ => RestoreStep::Commit { id, parts: number },
        };
        Ok(self.propose(None, Command::Restore(step)))
    }
}

/// `agent.life.sequence` or `agent.life.sequence/lowest`.
fn request_id(text: &str) -> Result<RequestId, String> {
    let (text, lowest) = text.split_once('/').unwrap_or((text, "1"));
    let numbers: Result<Vec<u64>, _> = text.split('.').map(str::parse).collect();
    let numbers = numbers.map_err(|error| error.to_string())?;
    let &[agent, life, sequence] = numbers.as_slice() else {
        return Err("as agent.life.sequence/lowest".into());
    };
    let small = |number: u64| u32::try_from(number).map_err(|error| error.to_string());
    Ok(RequestId {
        agent: AgentNumber(small(agent)?),
        generation: Generation(small(life)?),
        sequence,
        lowest: lowest.parse().map_err(|_| "which lowest?")?,
    })
}
