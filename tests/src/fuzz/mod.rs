//! Every decoder of external bytes or text, as one function that any fuzzer can call.
//!
//! A check panics if the decoder panics, or if a decoded value changes when it is encoded and
//! decoded again. It does not test the meaning of the input: the tests beside each decoder do.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | messages between machines, and rows and log entries on disk |
//! | [`state`] | the replicated state machine under any commands |
//! | [`gossip`] | datagrams of the mesh |
//! | [`text`] | text from users and HTTP clients: durations, certificates' names |
//! | [`http`] | input from HTTP clients: words, bodies, whole requests |
//! | [`command_line`] | the command line, and configuration files |
//! | [`samples`] | well-formed values as seeds |
//! | [`mutate`] | a small mutator with a seed, for the bounded round in `cargo test` |
//! | [`corpus`] | the saved inputs, in `tests/corpus` |

pub mod command_line;
pub mod corpus;
pub mod gossip;
pub mod http;
pub mod mutate;
pub mod samples;
pub mod state;
pub mod text;
pub mod wire;

/// One decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: the folder of its corpus, and its file in `tests/fuzz`.
    pub name: &'static str,
    /// The check: panics if the decoder panics, or if the value does not survive re-encoding.
    pub check: fn(&[u8]),
    /// Returns well-formed inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every decoder.
pub const TARGETS: &[Target] = &[
    Target { name: "wire_call_frame", check: wire::wire_call_frame, seeds: wire::call_frame_seeds },
    Target { name: "wire_reply_frame", check: wire::wire_reply_frame, seeds: wire::reply_frame_seeds },
    Target { name: "wire_peer_message", check: wire::wire_peer_message, seeds: wire::peer_message_seeds },
    Target { name: "wire_hello", check: wire::wire_hello, seeds: wire::hello_seeds },
    Target { name: "wire_snapshot_rows", check: wire::wire_snapshot_rows, seeds: wire::snapshot_row_seeds },
    Target { name: "wire_proposal", check: wire::wire_proposal, seeds: wire::proposal_seeds },
    Target { name: "wire_change", check: wire::wire_change, seeds: wire::change_seeds },
    Target { name: "wire_log_entry", check: wire::wire_log_entry, seeds: wire::log_entry_seeds },
    Target { name: "gossip_seal", check: gossip::gossip_seal, seeds: gossip::gossip_seal_seeds },
    Target { name: "gossip_packets", check: gossip::gossip_packets, seeds: gossip::gossip_packet_seeds },
    Target { name: "gossip_event", check: gossip::gossip_event, seeds: gossip::gossip_event_seeds },
    Target { name: "state_commands", check: state::state_commands, seeds: state::command_seeds },
    Target { name: "text_duration", check: text::text_duration, seeds: text::duration_seeds },
    Target { name: "text_peer_uri", check: text::text_peer_uri, seeds: text::peer_uri_seeds },
    Target { name: "http_query", check: http::http_query, seeds: http::query_seeds },
    Target { name: "http_path", check: http::http_path, seeds: http::path_seeds },
    Target { name: "http_session_body", check: http::http_session_body, seeds: http::session_body_seeds },
    Target { name: "http_txn_body", check: http::http_txn_body, seeds: http::txn_body_seeds },
    Target {
        name: "http_registration_body",
        check: http::http_registration_body,
        seeds: http::registration_body_seeds,
    },
    Target { name: "http_archive", check: http::http_archive, seeds: http::archive_seeds },
    Target { name: "http_request", check: http::http_request, seeds: http::request_seeds },
    Target { name: "cli_arguments", check: command_line::cli_arguments, seeds: command_line::argument_seeds },
    Target {
        name: "config_server",
        check: command_line::config_server,
        seeds: command_line::server_config_seeds,
    },
    Target {
        name: "config_agent",
        check: command_line::config_agent,
        seeds: command_line::agent_config_seeds,
    },
];

/// Returns the input as text; checks of text skip other bytes.
fn as_text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

fn bytes_of(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
