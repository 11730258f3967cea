//! The task that requests the parts of another server's snapshot: the connection and the clock of a
//! [`SnapshotDownload`].

use super::download::{DownloadError, DownloadStep, Fetched, PART_TIMEOUT, SnapshotDownload};
use crate::event_queue::{DriverEvent, EventSender};
use lockmesh_core::durability::write_queue::CheckpointRows;
use lockmesh_net::{CallClient, Endpoint, LinkError, random};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval between progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// A snapshot to be fetched.
pub(crate) struct Fetch {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) from: ServerId,
    pub(crate) address: String,
    /// The snapshot's index must be this one or a later one.
    pub(crate) least: LogIndex,
    /// The snapshot must be of this cluster: the address may be another one's by now.
    pub(crate) cluster_id: String,
}

impl Fetch {
    /// Fetches the snapshot and notifies the driver, also of a failure.
    pub(crate) async fn run(self, sender: EventSender) {
        let began = Instant::now();
        let fetched = self.fetch().await;
        if let Ok(fetched) = &fetched {
            tracing::info!(
                index = fetched.mark.index.0,
                bytes = fetched.bytes,
                rows = fetched.rows.row_count(),
                took_ms = began.elapsed().as_millis() as u64,
                "fetched the snapshot"
            );
        }
        // Never rejected for lack of room; a driver that has stopped needs no notice.
        let _ = sender.post(DriverEvent::SnapshotFetched(fetched));
    }

    async fn fetch(&self) -> Result<Box<Fetched>, DownloadError> {
        let began = Instant::now();
        let now = || Time(began.elapsed().as_micros() as u64);
        let mut download = SnapshotDownload::new(now(), self.least, random::seed());
        let (mut client, mut told, mut log) = (None, Instant::now(), LogOnChange::default());
        loop {
            let step = match self.send_request(&mut client, &download).await {
                Ok(response) => download.answered(now(), response),
                Err(error) => download.lost(now(), error.to_string()),
            };
            match step {
                DownloadStep::Ask => self.log_progress(&mut told, &download),
                // On another connection: an answer to the abandoned request may still come on this
                // one.
                DownloadStep::AskAgain(after, reason) => {
                    client = None;
                    let parts = download.part_count();
                    if log.is_new(&reason.to_string()) {
                        tracing::info!(from = self.from.0, parts, %reason, "retrying the snapshot");
                    }
                    tokio::time::sleep(after).await;
                }
                DownloadStep::Done(fetched) if fetched.state.cluster_id() == self.cluster_id => {
                    return Ok(fetched);
                }
                DownloadStep::Done(fetched) => {
                    let (found, expected) = (fetched.state.cluster_id().into(), self.cluster_id.clone());
                    return Err(DownloadError::OtherCluster {
                        address: self.address.clone(),
                        found,
                        expected,
                    });
                }
                DownloadStep::GiveUp(reason) => return Err(reason),
            }
        }
    }

    /// Sends the download's next request, on the open connection or on a new one.
    async fn send_request(
        &self,
        client: &mut Option<CallClient>,
        download: &SnapshotDownload,
    ) -> Result<Response, LinkError> {
        // Taken out: after an error, or if this is dropped half-way, it is not used again.
        let mut connected = match client.take() {
            Some(connected) => connected,
            None => CallClient::connect_to(&self.endpoint, &self.address).await?,
        };
        let response = connected.call(download.request(), PART_TIMEOUT).await?;
        *client = Some(connected);
        Ok(response)
    }

    fn log_progress(&self, told: &mut Instant, download: &SnapshotDownload) {
        if told.elapsed() > PROGRESS_INTERVAL {
            *told = Instant::now();
            let (parts, bytes) = (download.part_count(), download.byte_count());
            tracing::info!(from = self.from.0, parts, bytes, "fetching the snapshot");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DownloadError, Fetch, Fetched};
    use crate::snapshot::download::sample_parts;
    use lockmesh_net::{Close, Development, Endpoint, QuicOptions, Role};
    use lockmesh_protocol::id::{LogIndex, ServerId};
    use lockmesh_protocol::rpc::{Call, CallFrame, Request, Response, SnapshotPart};
    use std::sync::Arc;

    /// Serves parts, one per connection, and returns the requested numbers.
    async fn one_part_a_connection(endpoint: Endpoint, parts: Vec<SnapshotPart>) -> Vec<u32> {
        let mut asked = Vec::new();
        while asked.len() < parts.len() {
            let connection =
                endpoint.accept().await.expect("it is open").handshake().await.expect("a server");
            let (_, mut sender, mut receiver) = connection.accept().await.expect("a stream");
            let frame = receiver.receive::<CallFrame>().await.expect("a call").expect("a frame");
            let [Call::Begin(call, Request::SnapshotPart { snapshot, number, .. })] = frame.0.as_slice()
            else {
                panic!("not what a fetch asks: {frame:?}")
            };
            assert_eq!(*snapshot, (*number > 0).then_some(5), "it asks on for the same snapshot");
            asked.push(*number);
            sender
                .send_one(&(*call, Response::SnapshotPart(parts[*number as usize].clone())))
                .await
                .expect("it listens");
            // The next request is not answered.
            let _ = receiver.receive::<CallFrame>().await;
            connection.close(Close::Done, "");
        }
        asked
    }

    /// Fetches the sample snapshot for a server of this cluster, one part per connection. Returns
    /// the result, and the parts that were requested.
    async fn fetched_for(cluster_id: &str) -> (Result<Box<Fetched>, DownloadError>, Vec<u32>) {
        let folder = tempfile::tempdir().unwrap();
        let identity =
            Development::prepare(folder.path(), &"s1".into()).unwrap().identity(Role::Server).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let server = Endpoint::listen(any, &identity, &QuicOptions::default()).unwrap();
        let address = server.local_address().unwrap().to_string();
        let endpoint = Arc::new(Endpoint::dial_only(&identity, &QuicOptions::default()).unwrap());
        let serving = tokio::spawn(one_part_a_connection(server, sample_parts()));
        let cluster_id = cluster_id.into();
        let fetch = Fetch { endpoint, from: ServerId(1), address, least: LogIndex(7), cluster_id };
        let fetched = fetch.fetch().await;
        (fetched, serving.await.unwrap())
    }

    #[tokio::test]
    async fn lost_connection_keeps_received_parts() {
        let (fetched, requested) = fetched_for("c").await;
        assert_eq!(fetched.expect("the snapshot").state.cluster_id(), "c");
        assert_eq!(requested, [0, 1]);
    }

    #[tokio::test]
    async fn other_cluster_snapshot_is_rejected() {
        let (fetched, _) = fetched_for("d").await;
        let refused = fetched.expect_err("its parts are whole, and of the cluster c").to_string();
        assert!(refused.ends_with("is of the cluster c, not of d"), "{refused}");
    }
}
