//! Holds a lock while some work runs, and stops the work when the lock is lost.
//!
//! Usage: `cargo run -p lockmesh-client --example lock [KEY]`, with an agent that `lockmesh dev`
//! started, or that `LOCKMESH_HTTP_ADDR` names.

use lockmesh_client::{Client, Error, Lock, SessionOptions};
use std::time::Duration;

/// The limit for waiting in the lock's queue.
const WAIT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let key = std::env::args().nth(1).unwrap_or_else(|| "examples/lock".into());
    let client = Client::from_env()?;
    let lock = Lock::new(&client, &key).session(SessionOptions::named("example"));
    let Some(guard) = lock.acquire_within(WAIT).await? else {
        println!("{key} is still held after {WAIT:?}");
        return Ok(());
    };
    println!("holding {key}, fence {:?}", guard.fence());
    match guard.run(work()).await {
        Ok(()) => println!("done"),
        // Another process may hold the lock from here on: the work was dropped.
        Err(reason) => println!("stopped: {reason}"),
    }
    guard.release().await?;
    Ok(())
}

/// A placeholder for the work that needs the lock.
async fn work() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}
