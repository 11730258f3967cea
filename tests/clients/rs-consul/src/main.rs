//! Tests the crate `rs-consul` against the server on LOCKMESH_PORT: keys, and a lock passed between
//! two contenders.
//!
//! Every step asserts; the first failure ends the program.

use rs_consul::{
    Config, Consul, ConsulError, CreateOrUpdateKeyRequest, DeleteKeyRequest, LockRequest, LockWatchRequest,
    ReadKeyRequest,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[tokio::main]
async fn main() {
    let consul = connect();
    keys(&consul).await;
    println!("rs-consul: keys: ok");
    one_holder(&consul).await;
    println!("rs-consul: one holder: ok");
    let turns = AtomicUsize::new(0);
    let inside = AtomicUsize::new(0);
    tokio::join!(contend("one", &inside, &turns), contend("two", &inside, &turns));
    assert_eq!(turns.load(Ordering::SeqCst), 6);
    println!("rs-consul: hand-over: ok");
}

fn connect() -> Consul {
    let port = std::env::var("LOCKMESH_PORT").expect("LOCKMESH_PORT is the server's port");
    Consul::new(Config { address: format!("http://127.0.0.1:{port}"), ..Config::default() })
}

async fn keys(consul: &Consul) {
    let write = |cas| CreateOrUpdateKeyRequest { key: "rs/key", check_and_set: cas, ..Default::default() };
    let (created, _) = consul.create_or_update_key(write(Some(0)), b"value".to_vec()).await.expect("a write");
    assert!(created);
    let (again, _) = consul.create_or_update_key(write(Some(0)), b"other".to_vec()).await.expect("a write");
    assert!(!again, "the key already exists");
    let read = ReadKeyRequest { key: "rs/key", ..Default::default() };
    let read = consul.read_key(read).await.expect("a read").response;
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].value.as_deref(), Some("value"));
    let deleted = consul.delete_key(DeleteKeyRequest { key: "rs/key", ..Default::default() }).await;
    assert!(deleted.expect("a delete"));
}

fn request(key: &str) -> LockRequest<'_> {
    LockRequest { key, timeout: Duration::from_secs(60), ..Default::default() }
}

async fn one_holder(consul: &Consul) {
    let held = consul.get_lock(request("rs/one"), b"mine").await.expect("a free lock");
    match consul.get_lock(request("rs/one"), b"theirs").await {
        Err(ConsulError::LockAcquisitionFailure(_)) => {}
        other => panic!("a held lock was granted again: {other:?}"),
    }
    let read = ReadKeyRequest { key: "rs/one", ..Default::default() };
    let entry = consul.read_key(read).await.expect("a read").response.remove(0);
    assert_eq!(entry.session.as_deref(), Some(held.session_id.as_str()));
    // Dropping the guard releases the lock, by a blocking call.
    tokio::task::block_in_place(|| drop(held));
    let next = consul.get_lock(request("rs/one"), b"theirs").await.expect("a released lock");
    tokio::task::block_in_place(|| drop(next));
}

async fn contend(name: &str, inside: &AtomicUsize, turns: &AtomicUsize) {
    let consul = connect();
    for _ in 0..3 {
        let held = loop {
            match consul.get_lock(request("rs/lock"), name.as_bytes()).await {
                Ok(held) => break held,
                Err(ConsulError::LockAcquisitionFailure(index)) => wait(&consul, index).await,
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock at once");
        tokio::time::sleep(Duration::from_millis(20)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
        turns.fetch_add(1, Ordering::SeqCst);
        tokio::task::block_in_place(|| drop(held));
    }
}

/// Waits until the lock's entry changes. A change before the wait is harmless: the next attempt
/// finds out.
async fn wait(consul: &Consul, index: u64) {
    let request = LockWatchRequest {
        key: "rs/lock",
        index: Some(index),
        wait: Duration::from_secs(10),
        ..Default::default()
    };
    consul.watch_lock(request).await.expect("a watch");
}
