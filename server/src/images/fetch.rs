//! The task that asks another server for the parts of its image and puts them together.

use super::digest::{Digest, of_all, of_part};
use crate::asker::Asker;
use crate::mailbox::{Mail, Mailbox};
use crate::said::Backoff;
use crate::store::{DirtyRows, RowReader};
use lockmesh_core::State;
use lockmesh_core::raft::log::ImageMark;
use lockmesh_core::write_queue::CheckpointRows;
use lockmesh_net::Endpoint;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::{ImagePart, MAX_FRAME_BYTES, Request, Response};
use lockmesh_protocol::wire;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one part may take; the first one waits for a checkpoint.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before a lost connection is made anew: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// After so long without a part it is given up; the leader will say again that there is an image.
const SILENCE: Duration = Duration::from_secs(15);
/// How often progress is told.
const TELL_PERIOD: Duration = Duration::from_secs(5);

/// An image to be fetched.
pub(crate) struct Fetch {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) from: ServerId,
    pub(crate) address: String,
    /// The image must stand for this index or a later one.
    pub(crate) least: LogIndex,
}

/// An image that was fetched, as it is wanted in memory and on disk.
#[derive(Debug)]
pub struct Fetched {
    pub(crate) mark: ImageMark,
    pub(crate) state: Box<State>,
    pub(crate) rows: DirtyRows,
}

/// Why there is no part: whether the same image may be asked on.
enum Failure {
    /// The connection was lost.
    Lost(String),
    /// This image is of no more use.
    Useless(String),
}

/// What has arrived so far.
struct Gathering {
    image: Option<u64>,
    mark: Option<ImageMark>,
    digests: Vec<Digest>,
    reader: RowReader,
    state: Box<State>,
    rows: DirtyRows,
    bytes: usize,
}

impl Fetch {
    /// Fetches the image and tells the driver, also when it is given up.
    pub(crate) async fn run(self, mailbox: Mailbox) {
        let began = Instant::now();
        tracing::info!(from = %self.from, address = self.address, "this server is too far behind: it fetches an image");
        let fetched = self.fetch().await;
        match &fetched {
            Ok((fetched, bytes)) => tracing::info!(
                index = %fetched.mark.index, bytes, rows = fetched.rows.row_count(), took = ?began.elapsed(), "fetched the image"
            ),
            Err(reason) => tracing::warn!(from = %self.from, "the image was not fetched: {reason}"),
        }
        // It always gets in; a driver that is gone needs it no more.
        let _ = mailbox.post(Mail::Image(fetched.ok().map(|(fetched, _)| Box::new(fetched))));
    }

    async fn fetch(&self) -> Result<(Fetched, usize), String> {
        let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
        let mut gathering = Gathering::new();
        let mut heard = Instant::now();
        loop {
            let parts = gathering.digests.len();
            let reason = match self.ask_on(&mut gathering).await {
                Ok(mark) => {
                    let Gathering { state, rows, bytes, .. } = gathering;
                    return Ok((Fetched { mark, state, rows }, bytes));
                }
                Err(Failure::Lost(reason)) => reason,
                Err(Failure::Useless(reason)) => {
                    gathering = Gathering::new();
                    reason
                }
            };
            if gathering.digests.len() > parts {
                heard = Instant::now();
                backoff.reset();
            }
            if heard.elapsed() > SILENCE {
                return Err(reason);
            }
            tracing::info!(from = %self.from, parts = gathering.digests.len(), "the image is asked for again: {reason}");
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Asks for one part after the other on one connection, to the end.
    async fn ask_on(&self, gathering: &mut Gathering) -> Result<ImageMark, Failure> {
        let mut asker = Asker::connect_to(&self.endpoint, &self.address).await.map_err(Failure::Lost)?;
        let mut told = Instant::now();
        loop {
            let number = gathering.digests.len() as u32;
            let request = Request::ImagePart { image: gathering.image, number, least: self.least };
            let part = match asker.ask(request, PATIENCE).await.map_err(Failure::Lost)? {
                Response::ImagePart(part) => part,
                Response::Unavailable(reason) => return Err(Failure::Useless(reason.to_string())),
                other => return Err(Failure::Useless(format!("an answer that fits no image: {other:?}"))),
            };
            if let Some(mark) = gathering.take(number, &part).map_err(Failure::Useless)? {
                return if mark.index >= self.least {
                    Ok(mark)
                } else {
                    Err(Failure::Useless("it is too old".into()))
                };
            }
            if told.elapsed() > TELL_PERIOD {
                told = Instant::now();
                tracing::info!(from = %self.from, parts = number + 1, bytes = gathering.bytes, "fetching the image");
            }
        }
    }
}

impl Gathering {
    fn new() -> Self {
        let mut rows = DirtyRows::default();
        rows.record(Change::Cleared);
        let state = Box::new(State::new());
        let (digests, reader) = (Vec::new(), RowReader::default());
        Self { image: None, mark: None, digests, reader, state, rows, bytes: 0 }
    }

    /// Takes a part; gives what the image stands for when it is whole.
    fn take(&mut self, number: u32, part: &ImagePart) -> Result<Option<ImageMark>, String> {
        if part.number != number || self.image.is_some_and(|image| image != part.image) {
            return Err("it is another part than the one that was asked for".into());
        }
        if part.digest != of_part(number, &part.mark, &part.rows) {
            return Err(format!("part {number} has another checksum than it should"));
        }
        let mark = wire::decode_bare::<ImageMark, MAX_FRAME_BYTES>(&part.mark);
        let mark = mark.map_err(|error| format!("it does not say what it stands for: {error}"))?;
        if self.mark.as_ref().is_some_and(|known| *known != mark) {
            return Err("its parts stand for different things".into());
        }
        for row in self.reader.take(&part.rows)? {
            self.state.load(row.clone());
            self.rows.record(row);
        }
        self.image = Some(part.image);
        self.mark = Some(mark.clone());
        self.bytes += part.rows.len();
        self.digests.push(part.digest);
        match part.whole {
            None => Ok(None),
            Some(_) if !self.reader.is_done() => Err("its last row has no end".into()),
            Some(whole) if whole == of_all(&self.digests) => Ok(Some(mark)),
            Some(_) => Err("the whole has another checksum than it should".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Fetch, Gathering, ImagePart, of_all, of_part};
    use bytes::Bytes;
    use lockmesh_core::raft::log::ImageMark;
    use lockmesh_core::write_queue::CheckpointRows;
    use lockmesh_net::frame::FrameQueue;
    use lockmesh_net::{Close, Development, Endpoint, QuicOptions, Role};
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::id::{Fence, LogIndex, ServerId};
    use lockmesh_protocol::rpc::{Call, CallFrame, Request, Response};
    use lockmesh_protocol::wire::encode_into;
    use std::sync::Arc;

    fn parts() -> Vec<ImagePart> {
        let mut mark = Vec::new();
        encode_into(&ImageMark { index: LogIndex(7), ..ImageMark::default() }, &mut mark);
        let rows = [Change::ClusterId("c".into()), Change::Fence(Fence(3))];
        let mut parts: Vec<_> = (0..)
            .zip(rows)
            .map(|(number, row)| {
                let mut bytes = Vec::new();
                encode_into(&row, &mut bytes);
                let mut rows = (bytes.len() as u32).to_be_bytes().to_vec();
                rows.extend(bytes);
                let digest = of_part(number, &mark, &rows);
                ImagePart {
                    image: 5,
                    number,
                    mark: mark.clone().into(),
                    rows: rows.into(),
                    digest,
                    whole: None,
                }
            })
            .collect();
        parts[1].whole = Some(of_all(&[parts[0].digest, parts[1].digest]));
        parts
    }

    /// Serves parts, one a connection, and tells which were asked for.
    async fn one_part_a_connection(endpoint: Endpoint, parts: Vec<ImagePart>) -> Vec<u32> {
        let mut asked = Vec::new();
        while asked.len() < parts.len() {
            let connection =
                endpoint.accept().await.expect("it is open").handshake().await.expect("a server");
            let (_, mut sender, mut receiver) = connection.accept().await.expect("a stream");
            let frame = receiver.receive::<CallFrame>().await.expect("a call").expect("a frame");
            let [Call::Begin(call, Request::ImagePart { image, number, .. })] = frame.0.as_slice() else {
                panic!("not what a fetch asks: {frame:?}")
            };
            assert_eq!(*image, (*number > 0).then_some(5), "it asks on for the same image");
            asked.push(*number);
            let mut queue = FrameQueue::default();
            queue.push(&(*call, Response::ImagePart(parts[*number as usize].clone()))).expect("it is short");
            sender.send(queue.take()).await.expect("it listens");
            // The next question comes in vain.
            let _ = receiver.receive::<CallFrame>().await;
            connection.close(Close::Done, "");
        }
        asked
    }

    #[tokio::test]
    async fn a_lost_connection_costs_no_part_that_has_arrived() {
        let folder = tempfile::tempdir().unwrap();
        let identity =
            Development::prepare(folder.path(), &"s1".into()).unwrap().identity(Role::Server).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let server = Endpoint::listen(any, &identity, &QuicOptions::default()).unwrap();
        let address = server.local_address().unwrap().to_string();
        let endpoint = Arc::new(Endpoint::dial_only(&identity, &QuicOptions::default()).unwrap());
        let serving = tokio::spawn(one_part_a_connection(server, parts()));
        let fetch = Fetch { endpoint, from: ServerId(1), address, least: LogIndex(7) };
        let (fetched, _) = fetch.fetch().await.expect("the image");
        assert_eq!(fetched.state.cluster_id(), "c");
        assert_eq!(serving.await.unwrap(), [0, 1]);
    }

    /// How a part is damaged, and what is said of it then.
    type Damage = (fn(&mut ImagePart), &'static str);

    #[test]
    fn what_arrives_whole_is_the_state_that_was_sent() {
        let (mut gathering, parts) = (Gathering::new(), parts());
        assert_eq!(gathering.take(0, &parts[0]), Ok(None));
        let mark = gathering.take(1, &parts[1]).expect("it is whole").expect("it is the last one");
        assert_eq!(
            (mark.index, gathering.state.cluster_id(), gathering.state.fence()),
            (LogIndex(7), "c", Fence(3))
        );
        assert_eq!(gathering.rows.row_count(), 2);
    }

    #[test]
    fn whatever_is_damaged_is_not_taken() {
        let damages: [Damage; 6] = [
            (|part| part.rows = Bytes::from_static(b"\0\0\0\x01x"), "has another checksum"),
            (|part| part.mark = Bytes::from_static(b"x"), "has another checksum"),
            (|part| part.image = 6, "another part"),
            (|part| part.number = 0, "another part"),
            (|part| part.whole = Some([0; 32]), "the whole has another checksum"),
            (
                |part| {
                    part.rows = Bytes::from_static(b"\0\0\0\x09x");
                    part.digest = of_part(1, &part.mark, &part.rows);
                },
                "its last row has no end",
            ),
        ];
        for (damage, expected) in damages {
            let (mut gathering, mut parts) = (Gathering::new(), parts());
            assert_eq!(gathering.take(0, &parts[0]), Ok(None));
            damage(&mut parts[1]);
            let reason = gathering.take(1, &parts[1]).expect_err("it is damaged");
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
