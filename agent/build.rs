//! Passes the commit of the build to the agent and to the server, and their version with it:
//! `LOCKMESH_COMMIT` of the environment, else the commit that `.git` has checked out.
//!
//! `.git` is read for optimized builds alone. Every commit would otherwise rebuild a development
//! build; its commit is `unknown`, as outside a repository.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// How much of a commit's name is shown.
const SHOWN: usize = 12;

fn main() {
    println!("cargo::rerun-if-env-changed=LOCKMESH_COMMIT");
    let told = env::var("LOCKMESH_COMMIT").ok().filter(|commit| !commit.is_empty());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = told.or_else(|| if is_release { commit_of(&git_folder()) } else { None });
    println!("cargo::rustc-env=LOCKMESH_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let build = commit.map_or(version.clone(), |commit| format!("{version}+{commit}"));
    println!("cargo::rustc-env=LOCKMESH_BUILD={build}");
}

fn git_folder() -> PathBuf {
    Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../.git")
}

/// The commit that is checked out; none where there is no repository.
fn commit_of(git: &Path) -> Option<String> {
    let head = watched(&git.join("HEAD"))?;
    let commit = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_owned(),
        Some(branch) => watched(&git.join(branch)).or_else(|| packed(git, branch))?.trim().to_owned(),
    };
    commit.get(..SHOWN).map(str::to_owned)
}

/// A branch that git has put into its common file. Its next commit has a file of its own.
fn packed(git: &Path, branch: &str) -> Option<String> {
    println!("cargo::rerun-if-changed={}", git.join("refs/heads").display());
    let all = watched(&git.join("packed-refs"))?;
    let mut lines = all.lines().filter_map(|line| line.split_once(' '));
    lines.find_map(|(commit, name)| (name == branch).then(|| commit.to_owned()))
}

/// The text of a file; when it changes, the program is built anew.
fn watched(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}
