//! libFuzzer on [`lockmesh_tests::fuzz::gossip::gossip_event`], and nothing else.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockmesh_tests::fuzz::gossip::gossip_event(data));
