//! A loop of `kill -9` under load, with checks after every restart.
//!
//! The server is never stopped gracefully: the subject is the state that survives without a
//! shutdown.

use crate::dev::Dev;
use crate::dialect::let_pass;
use crate::ledger::Ledger;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// The duration of the load before each kill, in turn: shorter and longer than the interval between
/// two checkpoints.
const LOADS: [Duration; 5] = [
    Duration::from_millis(300),
    Duration::from_millis(1100),
    Duration::from_millis(40),
    Duration::from_millis(700),
    Duration::from_millis(2300),
];

/// Kills a server `rounds` times while clients write and lock, and compares every restarted server
/// with the acknowledgements that clients received. Its data is in `data`, or in a folder of its
/// own. Returns the number of acknowledgements that survived.
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
