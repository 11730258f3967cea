//! The libFuzzer target of [`lockmesh_tests::fuzz::http::http_request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::http::http_request(data));
