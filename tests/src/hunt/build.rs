//! Builds the copy once: the tests and programs that finders are.

use super::finder::Finder;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The simulator's program.
const SIM: &str = "sim";

/// The simulator spends its time in the core; all else is as in every test build.
const CORE_OPTIMISED: &str = "profile.dev.package.lockmesh-core.opt-level=1";

/// What was built, by package and target.
#[derive(Debug, Default)]
pub struct Built {
    programs: BTreeMap<(String, String), PathBuf>,
    lockmesh: PathBuf,
}

impl Built {
    /// The program of a finder.
    pub fn program(&self, finder: &Finder) -> &Path {
        let key = (finder.package.clone(), finder.target.clone());
        self.programs.get(&key).unwrap_or_else(|| panic!("{} was not built", finder.words))
    }

    /// The `lockmesh` of the copy.
    pub fn lockmesh(&self) -> &Path {
        &self.lockmesh
    }
}

/// Builds what these finders need, package by package, and no more.
pub fn build(copy: &Path, target: &Path, finders: &BTreeSet<Finder>) -> Result<Built, String> {
    let mut built = Built { lockmesh: target.join("debug/lockmesh"), ..Built::default() };
    let packages: BTreeSet<&str> = finders.iter().map(|finder| finder.package.as_str()).collect();
    for package in packages {
        let own = finders.iter().filter(|finder| finder.package == package);
        let targets: BTreeSet<&Finder> = own.collect();
        let names: BTreeSet<&str> = targets.iter().map(|finder| finder.target.as_str()).collect();
        let mut tests: Vec<&str> = vec!["test", "--no-run"];
        for name in names.into_iter().filter(|name| *name != SIM) {
            tests.extend(if name == "lib" { vec!["--lib"] } else { vec!["--test", name] });
        }
        if tests.len() > 2 {
            cargo(&copy.join(package), copy, target, &tests, &mut built)?;
        }
    }
    if finders.iter().any(|finder| finder.target == SIM) {
        cargo(&copy.join("tests"), copy, target, &["build", "--bin", SIM], &mut built)?;
    }
    if finders.iter().any(Finder::runs_the_program) {
        cargo(copy, copy, target, &["build", "--workspace", "--bin", "lockmesh"], &mut built)?;
    }
    Ok(built)
}

fn cargo(
    package: &Path,
    copy: &Path,
    target: &Path,
    arguments: &[&str],
    built: &mut Built,
) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).args(["--config", CORE_OPTIMISED, "--message-format=json", "--target-dir"]);
    cargo.arg(target).current_dir(package);
    // What cargo told this program about its own package would make some build scripts run again.
    let told = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|start| name.starts_with(start))
    };
    std::env::vars().filter(|(name, _)| told(name)).for_each(|(name, _)| {
        cargo.env_remove(name);
    });
    let output = cargo.stderr(Stdio::inherit()).output().expect("cargo can be started");
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !output.status.success() {
        let errors =
            messages.iter().map(|message| &message["message"]).filter(|message| message["level"] == "error");
        let texts: Vec<&str> = errors.filter_map(|message| message["rendered"].as_str()).collect();
        return Err(format!(
            "the copy does not build: a rule's text fits, but means nothing\n{}",
            texts.join("\n")
        ));
    }
    for message in messages {
        let Some(program) = message["executable"].as_str() else { continue };
        let (kind, manifest) =
            (&message["target"]["kind"][0], message["manifest_path"].as_str().unwrap_or_default());
        let name = match kind.as_str() {
            Some("lib") => "lib",
            _ => message["target"]["name"].as_str().unwrap_or_default(),
        };
        let package = Path::new(manifest).parent().and_then(|folder| folder.strip_prefix(copy).ok());
        let package = package.unwrap_or(Path::new("")).to_string_lossy().into_owned();
        built.programs.insert((package, name.to_owned()), program.into());
    }
    Ok(())
}
