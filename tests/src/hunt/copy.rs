//! A copy of the tree in which every rule can be broken.
//!
//! It holds what git tracks or would track, as it is now, so also what is not committed. It must
//! never touch the tree itself. A file is written only where its content changes, so that a later
//! hunt builds little.

use super::SWITCH;
use super::table::{self, FAULT, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the copy, or brings an older one up to date.
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

/// Every file of the tree that git knows or does not ignore, and that is there.
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

/// The files that are other than in the tree, with their texts.
fn breakable(top: &Path, rules: &[Rule]) -> BTreeMap<PathBuf, String> {
    let files: BTreeSet<&str> =
        rules.iter().flat_map(|rule| &rule.edits).map(|edit| edit.file.as_str()).collect();
    let roots: BTreeSet<PathBuf> = files.iter().map(|file| root_of(top, file)).collect();
    let text = |path: &Path| String::from_utf8(read(&top.join(path))).expect("sources are text");
    let mut texts: BTreeMap<PathBuf, String> = BTreeMap::new();
    for file in files {
        let mut edited = text(Path::new(file));
        for (range, rule, edit) in table::edits(top, file, rules).into_iter().rev() {
            edited.replace_range(
                range,
                &edit.put.replace(FAULT, &format!("crate::hunt::breaks({:?})", rule.name)),
            );
        }
        texts.insert(file.into(), edited);
    }
    for root in roots {
        let edited = texts.entry(root.clone()).or_insert_with(|| text(&root));
        edited.push_str(&switch());
    }
    texts
}

/// What a crate's root holds in the copy only.
fn switch() -> String {
    format!(
        "\n/// Whether a rule is broken.\npub mod hunt {{\n    /// Whether it is this one.\n    \
         pub fn breaks(rule: &str) -> bool {{\n        \
         static BROKEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();\n        \
         BROKEN.get_or_init(|| std::env::var({SWITCH:?}).ok()).as_deref() == Some(rule)\n    }}\n}}\n"
    )
}

/// The root of the crate that a source belongs to.
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

/// Removes from the copy what is in the tree no more.
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
