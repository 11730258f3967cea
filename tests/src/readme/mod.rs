//! Executes the commands of the documents, and compares the output with the documents.
//!
//! The commands are in the documents only. [`page`] reads them: each block of commands has an
//! invisible mark. A block without one is an error, so no command is skipped silently. [`terminal`]
//! is a terminal that executes them. [`shown`] compares the output: ports, ids and times may
//! differ, and nothing else. [`links`] checks links and quoted log lines.

pub mod links;
pub mod page;
pub mod shown;
pub mod terminal;

use page::{Action, Block};
use std::collections::BTreeMap;
use std::path::Path;
pub use terminal::HOME;
use terminal::Terminal;

/// The terminal of commands that a document needs before its own.
const BEFORE: u32 = 0;

/// The terminal that waits for the cluster of those commands.
const WAITING: u32 = u32::MAX;

/// A command that ends when all servers are healthy; a new cluster may not be healthy yet.
const UNTIL_HEALTHY: &str = "until lockmesh operator autopilot health; do sleep 0.2; done > /dev/null 2>&1";

/// The documents with commands to execute, from the top of the tree, in order of execution. The
/// first one builds the program, as a newcomer does.
pub const PAGES: [&str; 21] = [
    "README.md",
    "agent/README.md",
    "server/README.md",
    "protocol/README.md",
    "tests/README.md",
    "tests/bench/README.md",
    "tests/fuzz/README.md",
    "deploy/README.md",
    "deploy/operations/install.md",
    "deploy/operations/certificates.md",
    "deploy/operations/bootstrap.md",
    "deploy/operations/check-services.md",
    "deploy/operations/monitor.md",
    "deploy/operations/upgrade.md",
    "deploy/operations/back-up-and-restore.md",
    "deploy/operations/replace-a-server.md",
    "deploy/operations/recover-from-quorum-loss.md",
    "deploy/operations/take-a-host-out.md",
    "deploy/operations/secure.md",
    "deploy/operations/size.md",
    "deploy/operations/move-from-consul.md",
];

/// The environment of a document's commands.
pub struct Place<'a> {
    /// The initial folder of each terminal.
    pub folder: &'a Path,
    /// The folder of the program, prepended to `PATH`; `None` if the document builds it and names
    /// it.
    pub program: Option<&'a Path>,
}

/// Executes all commands of a document. Returns their number.
///
/// # Errors
/// The line of the first step that fails, and the output.
pub fn type_all(text: &str, place: &Place<'_>) -> Result<usize, String> {
    let mut typist = Typist { place, terminals: BTreeMap::new(), commands: 0 };
    for block in page::blocks(text)? {
        typist.act(&block).map_err(|problem| format!("{}: {problem}", block.line))?;
    }
    if let Some(mut before) = typist.terminals.remove(&BEFORE) {
        before.interrupt()?;
    }
    Ok(typist.commands)
}

struct Typist<'a> {
    place: &'a Place<'a>,
    terminals: BTreeMap<u32, Terminal>,
    commands: usize,
}

impl Typist<'_> {
    fn act(&mut self, block: &Block) -> Result<(), String> {
        let number = match &block.action {
            Action::Typed { terminal, .. }
            | Action::Said { terminal, .. }
            | Action::Interrupt { terminal } => *terminal,
            Action::Before { .. } => BEFORE,
            Action::Elsewhere => return Ok(()),
        };
        if !self.terminals.contains_key(&number) {
            self.terminals.insert(number, Terminal::open(number, self.place.folder, self.place.program)?);
        }
        let terminal = self.terminals.get_mut(&number).expect("it is open");
        match &block.action {
            Action::Typed { commands, keeps_running, .. } => {
                for (position, command) in commands.iter().enumerate() {
                    self.commands += 1;
                    terminal.type_in(&command.text)?;
                    match *keeps_running && position + 1 == commands.len() {
                        true => terminal.says(&command.shown)?,
                        false => terminal.ends(&command.shown)?,
                    }
                }
                Ok(())
            }
            Action::Said { lines, .. } => terminal.says_in_time(lines),
            Action::Interrupt { .. } => terminal.interrupt(),
            Action::Before { command } => {
                terminal.type_in(command)?;
                terminal.is_ready()?;
                let mut waiting = Terminal::open(WAITING, self.place.folder, self.place.program)?;
                waiting.type_in(UNTIL_HEALTHY)?;
                waiting.ends(&[])
            }
            Action::Elsewhere => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the tree")
    }

    #[test]
    fn documents_parse_and_runbooks_are_listed() {
        for name in PAGES {
            let text = std::fs::read_to_string(tree().join(name)).expect(name);
            page::blocks(&text).unwrap_or_else(|problem| panic!("{name}:{problem}"));
        }
        for file in std::fs::read_dir(tree().join("deploy/operations")).expect("the runbooks") {
            let path = file.expect("a runbook").path();
            let text = std::fs::read_to_string(&path).expect("a text");
            let name = path.strip_prefix(tree()).expect("in the tree").display().to_string();
            let has_commands = text.contains("```console");
            assert_eq!(
                has_commands,
                PAGES.contains(&name.as_str()),
                "{name}: PAGES lists pages with commands"
            );
        }
    }
}
