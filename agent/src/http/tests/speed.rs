//! Measures the processor time of a request. It has no threshold: run it by name, in release.

use super::identity;
use crate::http::filter::Filter;
use crate::http::{Api, HttpLimits, Listeners, UnixSocket, serve};
use crate::registry::Registry;
use crate::upstream::{BoxFuture, Quorum, Upstream};
use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
use lockmesh_agent_core::registry::Limits;
use lockmesh_client::shape::catalog::ServiceNode;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::id::{Fence, LogIndex};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

const CONNECTIONS: usize = 256;
const REQUESTS: usize = 1_000;
const REQUEST: &[u8] = b"PUT /v1/kv/lock/name?acquire=4ca8e74b-6350-7587-addf-a18084928f3c HTTP/1.1\r\n\
    Host: localhost\r\nContent-Length: 4\r\n\r\ntest";

/// A quorum that grants every lock.
#[derive(Debug)]
struct Granting;

impl Quorum for Granting {
    fn call(self: Arc<Self>, _: Caller, _call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
        let applied = Applied { index: LogIndex(1), reply: Reply::Granted { fence: Fence(1) } };
        Box::pin(std::future::ready(Ok(Answered::Response(Response::Applied(applied)))))
    }

    fn invite(self: Arc<Self>, _: String, _: Vec<String>) -> BoxFuture<Result<Response, Unavailable>> {
        Box::pin(std::future::pending())
    }
}

/// The processor time of the whole process so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints a figure, which is meaningful in release only"]
async fn print_what_an_acquire_costs() {
    let upstream = Upstream::new(Arc::new(Granting));
    let registry = Registry::in_memory(upstream.clone(), identity(), Limits::default());
    let api = Arc::new(Api::new(upstream, identity(), HttpLimits::default(), registry));
    let folder = tempfile::tempdir().unwrap();
    let unix = UnixSocket { path: folder.path().join("http.sock"), mode: 0o600, group: None };
    let listeners = Listeners::bind(&[], Some(&unix), false).unwrap();
    let (_stop, stopping) = watch::channel(false);
    tokio::spawn(serve(api, listeners, stopping));

    let (begun, processor) = (Instant::now(), processor_time());
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = UnixStream::connect(&unix.path).await.unwrap();
        clients.push(tokio::spawn(async move {
            let mut answer = [0; 1024];
            for _ in 0..REQUESTS {
                stream.write_all(REQUEST).await.unwrap();
                let mut length = 0;
                while !answer[..length].ends_with(b"\r\n\r\ntrue") {
                    length += stream.read(&mut answer[length..]).await.unwrap();
                }
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    let count = (CONNECTIONS * REQUESTS) as f64;
    println!(
        "{:.1} µs of processor time an acquire, client and socket included; {:.0} a second on this machine as loaded",
        (processor_time() - processor).as_secs_f64() * 1e6 / count,
        count / begun.elapsed().as_secs_f64()
    );
}

#[test]
#[ignore = "prints a figure, which is meaningful in release only"]
fn print_what_a_filter_costs() {
    const ROWS: u32 = 10_000;
    let row = |number: u32| ServiceNode {
        node: format!("host-{number}"),
        service_name: "web".into(),
        service_id: format!("web-{number}"),
        service_tags: vec!["v1".into(), "prod".into()],
        service_meta: [("version".into(), number.to_string())].into(),
        ..ServiceNode::default()
    };
    let rows: Vec<_> = (0..ROWS).map(row).collect();
    for text in [
        "ServiceName == web and not ServicePort == 80",
        r#""prod" in ServiceTags and ServiceMeta.version != "7" or Node == x"#,
        r#"Node matches "^host-[0-9]+7$""#,
        r#"ServiceProxy.Upstreams is empty and ServiceConnect.Native == false"#,
    ] {
        let begun = Instant::now();
        let filter = Filter::new(text, &ServiceNode::default()).unwrap();
        let mut steps = 0;
        let selected = rows.iter().filter(|row| filter.selects(*row, &mut steps).unwrap()).count();
        println!("{text}: {selected} of {ROWS} rows in {:?}, {steps} steps", begun.elapsed());
    }
}
