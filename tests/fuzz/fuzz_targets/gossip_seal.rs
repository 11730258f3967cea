//! The libFuzzer target of [`lockmesh_tests::fuzz::gossip::gossip_seal`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::gossip::gossip_seal(data));
