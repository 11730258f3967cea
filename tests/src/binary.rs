//! Builds and locates the `lockmesh` program under test.
//!
//! A test cannot ask cargo for the program of another package. This module therefore runs `cargo
//! build` once per process, with the profile and target folder of the test itself. Cargo has
//! released its lock by the time tests run, and a build without changes takes a fraction of a
//! second. `LOCKMESH_BIN` names another program. A stale program is never tested: a failed build
//! fails the test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the path of the program, built from the current sources.
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
    // The build names the whole workspace, so dependencies keep the features that `cargo test
    // --workspace` enabled.
    cargo.args(["build", "--quiet", "--workspace", "--bin", "lockmesh"]);
    cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    // These variables, which cargo sets for tests, would make some build scripts run again and
    // rebuild their dependents.
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

/// Returns `target/<profile>`, which contains the running program or its `deps` folder.
fn profile_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let folder = program.parent().expect("a program lies in a folder");
    match folder.ends_with("deps") || folder.ends_with("examples") {
        true => folder.parent().expect("`deps` lies in a profile's folder").to_path_buf(),
        false => folder.to_path_buf(),
    }
}
