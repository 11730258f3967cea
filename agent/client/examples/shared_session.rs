//! Holds two locks with one session: both are renewed together, and both end with it.
//!
//! Usage: `cargo run -p lockmesh-client --example shared_session`, with an agent that `lockmesh
//! dev` started, or that `LOCKMESH_HTTP_ADDR` names.

use lockmesh_client::{Client, Error, HealthWindow, Lock, SessionKeeper, SessionOptions};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    let options = SessionOptions::named("mover").health_window(HealthWindow::Fast);
    let session = SessionKeeper::create(&client, &options).await?;

    // Every process acquires them in the same order, so that no two wait for each other.
    let source = Lock::new(&client, "examples/a").shared_session(&session).acquire().await?;
    let target = Lock::new(&client, "examples/b").shared_session(&session).acquire().await?;
    println!("session {} holds both, fences {:?} and {:?}", session.id(), source.fence(), target.fence());

    let moved = source.run(target.run(tokio::time::sleep(Duration::from_secs(1)))).await;
    match moved {
        Ok(Ok(())) => println!("moved"),
        Ok(Err(reason)) | Err(reason) => println!("stopped: {reason}"),
    }
    // Before the session is closed, or both keys would be blocked for its lock-delay.
    target.release().await?;
    source.release().await?;
    session.close().await
}
