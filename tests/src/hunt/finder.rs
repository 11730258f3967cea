//! A finder: tests of one package, or seeds of the simulator. It fails if a rule is broken, and
//! only then.
//!
//! It is written as `FOLDER TARGET [FILTER…]`, for example `server lib store::tests::power` or
//! `server/core stories members`, or as `sim A..B [--break NAME]`.

use super::SWITCH;
use super::build::Built;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time after which a finder is stopped. A finder that waits for an event that never comes has
/// failed.
const FINDER_TIMEOUT: Duration = Duration::from_secs(300);

/// The interval between polls of a finder's process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A test or simulation that must fail once a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finder {
    /// The finder as written in the table.
    pub words: String,
    /// The folder of its package.
    pub package: String,
    /// `lib`, a test's file, or a program.
    pub target: String,
    /// The program's arguments.
    pub arguments: Vec<String>,
}

/// The result of a finder.
#[derive(Clone, Debug)]
pub struct Said {
    /// `true` if it succeeded.
    pub passed: bool,
    /// The first of its tests that failed, or its last line of output.
    pub what: String,
    /// The number of its tests that passed; seeds of the simulator count as one.
    pub tests: usize,
    /// The duration.
    pub took: Duration,
}

impl Finder {
    /// Parses a finder.
    pub fn new(words: &str) -> Self {
        let mut parts = words.split_whitespace().map(str::to_owned);
        let package = parts.next().unwrap_or_default();
        let (package, target, arguments) = match package.as_str() {
            "sim" => ("tests".into(), "sim".into(), std::iter::once("--seeds".into()).chain(parts).collect()),
            _ => (package, parts.next().unwrap_or_default(), parts.collect()),
        };
        Self { words: words.to_owned(), package, target, arguments }
    }

    /// Returns the finder without its fault point.
    #[must_use]
    pub fn without_fault(&self) -> Self {
        Self::new(self.words.split(" --break").next().unwrap_or_default())
    }

    /// Returns the test's file, if it is one.
    pub fn test(&self) -> Option<&str> {
        (!self.is_sim() && self.target != "lib").then_some(&self.target)
    }

    /// Returns `true` if it starts the real program.
    pub fn runs_the_program(&self) -> bool {
        self.package == "tests" && self.test() == Some("program")
    }

    fn is_sim(&self) -> bool {
        self.package == "tests" && self.target == "sim" && self.words.starts_with("sim ")
    }

    /// Returns the reason if the tree contains no such finder. Only the names in the sources are
    /// checked.
    pub fn fault(&self, top: &Path) -> Option<String> {
        let folder = top.join(&self.package);
        let sources = match (self.is_sim(), self.test()) {
            (true, _) => return None,
            (_, None) => vec![folder.join("src")],
            (_, Some(test)) => vec![folder.join(format!("tests/{test}.rs")), folder.join("tests").join(test)],
        };
        let text: String = sources.iter().map(|source| text_of(source)).collect();
        if text.is_empty() {
            return Some(format!("{}: there is no such test", self.words));
        }
        let mut names = self
            .arguments
            .iter()
            .filter_map(|filter| filter.split("::").filter(|name| !name.is_empty()).last());
        let missing = names.find(|name| !text.contains(*name))?;
        Some(format!("{}: nothing there is called {missing}", self.words))
    }

    /// Runs the finder with this rule broken, or with none.
    pub fn run(&self, built: &Built, copy: &Path, broken: Option<&str>) -> Said {
        let mut output = tempfile::tempfile().expect("a temporary file");
        let share = || Stdio::from(output.try_clone().expect("a file can be shared"));
        let mut program = Command::new(built.program(self));
        program.args(&self.arguments).current_dir(copy.join(&self.package));
        program.env("LOCKMESH_BIN", built.lockmesh()).env("RUST_BACKTRACE", "0").env_remove(SWITCH);
        broken.map(|rule| program.env(SWITCH, rule));
        let began = Instant::now();
        let mut child =
            program.stdin(Stdio::null()).stdout(share()).stderr(share()).spawn().expect("it was built");
        let look = |child: &mut Child| child.try_wait().expect("a child can be waited for");
        let mut ended = look(&mut child);
        while ended.is_none() && began.elapsed() < FINDER_TIMEOUT {
            std::thread::sleep(POLL_INTERVAL);
            ended = look(&mut child);
        }
        if ended.is_none() {
            // The process may just have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        let mut said = Vec::new();
        output.rewind().and_then(|()| output.read_to_end(&mut said)).expect("it was written just now");
        let said = String::from_utf8_lossy(&said);
        let passed = ended.is_some_and(|status| status.success());
        let what = if ended.is_none() { "it hung".to_owned() } else { gist(&said) };
        Said { passed, what, tests: self.tests(&said), took: began.elapsed() }
    }

    fn tests(&self, said: &str) -> usize {
        let result = said.lines().find_map(|line| line.strip_prefix("test result: "));
        let count = result.and_then(|line| line.split(". ").nth(1)?.split(' ').next()?.parse().ok());
        if self.is_sim() { 1 } else { count.unwrap_or(0) }
    }
}

/// Returns the first failed test, the simulator's finding, or the last line.
fn gist(said: &str) -> String {
    let failed = said.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let seen = said.lines().find(|line| line.starts_with("seed ") && line.contains("is broken"));
    let panicked = said.lines().find(|line| line.contains("panicked at"));
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    failed.or(seen).or(panicked).or(last).unwrap_or_default().chars().take(110).collect()
}

/// Returns all Rust code below a folder or in a file; empty if there is none.
fn text_of(path: &Path) -> String {
    if path.is_file() {
        return std::fs::read_to_string(path).unwrap_or_default();
    }
    let Ok(entries) = std::fs::read_dir(path) else { return String::new() };
    let inner = entries.filter_map(Result::ok).map(|entry| entry.path());
    let wanted = inner.filter(|path| path.is_dir() || path.extension().is_some_and(|kind| kind == "rs"));
    // A module's name is its file's.
    wanted.map(|path| format!("{}\n{}", path.display(), text_of(&path))).collect()
}
