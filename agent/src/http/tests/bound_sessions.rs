//! Sessions that end with a process, with real processes.

use super::{HttpLimits, Quorum, Reply, Stand};
use crate::bound_sessions::BoundSessions;
use crate::http::Peer;
use crate::http::body::Body;
use http::Request;
use lockmesh_protocol::id::SessionId;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

/// The time after which an end is missing: it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// A process that is killed at the end of its test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().expect("a program of every system"))
    }

    fn peer(&self) -> Peer {
        let uid = Some(rustix::process::getuid().as_raw());
        Peer::Unix { uid, gid: None, pid: i32::try_from(self.0.id()).ok(), accepted_at: Duration::MAX }
    }

    fn kill(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn create(stand: &Stand, peer: Peer, body: &'static str) -> Reply {
    let request = Request::builder().method("PUT").uri("/v1/session/create");
    stand.send_from(peer, request.body(Body::from(body)).unwrap()).await
}

fn id_of(created: &Reply) -> SessionId {
    let id = created.json()["ID"].as_str().and_then(SessionId::parse);
    id.unwrap_or_else(|| panic!("no session: {created:?}"))
}

impl Quorum {
    async fn ends(&self, session: SessionId) {
        let is_gone = |_: &u64| self.state.lock().unwrap().0.session(session).is_none();
        let mut news = self.news.subscribe();
        let ended = tokio::time::timeout(LIMIT, news.wait_for(is_gone)).await;
        assert!(ended.is_ok(), "session {session} outlives its process");
    }
}

#[tokio::test]
async fn lock_passes_on_with_process() {
    let stand = Arc::new(Stand::new());
    let mut holder = Sleeper::start();
    let first = id_of(&create(&stand, holder.peer(), r#"{"BindProcess":true}"#).await);
    let shown = stand.get(&format!("/v1/session/info/{first}")).await.text().to_owned();
    assert!(
        !shown.contains("Process") && !shown.contains("Pid"),
        "clients of Consul see nothing new: {shown}"
    );
    stand.put(&format!("/v1/kv/job?acquire={first}"), "").await.is(200, "true");
    let second = stand.session("").await;
    holder.kill();
    stand.quorum.ends(first).await;
    // The default lock-delay is 15 s.
    stand.put(&format!("/v1/kv/job?acquire={second}"), "").await.is(200, "true");
    let loss = stand.get("/v1/lockmesh/losses").await.json()[0].clone();
    assert_eq!(
        (loss["Cause"].as_str(), loss["PID"].as_u64()),
        (Some("process-exited"), Some(holder.0.id().into()))
    );
}

#[tokio::test]
async fn named_lock_delay_is_kept() {
    let stand = Stand::new();
    let mut holder = Sleeper::start();
    let first = id_of(&create(&stand, holder.peer(), r#"{"BindProcess":true,"LockDelay":"15s"}"#).await);
    stand.put(&format!("/v1/kv/job?acquire={first}"), "").await.is(200, "true");
    let second = stand.session("").await;
    holder.kill();
    stand.quorum.ends(first).await;
    let refused = stand.put(&format!("/v1/kv/job?acquire={second}"), "").await;
    refused.is(200, "false");
    assert_eq!(refused.header("x-lockmesh-lock-delay"), Some("15s"));
}

#[tokio::test]
async fn next_agent_process_takes_up_bindings() {
    let stand = Stand::new();
    let (mut dies_meanwhile, mut dies_later) = (Sleeper::start(), Sleeper::start());
    let first = id_of(&create(&stand, dies_meanwhile.peer(), r#"{"BindProcess":true}"#).await);
    let second = id_of(&create(&stand, dies_later.peer(), r#"{"BindProcess":true}"#).await);
    stand.api.feeds.bound_sessions.stop();
    stand.api.feeds.bound_sessions.stopped().await;
    dies_meanwhile.kill();
    let next = BoundSessions::start(stand.api.upstream.clone(), stand.api.identity.node.clone(), 8);
    stand.quorum.ends(first).await;
    assert!(stand.quorum.state.lock().unwrap().0.session(second).is_some(), "its process lives");
    dies_later.kill();
    stand.quorum.ends(second).await;
    next.stop();
}

#[tokio::test]
async fn unusable_process_rejected() {
    let stand = Stand::with_limits(HttpLimits { max_bound_sessions: 1, ..HttpLimits::default() });
    let (one, other) = (Sleeper::start(), Sleeper::start());
    let tcp = Peer::Tcp(([127, 0, 0, 1], 4711).into());
    let too_late =
        Peer::Unix { uid: None, gid: None, pid: i32::try_from(one.0.id()).ok(), accepted_at: Duration::ZERO };
    for (peer, body, status, words) in [
        (tcp, r#"{"BindProcess":true}"#, 400, "send the request to the agent's socket"),
        (too_late, r#"{"BindProcess":true}"#, 400, "has exited"),
        (one.peer(), r#"{"BindProcess":true,"Node":"other"}"#, 400, "leave out Node"),
        (one.peer(), r#"{"Pid":4294967295}"#, 400, "cannot be watched"),
        (one.peer(), r#"{"BindProcess":true}"#, 200, "ID"),
        (other.peer(), r#"{"BindProcess":true}"#, 500, "raise `session.max_bound`"),
    ] {
        let reply = create(&stand, peer, body).await;
        assert!(reply.status == status && reply.text().contains(words), "{body}: {reply:?}");
    }
}
