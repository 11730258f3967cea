//! Plays the stories in `src/state/scripts`: text files of commands, each followed by its effects.
//!
//! A line that begins with `> ` is a command; the lines up to the next empty one are the recorded
//! reply, with the indexes that became the command's own in brackets, and the changed rows. After
//! every command the invariants hold, and a state rebuilt from the changes alone equals the
//! original. `UPDATE_SCRIPTS=1` rewrites the recordings; review the difference.

#![expect(
    clippy::disallowed_methods,
    reason = "the core is pure; the player of its stories reads and writes files"
)]

mod names;
mod script;

use script::player::Player;
use std::path::{Path, PathBuf};

#[test]
fn every_script_plays_as_recorded() {
    let rewrite = std::env::var_os("UPDATE_SCRIPTS").is_some();
    let scripts = scripts();
    assert!(scripts.len() >= 15, "only {} scripts were found", scripts.len());
    let mut different = Vec::new();
    for path in scripts {
        let recorded = std::fs::read_to_string(&path).expect("a script can be read");
        let played = play(&path, &recorded);
        if played == recorded {
            continue;
        }
        if rewrite {
            std::fs::write(&path, &played).expect("a script can be written");
        } else {
            different.push(first_difference(&path, &recorded, &played));
        }
    }
    assert!(different.is_empty(), "UPDATE_SCRIPTS=1 rewrites the recordings:\n{}", different.join("\n"));
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/state/scripts");
    let files = std::fs::read_dir(folder).expect("the scripts' folder can be read");
    let paths = files.map(|file| file.expect("the scripts' folder can be read").path());
    let mut scripts: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "txt")).collect();
    scripts.sort();
    scripts
}

/// The script with the current effects of its commands.
fn play(path: &Path, recorded: &str) -> String {
    let mut player = Player::default();
    let mut played: Vec<String> = Vec::new();
    let mut in_recording = false;
    for line in recorded.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            played.push(line.into());
            let outcome = player.play(command);
            let lines = outcome.unwrap_or_else(|error| panic!("{}: `{command}`: {error}", path.display()));
            played.extend(lines);
            in_recording = true;
        } else if line.is_empty() || !in_recording {
            in_recording = false;
            played.push(line.into());
        }
    }
    player.replay();
    played.join("\n") + "\n"
}

fn first_difference(path: &Path, recorded: &str, played: &str) -> String {
    let mut lines = (1..).zip(recorded.lines().zip(played.lines()));
    let (number, (was, is)) = lines
        .find(|(_, (was, is))| was != is)
        .unwrap_or((recorded.lines().count(), ("(the end)", "(more, or less)")));
    format!("{}:{number}\n  recorded: {was}\n  played:   {is}", path.display())
}
