//! `lockmesh locks`: who holds what, since when, under which fence; and what ended those who held
//! before.

use super::context::{ConsistencyArgs, Context};
use super::error::CliError;
use super::instant;
use super::output::{Table, print_json};
use lockmesh_client::shape::lockmesh::{Lock, Loss, LostKey};
use std::process::ExitCode;

/// Show who holds which lock, or with --losses who lost one and why
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only keys that start with this
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,
    /// Show the sessions that ended without their holder's release, newest first
    #[arg(long)]
    losses: bool,
    /// Print JSON as the agent's API has it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

/// Runs the command.
///
/// # Errors
/// The agent gave no answer, or the reader of the output is gone. Nothing was changed: run it
/// again.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let read = args.consistency.read();
    if args.losses {
        let losses = client.operator().losses(&read).await?.value;
        let losses = of_prefix(losses, &args.prefix);
        match args.json {
            true => print_json(&losses)?,
            false => loss_table(&losses).print()?,
        }
    } else {
        let locks = client.operator().locks(&args.prefix, &read).await?.value;
        match args.json {
            true => print_json(&locks)?,
            false => lock_table(&locks).print()?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn lock_table(locks: &[Lock]) -> Table {
    let mut table = Table::new(["Key", "Holder", "Node", "Session", "Fence", "Since", "Delay", "Waiting"]);
    for lock in locks {
        let is_held = !lock.session.is_empty();
        table.row([
            lock.key.clone(),
            lock.session_name.clone(),
            lock.node.clone(),
            lock.session.clone(),
            // The last fence of a free lock would look like a holder's.
            if is_held { lock.fence.to_string() } else { String::new() },
            instant::utc(lock.granted_at_ms),
            lock.lock_delay.clone(),
            if lock.waiters > 0 { lock.waiters.to_string() } else { String::new() },
        ]);
    }
    table
}

/// Those that lost a key under the prefix. Without one also those that held nothing.
fn of_prefix(losses: Vec<Loss>, prefix: &str) -> Vec<Loss> {
    let concerns = |loss: &Loss| loss.keys.iter().any(|lost| lost.key.starts_with(prefix));
    losses.into_iter().filter(|loss| prefix.is_empty() || concerns(loss)).collect()
}

fn loss_table(losses: &[Loss]) -> Table {
    let mut table = Table::new(["When", "Holder", "Node", "Session", "Why", "Keys"]);
    for loss in losses {
        table.row([
            instant::utc(loss.at_ms),
            loss.session_name.clone(),
            loss.node.clone(),
            loss.session.clone(),
            loss.in_words(),
            lost_keys(loss),
        ]);
    }
    table
}

/// The first keys with their fences, and how many more there were.
fn lost_keys(loss: &Loss) -> String {
    let shown = |lost: &LostKey| format!("{}#{}", lost.key, lost.fence);
    let mut words: Vec<String> = loss.keys.iter().take(4).map(shown).collect();
    let more = loss.key_count.saturating_sub(words.len() as u64);
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_and_a_closed_one_fit_the_table() {
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
        let closed = Lock { key: "old".into(), lock_delay: "15s".into(), ..Lock::default() };
        let expected = "Key  Holder  Node  Session  Fence  Since                 Delay  Waiting\n\
                        job  worker  n1    s1       7      2026-11-21 08:41:12Z  -      3\n\
                        old  -       -     -        -      -                     15s    -";
        assert_eq!(lock_table(&[held, closed]).render(), expected);
    }

    #[test]
    fn a_loss_says_why_and_what() {
        let keys = (1..=5).map(|n| LostKey { key: format!("a/{n}"), fence: n }).collect();
        let loss = Loss {
            session: "s1".into(),
            cause: "check-critical".into(),
            check_id: "web".into(),
            keys,
            key_count: 70,
            ..Loss::default()
        };
        let text = loss_table(std::slice::from_ref(&loss)).render();
        assert!(text.ends_with("check-critical (web)  a/1#1 a/2#2 a/3#3 a/4#4 and 66 more"), "{text}");
        let failed = Loss {
            cause: "node-failed".into(),
            health_window: "default".into(),
            confirmed_by: vec!["s1".into(), "s3".into()],
            silent_for: "5.1s".into(),
            ..Loss::default()
        };
        let text = loss_table(std::slice::from_ref(&failed)).render();
        let why = "node-failed (silent for 5.1s; window default; confirmed by s1, s3)";
        assert!(text.contains(why), "{text}");
        assert_eq!(of_prefix(vec![loss.clone()], "a/").len(), 1);
        assert_eq!(of_prefix(vec![loss.clone()], "b").len(), 0);
        assert_eq!(of_prefix(vec![Loss::default(), loss], "").len(), 2);
    }
}
