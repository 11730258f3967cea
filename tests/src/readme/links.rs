//! Checks references in documents: links between them, and log lines that they quote.

use std::path::{Component, Path, PathBuf};

/// Returns the broken links of a document: to a missing file, or to a missing heading. `path` is
/// the document's, from the top of the tree.
pub fn broken(tree: &Path, path: &str, text: &str) -> Vec<String> {
    let is_broken = |target: &&str| {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let found = match file {
            "" => PathBuf::from(path),
            file => joined(Path::new(path).parent().unwrap_or(Path::new("")), file),
        };
        let found = tree.join(found);
        let heading = || {
            let text = std::fs::read_to_string(&found).unwrap_or_default();
            prose(&text).any(|line| line.starts_with('#') && slug(line) == anchor)
        };
        !found.exists() || !(anchor.is_empty() || heading())
    };
    let text: Vec<&str> = prose(text).collect();
    let text = text.join("\n");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let local = targets.filter(|target| !target.starts_with("http"));
    local.filter(is_broken).map(|target| format!("{path}: {target}")).collect()
}

/// Returns the lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the path of `file` relative to a folder, without `..`.
fn joined(folder: &Path, file: &str) -> PathBuf {
    let mut path = folder.to_path_buf();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path
}

/// Returns the anchor of a heading, as GitHub generates it.
fn slug(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the quotations in the first column of a page's tables that no source contains. An
/// ellipsis matches any text.
pub fn unquoted(page: &str, sources: &[String]) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let quoted = rows.filter_map(|row| row.split('`').nth(1));
    let is_known = |piece: &str| sources.iter().any(|source| source.contains(piece));
    quoted.filter(|line| !line.split('…').map(str::trim).all(is_known)).map(str::to_owned).collect()
}

/// Returns a source with its continued string literals joined, so that each sentence is in one
/// piece.
pub fn joined_literals(source: &str) -> String {
    let mut pieces = source.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree;

    fn top() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the tree")
    }

    #[test]
    fn links_between_documents_lead_somewhere() {
        let others = ["deploy/metrics.md", "deploy/glossary.md", "deploy/operations/troubleshoot.md"];
        for page in super::super::PAGES.into_iter().chain(others) {
            let text = std::fs::read_to_string(top().join(page)).expect(page);
            assert_eq!(broken(top(), page, &text), Vec::<String>::new());
        }
        let text = "[a](README.md) [b](gone.md) [c](#no-such) `[d]`\n```\n[e](gone-too.md)\n```\n";
        assert_eq!(broken(top(), "README.md", text), ["README.md: gone.md", "README.md: #no-such"]);
    }

    #[test]
    fn quoted_log_lines_exist_in_sources() {
        let page = std::fs::read_to_string(top().join("deploy/operations/troubleshoot.md")).expect("a page");
        let code = tree::sources().into_iter().filter(|source| source.path.ends_with(".rs"));
        let code: Vec<String> = code.map(|source| joined_literals(&source.text)).collect();
        assert_eq!(unquoted(&page, &code), Vec::<String>::new());
        let sources = [joined_literals("\"waiting for {} \\\n     servers\"")];
        assert_eq!(unquoted("| `waiting for … servers` | x |\n| `gone` | y |", &sources), ["gone"]);
    }
}
