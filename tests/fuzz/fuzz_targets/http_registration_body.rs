//! The libFuzzer target of [`lockmesh_tests::fuzz::http::http_registration_body`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::http::http_registration_body(data));
