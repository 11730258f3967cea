//! Reads a report in five tasks at a time, while one task replaces it: readers share the lock, and
//! the writer holds it alone.
//!
//! Usage: `cargo run -p lockmesh-client --example shared_lock`, with an agent that `lockmesh dev`
//! started, or that `LOCKMESH_HTTP_ADDR` names.

use lockmesh_client::{Client, Error, Lock, Read};
use std::time::Duration;
use tokio::task::JoinSet;

const KEY: &str = "examples/report";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    write(client.clone(), 1).await?;
    let mut tasks = JoinSet::new();
    for number in 1..=5 {
        tasks.spawn(read(client.clone(), number));
    }
    // It waits for the readers that hold the lock, and stops later ones.
    tasks.spawn(write(client.clone(), 2));
    for result in tasks.join_all().await {
        result?;
    }
    Ok(())
}

async fn read(client: Client, number: u32) -> Result<(), Error> {
    let guard = Lock::new(&client, KEY).shared().acquire().await?;
    let report = client.kv().get(KEY, &Read::default()).await?.value;
    let text = report.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()).unwrap_or_default();
    println!("reader {number} sees {text:?}, fence {:?}", guard.fence());
    tokio::time::sleep(Duration::from_millis(200)).await;
    guard.release().await?;
    Ok(())
}

async fn write(client: Client, number: u32) -> Result<(), Error> {
    let guard = Lock::new(&client, KEY).value(format!("report {number}")).acquire().await?;
    println!("report {number} is written, fence {:?}", guard.fence());
    guard.release().await?;
    Ok(())
}
