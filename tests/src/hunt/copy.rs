//! A copy of the tree in which every rule can be broken.
//!
//! It contains the files that git tracks or would track in their current state, including
//! uncommitted changes. The tree itself is never modified. A file is written only if its content
//! changes, so that a later hunt rebuilds little.

use super::SWITCH;
use super::table::{self, FAULT, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Creates the copy, or updates an existing one.
pub fn make(top: &Path, copy: &Path, rules: &[Rule]) {
    let files = tracked(top);
    let broken = breakable(top, rules);
    for file in &files {
        let content = match broken.get(file) {
            Some(text) => text.clone().into_bytes(),
            None => read(&top.join(file)),
        };
        write(&copy.join(file), &content);
        let permissions = fs::metadata(top.join(file)).expect("it was just read").permissions();
        fs::set_permissions(copy.join(file), permissions).expect("the copy is ours");
    }
    remove_others(copy, copy, &files);
}

/// Returns every existing file of the tree that git tracks or does not ignore.
fn tracked(top: &Path) -> BTreeSet<PathBuf> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(top);
    let output = git.output().expect("git can be started");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("paths of this tree are text");
    names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .filter(|file| top.join(file).is_file())
        .collect()
}

/// Returns the files that differ from the tree, with their texts.
fn breakable(top: &Path, rules: &[Rule]) -> BTreeMap<PathBuf, String> {
    let files: BTreeSet<&str> =
        rules.iter().flat_map(|rule| &rule.edits).map(|edit| edit.file.as_str()).collect();
    let roots: BTreeSet<PathBuf> = files.iter().map(|file| root_of(top, file)).collect();
    let text = |path: &Path| String::from_utf8(read(&top.join(path))).expect("sources are text");
    let mut texts: BTreeMap<PathBuf, String> = BTreeMap::new();
    for file in files {
        let mut edited = text(Path::new(file));
        for (range, rule, edit) in table::edits(top, file, rules).into_iter().rev() {
            edited.replace_range(range, &with_condition(&edit.put, &rule.name));
        }
        texts.insert(file.into(), edited);
    }
    for root in roots {
        let edited = texts.entry(root.clone()).or_insert_with(|| text(&root));
        edited.push_str(&switch());
    }
    texts
}

/// Replaces the word [`FAULT`] by a condition that is `true` if the rule is broken. Names that
/// contain those letters, such as `DEFAULT_TTL`, stay as they are.
fn with_condition(put: &str, rule: &str) -> String {
    let is_in_name = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (mut text, mut rest) = (String::new(), put);
    while let Some((before, after)) = rest.split_once(FAULT) {
        text.push_str(before);
        match is_in_name(text.chars().next_back()) || is_in_name(after.chars().next()) {
            true => text.push_str(FAULT),
            false => text.push_str(&format!("crate::hunt::breaks({rule:?})")),
        }
        rest = after;
    }
    text + rest
}

/// Returns the code that a crate's root contains in the copy only.
fn switch() -> String {
    format!(
        "\n/// The broken rule.\npub mod hunt {{\n    /// Returns `true` if it is this one.\n    \
         pub fn breaks(rule: &str) -> bool {{\n        \
         static BROKEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();\n        \
         BROKEN.get_or_init(|| std::env::var({SWITCH:?}).ok()).as_deref() == Some(rule)\n    }}\n}}\n"
    )
}

/// Returns the root of the crate to which a source belongs.
fn root_of(top: &Path, file: &str) -> PathBuf {
    let mut folders = Path::new(file).ancestors().skip(1);
    let krate = folders.find(|folder| top.join(folder).join("Cargo.toml").is_file());
    krate.expect("every source belongs to a crate").join("src/lib.rs")
}

fn read(file: &Path) -> Vec<u8> {
    fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn write(file: &Path, content: &[u8]) {
    if fs::read(file).is_ok_and(|there| there == content) {
        return;
    }
    let folder = file.parent().expect("a file lies in a folder");
    fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    fs::write(file, content).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Removes files from the copy that the tree no longer contains.
fn remove_others(copy: &Path, folder: &Path, files: &BTreeSet<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries.map(|entry| entry.expect("a readable folder").path()) {
        let name = entry.strip_prefix(copy).expect("it lies in the copy");
        if entry.is_dir() {
            remove_others(copy, &entry, files);
        } else if !files.contains(name) {
            fs::remove_file(&entry).unwrap_or_else(|error| panic!("{}: {error}", entry.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::with_condition;

    #[test]
    fn condition_replaces_whole_words_only() {
        let put = "if FAULT { DEFAULT_TTL } else { a(!FAULT) }";
        let condition = "crate::hunt::breaks(\"Rule\")";
        let expected = format!("if {condition} {{ DEFAULT_TTL }} else {{ a(!{condition}) }}");
        assert_eq!(with_condition(put, "Rule"), expected);
    }
}
