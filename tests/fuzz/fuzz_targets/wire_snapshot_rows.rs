//! libFuzzer on [`lockmesh_tests::fuzz::wire::wire_snapshot_rows`], and nothing else.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::wire::wire_snapshot_rows(data));
