//! Decodes the lease contents of messages between servers. The simulator uses it to verify the
//! failure detector from outside.

use super::messages::{JurorReports, LeaseAnswer};
use crate::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::lease::{LeaseAck, Renewal};

/// The lease contents of one message; see the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseContents {
    /// Renewals that a follower relays to the leader.
    pub renewals: Vec<Renewal>,
    /// Answers of nodes to a juror, as it reports them to the leader.
    pub answers: Vec<Renewal>,
    /// Acknowledgements by the leader of relayed renewals.
    pub acknowledged: Vec<LeaseAck>,
}

impl LeaseContents {
    /// Decodes the lease contents of a message; empty if the message has none.
    pub fn of(message: &PeerMessage) -> Self {
        let mut contents = Self::default();
        match message.kind {
            MessageKind::LeaseRenewals => {
                let renewals = message.read::<Vec<(u64, Renewal)>>().unwrap_or_default();
                contents.renewals.extend(renewals.into_iter().map(|(_, renewal)| renewal));
            }
            MessageKind::NodeReports => {
                let reports = message.read::<JurorReports>().map(|reports| reports.reports);
                let reports = reports.unwrap_or_default().into_iter();
                contents.answers.extend(reports.filter_map(|report| report.answer));
            }
            MessageKind::LeaseAnswers => {
                let answers = message.read::<Vec<(u64, LeaseAnswer)>>().unwrap_or_default();
                contents.acknowledged.extend(answers.into_iter().filter_map(|(_, answer)| match answer {
                    LeaseAnswer::Renewed(ack) => Some(ack),
                    LeaseAnswer::Ended(..) | LeaseAnswer::Unavailable(_) => None,
                }));
            }
            _ => {}
        }
        contents
    }
}
