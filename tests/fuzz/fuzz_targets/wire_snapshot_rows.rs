//! The libFuzzer target of [`lockmesh_tests::fuzz::wire::wire_snapshot_rows`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::wire::wire_snapshot_rows(data));
