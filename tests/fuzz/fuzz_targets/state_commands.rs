//! The libFuzzer target of [`lockmesh_tests::fuzz::state::state_commands`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::state::state_commands(data));
