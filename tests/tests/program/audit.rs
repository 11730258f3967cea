//! Operator requests to an agent with the default permissions: only on its Unix socket, each with a
//! line in the agent's log.

use super::leave::Nodes;
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::process::run;
use std::net::TcpListener;

#[test]
fn operators_use_the_socket_and_leave_a_line() {
    let nodes = Nodes::new();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = port.expect("a free port");
    let tcp = &address.to_string();
    let agent = nodes.agent("web-1", &["--set", &format!("http.tcp={tcp}")]);
    let over_tcp = Client { address: Address::Tcp(address) };

    // Applications are not affected.
    over_tcp.put("/v1/kv/app/a", "x").expect(200);
    over_tcp.get("/v1/operator/raft/configuration").expect(200);

    let (code, _, said) = run(&["leave", "--http-addr", tcp]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("set CONSUL_HTTP_ADDR=unix://") && said.contains("web-1.sock,"), "{said}");
    let line = agent.says("PUT /v1/agent/leave");
    for part in [" INFO audit: operator request", " peer=127.0.0.1:", " node=web-1", "result=\"403\""] {
        assert!(line.contains(part), "{part:?} in {line}");
    }

    let (code, _, said) = nodes.command("web-1", &["reload"]);
    assert_eq!(code, 0, "{said}");
    let line = agent.says("PUT /v1/agent/reload");
    let uid = std::fs::metadata("/proc/self").map(|file| std::os::unix::fs::MetadataExt::uid(&file));
    let uid = format!(" uid={} ", uid.expect("a process has an owner"));
    for part in [" peer=unix", uid.as_str(), " pid=", "result=\"200\""] {
        assert!(line.contains(part), "{part:?} in {line}");
    }

    // Not on a terminal, so there is no prompt.
    let (code, _, said) = run(&["kv", "delete", "--recurse", "", "--http-addr", tcp]);
    assert_eq!(code, 0, "{said}");
    let line = agent.says("recursive delete");
    assert!(line.contains("DELETE /v1/kv/?recurse") && line.contains("result=\"200\""), "{line}");
}
