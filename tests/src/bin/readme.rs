//! Executes the commands of the documents as a reader does, and compares their output with the
//! documents.
//!
//! Usage: `readme [PAGE…]`; the default is all pages of [`readme::PAGES`]. Needs root: it runs in a
//! sandbox with its own network and an empty `/tmp`, so that the ports and folders of the documents
//! are free. `cargo build --profile quick` runs first, outside, because the sandbox has no network.
//! `cargo run --profile quick` of README.md then uses that build.

use lockmesh_tests::hosts::sandbox;
use lockmesh_tests::readme::{self, Place};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

fn main() -> ExitCode {
    let mut pages: Vec<String> = std::env::args().skip(1).collect();
    let is_inside = pages.first().is_some_and(|word| word == sandbox::INSIDE);
    let done = if is_inside { type_all(&pages.split_off(1)) } else { build_and_enter(&pages) };
    done.unwrap_or_else(|problem| {
        eprintln!("readme: {problem}");
        ExitCode::FAILURE
    })
}

fn build_and_enter(pages: &[String]) -> Result<ExitCode, String> {
    let pages: Vec<OsString> = pages.iter().map(OsString::from).collect();
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--profile", "quick", "--locked"]).current_dir(tree());
    match cargo.status() {
        Ok(status) if status.success() => sandbox::enter(&pages, &[]),
        Ok(status) => Err(format!("`cargo build --profile quick` failed ({status})")),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the tree")
}

fn type_all(pages: &[String]) -> Result<ExitCode, String> {
    let data = sandbox::prepare();
    let tree = tree();
    clear_tmp(tree, &data)?;
    fs::create_dir(readme::HOME).map_err(|error| format!("{}: {error}", readme::HOME))?;
    run("ip", &["link", "set", "lo", "up"])?;
    let pages: Vec<&str> = match pages {
        [] => readme::PAGES.to_vec(),
        pages => pages.iter().map(String::as_str).collect(),
    };
    for page in pages {
        let began = Instant::now();
        let commands = type_page(page, tree).map_err(|problem| format!("{page}:{problem}"))?;
        println!("typed {commands} commands of {page} in {} s", began.elapsed().as_secs());
    }
    Ok(ExitCode::SUCCESS)
}

/// Executes a page: README.md at the top of the tree, any other page in an empty folder.
fn type_page(page: &str, tree: &Path) -> Result<usize, String> {
    let text = fs::read_to_string(tree.join(page)).map_err(|error| format!(" {error}"))?;
    if page == readme::PAGES[0] {
        return readme::type_all(&text, &Place { folder: tree, program: None });
    }
    let folder = tempfile::tempdir().map_err(|error| format!(" cannot make a folder: {error}"))?;
    let program = tree.join("target/quick");
    readme::type_all(&text, &Place { folder: folder.path(), program: Some(&program) })
}

/// Empties `/tmp`, except for the tree if it is located there.
fn clear_tmp(tree: &Path, data: &Path) -> Result<(), String> {
    let kept: PathBuf = data.join("tree");
    let text = |path: &Path| path.display().to_string();
    let lies_in_tmp = tree.starts_with("/tmp");
    if lies_in_tmp {
        fs::create_dir(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        run("mount", &["--bind", &text(tree), &text(&kept)])?;
    }
    run("mount", &["-t", "tmpfs", "lockmesh-readme", "/tmp"])?;
    if lies_in_tmp {
        fs::create_dir_all(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
        run("mount", &["--bind", &text(&kept), &text(tree)])?;
    }
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let done = Command::new(program).args(arguments).output();
    let done = done.map_err(|error| format!("cannot start {program}: {error}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr))),
    }
}
