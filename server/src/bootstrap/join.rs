//! Requests to a quorum, sent to its leader: to admit this server, or to record its current
//! address.

use super::BootstrapEvent;
use crate::event_queue::{DriverEvent, EventSender};
use lockmesh_net::{CallClient, Endpoint, LinkError, random};
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::record::{NewServer, Server};
use lockmesh_protocol::rpc::{Joined, Request, Response, Unavailable};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The timeout of an answer, which requires two commits.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The backoff between attempts: the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The maximum number of redirects to another leader.
const MAX_HINTS: usize = 4;

/// Retries until a cluster admits this server, then notifies the driver.
pub(super) async fn join(
    endpoint: Arc<Endpoint>,
    sender: EventSender,
    me: NewServer,
    (cluster_id, addresses): (String, watch::Receiver<Vec<String>>),
) {
    let instance_id = me.instance_id.clone();
    let is_admitted = |response| match response {
        // An answer to another instance would give this server another server's id.
        Response::Joined(joined) => {
            Some(joined).filter(|joined| is_of(joined, &instance_id) && joined.cluster_id == cluster_id)
        }
        _ => None,
    };
    let joined = call_until_done(
        &endpoint,
        &cluster_id,
        || addresses.borrow().clone(),
        Request::AddServer(me),
        "join the cluster",
        is_admitted,
    )
    .await;
    // This event is never rejected for lack of room, and a driver that has stopped needs no notice.
    let _ = sender.post(DriverEvent::Bootstrap(BootstrapEvent::Joined(joined)));
}

/// Returns `true` if the assigned id belongs to the server of this instance id.
fn is_of(joined: &Joined, instance_id: &str) -> bool {
    joined.servers.iter().any(|server| server.id == joined.server && server.instance_id == instance_id)
}

/// Sends this server's current address to the leader until it is recorded. `addresses` returns the
/// addresses at which a leader may be.
pub(crate) async fn announce(
    endpoint: Arc<Endpoint>,
    cluster_id: String,
    me: Server,
    addresses: impl Fn() -> Vec<String>,
) {
    let done = |response| matches!(response, Response::Done).then_some(());
    let request = Request::Announce(me);
    call_until_done(&endpoint, &cluster_id, addresses, request, "announce own address", done).await;
}

async fn call_until_done<T>(
    endpoint: &Endpoint,
    cluster_id: &str,
    addresses: impl Fn() -> Vec<String>,
    request: Request,
    what: &str,
    mut wanted: impl FnMut(Response) -> Option<T>,
) -> T {
    let mut backoff = Backoff::new(BACKOFF, random::seed());
    let mut log = LogOnChange::default();
    loop {
        for address in &addresses() {
            let reason = match ask_leader(endpoint, cluster_id, address, &request).await {
                Ok(response) => match wanted(response) {
                    Some(wanted) => return wanted,
                    None => "unexpected answer".into(),
                },
                Err(error) => error.to_string(),
            };
            if log.is_new(&reason) {
                tracing::warn!(address, %reason, "cannot {what}; retrying");
            }
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// The reason why neither a server nor the leader that it names carried out a request.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0}")]
    Unavailable(Unavailable),
    #[error("too many redirects: the servers disagree about the leader")]
    Redirects,
    #[error("the server at {address} has not learned its cluster yet")]
    NoCluster { address: String },
    #[error("the server at {address} belongs to the cluster {found}, not to {own}: correct `quorum.join`")]
    OtherCluster { address: String, found: String, own: String },
    #[error("the server at {address} did not report its cluster: {answer:?}")]
    NoStatus { address: String, answer: Box<Response> },
}

/// Asks the server at an address, and the leader that it names.
///
/// Each server must first report its cluster: an address may belong to another cluster by now,
/// which would admit this server.
async fn ask_leader(
    endpoint: &Endpoint,
    cluster_id: &str,
    address: &str,
    request: &Request,
) -> Result<Response, AskError> {
    let mut address = address.to_owned();
    // A limit, since two servers may name each other while the leadership moves.
    for _ in 0..MAX_HINTS {
        let mut client = CallClient::connect_to(endpoint, &address).await?;
        compare_cluster(&mut client, cluster_id, &address).await?;
        match client.call(request.clone(), TIMEOUT).await? {
            // Not to itself: a server that names its own address is about to learn the new leader.
            Response::Unavailable(Unavailable::NotLeader { leader: Some(leader) }) if leader != address => {
                address = leader;
            }
            Response::Unavailable(reason) => return Err(AskError::Unavailable(reason)),
            response => return Ok(response),
        }
    }
    Err(AskError::Redirects)
}

/// Rejects a server of another cluster.
async fn compare_cluster(client: &mut CallClient, cluster_id: &str, address: &str) -> Result<(), AskError> {
    let address = address.to_owned();
    match client.call(Request::Status, TIMEOUT).await? {
        Response::Status(status) if status.cluster_id == cluster_id => Ok(()),
        Response::Status(status) if status.cluster_id.is_empty() => Err(AskError::NoCluster { address }),
        Response::Status(status) => {
            let (found, own) = (status.cluster_id, cluster_id.to_owned());
            Err(AskError::OtherCluster { address, found, own })
        }
        Response::Unavailable(reason) => Err(AskError::Unavailable(reason)),
        other => Err(AskError::NoStatus { address, answer: Box::new(other) }),
    }
}

#[cfg(test)]
mod tests {
    use super::ask_leader;
    use lockmesh_net::{Close, Development, Endpoint, QuicOptions, Role};
    use lockmesh_protocol::id::ServerId;
    use lockmesh_protocol::record::{NewServer, Server};
    use lockmesh_protocol::rpc::{Call, CallFrame, Request, Response, Status};

    /// Serves one connection as a server of this cluster; returns the number of received requests
    /// other than `Status`.
    async fn serve(endpoint: &Endpoint, cluster_id: &str) -> usize {
        let connection = endpoint.accept().await.expect("it is open").handshake().await.expect("a server");
        let (_, mut sender, mut receiver) = connection.accept().await.expect("a stream");
        let mut others = 0;
        // An error is the caller's end of the connection.
        while let Ok(Some(CallFrame(calls))) = receiver.receive().await {
            for call in calls {
                let Call::Begin(id, request) = call else { continue };
                let response = match request {
                    Request::Status => {
                        Response::Status(Status { cluster_id: cluster_id.into(), ..Status::default() })
                    }
                    _ => {
                        others += 1;
                        Response::Done
                    }
                };
                sender.send_one(&(id, response)).await.expect("it listens");
            }
        }
        connection.close(Close::Done, "");
        others
    }

    #[tokio::test]
    async fn only_chosen_cluster_is_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let certificates = Development::prepare(folder.path(), &"s1".into()).expect("certificates");
        let identity = certificates.identity(Role::Server).expect("a server's certificate");
        let any = "127.0.0.1:0".parse().expect("an address");
        let listening = Endpoint::listen(any, &identity, &QuicOptions::default()).expect("a socket");
        let address = listening.local_address().expect("it is bound").to_string();
        let endpoint = Endpoint::dial_only(&identity, &QuicOptions::default()).expect("a socket");
        let me = NewServer {
            node: "s1".into(),
            node_id: String::new(),
            address: address.clone(),
            instance_id: "instance".into(),
            format: 0,
        };
        let me: Server = me.with_id(ServerId(1));
        for (cluster_id, refusal) in [
            ("c", None),
            ("d", Some("belongs to the cluster d, not to c: correct `quorum.join`")),
            ("", Some("has not learned its cluster yet")),
        ] {
            let request = Request::Announce(me.clone());
            let asking = ask_leader(&endpoint, "c", &address, &request);
            let (answer, others) = tokio::join!(asking, serve(&listening, cluster_id));
            assert_eq!(others, usize::from(refusal.is_none()), "{cluster_id:?}: {answer:?}");
            match refusal {
                None => assert!(matches!(answer, Ok(Response::Done)), "{answer:?}"),
                Some(words) => {
                    assert!(answer.as_ref().is_err_and(|why| why.to_string().contains(words)), "{answer:?}");
                }
            }
        }
    }
}
