//! libFuzzer on [`lockmesh_tests::fuzz::wire::wire_hello`], and nothing else.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::wire::wire_hello(data));
