//! A killed server keeps every acknowledged write and every lock, and its indexes never go back.
//!
//! `cargo run -p lockmesh-tests --bin kill_loop` repeats this fifty times.

use lockmesh_tests::kill::kill_loop;

#[test]
fn killed_server_keeps_acknowledged_writes() {
    assert!(kill_loop(5, None) > 0);
}
