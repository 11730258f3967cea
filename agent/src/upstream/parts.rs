//! Answers of any size: whole if they are short, else in parts of one view.

use super::Upstream;
use super::calls::{AnswerPart, EndView, Read, ReadPart, ReadParts, Rest};
use lockmesh_protocol::query::{Answer, Consistency, Query};
use lockmesh_protocol::rpc::Unavailable;
use std::sync::Arc;

/// An answer, or a part of one.
#[derive(Debug)]
pub struct Part {
    /// The rows, with the index of the whole answer.
    pub answer: Arc<Answer>,
    /// The parts behind it, if any.
    pub rest: Option<OpenView>,
}

/// The view with the rest of an answer. Dropped, it is ended at the server too, which frees its
/// place.
#[derive(Debug)]
pub struct OpenView {
    upstream: Upstream,
    consistency: Consistency,
    rest: Rest,
}

impl Upstream {
    /// Reads an answer of any size: all of it if it is short, else its first part.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn read_any(&self, read: Read) -> Result<Part, Unavailable> {
        let Read { query, consistency, .. } = read.clone();
        match self.call(read).await {
            Ok(answer) => Ok(Part::whole(answer)),
            // Only now, because servers have few views, and most answers need none.
            Err(Unavailable::AnswerTooLong { .. }) => self.read_parts(query, consistency).await,
            Err(unavailable) => Err(unavailable),
        }
    }

    /// Reads the first part of a long answer.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn read_parts(&self, query: Query, consistency: Consistency) -> Result<Part, Unavailable> {
        let AnswerPart { answer, rest } = self.call(ReadParts { query, consistency }).await?;
        let open = rest.map(|rest| OpenView { upstream: self.clone(), consistency, rest });
        Ok(Part::new(answer, open))
    }

    /// Reads an answer of any size to its end. The caller holds all of it, so this is for answers
    /// that are compared as a whole.
    ///
    /// # Errors
    /// It cannot be read, or its view ended before its last part.
    pub async fn read_all(&self, read: Read) -> Result<Vec<Arc<Answer>>, Unavailable> {
        let mut answers = Vec::new();
        let mut next = Some(self.read_any(read).await?);
        while let Some(Part { answer, rest }) = next {
            answers.push(answer);
            next = Part::behind(rest).await?;
        }
        Ok(answers)
    }
}

impl Part {
    fn new(answer: Answer, open: Option<OpenView>) -> Self {
        // The view ends with its last part.
        Self { answer: Arc::new(answer), rest: open.filter(|open| open.rest.next.is_some()) }
    }

    /// An answer without further parts.
    pub fn whole(answer: Arc<Answer>) -> Self {
        Self { answer, rest: None }
    }

    /// Reads the next part; `None` behind the last.
    ///
    /// # Errors
    /// The view has ended: the parts so far are not the whole answer.
    pub async fn behind(rest: Option<OpenView>) -> Result<Option<Self>, Unavailable> {
        let Some(mut open) = rest else { return Ok(None) };
        let (view, consistency) = (open.rest.view, open.consistency);
        let after = open.rest.next.expect("there is a next part");
        let AnswerPart { answer, rest } = open.upstream.call(ReadPart { view, after, consistency }).await?;
        open.rest.next = rest.and_then(|rest| rest.next);
        Ok(Some(Self::new(answer, Some(open))))
    }
}

impl Drop for OpenView {
    fn drop(&mut self) {
        let (upstream, consistency, view) = (self.upstream.clone(), self.consistency, self.rest.view);
        tokio::spawn(async move { upstream.call(EndView { view, consistency }).await });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{BoxFuture, Quorum};
    use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
    use lockmesh_protocol::acl::Caller;
    use lockmesh_protocol::id::{LogIndex, NodeName, ServerId};
    use lockmesh_protocol::query::Rows;
    use lockmesh_protocol::record::{Check, CheckStatus};
    use lockmesh_protocol::rpc::{self, Request, Response, ViewId};
    use std::time::Duration;
    use tokio::sync::watch;

    const ONLY_VIEW: ViewId = ViewId { server: ServerId(1), number: 7 };

    /// A quorum with a node of too many checks for one answer.
    #[derive(Debug)]
    struct LongNode {
        checks: Rows,
        /// The position from which parts are refused, because the view has ended.
        ends_at: u64,
        has_view: watch::Sender<bool>,
    }

    impl LongNode {
        fn reply(&self, call: LocalCall) -> Result<Response, Unavailable> {
            let after = match call {
                LocalCall::Read { .. } => return Err(Unavailable::AnswerTooLong { limit: 8 << 20 }),
                LocalCall::Ask(Request::ReadParts { .. }) => {
                    self.has_view.send_replace(true);
                    0
                }
                LocalCall::Ask(Request::ReadPart { view: ONLY_VIEW, after, .. }) => after,
                LocalCall::Ask(Request::EndView(ONLY_VIEW, _)) => {
                    self.has_view.send_replace(false);
                    return Ok(Response::Done);
                }
                other => panic!("{other:?} is no read"),
            };
            if after >= self.ends_at {
                return Err(Unavailable::Overloaded("the answer is incomplete".into()));
            }
            let (rows, next) = self.checks.part(after as usize, 100);
            let (known_leader, last_contact) = (true, Duration::ZERO);
            let answer = Answer { index: LogIndex(9), rows, known_leader, last_contact, is_filtered: false };
            let next = next.map(|next| next as u64);
            Ok(Response::AnswerPart(Box::new(rpc::AnswerPart { answer, view: ONLY_VIEW, next })))
        }
    }

    impl Quorum for LongNode {
        fn call(self: Arc<Self>, _: Caller, call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
            Box::pin(std::future::ready(self.reply(call).map(Answered::Response)))
        }

        fn invite(self: Arc<Self>, _: String, _: Vec<String>) -> BoxFuture<Result<Response, Unavailable>> {
            Box::pin(std::future::pending())
        }
    }

    /// Reads a node of ten checks; returns what was read, once the view has ended.
    async fn read(ends_at: u64) -> Result<Vec<Arc<Check>>, Unavailable> {
        let node = NodeName::from("n1");
        let check = |number| Check::of(node.clone(), format!("c{number}").into(), CheckStatus::Passing);
        let checks = Rows::Checks((0..10).map(|number| Arc::new(check(number))).collect());
        let has_view = watch::Sender::new(false);
        let mut views = has_view.subscribe();
        let upstream = Upstream::new(Arc::new(LongNode { checks, ends_at, has_view }));
        let query = Query::NodeChecks(node);
        let read = Read { query, consistency: Consistency::Default, blocking: None };
        let answers = upstream.read_all(read).await;
        views.wait_for(|has_view| !has_view).await.expect("it has a sender");
        let mut checks = Vec::new();
        for answer in answers? {
            let Rows::Checks(rows) = &answer.rows else { panic!("no checks") };
            assert!(rows.len() < 10, "they come in parts");
            checks.extend_from_slice(rows);
        }
        Ok(checks)
    }

    #[tokio::test]
    async fn reads_all_checks_across_parts() {
        let ids: Vec<String> = read(10).await.expect("it is read").iter().map(|c| c.id.to_string()).collect();
        assert_eq!(ids, (0..10).map(|number| format!("c{number}")).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn early_view_end_is_error() {
        assert!(matches!(read(1).await, Err(Unavailable::Overloaded(_))));
    }
}
