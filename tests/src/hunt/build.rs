//! Builds the copy once: the tests and programs of the finders.

use super::finder::Finder;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The simulator's program.
const SIM: &str = "sim";

/// The built programs, by package and target.
#[derive(Debug, Default)]
pub struct Built {
    programs: BTreeMap<(String, String), PathBuf>,
    lockmesh: PathBuf,
}

impl Built {
    /// Returns the program of a finder.
    pub fn program(&self, finder: &Finder) -> &Path {
        let key = (finder.package.clone(), finder.target.clone());
        self.programs.get(&key).unwrap_or_else(|| panic!("{} was not built", finder.words))
    }

    /// Returns the `lockmesh` of the copy.
    pub fn lockmesh(&self) -> &Path {
        &self.lockmesh
    }
}

/// Builds the programs of these finders in one go, with the built dependencies of this program: all
/// packages are selected, so that dependencies keep their features. The tests' own package, which
/// adds none and takes long, is left out if no finder needs it.
///
/// # Errors
/// The copy does not build; the message contains the compiler's output. Earlier results stay in
/// `target`.
pub fn build(copy: &Path, target: &Path, finders: &BTreeSet<Finder>) -> Result<Built, String> {
    if !target.exists() {
        copy_dependencies(&target.join("debug"));
    }
    let mut built = Built { lockmesh: target.join("debug/lockmesh"), ..Built::default() };
    let mut arguments = vec!["test", "--no-run", "--workspace"];
    match finders.iter().any(|finder| finder.package == "tests") {
        // With any test of a package cargo builds the package's programs, including the simulator.
        true => arguments.extend(["--test", "hunt"]),
        false => arguments.extend(["--exclude", "lockmesh-tests"]),
    }
    let tests: BTreeSet<&str> = finders.iter().filter_map(Finder::test).collect();
    arguments.extend(finders.iter().any(|finder| finder.target == "lib").then_some("--lib"));
    arguments.extend(tests.into_iter().flat_map(|name| ["--test", name]));
    cargo(copy, target, &arguments, &mut built)?;
    if finders.iter().any(Finder::runs_the_program) {
        cargo(copy, target, &["build", "--workspace", "--bin", "lockmesh"], &mut built)?;
    }
    Ok(built)
}

/// Copies the built dependencies of this program, which the copy of the tree shares. Its own crates
/// are left out: cargo would take the unchanged ones for those of the copy.
fn copy_dependencies(to: &Path) {
    let program = std::env::current_exe().expect("this program has a path");
    let from = program.parent().expect("it lies in a folder");
    let units = names(&from.join(".fingerprint"));
    let units: Vec<&String> = units.iter().filter(|unit| !unit.starts_with("lockmesh")).collect();
    let hash = |name: &str| name.rsplit('-').next().unwrap_or_default().to_owned();
    let hashes: BTreeSet<String> = units.iter().map(|unit| hash(unit)).collect();
    for folder in [".fingerprint", "build", "deps"] {
        let of_dependency =
            |name: &String| hashes.contains(name.split('.').next().map(hash).as_deref().unwrap_or_default());
        let wanted = names(&from.join(folder)).into_iter().filter(of_dependency);
        let wanted: Vec<PathBuf> = wanted.map(|name| from.join(folder).join(name)).collect();
        let to = to.join(folder);
        std::fs::create_dir_all(&to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        // Cargo compares times of modification, which `cp -a` preserves.
        let mut cp = Command::new("cp");
        cp.arg("-a").args(wanted).arg(&to);
        let status = cp.status().expect("cp can be started");
        assert!(status.success(), "cannot copy the built dependencies to {}", to.display());
    }
}

/// Returns the names in a folder; none if it is missing.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn cargo(copy: &Path, target: &Path, arguments: &[&str], built: &mut Built) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).args(["--message-format=json", "--target-dir"]);
    cargo.arg(target).current_dir(copy);
    // These variables, which cargo set for this program's package, would make some build scripts
    // run again.
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
            "the copy does not build: a rule's replacement does not compile\n{}",
            texts.join("\n")
        ));
    }
    for message in messages {
        let Some(program) = message["executable"].as_str() else { continue };
        let (kind, manifest) =
            (&message["target"]["kind"][0], message["manifest_path"].as_str().unwrap_or_default());
        let name = match kind.as_str() {
            Some("lib") => "lib",
            Some("bin") if message["target"]["name"] != SIM || message["profile"]["test"] == true => continue,
            _ => message["target"]["name"].as_str().unwrap_or_default(),
        };
        let package = Path::new(manifest).parent().and_then(|folder| folder.strip_prefix(copy).ok());
        let package = package.unwrap_or(Path::new("")).to_string_lossy().into_owned();
        built.programs.insert((package, name.to_owned()), program.into());
    }
    Ok(())
}
