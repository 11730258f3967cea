//! Campaigns for leadership, leads for a second, and resigns.
//!
//! Usage: `cargo run -p lockmesh-client --example election [NAME]`, with an agent that `lockmesh
//! dev` started, or that `LOCKMESH_HTTP_ADDR` names. Start it twice to see the second candidate
//! wait.

use lockmesh_client::{Client, Election, Error};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| format!("candidate {}", std::process::id()));
    let client = Client::from_env()?;
    let election = Election::new(&client, "examples/leader");
    if let Some(leader) = election.leader().await? {
        let node = leader.node.unwrap_or_default();
        println!("{} leads on {node}; waiting", String::from_utf8_lossy(&leader.value));
    }
    let leadership = election.campaign(name.clone()).await?;
    println!("{name} leads, fence {:?}", leadership.fence());
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
        reason = leadership.lost() => println!("leadership lost: {reason}"),
    }
    leadership.resign().await?;
    println!("{name} resigned");
    Ok(())
}
