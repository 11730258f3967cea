//! `kill -9` in a loop under load, and what must be true after every restart.
//!
//! It must never stop the server kindly: what matters is what survives without a farewell.

use crate::dev::Dev;
use crate::dialect::let_pass;
use crate::ledger::Ledger;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// How long the load runs before the kill, in turn: shorter and longer than the time between two
/// checkpoints.
const LOADS: [Duration; 5] = [
    Duration::from_millis(300),
    Duration::from_millis(1100),
    Duration::from_millis(40),
    Duration::from_millis(700),
    Duration::from_millis(2300),
];

/// Kills a server this many times while clients write and lock, and holds every next life to what
/// clients were told. Its data lies in `data`, or in a folder of its own. Returns how many
/// acknowledgements survived.
pub fn kill_loop(rounds: usize, data: Option<&Path>) -> u64 {
    let mut server = match data {
        Some(data) => Dev::start_with_data(data, &[]),
        None => Dev::start(&[]),
    };
    let mut ledger = Ledger::begin(&server.client());
    for round in 0..rounds {
        let client = server.unix_client();
        thread::scope(|scope| {
            scope.spawn(|| ledger.load(&client));
            let_pass(LOADS[round % LOADS.len()]);
            server.kill();
        });
        server = server.restart();
        ledger.verify(&server.client());
        eprintln!("kill {}: {} acknowledgements kept", round + 1, ledger.acknowledged());
    }
    ledger.acknowledged()
}
