//! Finds the `lockmesh` program that belongs to the running test, building it first.
//!
//! A test of one package cannot ask cargo for another package's program, so this runs `cargo build`
//! once a process, with the profile and the target folder that the test itself was built with.
//! Cargo has let go of its lock by the time tests run, and when nothing changed the call takes a
//! fraction of a second. `LOCKMESH_BIN` names another program. It must never test a stale program:
//! a failed build fails the test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The path of the program, built from the sources as they are now.
pub fn lockmesh() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os("LOCKMESH_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    let folder = profile_folder();
    let target = folder.parent().expect("a profile's folder lies in the target folder");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The whole workspace is named so that dependencies keep the features that `cargo test
    // --workspace` gave them.
    cargo.args(["build", "--quiet", "--workspace", "--bin", "lockmesh"]);
    cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    // What cargo tells a test about its package would make some build scripts run, and their
    // dependents build, again.
    let told = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_"].iter().any(|start| name.starts_with(start))
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(told) {
            cargo.env_remove(name);
        }
    }
    match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(profile) => {
            cargo.args(["--profile", profile]);
        }
    }
    let status = cargo.status().expect("cargo can be started: it started this test");
    assert!(status.success(), "`cargo build --bin lockmesh` failed, so there is nothing to test");
    folder.join("lockmesh")
}

/// `target/<profile>`: where the running program, or the folder `deps` that it is in, lies.
fn profile_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let folder = program.parent().expect("a program lies in a folder");
    match folder.ends_with("deps") || folder.ends_with("examples") {
        true => folder.parent().expect("`deps` lies in a profile's folder").to_path_buf(),
        false => folder.to_path_buf(),
    }
}
