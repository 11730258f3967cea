//! What the README tells to type, where, and what it shows as the answer.
//!
//! A mark is an HTML comment in front of a block: `<!-- terminal 1 -->`, `<!-- terminal 1, goes on
//! -->` where the last command does not end by itself, `<!-- terminal 2 says -->` in front of what
//! an earlier command says in due time, `<!-- not typed: WHY -->`. `<!-- terminal 1: Ctrl-C -->`
//! stands alone.

/// One thing to do, and the line of the README that says so.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its mark, from 1.
    pub line: usize,
    /// What to do.
    pub action: Action,
}

/// What a block or a mark asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Type commands, one after the other.
    Typed {
        /// Which terminal.
        terminal: u32,
        /// The commands.
        commands: Vec<Command>,
        /// Whether the last one is left running.
        goes_on: bool,
    },
    /// Wait until a command that was left running has said this.
    Said {
        /// Which terminal.
        terminal: u32,
        /// The lines.
        lines: Vec<String>,
    },
    /// Press Ctrl-C.
    Interrupt {
        /// Which terminal.
        terminal: u32,
    },
    /// Nothing: somebody else runs it.
    Elsewhere,
}

/// A command and what the README shows as its answer; nothing where it shows nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// As typed.
    pub text: String,
    /// The lines.
    pub shown: Vec<String>,
}

/// Everything that these sections tell to do, in their order.
///
/// # Errors
/// The line of a block without a mark, of a mark that is none, or the section that is missing.
pub fn blocks(readme: &str, sections: &[&str]) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    for section in sections {
        let before = found.len();
        let heading = format!("## {section}");
        let lines = readme.lines().enumerate().map(|(position, line)| (position + 1, line));
        let mut lines = lines.skip_while(|(_, line)| *line != heading).skip(1);
        let mut mark = None;
        while let Some((number, line)) = lines.next().filter(|(_, line)| !line.starts_with("## ")) {
            if let Some(words) = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")) {
                mark = Some((number, words));
            } else if line.starts_with("```") {
                let body = lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```"));
                let body: Vec<&str> = body.collect();
                let (line, words) = mark.take().ok_or_else(|| {
                    format!("README.md:{number}: no mark says in which terminal this block is typed")
                })?;
                found.push(Block { line, action: action(words, &body).ok_or_else(|| unknown(line, words))? });
            }
            if let Some((line, words)) = mark
                && let Some(terminal) = words.strip_suffix(": Ctrl-C").and_then(terminal)
            {
                mark = None;
                found.push(Block { line, action: Action::Interrupt { terminal } });
            }
        }
        if found.len() == before {
            return Err(format!("README.md has no section `{heading}` with something to type"));
        }
    }
    Ok(found)
}

fn unknown(line: usize, words: &str) -> String {
    format!("README.md:{line}: no such mark: {words:?}; tests/src/readme/page.rs names those that there are")
}

fn action(words: &str, body: &[&str]) -> Option<Action> {
    if words.starts_with("not typed: ") {
        return Some(Action::Elsewhere);
    }
    if let Some(terminal) = words.strip_suffix(" says").and_then(terminal) {
        return Some(Action::Said { terminal, lines: body.iter().map(ToString::to_string).collect() });
    }
    let place = words.strip_suffix(", goes on");
    let (terminal, goes_on) = (terminal(place.unwrap_or(words))?, place.is_some());
    let mut commands: Vec<Command> = Vec::new();
    for line in body {
        match line.strip_prefix("$ ") {
            Some(text) => commands.push(Command { text: text.into(), shown: Vec::new() }),
            None => commands.last_mut()?.shown.push(line.to_string()),
        }
    }
    Some(Action::Typed { terminal, commands, goes_on })
}

fn terminal(words: &str) -> Option<u32> {
    words.strip_prefix("terminal ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_answers_are_read_with_their_marks() {
        let readme = "## Other\n```\n$ no\n```\n## One\ntext\n<!-- terminal 1, goes on -->\n```console\n$ a b\n\
                      says c\n$ d\n```\n<!-- terminal 2 says -->\n```\nlate\n```\n<!-- terminal 1: Ctrl-C -->\n\
                      <!-- not typed: why -->\n```\n$ x\n```\n## Two\n```\n$ y\n```\n";
        let command = |text: &str, shown: &[&str]| Command {
            text: text.into(),
            shown: shown.iter().map(ToString::to_string).collect(),
        };
        let commands = vec![command("a b", &["says c"]), command("d", &[])];
        let expected = [
            Block { line: 7, action: Action::Typed { terminal: 1, commands, goes_on: true } },
            Block { line: 13, action: Action::Said { terminal: 2, lines: vec!["late".into()] } },
            Block { line: 17, action: Action::Interrupt { terminal: 1 } },
            Block { line: 18, action: Action::Elsewhere },
        ];
        assert_eq!(blocks(readme, &["One"]).unwrap(), expected);
        let unmarked = blocks(readme, &["One", "Two"]).unwrap_err();
        assert_eq!(unmarked, "README.md:23: no mark says in which terminal this block is typed");
        assert!(blocks(readme, &["Three"]).unwrap_err().contains("no section `## Three`"));
        let wrong = blocks("## One\n<!-- somewhere -->\n```\n$ a\n```\n", &["One"]).unwrap_err();
        assert!(wrong.starts_with("README.md:2: no such mark: \"somewhere\""), "{wrong}");
    }
}
