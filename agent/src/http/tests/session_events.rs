//! The state of a session as its guards see it: by poll and by stream, in stopped time.

use super::super::body::Body;
use super::super::router::respond;
use super::{HttpLimits, Reply, Stand};
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use lockmesh_agent_core::handover::Handover;
use lockmesh_agent_core::lease::{LeaseState, RESTART_BELIEF};
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use serde_json::Value;
use std::time::Duration;

impl Stand {
    fn now(&self) -> Time {
        self.api.feeds.session_watches.clock().now()
    }

    /// A renewal sent now is acknowledged.
    fn renewed(&self) {
        self.quorum.lease.send_replace(LeaseState { renewed: Some(self.now()), ..LeaseState::default() });
    }

    /// Returns the state of a session; with an index, after the next change.
    async fn events(&self, session: &str, behind: u64) -> Value {
        let reply = self.poll(session, &format!("?index={behind}&wait=60s")).await;
        let event = reply.json();
        assert_eq!(event["Index"], reply.index(), "{reply:?}");
        event
    }

    async fn poll(&self, session: &str, query: &str) -> Reply {
        self.get(&format!("/v1/session/events/{session}{query}")).await
    }

    /// A response whose body is still open.
    async fn stream(&self, session: &str) -> Body {
        let request = Request::builder()
            .uri(format!("/v1/session/events/{session}"))
            .header("accept", "text/event-stream")
            .body(Body::empty());
        let response = respond(&self.api, super::LOCAL, request.unwrap()).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        response.into_body()
    }
}

async fn next(body: &mut Body) -> Option<String> {
    let data: Bytes = body.frame().await?.unwrap().into_data().unwrap();
    Some(String::from_utf8(data.to_vec()).unwrap())
}

fn index(event: &Value) -> u64 {
    event["Index"].as_u64().unwrap()
}

#[tokio::test(start_paused = true)]
async fn poll_reports_each_acknowledgement() {
    let stand = Stand::new();
    stand.renewed();
    let sent = stand.now();
    let id = stand.session("").await;
    let event = stand.events(&id, 0).await;
    assert_eq!(
        (&event["Session"], &event["State"], &event["Reason"]),
        (&id.into(), &"safe".into(), &"".into())
    );
    let deadline = (sent + Duration::from_micros(6_416_666)).0 * 1_000;
    assert_eq!((event["Deadline"].as_u64(), event["RemainingMS"].as_u64()), (Some(deadline), Some(6_416)));
    assert_eq!(event["JeopardyAt"].as_u64(), Some(deadline - 3_333_333_000));
    let session = event["Session"].as_str().unwrap();
    let (news, ()) = tokio::join!(stand.events(session, index(&event)), async {
        tokio::time::advance(Duration::from_secs(1)).await;
        stand.renewed();
    });
    assert_eq!(news["State"], "safe");
    assert!(news["Deadline"].as_u64() > Some(deadline) && index(&news) > index(&event));
}

#[tokio::test(start_paused = true)]
async fn unrenewed_session_degrades_until_lost() {
    let stand = Stand::new();
    stand.renewed();
    let id = stand.session("").await;
    let mut event = stand.events(&id, 0).await;
    let begun = stand.now();
    for (state, after) in [("jeopardy", 3_083), ("suspended", 6_416), ("lost", 9_750)] {
        event = stand.events(&id, index(&event)).await;
        assert_eq!(event["State"], state, "{event}");
        let passed = stand.now().since(begun);
        assert!(passed.as_millis().abs_diff(after) < 50, "{state} after {passed:?}");
    }
    assert!(event["Reason"].as_str().unwrap().starts_with("given-up: "), "{event}");
    // The agent ends it, once, and later clients see that as the reason.
    let mut news = stand.quorum.news.subscribe();
    let before = stand.quorum.state.lock().unwrap().1;
    while stand.get("/v1/session/list").await.text() != "[]" {
        news.changed().await.unwrap();
    }
    stand.quorum.parked(0).await;
    assert!(stand.quorum.state.lock().unwrap().1 <= before + 1);
    event = stand.events(&id, index(&event)).await;
    assert_eq!(event["State"], "lost");
    let reason = event["Reason"].as_str().unwrap();
    assert!(reason.starts_with("given-up (no renewal acknowledged for "), "{reason}");
    stand.get("/v1/session/list").await.is(200, "[]");
}

#[tokio::test(start_paused = true)]
async fn claimed_reason_requires_doubtful_session() {
    let stand = Stand::new();
    let mut causes = Vec::new();
    for (is_followed, passed) in [(false, 4), (true, 1), (true, 4)] {
        stand.renewed();
        let id = stand.session("").await;
        if is_followed {
            assert_eq!(stand.events(&id, 0).await["State"], "safe");
        }
        tokio::time::advance(Duration::from_secs(passed)).await;
        let end = format!("/v1/session/destroy/{id}?given-up=3s");
        stand.put(&end, "").await.is(200, "true");
        let losses = stand.get("/v1/lockmesh/losses").await.json();
        let newest = losses.as_array().unwrap().iter().find(|loss| loss["Session"] == id.as_str()).unwrap();
        causes.push(newest["Cause"].as_str().unwrap().to_owned());
    }
    assert_eq!(causes, ["destroyed", "destroyed", "given-up"]);
}

#[tokio::test(start_paused = true)]
async fn suspended_session_recovers_after_confirmation() {
    let stand = Stand::new();
    stand.renewed();
    let id = stand.session(r#"{"HealthWindow":"fast"}"#).await;
    let mut event = stand.events(&id, 0).await;
    while event["State"] != "suspended" {
        event = stand.events(&id, index(&event)).await;
    }
    // It is acknowledged, but cannot be read.
    stand.break_with(Unavailable::NotLeader { leader: None });
    stand.renewed();
    event = stand.events(&id, index(&event)).await;
    assert_eq!(event["State"], "suspended", "{event}");
    assert!(event["Reason"].as_str().unwrap().contains("checking that the session"), "{event}");
    stand.mend();
    event = stand.events(&id, index(&event)).await;
    assert_eq!((&event["State"], &event["Reason"]), (&"safe".into(), &"".into()));
}

#[tokio::test(start_paused = true)]
async fn ended_session_lost_with_reason() {
    let stand = Stand::new();
    stand.renewed();
    let id = stand.session("").await;
    let event = stand.events(&id, 0).await;
    let destroy = format!("/v1/session/destroy/{id}");
    let (lost, _) = tokio::join!(stand.events(&id, index(&event)), stand.put(&destroy, ""));
    assert_eq!((&lost["State"], &lost["Reason"]), (&"lost".into(), &"destroyed".into()));
    assert_eq!((&lost["Deadline"], &lost["RemainingMS"]), (&0.into(), &0.into()));
    // Also for later clients, and at once.
    let later = stand.events(&id, index(&lost)).await;
    assert_eq!((&later["State"], &later["Reason"]), (&"lost".into(), &"destroyed".into()));
}

#[tokio::test(start_paused = true)]
async fn unknown_session_lost_foreign_rejected() {
    let stand = Stand::new();
    for name in ["40e4a748-2192-161a-0510-9bf59fe950b5", "no-id"] {
        let event = stand.events(name, 7).await;
        assert_eq!(event["State"], "lost", "{event}");
        assert!(event["Reason"].as_str().unwrap().contains("does not exist"), "{event}");
    }
    stand.poll("", "").await.is(400, "Missing session");
    stand.poll("x", "?index=no").await.is(400, "Invalid index");
    let other = Node { name: "node-two".into(), id: super::NODE_ID.replace('4', "5"), ..super::own_node() };
    stand.quorum.apply(Command::RegisterAgent(AgentRegistration::of(other)));
    let id = stand.session(r#"{"Node":"node-two"}"#).await;
    let refused = stand.poll(&id, "").await;
    refused.failed(400, "refused");
    assert!(refused.text().contains("node-two: ask the agent on that host"), "{refused:?}");
    stand.break_with(Unavailable::NotLeader { leader: None });
    stand.poll(&id, "").await.failed(500, "not-done");
}

#[tokio::test(start_paused = true)]
async fn no_deadline_without_node_health() {
    let stand = Stand::new();
    let id = stand.session(r#"{"NodeChecks":[]}"#).await;
    let event = stand.events(&id, 0).await;
    assert_eq!((&event["State"], &event["Deadline"]), (&"safe".into(), &0.into()));
    assert!(event["Reason"].as_str().unwrap().contains("TTL"), "{event}");
}

#[tokio::test(start_paused = true)]
async fn stream_follows_session_to_end() {
    let stand = Stand::new();
    stand.renewed();
    let id = stand.session(r#"{"HealthWindow":"safe"}"#).await;
    let mut body = stand.stream(&id).await;
    let first = next(&mut body).await.unwrap();
    let (head, data) = first.split_once("data: ").unwrap();
    let event: Value = serde_json::from_str(data).unwrap();
    assert_eq!(head, format!("event: safe\nid: {}\n", index(&event)));
    assert!(data.ends_with("}\n\n"), "{data}");
    let second = next(&mut body).await.unwrap();
    assert!(second.starts_with("event: jeopardy\nid: "), "{second}");
    stand.put(&format!("/v1/session/destroy/{id}"), "").await.is(200, "true");
    let last = next(&mut body).await.unwrap();
    assert!(last.starts_with("event: lost\nid: ") && last.contains("\"Reason\":\"destroyed\""), "{last}");
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test(start_paused = true)]
async fn idle_stream_kept_alive_until_shutdown() {
    let stand = Stand::new();
    let id = stand.session(r#"{"NodeChecks":[]}"#).await;
    let mut body = stand.stream(&id).await;
    next(&mut body).await.unwrap();
    let begun = stand.now();
    assert_eq!(next(&mut body).await.unwrap(), ": nothing new\n\n");
    assert_eq!(stand.now().since(begun).as_secs(), 15);
    let event = stand.events(&id, 0).await;
    let (polled, ()) = tokio::join!(stand.events(&id, index(&event)), async {
        stand.api.feeds.session_watches.stop();
    });
    assert_eq!(polled, event, "answered with the current state");
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test(start_paused = true)]
async fn restart_announced_before_streams_end() {
    let stand = Stand::new();
    let watches = &stand.api.feeds.session_watches;
    watches.change_handover(|handover| *handover = Handover::of([]));
    stand.renewed();
    let id = stand.session("").await;
    let mut body = stand.stream(&id).await;
    next(&mut body).await.unwrap();
    let event = stand.events(&id, 0).await;
    let sent = stand.now();
    let (polled, ()) = tokio::join!(stand.events(&id, index(&event)), async {
        tokio::time::advance(Duration::from_millis(500)).await;
        stand.quorum.lease.send_modify(|lease| lease.announced = Some(sent));
        stand.api.feeds.session_watches.stop();
    });
    assert_eq!((&polled["State"], polled["RemainingMS"].as_u64()), (&"jeopardy".into(), Some(28_000)));
    assert_eq!(polled["Deadline"].as_u64(), Some((sent + RESTART_BELIEF).0 * 1_000));
    assert!(polled["Reason"].as_str().unwrap().contains("is restarting"), "{polled}");
    let last = next(&mut body).await.unwrap();
    assert!(last.starts_with("event: jeopardy\nid: ") && last.contains("is restarting"), "{last}");
    assert_eq!(next(&mut body).await, None);
    // Clients that ask while the last requests are answered receive the same.
    let later = stand.events(&id, 0).await;
    assert_eq!((&later["State"], &later["Deadline"]), (&polled["State"], &polled["Deadline"]));
    // The next process recognizes each of them by its index, and none but the stream stays pending.
    let left = watches.handover().for_successor().expect("it is known");
    watches.change_handover(|handover| *handover = Handover::of(left));
    stand.renewed();
    for told in [polled, later] {
        let report = stand.events(&id, index(&told)).await;
        stand.events(&id, index(&report)).await;
    }
    let pending = watches.handover().for_successor().expect("it is known");
    let pending: Vec<_> = pending.values().flat_map(|reports| reports.keys()).collect();
    assert!(matches!(&pending[..], [index] if last.contains(&format!("id: {index}\n"))), "{pending:?}");
}

#[tokio::test(start_paused = true)]
async fn session_watch_limit_and_expiry() {
    let limits = HttpLimits { max_watched_sessions: 1, ..HttpLimits::default() };
    let stand = Stand::with_limits(limits);
    let first = stand.session(r#"{"NodeChecks":[]}"#).await;
    let second = stand.session(r#"{"NodeChecks":[]}"#).await;
    assert_eq!(stand.events(&first, 0).await["State"], "safe");
    let refused = stand.poll(&second, "").await;
    refused.failed(500, "not-done");
    assert!(refused.text().contains("`session.max_watched`"), "{refused:?}");
    // The first one's watch ends when no client has asked for a while.
    stand.quorum.parked(1).await;
    stand.quorum.parked(0).await;
    assert_eq!(stand.events(&second, 0).await["State"], "safe");
}
