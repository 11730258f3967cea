//! Reads the commands of a document, the terminal of each, and the expected output.
//!
//! A mark is an HTML comment, invisible to readers, before a block:
//!
//! | mark | meaning |
//! |---|---|
//! | `<!-- terminal 1 -->` | the block's commands are typed into terminal 1 |
//! | `<!-- terminal 1, keeps running -->` | the same; the last command does not exit |
//! | `<!-- terminal 2 prints -->` | the block is output of an earlier command |
//! | `<!-- not typed: REASON -->` | the block is skipped |
//! | `<!-- terminal 1: Ctrl-C -->` | no block: interrupts the command |
//! | `<!-- before: COMMAND -->` | no block: a command that runs in the background |
//!
//! A `before` command is for example `lockmesh dev`. The page continues when it is `ready` and its
//! servers are healthy. Each `console` block needs a mark. A command that ends with a backslash
//! continues on the next line.

/// Languages of blocks that contain commands, and therefore need a mark.
const COMMANDS: [&str; 4] = ["console", "sh", "bash", "shell"];

/// A step of a document, and its line.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its mark, from 1.
    pub line: usize,
    /// The step.
    pub action: Action,
}

/// A step that a block or a mark describes.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Type commands, in their order.
    Typed {
        /// The terminal's number.
        terminal: u32,
        /// The commands.
        commands: Vec<Command>,
        /// `true` if the last one keeps running.
        keeps_running: bool,
    },
    /// Wait until a running command has printed these lines.
    Said {
        /// The terminal's number.
        terminal: u32,
        /// The lines.
        lines: Vec<String>,
    },
    /// Press Ctrl-C.
    Interrupt {
        /// The terminal's number.
        terminal: u32,
    },
    /// Run a command in the background, from its `ready` on to the end of the document.
    Before {
        /// The command.
        command: String,
    },
    /// Skip the block.
    Elsewhere,
}

/// A command and the output that the document shows; empty if it shows none.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// The command as typed.
    pub text: String,
    /// The lines of output.
    pub shown: Vec<String>,
}

/// Returns all steps of a document in their order.
///
/// # Errors
/// The line of a block of commands without a mark, or of an unknown mark.
pub fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate().map(|(position, line)| (position + 1, line));
    let mut mark = None;
    while let Some((number, line)) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(words) = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")) {
            if let Some((line, words)) = mark.replace((number, words)) {
                return Err(format!("{line}: no block follows the mark {words:?}"));
            }
        } else if let Some(language) = line.strip_prefix("```") {
            let body = lines.by_ref().map(|(_, line)| line.get(indent..).unwrap_or_default());
            let body: Vec<&str> = body.take_while(|line| !line.starts_with("```")).collect();
            match mark.take() {
                Some((line, words)) => {
                    let action = action(words, &body).ok_or_else(|| unknown(line, words))?;
                    found.push(Block { line, action });
                }
                None if COMMANDS.contains(&language) => {
                    return Err(format!("{number}: no mark names the terminal of this block"));
                }
                None => {}
            }
        }
        if let Some((line, words)) = mark
            && let Some(action) = action_alone(words)
        {
            mark = None;
            found.push(Block { line, action });
        }
    }
    match mark {
        Some((line, words)) => Err(unknown(line, words)),
        None => Ok(found),
    }
}

fn unknown(line: usize, words: &str) -> String {
    format!("{line}: unknown mark {words:?}; tests/src/readme/page.rs lists the marks")
}

/// Parses the step of a mark without a block.
fn action_alone(words: &str) -> Option<Action> {
    if let Some(command) = words.strip_prefix("before: ") {
        return Some(Action::Before { command: command.into() });
    }
    let terminal = words.strip_suffix(": Ctrl-C").and_then(terminal)?;
    Some(Action::Interrupt { terminal })
}

fn action(words: &str, body: &[&str]) -> Option<Action> {
    if words.starts_with("not typed: ") {
        return Some(Action::Elsewhere);
    }
    if let Some(terminal) = words.strip_suffix(" prints").and_then(terminal) {
        return Some(Action::Said { terminal, lines: body.iter().map(ToString::to_string).collect() });
    }
    let place = words.strip_suffix(", keeps running");
    let (terminal, keeps_running) = (terminal(place.unwrap_or(words))?, place.is_some());
    let mut commands: Vec<Command> = Vec::new();
    for line in body {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(text), _) => commands.push(Command { text: text.into(), shown: Vec::new() }),
            (None, Some(command)) if command.text.ends_with('\\') => {
                command.text.push('\n');
                command.text.push_str(line);
            }
            (None, command) => command?.shown.push(line.to_string()),
        }
    }
    Some(Action::Typed { terminal, commands, keeps_running })
}

fn terminal(words: &str) -> Option<u32> {
    words.strip_prefix("terminal ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str, shown: &[&str]) -> Command {
        Command { text: text.into(), shown: shown.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn marks_label_commands_and_output() {
        let page = "```toml\nx = 1\n```\n## One\ntext\n<!-- terminal 1, keeps running -->\n```console\n$ a b\n\
                    says c\n$ d\n```\n<!-- terminal 2 prints -->\n```\nlate\n```\n<!-- terminal 1: Ctrl-C -->\n\
                    <!-- not typed: why -->\n```console\n$ x\n```\n<!-- before: e f -->\n";
        let commands = vec![command("a b", &["says c"]), command("d", &[])];
        let expected = [
            Block { line: 6, action: Action::Typed { terminal: 1, commands, keeps_running: true } },
            Block { line: 12, action: Action::Said { terminal: 2, lines: vec!["late".into()] } },
            Block { line: 16, action: Action::Interrupt { terminal: 1 } },
            Block { line: 17, action: Action::Elsewhere },
            Block { line: 21, action: Action::Before { command: "e f".into() } },
        ];
        assert_eq!(blocks(page).unwrap(), expected);
    }

    #[test]
    fn list_indentation_and_line_continuation() {
        let page = "1. Do:\n\n   <!-- terminal 3 -->\n   ```console\n   $ a \\\n     b\n   out\n   ```\n";
        let commands = vec![command("a \\\n  b", &["out"])];
        let expected =
            [Block { line: 3, action: Action::Typed { terminal: 3, commands, keeps_running: false } }];
        assert_eq!(blocks(page).unwrap(), expected);
    }

    #[test]
    fn unmarked_or_unknown_blocks_rejected() {
        for (page, error) in [
            ("text\n```console\n$ y\n```\n", "2: no mark names the terminal of this block"),
            ("```sh\ny\n```\n", "1: no mark names the terminal of this block"),
            ("<!-- somewhere -->\n```\n$ a\n```\n", "1: unknown mark \"somewhere\""),
            ("<!-- terminal 1 -->\n<!-- terminal 2 -->\n", "1: no block follows the mark \"terminal 1\""),
            ("<!-- terminal 1 -->\n", "1: unknown mark \"terminal 1\""),
        ] {
            let found = blocks(page).unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
    }
}
