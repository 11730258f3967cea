//! Requests of servers to the mesh. A challenge of another member is one datagram: the juror queues
//! it here and waits, and the [mesh](crate::mesh) sends it and receives the reply. News of servers
//! is for all members, and has no reply.

use bytes::Bytes;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::lease::Challenge;
use tokio::sync::{mpsc, oneshot};

/// The maximum number of queued requests; the mesh handles them at once.
const QUEUED: usize = 64;

/// A request of a server to the mesh.
#[derive(Debug)]
pub(crate) enum MeshRequest {
    /// A challenge that needs a reply.
    Answer(Asked),
    /// Items to pass on.
    News(Vec<Bytes>),
}

/// A challenge on its way into the mesh.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) challenge: Challenge,
    answer: oneshot::Sender<NodeAnswer>,
}

/// The reply of this host to a challenge of another member.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) to: MemberId,
    pub(crate) answer: NodeAnswer,
}

/// The channel into the mesh, if there is one.
#[derive(Clone, Debug, Default)]
pub struct MeshQuestions(Option<mpsc::Sender<MeshRequest>>);

impl MeshQuestions {
    /// Creates the channel, and its receiver.
    pub(crate) fn channel() -> (Self, mpsc::Receiver<MeshRequest>) {
        let (sender, wanted) = mpsc::channel(QUEUED);
        (Self(Some(sender)), wanted)
    }

    /// Returns a member's reply; `None` if there is no mesh, or its queue is full. The caller sets
    /// the timeout.
    pub(crate) async fn challenge(&self, challenge: Challenge) -> Option<NodeAnswer> {
        let (answer, heard) = oneshot::channel();
        self.0.as_ref()?.try_send(MeshRequest::Answer(Asked { challenge, answer })).ok()?;
        heard.await.ok()
    }

    /// Queues items from a server; returns `false` if the mesh does not accept them.
    pub(crate) fn queue(&self, items: Vec<Bytes>) -> bool {
        self.0.as_ref().is_some_and(|mesh| mesh.try_send(MeshRequest::News(items)).is_ok())
    }
}

/// Challenges that were sent, and whose replies are awaited.
#[derive(Debug, Default)]
pub(crate) struct Awaited(Vec<Asked>);

impl Awaited {
    /// Records a challenge that was sent.
    pub(crate) fn push(&mut self, asked: Asked) {
        // Challenges without a reply would accumulate: only their callers have a timeout.
        self.0.retain(|earlier| !earlier.answer.is_closed());
        self.0.push(asked);
    }

    /// Passes a member's reply to the callers that await it.
    pub(crate) fn answered(&mut self, answer: NodeAnswer) {
        let answered = (answer.renewal.lease, answer.renewal.nonce);
        let is_answered = |asked: &mut Asked| (asked.challenge.lease, asked.challenge.nonce) == answered;
        for asked in self.0.extract_if(.., is_answered) {
            // It may have been answered over a connection meanwhile.
            let _ = asked.answer.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::{AgentNumber, LogIndex};
    use lockmesh_protocol::lease::{LeaseId, LeaseKey};

    fn challenge(agent: u32, nonce: u64) -> Challenge {
        Challenge { lease: LeaseId { agent: AgentNumber(agent), began: LogIndex(9) }, nonce }
    }

    fn question(wanted: Option<MeshRequest>) -> Option<Asked> {
        match wanted? {
            MeshRequest::Answer(asked) => Some(asked),
            MeshRequest::News(_) => None,
        }
    }

    fn answer(to: Challenge) -> NodeAnswer {
        LeaseKey([7; 32]).secret(to.lease).renewal(to.lease, 1, to.nonce).into()
    }

    #[tokio::test]
    async fn reply_reaches_all_matching_callers() {
        let (questions, mut asked) = MeshQuestions::channel();
        let ask = |challenge| {
            let questions = questions.clone();
            tokio::spawn(async move { questions.challenge(challenge).await })
        };
        let (first, second) = (ask(challenge(1, 5)), ask(challenge(1, 5)));
        let (other_check, other_node) = (ask(challenge(1, 6)), ask(challenge(2, 5)));
        let mut awaited = Awaited::default();
        for _ in 0..4 {
            awaited.push(question(asked.recv().await).expect("four were asked"));
        }
        let renewal = answer(challenge(1, 5));
        awaited.answered(renewal);
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Some(renewal), Some(renewal)));
        drop(awaited);
        assert_eq!((other_check.await.unwrap(), other_node.await.unwrap()), (None, None));
    }

    #[tokio::test]
    async fn abandoned_questions_not_kept() {
        let (questions, mut asked) = MeshQuestions::channel();
        let mut awaited = Awaited::default();
        for nonce in 1..100 {
            let asking = questions.challenge(challenge(1, nonce));
            tokio::select! {
                biased;
                _ = asking => panic!("there is no reply"),
                wanted = asked.recv() => awaited.push(question(wanted).expect("it was asked")),
            }
        }
        assert_eq!(awaited.0.len(), 1);
    }

    #[tokio::test]
    async fn no_reply_without_mesh() {
        assert_eq!(MeshQuestions::default().challenge(challenge(1, 1)).await, None);
        assert!(!MeshQuestions::default().queue(Vec::new()));
    }
}
