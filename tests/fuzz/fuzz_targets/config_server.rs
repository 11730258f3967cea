//! The libFuzzer target of [`lockmesh_tests::fuzz::command_line::config_server`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::command_line::config_server(data));
