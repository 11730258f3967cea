//! The versions of the messages between agents and servers. TLS negotiates the newest one that both
//! peers support (ALPN), and rejects a peer that supports none of them.
//!
//! Types on the wire are only appended to, so a newer build understands every older message. A
//! message that an older peer cannot decode would cost it the connection: the sender converts it
//! with [`Call::in_dialect`] or [`Response::in_dialect`] first.

use crate::command::Command;
use crate::query::{Answer, Query, Rows};
use crate::record::{Loss, LossCause};
use crate::reply::{Applied, LockRefusal, Refusal, Reply};
use crate::rpc::{Call, Request, Response, Unavailable};
use std::borrow::Cow;
use std::sync::Arc;

/// A version of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// The version of builds before cluster format 2.
    First,
    /// Adds [`Response::AliveGivingUp`], [`Command::GiveUpSession`] and [`LossCause::GivenUp`].
    Second,
    /// Adds [`LossCause::KeyDeleted`].
    Third,
    /// Adds [`LossCause::CheckFailed`], [`Request::ReadParts`], [`Request::ReadPart`],
    /// [`Request::EndView`] and [`Response::AnswerPart`].
    Fourth,
    /// Adds [`Query::Coordinates`], [`Command::UpdateCoordinate`], [`Query::PreparedQueries`],
    /// [`Query::PreparedQuery`], [`Query::ResolvePreparedQuery`] and [`Command::PreparedQuery`].
    Fifth,
    /// Adds [`Query::Grants`], [`Query::Bindings`], [`Command::CreateBoundSession`],
    /// [`Command::EndOfProcess`] and [`LossCause::ProcessExited`].
    Sixth,
    /// Adds [`Request::RenewGivingUp`], [`Command::AcquireLocks`], [`Query::HeldEntry`]
    /// and [`Query::RequestOutcome`].
    Seventh,
    /// Adds [`Query::Waits`], [`Query::Deadlocks`] and [`Command::ConfigureDeadlocks`].
    Eighth,
    /// Adds [`Command::Restricted`], [`Command::ConfigureOperatorHosts`] and
    /// [`Query::OperatorHosts`].
    Ninth,
    /// Adds [`Call::BeginAs`], [`Response::FilteredAnswer`], [`Response::FilteredPart`],
    /// [`Unavailable::NoAccess`], [`Command::Acl`] and the queries of the access control lists.
    Tenth,
}

impl Dialect {
    /// All versions, newest first, in order of preference.
    pub const ALL: [Self; 10] = [
        Self::Tenth,
        Self::Ninth,
        Self::Eighth,
        Self::Seventh,
        Self::Sixth,
        Self::Fifth,
        Self::Fourth,
        Self::Third,
        Self::Second,
        Self::First,
    ];

    /// Returns the name in the TLS handshake.
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::First => b"lockmesh/1",
            Self::Second => b"lockmesh/2",
            Self::Third => b"lockmesh/3",
            Self::Fourth => b"lockmesh/4",
            Self::Fifth => b"lockmesh/5",
            Self::Sixth => b"lockmesh/6",
            Self::Seventh => b"lockmesh/7",
            Self::Eighth => b"lockmesh/8",
            Self::Ninth => b"lockmesh/9",
            Self::Tenth => b"lockmesh/10",
        }
    }

    /// Returns the newest version of the [`format`](crate::format) of the rows in its messages.
    fn row_format(self) -> u8 {
        match self {
            Self::First => 1,
            Self::Second => 2,
            Self::Third => 4,
            Self::Fourth => 5,
            Self::Fifth => 6,
            Self::Sixth => 7,
            Self::Seventh => 8,
            Self::Eighth => 9,
            Self::Ninth => 10,
            Self::Tenth => 11,
        }
    }

    /// Returns the version with this name in the TLS handshake.
    pub fn named(alpn: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.alpn() == alpn)
    }
}

impl Call {
    /// Converts the message for a server that supports this version: before [`Dialect::Second`], a
    /// session that was given up is destroyed without the reason; before [`Dialect::Fourth`], an
    /// answer has only one part; before [`Dialect::Fifth`], there are no coordinates and no
    /// prepared queries, also in the parts of a backup that is restored; before [`Dialect::Sixth`],
    /// there are neither grants nor bound sessions; before [`Dialect::Seventh`], a renewal has no
    /// list, and there are no locks in shared mode; before [`Dialect::Ninth`], no command is
    /// restricted; before [`Dialect::Tenth`], no call has a caller.
    pub fn in_dialect(&self, dialect: Dialect) -> Cow<'_, Self> {
        match self {
            // A server of an older build judges no request.
            Self::BeginAs(id, _, request) if dialect < Dialect::Tenth => {
                Cow::Owned(Self::Begin(*id, request.clone()).in_dialect(dialect).into_owned())
            }
            Self::Begin(id, Request::Propose(request, Command::Restricted(command)))
                if dialect < Dialect::Ninth =>
            {
                let plain = Self::Begin(*id, Request::Propose(*request, command.clone().into()));
                Cow::Owned(plain.in_dialect(dialect).into_owned())
            }
            Self::Begin(id, Request::Propose(request, Command::GiveUpSession { session, .. }))
                if dialect < Dialect::Second =>
            {
                let destroy = Command::DestroySession(*session);
                Cow::Owned(Self::Begin(*id, Request::Propose(*request, destroy)))
            }
            // The caller reads from these rows that the server does not know the query.
            Self::Begin(
                id,
                Request::Read { query, consistency, .. } | Request::ReadParts { query, consistency },
            ) if dialect < since(query) => {
                let query = Query::Txn(Vec::new());
                Cow::Owned(Self::Begin(
                    *id,
                    Request::Read { query, consistency: *consistency, blocking: None },
                ))
            }
            Self::Begin(id, Request::ReadParts { query, consistency }) if dialect < Dialect::Fourth => {
                let (query, consistency) = (query.clone(), *consistency);
                Cow::Owned(Self::Begin(*id, Request::Read { query, consistency, blocking: None }))
            }
            // The view is of another server. The caller does not accept this answer.
            Self::Begin(id, Request::ReadPart { .. } | Request::EndView(..)) if dialect < Dialect::Fourth => {
                Cow::Owned(Self::Begin(*id, Request::Status))
            }
            // The caller does not accept this answer either. Nothing was done.
            Self::Begin(id, Request::Propose(_, command))
                if command.since() > dialect.row_format().max(5) =>
            {
                Cow::Owned(Self::Begin(*id, Request::Status))
            }
            // The list stays for the replies to challenges.
            Self::Begin(id, Request::RenewGivingUp(answer)) if dialect < Dialect::Seventh => {
                Cow::Owned(Self::Begin(*id, Request::RenewLease(answer.renewal)))
            }
            known => Cow::Borrowed(known),
        }
    }
}

/// Returns the first version with a query.
fn since(query: &Query) -> Dialect {
    match query {
        Query::Coordinates
        | Query::PreparedQueries
        | Query::PreparedQuery(_)
        | Query::ResolvePreparedQuery(_) => Dialect::Fifth,
        Query::Grants(_) | Query::Bindings(_) => Dialect::Sixth,
        Query::HeldEntry { .. } | Query::RequestOutcome { .. } => Dialect::Seventh,
        Query::Waits(_) | Query::Deadlocks => Dialect::Eighth,
        Query::OperatorHosts => Dialect::Ninth,
        Query::AclSettings
        | Query::Rights
        | Query::OwnToken
        | Query::Tokens(_)
        | Query::Policies(_)
        | Query::Roles(_)
        | Query::AuthMethods(_)
        | Query::BindingRules(_) => Dialect::Tenth,
        _ => Dialect::First,
    }
}

impl Response {
    /// Converts the response for a peer that supports this version. Before [`Dialect::Second`] it
    /// has no sessions that were given up, and their losses have the cause `Destroyed`; before
    /// [`Dialect::Third`] it has no deleted keys among the losses, since their sessions live;
    /// before [`Dialect::Fourth`] its losses have no output of a check; before [`Dialect::Sixth`]
    /// the end of a process is `Destroyed` too; before [`Dialect::Seventh`] a refused request for
    /// locks is one that got none, as is before [`Dialect::Eighth`] one that would close a circle
    /// of waits; before [`Dialect::Ninth`] a command without the right, and a session above its
    /// node's limit, are denied, and before [`Dialect::Tenth`] a request of a client without the
    /// right, as is always a backup with rows that the peer does not support.
    #[must_use]
    pub fn in_dialect(self, dialect: Dialect) -> Self {
        match self {
            Self::FilteredAnswer(answer) if dialect < Dialect::Tenth => {
                Self::Answer(answer).in_dialect(dialect)
            }
            Self::FilteredPart(part) if dialect < Dialect::Tenth => Self::AnswerPart(part),
            Self::Unavailable(Unavailable::NoAccess(why)) if dialect < Dialect::Tenth => {
                Self::Unavailable(Unavailable::Denied(why.to_string()))
            }
            Self::Applied(Applied {
                reply:
                    Reply::Refused(refusal @ (Refusal::NoAccess(_) | Refusal::Acl(_) | Refusal::AclBootstrap(_))),
                ..
            }) if dialect < Dialect::Tenth => Self::Unavailable(Unavailable::Denied(refusal.to_string())),
            Self::AliveGivingUp(answer) if dialect < Dialect::Second => Self::Alive(answer.renewal),
            // The state refuses commands of older agents for these reasons too.
            Self::Applied(Applied {
                reply:
                    Reply::Refused(
                        refusal @ (Refusal::OtherNode(_)
                        | Refusal::NotOperatorHost(_)
                        | Refusal::TooManySessions(..)),
                    ),
                ..
            }) if dialect < Dialect::Ninth => Self::Unavailable(Unavailable::Denied(refusal.to_string())),
            // A plain acquire of a session that also sent newer requests, through another agent.
            Self::Applied(Applied { index, reply: Reply::Refused(Refusal::Lock(refusal)) })
                if dialect < since_refusal(&refusal) =>
            {
                Self::Applied(Applied { index, reply: Reply::Succeeded(false) })
            }
            Self::Answer(Answer {
                rows: Rows::Losses(losses),
                index,
                known_leader,
                last_contact,
                is_filtered: false,
            }) if dialect < Dialect::Sixth => {
                let losses = losses.into_iter().filter_map(|loss| loss_in(loss, dialect)).collect();
                Self::Answer(Answer {
                    rows: Rows::Losses(losses),
                    index,
                    known_leader,
                    last_contact,
                    is_filtered: false,
                })
            }
            // Not left out: a backup without these rows would look complete.
            Self::BackupPart(part) if part.rows.iter().any(|row| row.since() > dialect.row_format()) => {
                let text = "the backup has rows that this agent does not support: save it through an agent of the \
                            servers' version";
                Self::Unavailable(Unavailable::Denied(text.into()))
            }
            known => known,
        }
    }
}

fn since_refusal(refusal: &LockRefusal) -> Dialect {
    match refusal {
        LockRefusal::Deadlock { .. } => Dialect::Eighth,
        _ => Dialect::Seventh,
    }
}

fn loss_in(loss: Arc<Loss>, dialect: Dialect) -> Option<Arc<Loss>> {
    let cause = match &loss.cause {
        LossCause::KeyDeleted if dialect < Dialect::Third => return None,
        LossCause::GivenUp { .. } if dialect < Dialect::Second => LossCause::Destroyed,
        LossCause::CheckFailed { check, .. } if dialect < Dialect::Fourth => {
            LossCause::CheckCritical(check.clone())
        }
        // Called only for peers before `Dialect::Sixth`, none of which knows this cause.
        LossCause::ProcessExited { .. } => LossCause::Destroyed,
        _ => return Some(loss),
    };
    Some(Arc::new(Loss { cause, ..Arc::unwrap_or_clone(loss) }))
}

#[cfg(test)]
mod tests {
    use super::Dialect;
    use crate::change::{Change, Table};
    use crate::command::{Command, QueryCommand};
    use crate::id::{AgentNumber, LogIndex, NodeName, QueryId, ServerId, SessionId, Term, WallTime};
    use crate::lease::{LeaseId, LeaseKey};
    use crate::query::{Answer, Blocking, Consistency, Query, Rows};
    use crate::record::{Coordinate, Loss, LossCause};
    use crate::reply::{Applied, LockRefusal, Refusal, Reply};
    use crate::rpc::{BackupPart, Call, CallId, Request, Response, Unavailable, ViewId};
    use std::sync::Arc;
    use std::time::Duration;

    fn answer(causes: &[LossCause]) -> Response {
        let loss = |cause: &LossCause| {
            Arc::new(Loss {
                index: LogIndex(7),
                at: WallTime(7),
                session: SessionId::NIL,
                session_name: "backup".into(),
                node: NodeName::from("n1"),
                cause: cause.clone(),
                keys: Vec::new(),
                key_count: 0,
            })
        };
        let rows = Rows::Losses(causes.iter().map(loss).collect());
        let last_contact = Duration::ZERO;
        Response::Answer(Answer {
            index: LogIndex(7),
            rows,
            known_leader: true,
            last_contact,
            is_filtered: false,
        })
    }

    #[test]
    fn loss_causes_downgraded_per_dialect() {
        let given_up = LossCause::GivenUp { silent_for: Duration::from_secs(3) };
        let failed = LossCause::CheckFailed { check: "web".into(), output: "refused".into() };
        let critical = LossCause::CheckCritical("web".into());
        let exited = LossCause::ProcessExited { pid: 7 };
        let all = answer(&[failed.clone(), given_up.clone(), LossCause::KeyDeleted, exited]);
        let destroyed = LossCause::Destroyed;
        let expected: [(Dialect, &[LossCause]); 5] = [
            (Dialect::Fifth, &[failed.clone(), given_up.clone(), LossCause::KeyDeleted, destroyed.clone()]),
            (Dialect::Fourth, &[failed, given_up.clone(), LossCause::KeyDeleted, destroyed.clone()]),
            (Dialect::Third, &[critical.clone(), given_up.clone(), LossCause::KeyDeleted, destroyed.clone()]),
            (Dialect::Second, &[critical.clone(), given_up, destroyed.clone()]),
            (Dialect::First, &[critical, destroyed.clone(), destroyed]),
        ];
        assert_eq!(all.clone().in_dialect(Dialect::Sixth), all);
        for (dialect, causes) in expected {
            assert_eq!(all.clone().in_dialect(dialect), answer(causes), "{dialect:?}");
        }
    }

    #[test]
    fn unsupported_backup_rows_denied() {
        let part = |rows| {
            let (cluster_id, term) = (String::new(), Term(1));
            Response::BackupPart(BackupPart {
                backup: 1,
                cluster_id,
                index: LogIndex(7),
                term,
                number: 0,
                last: true,
                rows,
            })
        };
        let known = part(vec![Change::TableIndex(Table::Entries, LogIndex(7))]);
        assert_eq!(known.clone().in_dialect(Dialect::First), known);
        let newer = part(vec![Change::TableIndex(Table::Coordinates, LogIndex(7))]);
        assert_eq!(newer.clone().in_dialect(Dialect::Fifth), newer);
        assert!(matches!(newer.in_dialect(Dialect::Fourth), Response::Unavailable(Unavailable::Denied(_))));
    }

    #[test]
    fn part_read_becomes_plain_read() {
        let (query, consistency) = (Query::Sessions, Consistency::Stale);
        let parts = Call::Begin(CallId(1), Request::ReadParts { query: query.clone(), consistency });
        let read = Call::Begin(CallId(1), Request::Read { query, consistency, blocking: None });
        assert_eq!(*parts.in_dialect(Dialect::Third), read);
        assert_eq!(*parts.in_dialect(Dialect::Fourth), parts);
        let view = ViewId { server: ServerId(1), number: 1 };
        let status = Call::Begin(CallId(1), Request::Status);
        for request in
            [Request::ReadPart { view, after: 1, consistency }, Request::EndView(view, consistency)]
        {
            assert_eq!(*Call::Begin(CallId(1), request).in_dialect(Dialect::Third), status);
        }
    }

    #[test]
    fn unsupported_coordinate_requests_become_harmless() {
        let begin = |request| Call::Begin(CallId(1), request);
        let read =
            |query, blocking| begin(Request::Read { query, consistency: Consistency::Stale, blocking });
        let blocking = Some(Blocking { index: LogIndex(7), wait: Duration::from_secs(1) });
        let coordinates = read(Query::Coordinates, blocking);
        assert_eq!(*coordinates.in_dialect(Dialect::Fourth), read(Query::Txn(Vec::new()), None));
        assert_eq!(*coordinates.in_dialect(Dialect::Fifth), coordinates);
        let update = Command::UpdateCoordinate { node: "n1".into(), coordinate: Coordinate::default() };
        let update = begin(Request::Propose(None, update));
        assert_eq!(*update.in_dialect(Dialect::Fourth), begin(Request::Status));
        assert_eq!(*update.in_dialect(Dialect::Fifth), update);
    }

    #[test]
    fn unsupported_queries_become_harmless() {
        let begin = |request| Call::Begin(CallId(1), request);
        let consistency = Consistency::Stale;
        let harmless = begin(Request::Read { query: Query::Txn(Vec::new()), consistency, blocking: None });
        let blocking = Some(Blocking { index: LogIndex(7), wait: Duration::from_secs(1) });
        for (query, since) in [
            (Query::PreparedQueries, Dialect::Fifth),
            (Query::ResolvePreparedQuery("web".into()), Dialect::Fifth),
            (Query::Grants(vec!["a".into()]), Dialect::Sixth),
        ] {
            let read = begin(Request::Read { query: query.clone(), consistency, blocking });
            let parts = begin(Request::ReadParts { query, consistency });
            for dialect in Dialect::ALL {
                let expected = if dialect < since { [&harmless, &harmless] } else { [&read, &parts] };
                let converted = [&read, &parts].map(|call| call.in_dialect(dialect).into_owned());
                assert_eq!(converted.each_ref(), expected, "{dialect:?}");
            }
        }
        let delete = Command::PreparedQuery(QueryCommand::Delete(QueryId::from_random([7; 16])));
        let delete = begin(Request::Propose(None, delete));
        assert_eq!(*delete.in_dialect(Dialect::Fourth), begin(Request::Status));
        assert_eq!(*delete.in_dialect(Dialect::Fifth), delete);
    }

    #[test]
    fn lock_refusal_becomes_false() {
        let applied = |reply| Response::Applied(Applied { index: LogIndex(7), reply });
        let refused = applied(Reply::Refused(Refusal::Lock(LockRefusal::UpgradeWaits("a".into()))));
        assert_eq!(refused.clone().in_dialect(Dialect::Seventh), refused);
        assert_eq!(refused.in_dialect(Dialect::Sixth), applied(Reply::Succeeded(false)));
    }

    #[test]
    fn renewal_loses_its_list() {
        let lease = LeaseId { agent: AgentNumber(1), began: LogIndex(1) };
        let renewal = LeaseKey::default().secret(lease).renewal(lease, 1, 0);
        let call = |request| Call::Begin(CallId(1), request);
        let listing = call(Request::RenewGivingUp(Box::new(renewal.into())));
        assert_eq!(*listing.in_dialect(Dialect::Sixth), call(Request::RenewLease(renewal)));
        assert_eq!(*listing.in_dialect(Dialect::Seventh), listing);
    }

    #[test]
    fn refusals_denied_to_older_agents() {
        let refusals = [
            Refusal::OtherNode("n2".into()),
            Refusal::NotOperatorHost("n1".into()),
            Refusal::TooManySessions("n1".into(), 7),
        ];
        for refusal in refusals {
            let text = refusal.to_string();
            let refused = Response::Applied(Applied { index: LogIndex(7), reply: Reply::Refused(refusal) });
            assert_eq!(refused.clone().in_dialect(Dialect::Ninth), refused);
            let denied = Response::Unavailable(Unavailable::Denied(text));
            assert_eq!(refused.in_dialect(Dialect::Eighth), denied);
        }
    }

    #[test]
    fn names_are_unique_and_known() {
        for dialect in Dialect::ALL {
            assert_eq!(Dialect::named(dialect.alpn()), Some(dialect));
        }
        assert_eq!(Dialect::named(b"lockmesh/0"), None);
    }
}
