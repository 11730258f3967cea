//! The processes of one command, and the kernel's rules for them.
//!
//! - All descend from one process: the supervisor, a child subreaper. When it dies, they become
//!   descendants of its guard, a subreaper too, and then of init.
//! - SIGKILL ends a process within milliseconds, also a stopped one. From the moment at which it is
//!   sent, the process starts no other one. SIGTERM reaches a stopped process when it continues.
//! - A signal for a group reaches all its processes. A signal for all processes of the tree reaches
//!   those that one look finds: a process may fork between the look and the signal.
//! - When the supervisor dies, the kernel kills the command's own process (its parent-death
//!   signal), but no descendant of it.

use super::draw::Draw;
use lockmesh_cli::supervision::{End, SignalNumber};
use std::collections::BTreeMap;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The maximum time that SIGKILL needs.
const KILL_DELAY: Duration = Duration::from_millis(5);

/// The maximum number of processes that a command ever has.
const MAX_PROCESSES: u32 = 12;

/// The maximum number of forks between a look at the tree and the signals that follow.
const MAX_DODGES: u64 = 2;

/// The process from which all others descend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The supervisor.
    Supervisor,
    /// The guard, after the supervisor's death.
    Guard,
    /// Neither is left.
    Init,
}

/// The number of a process.
pub type ProcessId = u32;

/// An event of a command's processes.
#[derive(Clone, Debug)]
pub enum TreeEvent {
    /// The started process becomes the command.
    Execs,
    /// A process starts another one.
    Forks(ProcessId),
    /// A process ends in this way.
    Ends(ProcessId, End),
}

/// A process that has not ended.
#[derive(Debug)]
struct Process {
    group: ProcessId,
    is_stopped: bool,
    /// The time that it needs to end after SIGTERM; `None` if it ignores it.
    on_term: Option<Duration>,
    forks_left: u64,
    /// `true` if it was sent SIGKILL.
    was_killed: bool,
    /// `true` if it was sent SIGTERM while it was stopped.
    has_term: bool,
    /// Its end, which came while it was stopped.
    overdue: Option<End>,
}

/// The processes of one command.
#[derive(Debug)]
pub struct Tree {
    draw: Draw,
    processes: BTreeMap<ProcessId, Process>,
    last: ProcessId,
    /// The command's own process, once it has been started.
    main: Option<ProcessId>,
    main_end: Option<End>,
    is_executed: bool,
    dodges_left: u64,
    /// `true` if its own process never ends by itself.
    is_endless: bool,
    /// Future events, each with its delay.
    pub agenda: Vec<(Duration, TreeEvent)>,
    /// The number of processes with groups of their own.
    pub own_groups: u64,
    /// The number of forks that a look at the tree missed.
    pub dodged: u64,
}

impl Tree {
    /// Returns a command that was not started.
    pub fn new(mut draw: Draw, is_endless: bool) -> Self {
        let dodges_left = draw.below(MAX_DODGES + 1);
        Self {
            draw,
            processes: BTreeMap::new(),
            last: 0,
            main: None,
            main_end: None,
            is_executed: false,
            dodges_left,
            is_endless,
            agenda: Vec::new(),
            own_groups: 0,
            dodged: 0,
        }
    }

    /// Starts the process that becomes the command after this time.
    pub fn start(&mut self, needs: Duration) {
        self.last += 1;
        self.main = Some(self.last);
        // Until it becomes the command, every signal ends it at once.
        let process = Process {
            group: self.last,
            is_stopped: false,
            on_term: Some(Duration::ZERO),
            forks_left: 0,
            was_killed: false,
            has_term: false,
            overdue: None,
        };
        self.processes.insert(self.last, process);
        self.agenda.push((needs, TreeEvent::Execs));
    }

    /// The started process cannot become the command, and ends.
    pub fn fails_to_start(&mut self) {
        self.processes.clear();
    }

    /// Returns `true` if a process has been started.
    pub fn is_started(&self) -> bool {
        self.main.is_some()
    }

    /// Returns `true` if the started process has become the command.
    pub fn is_executed(&self) -> bool {
        self.is_executed
    }

    /// Returns `true` if a process has not ended.
    pub fn is_alive(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Returns the number of processes that have not been sent SIGKILL.
    pub fn unkilled(&self) -> usize {
        self.processes.values().filter(|process| !process.was_killed).count()
    }

    /// Returns the end of the command's own process, once it has ended.
    pub fn main_end(&self) -> Option<End> {
        self.main_end
    }

    /// Processes an event; returns `true` if a process has ended.
    pub fn happens(&mut self, event: &TreeEvent) -> bool {
        match *event {
            TreeEvent::Execs => self.exec(),
            TreeEvent::Forks(id) => self.may_fork(id),
            TreeEvent::Ends(id, end) => return self.end(id, end),
        }
        false
    }

    fn exec(&mut self) {
        let Some(main) = self.main.filter(|main| self.processes.contains_key(main)) else { return };
        if self.processes[&main].is_stopped {
            return self.agenda.push((100 * MS, TreeEvent::Execs));
        }
        self.is_executed = true;
        let life = match self.draw.below(4) {
            _ if self.is_endless => None,
            0 => None,
            1 => Some(self.draw.duration(Duration::ZERO, 200 * MS)),
            _ => Some(self.draw.duration(Duration::ZERO, 8 * SECOND)),
        };
        self.live(main, life);
    }

    /// Draws the behavior of a process.
    fn live(&mut self, id: ProcessId, life: Option<Duration>) {
        let on_term = match self.draw.below(4) {
            0 => None,
            1 => Some(Duration::ZERO),
            _ => Some(self.draw.duration(Duration::ZERO, 8 * SECOND)),
        };
        let forks_left = self.draw.below(4);
        let process = self.processes.get_mut(&id).expect("it was just started");
        (process.on_term, process.forks_left) = (on_term, forks_left);
        if let Some(life) = life {
            let code = self.draw.below(2) as u8;
            self.agenda.push((life, TreeEvent::Ends(id, End::Code(code))));
        }
        self.plan_fork(id);
    }

    fn plan_fork(&mut self, id: ProcessId) {
        let wait = match self.draw.below(3) {
            0 => self.draw.duration(Duration::ZERO, 5 * MS),
            _ => self.draw.duration(Duration::ZERO, 2 * SECOND),
        };
        self.agenda.push((wait, TreeEvent::Forks(id)));
    }

    fn may_fork(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.was_killed || process.forks_left == 0 || self.last >= MAX_PROCESSES {
            return;
        }
        if !process.is_stopped {
            process.forks_left -= 1;
            self.fork(id);
        }
        self.plan_fork(id);
    }

    /// Starts a child: in the same group or another one, for long or short. Without its parent, it
    /// is a child of the reaping process.
    fn fork(&mut self, parent: ProcessId) -> ProcessId {
        self.last += 1;
        let id = self.last;
        let has_own_group = self.draw.once_in(2);
        self.own_groups += u64::from(has_own_group);
        let group = if has_own_group { id } else { self.processes[&parent].group };
        let process = Process {
            group,
            is_stopped: false,
            on_term: None,
            forks_left: 0,
            was_killed: false,
            has_term: false,
            overdue: None,
        };
        self.processes.insert(id, process);
        let life = match self.draw.below(6) {
            0 => None,
            1 | 2 => Some(self.draw.duration(Duration::ZERO, 10 * SECOND)),
            _ => Some(self.draw.duration(Duration::ZERO, SECOND)),
        };
        self.live(id, life);
        id
    }

    fn end(&mut self, id: ProcessId, end: End) -> bool {
        let Some(process) = self.processes.get_mut(&id) else { return false };
        if process.is_stopped && !process.was_killed {
            process.overdue = Some(end);
            return false;
        }
        self.processes.remove(&id);
        if self.main == Some(id) {
            self.main_end = Some(end);
        }
        true
    }

    /// Sends a signal to the group of the command's own process.
    pub fn signal_group(&mut self, signal: SignalNumber) {
        let Some(main) = self.main else { return };
        let group: Vec<ProcessId> = self.members(|process| process.group == main);
        group.into_iter().for_each(|id| self.send(id, signal));
    }

    /// Sends a signal, and SIGCONT, to all processes.
    pub fn signal_all(&mut self, signal: SignalNumber) {
        for id in self.members(|_| true) {
            self.send(id, signal);
            self.send(id, CONT);
        }
    }

    /// Sends SIGKILL to all processes that one look at the tree finds, and to their groups.
    pub fn kill_all(&mut self) {
        let found = self.members(|process| !process.was_killed);
        let mut missed = Vec::new();
        for id in found.iter().copied() {
            let process = &self.processes[&id];
            let may_fork = self.is_executed && !process.is_stopped && self.last < MAX_PROCESSES;
            if may_fork && self.dodges_left > 0 && self.draw.once_in(2) {
                self.dodges_left -= 1;
                missed.push(self.fork(id));
            }
        }
        for id in missed {
            let group = self.processes[&id].group;
            // A group is killed as a whole.
            if group == id {
                self.dodged += 1;
            } else {
                self.send(id, KILL);
            }
        }
        found.into_iter().for_each(|id| self.send(id, KILL));
    }

    /// Kills the command's own process, because the supervisor has died.
    pub fn lose_parent(&mut self) {
        if let Some(main) = self.main {
            self.send(main, KILL);
        }
    }

    fn members(&self, is_wanted: impl Fn(&Process) -> bool) -> Vec<ProcessId> {
        self.processes.iter().filter(|(_, process)| is_wanted(process)).map(|(id, _)| *id).collect()
    }

    fn send(&mut self, id: ProcessId, signal: SignalNumber) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        match signal {
            KILL if process.was_killed => {}
            KILL => {
                process.was_killed = true;
                let delay = self.draw.duration(Duration::ZERO, KILL_DELAY);
                self.agenda.push((delay, TreeEvent::Ends(id, End::Killed(KILL))));
            }
            STOP => process.is_stopped = true,
            CONT => {
                process.is_stopped = false;
                if let Some(end) = process.overdue.take() {
                    self.agenda.push((Duration::ZERO, TreeEvent::Ends(id, end)));
                }
                if std::mem::take(&mut process.has_term) {
                    self.send(id, TERM);
                }
            }
            TERM if process.is_stopped => process.has_term = true,
            TERM => {
                if let Some(needs) = process.on_term {
                    self.agenda.push((needs, TreeEvent::Ends(id, End::Killed(TERM))));
                }
            }
            _ => {}
        }
    }
}

/// SIGKILL.
const KILL: SignalNumber = 9;
/// SIGTERM.
pub const TERM: SignalNumber = 15;
/// SIGCONT.
const CONT: SignalNumber = 18;
/// SIGSTOP.
const STOP: SignalNumber = 19;
