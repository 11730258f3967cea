//! Types the README's five minutes as a stranger does, and holds what is said to what it shows.
//!
//! Needs root: it runs in a sandbox with a network and an empty `/tmp` of its own, so that the
//! README's ports and folders are free whatever else runs here. `cargo build --release` comes
//! first, outside, for in the sandbox nothing can be fetched.
//!
//! The README's `cargo run --release` is cargo's own and runs what it built here. Only how much
//! that is optimised is turned down, which saves two minutes: what is typed and said is the same.

use lockmesh_tests::hosts::sandbox;
use lockmesh_tests::readme;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// How little is optimised, for the build and for the terminals.
const PROFILE: [(&str, &str); 3] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
];

fn main() -> ExitCode {
    let is_inside = std::env::args().nth(1).is_some_and(|word| word == sandbox::INSIDE);
    let done = if is_inside { type_all() } else { build_and_enter() };
    done.unwrap_or_else(|problem| {
        eprintln!("readme: {problem}");
        ExitCode::FAILURE
    })
}

fn build_and_enter() -> Result<ExitCode, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--locked"]).envs(PROFILE).current_dir(tree());
    match cargo.status() {
        Ok(status) if status.success() => {
            sandbox::enter(&[], &PROFILE.map(|(name, value)| (name, OsString::from(value))))
        }
        Ok(status) => Err(format!("`cargo build --release` failed ({status})")),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the tree")
}

fn type_all() -> Result<ExitCode, String> {
    let data = sandbox::prepare();
    let tree = tree();
    clear_tmp(tree, &data)?;
    run("ip", &["link", "set", "lo", "up"])?;
    let page = tree.join("README.md");
    let page = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    let began = Instant::now();
    let commands = readme::type_all(&page, tree)?;
    println!("typed {commands} commands of README.md in {} s", began.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}

/// Makes `/tmp` empty, but for the tree where that lies in it.
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
