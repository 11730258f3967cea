//! The libFuzzer target of [`lockmesh_tests::fuzz::wire::wire_change`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::wire::wire_change(data));
