//! Runs ten jobs, of which at most three work at the same time, in all processes of the cluster.
//!
//! Usage: `cargo run -p lockmesh-client --example semaphore`, with an agent that `lockmesh dev`
//! started, or that `LOCKMESH_HTTP_ADDR` names.

use lockmesh_client::{Client, Error, Semaphore, SessionOptions};
use std::time::Duration;
use tokio::task::JoinSet;

/// The number of slots. All contenders must name the same one.
const SLOTS: usize = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    let mut jobs = JoinSet::new();
    for number in 1..=10 {
        jobs.spawn(job(client.clone(), number));
    }
    for result in jobs.join_all().await {
        result?;
    }
    Ok(())
}

async fn job(client: Client, number: u32) -> Result<(), Error> {
    let session = SessionOptions::named(format!("job {number}"));
    let slot = Semaphore::new(&client, "examples/workers", SLOTS).session(session).acquire().await?;
    println!("job {number} begins, fence {:?}", slot.fence());
    // A lost slot ends the work: another process may have it from here on.
    match slot.run(tokio::time::sleep(Duration::from_millis(200))).await {
        Ok(()) => println!("job {number} is done"),
        Err(reason) => println!("job {number} was stopped: {reason}"),
    }
    slot.release().await?;
    Ok(())
}
