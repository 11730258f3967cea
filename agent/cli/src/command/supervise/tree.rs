//! The processes of a command, found in `/proc` below the process that reaps them.
//!
//! A process that is found is signalled through its pidfd, after a check that it still belongs to
//! the tree: its number may be another process's by then. A tree may fork while it is read, so a
//! kill is repeated until nothing new is found, and its process groups are killed as a whole.

use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process_group, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};

/// The maximum number of passes of one kill. A tree that forks faster is killed again later.
const MAX_PASSES: usize = 16;

/// A process in `/proc`.
#[derive(Clone, Copy, Debug)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    /// The letter of its state, in upper case: `T` stopped.
    state: u8,
}

/// Sends SIGKILL to all descendants of a process.
pub fn kill(root: Pid) {
    let mut killed = BTreeSet::new();
    for _ in 0..MAX_PASSES {
        let tree = descendants(root);
        let numbers: BTreeSet<i32> = tree.iter().map(|process| process.pid.as_raw_pid()).collect();
        let new: Vec<&Process> =
            tree.iter().filter(|process| killed.insert(process.pid.as_raw_pid())).collect();
        if new.is_empty() {
            return;
        }
        // A group is killed at once, forks included, but only if its leader belongs to the tree.
        let own = own_group().map(Pid::as_raw_pid);
        let groups: BTreeSet<i32> = new.iter().map(|process| process.group).collect();
        for group in groups.into_iter().filter(|group| Some(*group) != own && numbers.contains(group)) {
            // A group that has ended meanwhile needs no signal.
            let _ = Pid::from_raw(group).map(|group| kill_process_group(group, Signal::KILL));
        }
        // Also one by one: a group whose leader is outside of the tree was left out.
        new.into_iter().for_each(|process| send(root, &numbers, process, Signal::KILL));
    }
}

/// Sends a signal to all descendants of a process, and lets stopped ones continue to receive it.
pub fn signal(root: Pid, signal: Signal) {
    let tree = descendants(root);
    let numbers: BTreeSet<i32> = tree.iter().map(|process| process.pid.as_raw_pid()).collect();
    for process in &tree {
        send(root, &numbers, process, signal);
        send(root, &numbers, process, Signal::CONT);
    }
}

fn send(root: Pid, tree: &BTreeSet<i32>, process: &Process, signal: Signal) {
    let Ok(pidfd) = pidfd_open(process.pid, PidfdFlags::empty()) else { return };
    let is_member = |found: Process| found.parent == root.as_raw_pid() || tree.contains(&found.parent);
    if read(process.pid).is_some_and(is_member) {
        // A process that has ended meanwhile needs no signal.
        let _ = pidfd_send_signal(pidfd, signal);
    }
}

/// Returns the descendants of a process that are not reaped.
fn descendants(root: Pid) -> Vec<Process> {
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children(parent).into_iter().filter_map(read) {
            parents.push(child.pid);
            found.push(child);
        }
    }
    // Zombies too: one whose other threads run on looks like one that has ended.
    found
}

/// Returns the children of all threads of a process; a process that has ended has none.
fn children(parent: Pid) -> Vec<Pid> {
    let threads = read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| read_to_string(thread.path().join("children")).ok());
    let pids = |list: String| -> Vec<Pid> {
        list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    };
    lists.flat_map(pids).collect()
}

/// Returns the process group of this process; `None` if it belongs to another PID namespace, as in
/// a container whose first process did not create a group.
pub fn own_group() -> Option<Pid> {
    // `rustix::process::getpgrp` panics then.
    read(getpid()).and_then(|process| Pid::from_raw(process.group))
}

/// Returns `true` if a process is stopped by a signal or a debugger.
pub fn is_stopped(pid: Option<Pid>) -> bool {
    pid.and_then(read).is_some_and(|process| process.state == b'T')
}

fn read(pid: Pid) -> Option<Process> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.bytes().next()?.to_ascii_uppercase();
    Some(Process { pid, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()?, state })
}
