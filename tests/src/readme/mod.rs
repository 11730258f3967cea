//! Types what the README tells a stranger to type, and holds what is said to what the README shows.
//!
//! The commands stand in `README.md` and nowhere else. [`page`] reads them out of it: each block of
//! a section that a stranger types from start to end has a mark in front that does not show, and
//! one without a mark is refused, so that no command is left out in silence. [`terminal`] is a
//! terminal that they are typed into, [`shown`] compares what came with what is shown: ports, ids
//! and times may differ, and nothing else.

pub mod page;
pub mod shown;
pub mod terminal;

use page::{Action, Block};
use std::collections::BTreeMap;
use std::path::Path;
use terminal::Terminal;

/// The sections that are typed, in their order.
pub const SECTIONS: [&str; 3] =
    ["Five minutes to a first lock", "Kill one and watch", "Kill a host and watch"];

/// Types all of it, with the terminals' first folder as given. Answers how many commands there
/// were.
///
/// # Errors
/// The first line of the README that does not hold, and what was said instead.
pub fn type_all(readme: &str, folder: &Path) -> Result<usize, String> {
    let mut typist = Typist { folder, terminals: BTreeMap::new(), commands: 0 };
    for block in page::blocks(readme, &SECTIONS)? {
        typist.act(&block).map_err(|problem| format!("README.md:{}: {problem}", block.line))?;
    }
    match typist.commands {
        0 => Err("README.md has no command to type".into()),
        commands => Ok(commands),
    }
}

struct Typist<'a> {
    folder: &'a Path,
    terminals: BTreeMap<u32, Terminal>,
    commands: usize,
}

impl Typist<'_> {
    fn act(&mut self, block: &Block) -> Result<(), String> {
        let number = match &block.action {
            Action::Typed { terminal, .. }
            | Action::Said { terminal, .. }
            | Action::Interrupt { terminal } => *terminal,
            Action::Elsewhere => return Ok(()),
        };
        if !self.terminals.contains_key(&number) {
            self.terminals.insert(number, Terminal::open(number, self.folder)?);
        }
        let terminal = self.terminals.get_mut(&number).expect("it is open");
        match &block.action {
            Action::Typed { commands, goes_on, .. } => {
                for (position, command) in commands.iter().enumerate() {
                    self.commands += 1;
                    terminal.type_in(&command.text)?;
                    match *goes_on && position + 1 == commands.len() {
                        true => terminal.says(&command.shown)?,
                        false => terminal.ends(&command.shown)?,
                    }
                }
                Ok(())
            }
            Action::Said { lines, .. } => terminal.says_in_time(lines),
            Action::Interrupt { .. } => terminal.interrupt(),
            Action::Elsewhere => Ok(()),
        }
    }
}
