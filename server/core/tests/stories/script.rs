//! Plays the stories that are text: each line holds steps, divided by `;`, and behind `=>` what
//! holds afterwards, divided by `,`.
//!
//! ```text
//! story dead_host_fails
//! host h1 fast                        # a step, and its reason
//! kill h1; run 1s => h1 alive, checks<=1
//! until ended fast after fast since h1 => h1 failed
//! ```
//!
//! Every world knows `run DURATION`, `mark NAME`, and `until CONDITION [after DURATION]
//! [since MARK]`. A single duration is a lower bound, with half a second at most on top;
//! `after A..B` gives both bounds, and `within B` the upper one. A duration is a sum of terms such
//! as `2s`, `20ms`, `1t` (a tick), `fast` (the validity of a window), `fast.outage`,
//! `fast.interval`, `restart`. `for X in WORDS` and `end` repeat the lines between them with each
//! word as `$X`; `h1..h3` stands for three words. `not` negates a condition, and `NAME>=N`
//! compares a number, as does a name that `let NAME = NUMBER` gave to one.

use lockmesh_core::raft::TICK;
use lockmesh_protocol::lease::{HealthWindow, RESTART_WINDOW};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum delay of an event after its lower bound.
const SLACK: Duration = Duration::from_millis(500);

/// The servers, hosts and clients that a story is about.
pub(crate) trait World {
    /// The world at the beginning of a story.
    fn begin() -> Self;

    fn now(&self) -> Time;

    fn run(&mut self, duration: Duration);

    /// Carries out a step; returns `None` if its verb is unknown.
    fn act(&mut self, verb: &str, words: &[&str]) -> Option<()>;

    /// Returns whether a condition holds, and otherwise the facts; `None` if it is unknown.
    fn check(&mut self, words: &[&str]) -> Option<Result<(), String>>;

    /// The number of this name.
    fn number(&mut self, name: &str) -> Option<u64>;

    /// The time of something that the world knows by this name.
    fn time_of(&self, _name: &str) -> Option<Time> {
        None
    }
}

/// Defines the tests of a file of stories.
macro_rules! stories {
    ($world:ty, $file:literal, $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                crate::script::play::<$world>(include_str!($file), stringify!($name));
            }
        )*

        #[test]
        fn story_list_is_complete() {
            crate::script::assert_listed(include_str!($file), &[$(stringify!($name)),*]);
        }
    };
}
pub(crate) use stories;

/// Asserts that the stories of a file are these, in this order.
pub(crate) fn assert_listed(text: &str, names: &[&str]) {
    let written: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("story ")).collect();
    assert_eq!(written, names);
}

/// Plays the story of this name.
pub(crate) fn play<W: World>(text: &str, name: &str) {
    let mut lines = text.lines().skip_while(|line| line.strip_prefix("story ") != Some(name));
    lines.next().expect("the story is in the file");
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with("story ")).collect();
    let mut player = Player { world: W::begin(), marks: BTreeMap::new(), numbers: BTreeMap::new() };
    player.play(&lines, &[]);
}

struct Player<W> {
    world: W,
    marks: BTreeMap<String, Time>,
    numbers: BTreeMap<String, u64>,
}

impl<W: World> Player<W> {
    fn play(&mut self, lines: &[&str], values: &[(&str, String)]) {
        let mut at = 0;
        while at < lines.len() {
            let line = lines[at].split("# ").next().unwrap_or_default().trim();
            at += 1;
            let line = values.iter().fold(line.to_owned(), |line, (name, value)| line.replace(name, value));
            if let Some((name, rest)) = line.strip_prefix("for ").and_then(|rest| rest.split_once(" in ")) {
                let (words, body) = match rest.split_once(": ") {
                    Some((words, body)) => (words, vec![body]),
                    None => {
                        let end = lines[at..].iter().position(|line| line.trim() == "end").expect("an end");
                        let body = lines[at..at + end].to_vec();
                        at += end + 1;
                        (rest, body)
                    }
                };
                for word in expand(&words.split(' ').collect::<Vec<_>>()) {
                    self.play(&body, &[(&format!("${name}"), word)]);
                }
            } else if !line.is_empty() && !line.starts_with('#') {
                self.line(&line);
            }
        }
    }

    fn line(&mut self, line: &str) {
        let (steps, conditions) = line.split_once("=>").unwrap_or((line, ""));
        for step in steps.split(';').map(str::trim).filter(|step| !step.is_empty()) {
            self.step(line, step);
        }
        for condition in conditions.split(", ").map(str::trim).filter(|words| !words.is_empty()) {
            self.check(condition).unwrap_or_else(|facts| panic!("`{line}`: not `{condition}`: {facts}"));
        }
    }

    fn step(&mut self, line: &str, step: &str) {
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        match verb {
            "run" => self.world.run(duration(rest)),
            "mark" => drop(self.marks.insert(rest.into(), self.world.now())),
            "until" => self.until(line, rest),
            "let" => {
                let (name, number) = rest.split_once(" = ").expect("let NAME = NUMBER");
                let number = self.world.number(number).unwrap_or_else(|| panic!("unknown number {number}"));
                self.numbers.insert(name.into(), number);
            }
            _ => {
                let words = expand(&rest.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>());
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.world.act(verb, &words).unwrap_or_else(|| panic!("unknown step `{step}`"));
            }
        }
    }

    fn until(&mut self, line: &str, text: &str) {
        let (text, since) =
            text.rsplit_once(" since ").map_or((text, None), |(text, name)| (text, Some(name)));
        let (condition, (least, most)) = match (text.rsplit_once(" after "), text.rsplit_once(" within ")) {
            (Some((condition, bounds)), _) => (condition, bounds_of(bounds)),
            (None, Some((condition, most))) => (condition, (Duration::ZERO, duration(most))),
            (None, None) => (text, (Duration::ZERO, Duration::from_secs(60))),
        };
        let began = self.world.now();
        let mut outcome = self.check(condition);
        while outcome.is_err() && self.world.now().since(began) < most {
            self.world.run(TICK);
            outcome = self.check(condition);
        }
        outcome.unwrap_or_else(|facts| panic!("`{line}`: never: {facts}"));
        let since = since.map_or(began, |name| {
            let marked = self.marks.get(name).copied();
            marked.or_else(|| self.world.time_of(name)).unwrap_or_else(|| panic!("no time {name}"))
        });
        let took = self.world.now().since(since);
        assert!((least..=most).contains(&took), "`{line}`: after {took:?}, not {least:?} to {most:?}");
    }

    fn check(&mut self, condition: &str) -> Result<(), String> {
        if let Some(rest) = condition.strip_prefix("not ") {
            return match self.check(rest) {
                Ok(()) => Err("it holds".into()),
                Err(_) => Ok(()),
            };
        }
        let words: Vec<&str> = condition.split(' ').collect();
        if let [word] = words[..]
            && let Some(at) = word.find(['<', '>', '='])
        {
            let (name, comparison) = word.split_at(at);
            let is = self.world.number(name).unwrap_or_else(|| panic!("unknown number {name}"));
            return self.compares(is, comparison).then_some(()).ok_or_else(|| is.to_string());
        }
        let words = expand(&words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.world.check(&words).unwrap_or_else(|| panic!("unknown condition `{condition}`"))
    }

    fn compares(&self, is: u64, comparison: &str) -> bool {
        let operator = comparison.trim_end_matches(|letter: char| !"<>=".contains(letter));
        let terms = comparison[operator.len()..].split('+');
        let number = terms.map(|term| term.parse().unwrap_or_else(|_| self.numbers[term])).sum::<u64>();
        match operator {
            "=" => is == number,
            ">" => is > number,
            ">=" => is >= number,
            "<=" => is <= number,
            _ => panic!("unknown operator {operator}"),
        }
    }
}

fn bounds_of(text: &str) -> (Duration, Duration) {
    match text.split_once("..") {
        Some((least, most)) => (duration(least), duration(most)),
        None => (duration(text), duration(text) + SLACK),
    }
}

/// Parses a sum of durations.
pub(crate) fn duration(text: &str) -> Duration {
    let (mut sum, mut adds) = (Duration::ZERO, true);
    for part in text.split_inclusive(['+', '-']) {
        let next = term(part.trim_end_matches(['+', '-']));
        sum = if adds { sum + next } else { sum - next };
        adds = part.ends_with('+');
    }
    sum
}

fn term(text: &str) -> Duration {
    let (name, kind) = text.split_once('.').unwrap_or((text, ""));
    if let Some(window) = HealthWindow::parse(name) {
        return match kind {
            "" => window.validity(),
            "outage" => window.duration(),
            "interval" => window.renewal_interval(),
            _ => panic!("unknown duration {text}"),
        };
    }
    let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap_or(text.len()));
    let number = number.parse().unwrap_or_default();
    match unit {
        "s" => Duration::from_secs(number),
        "ms" => Duration::from_millis(number),
        "us" => Duration::from_micros(number),
        "t" => TICK * u32::try_from(number).expect("few ticks"),
        "restart" => RESTART_WINDOW,
        "max" => Duration::MAX,
        _ => panic!("unknown duration {text}"),
    }
}

/// Replaces each range, such as `h1..h3`, by its words.
fn expand(words: &[&str]) -> Vec<String> {
    let range = |word: &str| {
        let (first, last) = word.split_once("..")?;
        let stem = first.trim_end_matches(char::is_numeric);
        let (first, last): (u32, u32) =
            (first[stem.len()..].parse().ok()?, last.strip_prefix(stem)?.parse().ok()?);
        Some((first..=last).map(|number| format!("{stem}{number}")).collect())
    };
    words.iter().flat_map(|word| range(word).unwrap_or_else(|| vec![(*word).to_owned()])).collect()
}

/// The outcome of a condition, with the facts.
pub(crate) fn holds(is_so: bool, facts: String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(facts) }
}

/// Returns whether a text begins with another one, of which each `...` omits some text.
pub(crate) fn begins_with(text: &str, expected: &str) -> bool {
    let mut parts = expected.split("...").map(str::trim);
    let rest = text.strip_prefix(parts.next().unwrap_or_default());
    let rest = parts.try_fold(rest, |rest, part| Some(rest?.split_once(part).map(|(_, rest)| rest)));
    rest.flatten().is_some()
}
