//! What the tests' own programs share: numbers in options, reports and exit codes.

use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;

/// Parses a number within bounds.
///
/// # Errors
/// It is no such number.
pub fn between<const LEAST: u64, const MOST: u64, T: TryFrom<u64>>(word: &str) -> Result<T, String> {
    let number = word.parse().ok().filter(|number| (LEAST..=MOST).contains(number));
    let number = number.and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("expected a number from {LEAST} to {MOST}"))
}

/// Returns the value with this name.
///
/// # Errors
/// No value has it.
pub fn named<T: Copy>(
    word: &str,
    values: impl IntoIterator<Item = T>,
    name: impl Fn(T) -> &'static str,
) -> Result<T, String> {
    let values: Vec<T> = values.into_iter().collect();
    let found = values.iter().copied().find(|value| name(*value) == word);
    let names: Vec<&str> = values.into_iter().map(name).collect();
    found.ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

/// Prints a report, as JSON on one line or as text.
pub fn print(report: &(impl Serialize + Display), json: bool) {
    match json {
        true => println!("{}", serde_json::to_string(report).expect("a report is JSON")),
        false => print!("{report}"),
    }
}

/// Returns the exit code: 0 if all expectations held, 1 if not, 2 if nothing could be run.
pub fn exit_code(outcome: Result<bool, String>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
