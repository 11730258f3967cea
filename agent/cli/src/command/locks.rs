//! `lockmesh locks`: locks with holder, time and fence; requests that wait; and lost locks with the
//! cause.

use super::context::{ConsistencyArgs, Context};
use super::error::CliError;
use super::instant;
use super::lock::obstacle::delay_left;
use super::output::{OutputArgs, Table, print_json};
use lockmesh_client::shape::lockmesh::{AwaitedLock, Lock, Loss, LostKey, Wait};
use lockmesh_client::{Client, Read, Slots};
use lockmesh_protocol::duration;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// List locks with their holders, requests that wait, or lost locks with the cause
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Key prefix [default: all locks]
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// List requests that wait, in the order of the queues, with the sessions that block them
    #[arg(long)]
    waits: bool,
    /// List lost locks with the cause, newest first
    #[arg(long, conflicts_with = "waits")]
    losses: bool,
    /// With --losses: only this cause
    #[arg(long, value_name = "CAUSE", requires = "losses", value_parser = Loss::CAUSES)]
    cause: Option<String>,
    /// With --losses: also list sessions that ended without holding a lock
    #[arg(long, requires = "losses")]
    all: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply, or the output has no reader. Nothing was changed; retry.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let read = args.consistency.read();
    if args.waits {
        let waits = client.operator().waits(&args.prefix, &read).await?.value;
        args.output.print(&waits, |waits| wait_table(waits))?;
    } else if args.losses {
        let losses = client.operator().losses(&read).await?.value;
        let losses: Vec<Loss> = losses.into_iter().filter(|loss| args.lists(loss)).collect();
        args.output.print(&losses, |losses| loss_table(losses, &args.prefix))?;
    } else {
        let locks = client.operator().locks(&args.prefix, &read).await?.value;
        if args.output.json {
            print_json(&locks)?;
        } else {
            let semaphores = Semaphores::of(&client, &locks, &read).await?;
            // The history is a request of its own, and only the rest of a lock-delay needs it.
            let losses = match locks.iter().any(|lock| !lock.lock_delay.is_empty()) {
                true => client.operator().losses(&read).await?.value,
                false => Vec::new(),
            };
            args.output.table.print(&lock_table(&locks, &semaphores, &losses, instant::now_ms()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// `true` for a loss of a key under the prefix, by the cause that is wanted; and for a loss
    /// whose unrecorded keys may be under the prefix.
    fn lists(&self, loss: &Loss) -> bool {
        let is_cause = self.cause.as_ref().is_none_or(|cause| *cause == loss.cause);
        let is_below = loss.keys.iter().any(|lost| lost.key.starts_with(&self.prefix));
        let may_be_below = unrecorded(loss) > 0 && self.may_follow(loss);
        is_cause && (is_below || may_be_below || (self.all && self.prefix.is_empty() && loss.key_count == 0))
    }

    /// `true` if a key under the prefix may follow the recorded ones, which are the first in
    /// ascending order.
    fn may_follow(&self, loss: &Loss) -> bool {
        let last = loss.keys.last().map(|last| last.key.as_str());
        last.is_none_or(|last| last < self.prefix.as_str() || last.starts_with(&self.prefix))
    }
}

/// The holders' lists of the semaphores whose contenders are among the locks. A contender locks the
/// key `PREFIX/SESSION` even while it waits; only the list `PREFIX/.lock` distinguishes holders.
#[derive(Debug, Default)]
struct Semaphores(BTreeMap<String, Slots>);

impl Semaphores {
    async fn of(client: &Client, locks: &[Lock], read: &Read) -> Result<Self, CliError> {
        let mut lists = BTreeMap::new();
        for prefix in locks.iter().filter_map(semaphore_of) {
            // All contenders of a semaphore share one list.
            if lists.contains_key(prefix) {
                continue;
            }
            let list = client.kv().get(&format!("{prefix}/.lock"), read).await?.value;
            if let Some(slots) = list.and_then(|list| Slots::from_json(&list.value).ok()) {
                lists.insert(prefix.to_owned(), slots);
            }
        }
        Ok(Self(lists))
    }

    /// `true` if the lock is the key of a contender without a slot.
    fn is_waiter(&self, lock: &Lock) -> bool {
        let slots = semaphore_of(lock).and_then(|prefix| self.0.get(prefix));
        slots.is_some_and(|slots| !slots.holds(&lock.session))
    }
}

/// The prefix of the semaphore, if the lock may be the key of a contender.
fn semaphore_of(lock: &Lock) -> Option<&str> {
    let (prefix, contender) = lock.key.rsplit_once('/')?;
    (!lock.session.is_empty() && contender == lock.session).then_some(prefix)
}

const SLOT: &str = "Slot";

fn lock_table(locks: &[Lock], semaphores: &Semaphores, losses: &[Loss], now_ms: u64) -> Table {
    let heading = ["Key", "Holder", "Node", "Session", SLOT, "Fence", "Since", "DelayLeft", "Waiting"];
    let mut table = Table::new(heading);
    for lock in locks {
        let is_waiter = semaphores.is_waiter(lock);
        let is_held = !lock.session.is_empty();
        table.row([
            lock.key.clone(),
            lock.session_name.clone(),
            lock.node.clone(),
            lock.session.clone(),
            if is_waiter { "waiting".into() } else { String::new() },
            // A free lock still has its last fence, which is not a holder's; a waiter's fence is
            // not a slot's.
            if is_held && !is_waiter { lock.fence.to_string() } else { String::new() },
            instant::utc(lock.granted_at_ms),
            rest_of_delay(lock, losses, now_ms),
            if lock.waiters > 0 { lock.waiters.to_string() } else { String::new() },
        ]);
    }
    table.without_empty(&[SLOT])
}

/// One row for each lock of a request. Whoever waits for a lock that is free for it waits for a
/// lock-delay, or for another lock of its request.
fn wait_table(waits: &[Wait]) -> Table {
    const DEADLOCK: &str = "Deadlock";
    let heading =
        ["Key", "Mode", "Ahead", "Waiter", "Node", "Session", "Position", "Since", "BlockedBy", DEADLOCK];
    let mut table = Table::new(heading);
    let rows = waits.iter().flat_map(|wait| wait.locks.iter().map(move |lock| (wait, lock)));
    for (wait, AwaitedLock { key, mode, ahead, blocked_by }) in rows {
        table.row([
            key.clone(),
            mode.clone(),
            ahead.to_string(),
            wait.session_name.clone(),
            wait.node.clone(),
            wait.session.clone(),
            wait.queue_position.to_string(),
            instant::utc(wait.since_ms),
            blocked_by.join(" "),
            if wait.deadlocked { "yes".into() } else { String::new() },
        ]);
    }
    table.without_empty(&[DEADLOCK])
}

/// The rest of the lock-delay that blocks a lock. Without the loss that began it, only the whole
/// delay is known.
fn rest_of_delay(lock: &Lock, losses: &[Loss], now_ms: u64) -> String {
    // A delay of 16.666666s is 17s for people.
    let whole =
        duration::parse(&lock.lock_delay).map_or(lock.lock_delay.clone(), |delay| match delay.as_secs() {
            0 => duration::format(delay),
            seconds => duration::format(Duration::from_secs(seconds + u64::from(delay.subsec_nanos() > 0))),
        });
    match delay_left(lock, losses, now_ms) {
        _ if lock.lock_delay.is_empty() => String::new(),
        Some((_, left)) => format!("{left}s of {whole}"),
        None => format!("up to {whole}"),
    }
}

fn loss_table(losses: &[Loss], prefix: &str) -> Table {
    let mut table = Table::new(["When", "Holder", "Node", "Session", "Why", "Keys"]);
    for loss in losses {
        table.row([
            instant::utc(loss.at_ms),
            loss.session_name.clone(),
            loss.node.clone(),
            loss.session.clone(),
            loss.in_words(),
            lost_keys(loss, prefix),
        ]);
    }
    table
}

/// The number of lost keys that the servers have counted, but not recorded.
fn unrecorded(loss: &Loss) -> u64 {
    loss.key_count.saturating_sub(loss.keys.len() as u64)
}

/// The first keys under the prefix with their fences, and the number of the others.
fn lost_keys(loss: &Loss, prefix: &str) -> String {
    let shown = |lost: &LostKey| format!("{}#{}", lost.key, lost.fence);
    let below = loss.keys.iter().filter(|lost| lost.key.starts_with(prefix));
    let mut words: Vec<String> = below.take(4).map(shown).collect();
    let more = loss.key_count.saturating_sub(words.len() as u64);
    match unrecorded(loss) {
        0 if more == 0 => {}
        0 => words.push(format!("+{more} more")),
        unrecorded => words.push(format!("+{more} more ({unrecorded} not recorded)")),
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn parse(line: &str) -> Args {
        let line = format!("lockmesh locks --losses {line}");
        let matches = crate::command::command().get_matches_from(line.split_whitespace());
        Args::from_arg_matches(matches.subcommand().expect("locks").1).expect("good")
    }

    #[test]
    fn table_shows_held_and_delayed_locks() {
        let held = Lock {
            key: "job".into(),
            session: "s1".into(),
            session_name: "worker".into(),
            node: "n1".into(),
            fence: 7,
            granted_at_ms: 1_795_250_472_000,
            waiters: 3,
            ..Lock::default()
        };
        let closed = |key: &str| Lock { key: key.into(), lock_delay: "14.666666s".into(), ..Lock::default() };
        let lost = vec![LostKey { key: "old".into(), fence: 6 }];
        let loss = Loss { at_ms: 1_795_250_480_000, keys: lost, key_count: 1, ..Loss::default() };
        let expected = "Key      Holder  Node  Session  Fence  Since                 DelayLeft   Waiting\n\
                        job      worker  n1    s1       7      2026-11-21 08:41:12Z  -           3\n\
                        old      -       -     -        -      -                     10s of 15s  -\n\
                        unknown  -       -     -        -      -                     up to 15s   -";
        let locks = [held, closed("old"), closed("unknown")];
        let table = lock_table(&locks, &Semaphores::default(), &[loss], 1_795_250_484_000);
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn contender_without_slot_shown_waiting() {
        let contender = |session: &str| Lock {
            key: format!("sem/{session}"),
            session: session.into(),
            fence: 7,
            ..Lock::default()
        };
        let list = br#"{"Limit":1,"Holders":{"s1":true}}"#;
        let slots = Slots::from_json(list).expect("a list");
        let semaphores = Semaphores([("sem".to_owned(), slots)].into());
        let shown = lock_table(&[contender("s1"), contender("s2")], &semaphores, &[], 0).render();
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][4..6], ["Slot", "Fence"], "{shown}");
        assert_eq!((&lines[1][4..6], &lines[2][4..6]), (&["-", "7"][..], &["waiting", "-"][..]), "{shown}");
    }

    #[test]
    fn loss_shows_cause_and_keys() {
        let keys = (1..=5).map(|n| LostKey { key: format!("a/{n}"), fence: n }).collect();
        let loss = Loss {
            session: "s1".into(),
            cause: "check-critical".into(),
            check_id: "web".into(),
            check_output: "connection refused".into(),
            keys,
            key_count: 5,
            ..Loss::default()
        };
        let text = loss_table(std::slice::from_ref(&loss), "").render();
        let keys = "a/1#1 a/2#2 a/3#3 a/4#4 +1 more";
        assert!(text.ends_with(&format!("check-critical (web: connection refused)  {keys}")), "{text}");
        let failed = Loss {
            cause: "node-failed".into(),
            health_window: "default".into(),
            confirmed_by: vec!["s1".into(), "s3".into()],
            silent_for: "5.1s".into(),
            ..Loss::default()
        };
        let text = loss_table(std::slice::from_ref(&failed), "").render();
        let why = "node-failed (silent for 5.1s; window default; confirmed by s1, s3)";
        assert!(text.contains(why), "{text}");
        let losses = |line: &str| {
            let args = parse(line);
            [&loss, &Loss { cause: "destroyed".into(), ..Loss::default() }].map(|loss| args.lists(loss))
        };
        assert_eq!(losses(""), [true, false], "a session without a lock has lost none");
        assert_eq!(losses("--all"), [true, true]);
        assert_eq!(losses("a/"), [true, false]);
        assert_eq!(losses("b --all"), [false, false]);
        assert_eq!(losses("--cause check-critical"), [true, false]);
        assert_eq!(losses("--cause ttl-expired"), [false, false]);
    }

    #[test]
    fn truncated_loss_matches_possible_prefixes() {
        let keys: Vec<_> = (10..74).map(|n| LostKey { key: format!("m/{n}"), fence: n }).collect();
        let loss = Loss { session: "s1".into(), keys, key_count: 100, ..Loss::default() };
        let lists = |prefix: &str| parse(prefix).lists(&loss);
        assert!(lists("") && lists("m/") && lists("m/1"));
        assert!(lists("m/73") && lists("m/8") && lists("n/"), "they may be among the others");
        assert!(!lists("a/") && !lists("m/0"), "the others are behind the recorded ones");
        assert_eq!(lost_keys(&loss, "m/7"), "m/70#70 m/71#71 m/72#72 m/73#73 +96 more (36 not recorded)");
        assert_eq!(lost_keys(&loss, "n/"), "+100 more (36 not recorded)");
    }

    #[test]
    fn unknown_cause_error_lists_known_causes() {
        let line = "lockmesh locks --losses --cause node-faild";
        let refused = crate::command::command().try_get_matches_from(line.split(' '));
        let refused = refused.expect_err("there is no such cause");
        let text = refused.to_string();
        assert!(text.contains("ttl-expired, ") && text.contains("tip: "), "{text}");
        assert!(text.contains("'node-failed'"), "it is the most similar: {text}");
        assert_eq!(refused.exit_code(), 2);
    }
}
