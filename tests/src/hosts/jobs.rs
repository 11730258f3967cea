//! A run distributed over several concurrent sandboxes: hosts mostly wait, and networks of
//! different sandboxes are isolated.

use super::sandbox;
use std::ffi::OsString;
use std::process::{ExitCode, Output, Stdio};
use std::thread;
use std::time::Duration;

/// A part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The option that selects the part.
    pub option: &'static str,
    /// The option's value, which starts all lines about this part.
    pub value: String,
    /// The approximate duration.
    pub length: Duration,
}

/// Distributes parts over `jobs` jobs, the longest first, so that all take about the same time.
fn share(mut parts: Vec<Part>, jobs: usize) -> Vec<Vec<Part>> {
    parts.sort_by_key(|part| std::cmp::Reverse(part.length));
    let mut shares = vec![(Duration::ZERO, Vec::new()); jobs.clamp(1, parts.len().max(1))];
    for part in parts {
        let least = shares.iter_mut().min_by_key(|(length, _)| *length).expect("there is at least one job");
        least.0 += part.length;
        least.1.push(part);
    }
    shares.into_iter().map(|(_, parts)| parts).collect()
}

/// Runs all parts with these additional arguments, in `jobs` concurrent sandboxes, and prints one
/// table.
///
/// # Errors
/// No sandbox could be created. Nothing was run.
pub fn run(
    parts: Vec<Part>,
    jobs: usize,
    arguments: &[OsString],
    environment: &[(&str, OsString)],
) -> Result<ExitCode, String> {
    let order: Vec<String> = parts.iter().map(|part| part.value.clone()).collect();
    let commands = share(parts, jobs).into_iter().map(|parts| {
        let chosen = parts.into_iter().flat_map(|part| [part.option.into(), part.value.into()]);
        let arguments: Vec<OsString> = arguments.iter().cloned().chain(chosen).collect();
        sandbox::command(&arguments, environment)
    });
    let mut running = Vec::new();
    for mut command in commands.collect::<Result<Vec<_>, _>>()? {
        let sandbox = command.stdout(Stdio::piped()).spawn();
        let sandbox = sandbox.map_err(|error| format!("cannot start setpriv: {error}"))?;
        running.push(thread::spawn(move || sandbox.wait_with_output()));
    }
    let ended = running.into_iter().map(|sandbox| sandbox.join().expect("waiting does not panic"));
    let ended: Vec<Output> =
        ended.collect::<Result<_, _>>().map_err(|error| format!("cannot wait for a sandbox: {error}"))?;
    let printed: Vec<String> =
        ended.iter().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).collect();
    merge(&printed, &order).iter().for_each(|line| println!("{line}"));
    let failed: Vec<&Output> = ended.iter().filter(|output| !output.status.success()).collect();
    failed.iter().for_each(|output| eprintln!("a sandbox ended with {}", output.status));
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the arguments common to all sandboxes of a run: all except those that select parts.
pub fn shared(arguments: &[OsString]) -> Vec<OsString> {
    let mut arguments = arguments.iter();
    let mut shared = Vec::new();
    while let Some(argument) = arguments.next() {
        if ["--jobs", "--fault", "--length"].iter().any(|option| argument == option) {
            arguments.next();
        } else {
            shared.push(argument.clone());
        }
    }
    shared
}

/// Merges several tables: the common header line, the rows in this order, and the broken
/// expectations last.
fn merge(printed: &[String], order: &[String]) -> Vec<String> {
    let first = printed.iter().find_map(|text| text.lines().next());
    let rest = || printed.iter().flat_map(|text| text.lines().skip(1));
    let is_broken = |line: &&str| line.starts_with("BROKEN");
    let mut rows: Vec<&str> = rest().filter(|line| !is_broken(line)).collect();
    let place = |line: &&str| {
        let name = line.split_whitespace().next().unwrap_or_default();
        order.iter().position(|value| value == name).unwrap_or(order.len())
    };
    rows.sort_by_key(place);
    first.into_iter().chain(rows).chain(rest().filter(is_broken)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(value: &str, seconds: u64) -> Part {
        Part { option: "--fault", value: value.into(), length: Duration::from_secs(seconds) }
    }

    #[test]
    fn shares_are_disjoint_and_balanced() {
        let parts: Vec<Part> = (1..=20).map(|seconds| part(&seconds.to_string(), seconds)).collect();
        let shares = share(parts.clone(), 4);
        let lengths = shares.iter().map(|share| share.iter().map(|part| part.length.as_secs()).sum::<u64>());
        let lengths: Vec<u64> = lengths.collect();
        assert_eq!(lengths.iter().sum::<u64>(), 210);
        assert!(lengths.iter().all(|length| (50..=55).contains(length)), "{lengths:?}");
        let mut all: Vec<Part> = shares.into_iter().flatten().collect();
        all.sort_by_key(|part| part.length);
        assert_eq!(all, parts);
        assert_eq!(share(vec![part("a", 1)], 4), [[part("a", 1)]], "no share is empty");
    }

    #[test]
    fn tables_become_one() {
        let printed = ["what seconds\nb 2\nBROKEN: b\n", "what seconds\na 1\n", ""].map(str::to_owned);
        let order = ["a", "b"].map(str::to_owned);
        assert_eq!(merge(&printed, &order), ["what seconds", "a 1", "b 2", "BROKEN: b"]);
    }
}
