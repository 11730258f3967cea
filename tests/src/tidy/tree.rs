//! The hand-written files of the repository.

use super::Source;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Extensions of hand-written files.
const WRITTEN: [&str; 14] =
    ["rs", "toml", "md", "sh", "py", "js", "json", "service", "yml", "yaml", "txt", "script", "conf", "env"];

/// Folders with generated files.
const MADE: [&str; 5] = ["target", "node_modules", "corpus", "__pycache__", "artifacts"];

/// Returns the repository's top folder.
pub fn top() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the tests crate is a folder of the repository").to_owned()
}

/// Returns every hand-written file of the repository, ordered by path.
pub fn sources() -> Vec<Source> {
    let top = top();
    let mut files = Vec::new();
    walk(&top, &mut files);
    files.sort();
    let sources = files.iter().map(|file| {
        let path = relative(&top, file);
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{path} is not text: {error}"));
        Source::new(path, text)
    });
    mark_tests(sources.collect())
}

/// Returns every folder below `folder`, at any depth, in order; paths are from the top.
pub fn folders(folder: &str) -> Vec<String> {
    let top = top();
    let mut found = BTreeSet::new();
    let mut pending = vec![top.join(folder)];
    while let Some(next) = pending.pop() {
        for entry in entries(&next).into_iter().filter(|entry| entry.is_dir()) {
            found.insert(relative(&top, &entry));
            pending.push(entry);
        }
    }
    found.into_iter().collect()
}

/// Returns the names in the repository's top folder.
pub fn top_names() -> Vec<String> {
    let name = |path: PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    entries(&top()).into_iter().filter_map(name).collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in entries(folder) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = entry.extension().unwrap_or_default().to_string_lossy().into_owned();
        if entry.is_dir() {
            if !MADE.contains(&name.as_str()) && name != ".git" {
                walk(&entry, files);
            }
        } else if WRITTEN.contains(&kind.as_str()) || name == "run" {
            files.push(entry);
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let listing = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<PathBuf> = listing.map(|entry| entry.expect("a readable folder").path()).collect();
    found.sort();
    found
}

fn relative(top: &Path, file: &Path) -> String {
    file.strip_prefix(top).expect("a file below the top").to_string_lossy().replace('\\', "/")
}

/// Empties the non-test code of files that a `#[cfg(test)] mod …;` includes.
fn mark_tests(mut sources: Vec<Source>) -> Vec<Source> {
    let homes: Vec<String> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        let tests = |home: &String| {
            source.path == format!("{home}.rs") || source.path.starts_with(&format!("{home}/"))
        };
        if homes.iter().any(tests) {
            source.real_code.clear();
        }
    }
    sources
}

/// Returns the paths, without `.rs`, of the external test modules that a file declares.
fn test_modules(source: &Source) -> Vec<String> {
    let stem = source.path.trim_end_matches(".rs");
    let folder = stem.rsplit_once('/').map_or("", |(folder, _)| folder);
    let home = if ["mod", "lib", "main"].iter().any(|name| stem.ends_with(&format!("/{name}"))) {
        folder
    } else {
        stem
    };
    let declared = source.code.split("#[cfg(test)]").skip(1).filter_map(|after| {
        let item = after[..super::mask::item_length(after)].trim();
        let name = item.strip_suffix(';')?.rsplit_once("mod ")?.1;
        Some(format!("{home}/{name}"))
    });
    declared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_module_file_is_excluded() {
        let parent = Source::new("a/src/b/mod.rs", "//! b\n#[cfg(test)]\nmod stories;\nfn x() {}");
        let child = Source::new("a/src/b/stories.rs", "//! c\nfn y() {}");
        let other = Source::new("a/src/stories.rs", "//! d\nfn z() {}");
        let marked = mark_tests(vec![parent, child, other]);
        let real: Vec<bool> = marked.iter().map(|source| source.real_code.contains("fn")).collect();
        assert_eq!(real, [true, false, true]);
    }

    #[test]
    fn sources_include_required_files() {
        let sources = sources();
        for path in ["Cargo.toml", "protocol/src/wire.rs", "tests/src/tidy/tree.rs"] {
            assert!(sources.iter().any(|source| source.path == path), "{path} was not found");
        }
        assert!(sources.iter().all(|source| !source.path.starts_with("target/")));
    }
}
