//! libFuzzer on [`lockmesh_tests::fuzz::state::state_commands`], and nothing else.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::state::state_commands(data));
