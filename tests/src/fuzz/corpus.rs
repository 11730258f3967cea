//! The saved inputs: `tests/corpus/<target>/`, one file each. `seed-…` come from
//! [`super::Target::seeds`], `mutant-…` are derived from these, and any other name is a find.

use super::Target;
use super::mutate::{Dice, mutate};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns every saved input of a target with its file name, ordered by name.
pub fn kept(target: &Target) -> Vec<(String, Vec<u8>)> {
    let listing = fs::read_dir(folder(target)).map(|listing| listing.collect::<Vec<_>>()).unwrap_or_default();
    let mut files: Vec<PathBuf> = listing.into_iter().filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let read = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
    };
    files.iter().map(read).collect()
}

/// Writes the seeds and some mutants of each, replacing earlier ones. Finds stay.
///
/// # Errors
/// A file cannot be removed or written. The folder may contain a part of the inputs: write them
/// again. Finds stay in any case.
pub fn write(target: &Target, mutants: usize) -> std::io::Result<()> {
    let folder = folder(target);
    fs::create_dir_all(&folder)?;
    for (name, _) in
        kept(target).iter().filter(|(name, _)| name.starts_with("seed-") || name.starts_with("mutant-"))
    {
        fs::remove_file(folder.join(name))?;
    }
    let seeds = (target.seeds)();
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:03}")), seed)?;
    }
    let mut dice = Dice::new(1);
    for number in 0..mutants {
        let (input, other) = (&seeds[dice.below(seeds.len())], &seeds[dice.below(seeds.len())]);
        fs::write(folder.join(format!("mutant-{number:03}")), mutate(input, other, &mut dice))?;
    }
    Ok(())
}

/// Returns the folder of a target's inputs.
pub fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}
