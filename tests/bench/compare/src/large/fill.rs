//! Creates sessions, each of which holds a lock.

use crate::client::lockmesh::{Wire, session_request_with_ttl};
use crate::progress::Progress;
use crate::wire::http1::request;
use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tokio::task::JoinSet;

/// The number of clients that create them.
const CLIENTS: usize = 64;

/// The longest TTL that a session may have: these have to outlive all measurements.
const TTL: &str = "24h";

/// The number of sessions between two progress messages.
const TELL: u32 = 20_000;

/// Adds a node to the catalog.
pub(super) async fn register(socket: &Path, node: &str) -> io::Result<()> {
    let body = format!(r#"{{"Node":"{node}","Address":"127.0.0.9"}}"#);
    Wire::connect(socket).await?.succeed(&request("PUT", "/v1/catalog/register", body.as_bytes())).await
}

/// Returns the path of a lock.
pub(super) fn lock(prefix: &str, number: u32) -> String {
    format!("/v1/kv/large/{prefix}-{number}")
}

/// Creates `count` sessions on a node, by default the agent's own, and a lock for each.
pub(super) async fn fill(
    socket: &Path,
    prefix: &str,
    node: Option<&str>,
    count: u32,
    progress: &Progress,
) -> io::Result<()> {
    let more = node.map_or_else(String::new, |node| format!(r#","Node":"{node}""#));
    let session = Rc::new(session_request_with_ttl(TTL, &more));
    let next = Rc::new(Cell::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (socket, prefix) = (PathBuf::from(socket), prefix.to_owned());
        let (session, next) = (Rc::clone(&session), Rc::clone(&next));
        clients.spawn_local(async move {
            let mut wire = Wire::connect(&socket).await?;
            while next.get() < count {
                let number = next.replace(next.get() + 1);
                let id = wire.new_session(&session).await?;
                let target = format!("{}?acquire={id}", lock(&prefix, number));
                wire.succeed(&request("PUT", &target, b"")).await?;
            }
            io::Result::Ok(())
        });
    }
    let mut told = 0;
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(200));
    loop {
        tokio::select! {
            _ = ticks.tick() => if next.get() / TELL > told {
                told = next.get() / TELL;
                progress.print(&format!("  {} sessions and locks", told * TELL));
            },
            done = clients.join_next() => match done {
                Some(done) => done.map_err(io::Error::other)??,
                None => return Ok(()),
            },
        }
    }
}
