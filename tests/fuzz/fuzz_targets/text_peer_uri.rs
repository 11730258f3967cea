//! The libFuzzer target of [`lockmesh_tests::fuzz::text::text_peer_uri`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::text::text_peer_uri(data));
