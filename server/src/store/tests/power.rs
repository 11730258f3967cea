//! Power losses, full disks and lost syncs at every single operation of a disk.

use super::script::{Model, Step, StoreWriter, open_disk};
use crate::store::Store;
use crate::store::testing::{Draw, Failure, FaultyDisk, Survival};

/// The progress of a run before the disk failed.
struct Run {
    /// The acknowledged state, and the same with the failed step applied.
    possible: Vec<Model>,
    /// The remaining steps.
    left: Vec<Step>,
}

/// Runs steps until one fails, then closes.
fn run(disk: &FaultyDisk, mut model: Model, steps: &[Step]) -> Run {
    let Ok((mut store, _)) = open_disk(disk) else {
        return Run { possible: vec![model], left: steps.to_vec() };
    };
    for (place, step) in steps.iter().enumerate() {
        let before = model.clone();
        model.apply(step);
        if step.run(&mut store).is_err() {
            return Run { possible: vec![before, model], left: steps[place..].to_vec() };
        }
    }
    store.log.finish();
    store.checkpoints.finish();
    Run { possible: vec![model], left: Vec::new() }
}

/// Opens the disk after a power cut, and finds the possible state that it holds.
fn recover(disk: &FaultyDisk, possible: &[Model], context: &str) -> (Store, Model) {
    let (store, recovered) = open_disk(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    let mut reasons = Vec::new();
    for model in possible.iter().rev() {
        match model.explains(&store, &recovered) {
            Ok(()) => return (store, model.clone()),
            Err(reason) => reasons.push(reason),
        }
    }
    panic!("{context}: {reasons:?}");
}

/// Returns the steps of a seed, and the number of disk operations from an empty folder to the
/// close.
fn scripted(seed: u64, count: usize) -> (Vec<Step>, u64) {
    let steps = StoreWriter::new(seed).steps(count);
    let disk = FaultyDisk::default();
    let whole = run(&disk, Model::new(), &steps);
    assert!(whole.left.is_empty());
    (steps, disk.operations())
}

/// Cuts the power at every operation, opens the rest, and runs the remaining steps.
fn cut_at_every_operation(seed: u64, count: usize) {
    let (steps, operations) = scripted(seed, count);
    for cut in 0..operations {
        let disk = FaultyDisk::default();
        disk.fail(Some(Failure::PowerCut(cut)));
        let run = run(&disk, Model::new(), &steps);
        let torn = Survival::Torn(seed * 1_000_000 + cut);
        for survival in [Survival::Nothing, Survival::Everything, torn] {
            let context = format!("seed {seed}, cut at {cut}, {survival:?}");
            let found = disk.after_power_cut(survival);
            let (mut store, mut model) = recover(&found, &run.possible, &context);
            // The store works as before.
            for step in &run.left {
                step.run(&mut store).unwrap_or_else(|error| panic!("{context}: {error}"));
                model.apply(step);
            }
            drop(store);
            recover(&found, &[model], &format!("{context}, at the end"));
        }
    }
}

#[test]
fn cut_loses_no_acknowledged_write() {
    (0..2).for_each(|seed| cut_at_every_operation(seed, 20));
}

/// Another server's checkpoint replaces everything, and the log restarts behind it: two files, one
/// after the other, with a cut before, between and after.
#[test]
fn cut_during_install_loses_nothing() {
    let resets =
        |step: &Step| matches!(step, Step::Write(writes) if writes.iter().any(|write| write.reset.is_some()));
    let installs = |seed: &u64| {
        let steps = StoreWriter::new(*seed).steps(12);
        // Not the last one: the next step must be written behind the new base.
        steps[..steps.len() - 1].iter().any(resets)
    };
    let seeds: Vec<u64> = (100..1_000).filter(installs).take(2).collect();
    assert_eq!(seeds.len(), 2, "checkpoints are installed now and then");
    seeds.into_iter().for_each(|seed| cut_at_every_operation(seed, 12));
}

#[test]
fn cut_during_recovery_loses_nothing() {
    for seed in 10..13 {
        let (steps, operations) = scripted(seed, 20);
        let mut draw = Draw(seed);
        for _ in 0..60 {
            let disk = FaultyDisk::default();
            disk.fail(Some(Failure::PowerCut(draw.below(operations))));
            let run = run(&disk, Model::new(), &steps);
            let mut found = disk.after_power_cut(Survival::Torn(draw.below(1 << 32)));
            for _ in 0..3 {
                found.fail(Some(Failure::PowerCut(draw.below(12))));
                drop(open_disk(&found));
                found = found.after_power_cut(Survival::Torn(draw.below(1 << 32)));
            }
            recover(&found, &run.possible, &format!("seed {seed}"));
        }
    }
}

#[test]
fn full_disk_retries_lose_nothing() {
    let (steps, operations) = scripted(20, 20);
    let mut refusals = 0;
    for from in (0..operations).step_by(3) {
        let disk = FaultyDisk::default();
        let (mut store, _) = open_disk(&disk).expect("the disk is good still");
        let mut model = Model::new();
        disk.fail(Some(Failure::Full(from, from + 25)));
        for step in &steps {
            refusals += step.retry_until_written(&mut store);
            model.apply(step);
        }
        // After a power cut now, every step is found.
        let context = format!("full from {from}");
        recover(&disk.after_power_cut(Survival::Nothing), &[model], &context);
    }
    assert!(refusals > operations, "the disk did refuse");
}

#[test]
fn failed_sync_data_is_rewritten() {
    let (steps, operations) = scripted(30, 20);
    let mut refusals = 0;
    for from in (0..operations).step_by(2) {
        let disk = FaultyDisk::default();
        let (mut store, _) = open_disk(&disk).expect("the disk is good still");
        let mut model = Model::new();
        disk.fail(Some(Failure::LostSync(from, from + 4)));
        for step in &steps {
            refusals += step.retry_until_written(&mut store);
            model.apply(step);
            // After a cut only data that was really written is found.
            let context = format!("lost from {from}");
            if refusals > 0 && from % 8 == 0 {
                recover(&disk.after_power_cut(Survival::Nothing), &[model.clone()], &context);
            }
        }
        recover(&disk.after_power_cut(Survival::Nothing), &[model], &format!("lost from {from}"));
    }
    assert!(refusals > 0, "the disk did refuse");
}
