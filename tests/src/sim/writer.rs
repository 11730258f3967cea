//! A client that writes: plainly, conditionally, and in transactions. Every value that it writes is
//! unique.

use super::client::{Wish, data_key};
use super::marks::Mark;
use super::stage::Stage;
use bytes::Bytes;
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, NewEntry, TxnKv, TxnOp};
use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::BTreeMap;

/// The state of the client.
#[derive(Debug)]
pub struct Writer {
    name: String,
    written: u64,
    /// The index of each key's last change, as far as it knows.
    known: BTreeMap<Key, LogIndex>,
    served: bool,
}

impl Writer {
    /// Returns a writer whose values begin with its name.
    pub fn new(name: String) -> Self {
        Self { name, written: 0, known: BTreeMap::new(), served: false }
    }

    /// Returns `true` if it was served since the storm ended.
    pub fn is_content(&self) -> bool {
        self.served
    }

    fn value(&mut self) -> Bytes {
        self.written += 1;
        format!("{}-{}", self.name, self.written).into_bytes().into()
    }

    /// Returns the next request, if any.
    pub fn wish(&mut self, stage: &mut Stage) -> Option<Wish> {
        if self.served {
            return None;
        }
        let key = data_key(stage);
        let known = self.known.get(&key).copied().unwrap_or_default();
        let command = match stage.draw.below(12) {
            0..=4 => Command::Kv(KvCommand::Set(self.entry(key))),
            5..=7 => Command::Kv(KvCommand::Cas(self.entry(key), Some(known).filter(|index| index.0 > 0))),
            8 => Command::Kv(KvCommand::Delete(key)),
            9 => Command::Kv(KvCommand::DeleteCas(key, known)),
            10 if stage.draw.once_in(10) => Command::Kv(KvCommand::DeleteTree("data/".into())),
            _ => self.transaction(stage, key, known),
        };
        Some(Wish::new(stage.now, Request::Propose(None, command)))
    }

    fn entry(&mut self, key: Key) -> NewEntry {
        NewEntry { key, value: self.value(), flags: 0 }
    }

    fn transaction(&mut self, stage: &mut Stage, key: Key, known: LogIndex) -> Command {
        let other = data_key(stage);
        let op =
            |verb, key, value, index| TxnOp::Kv(TxnKv { verb, key, value, flags: 0, index, session: None });
        let (first, second) = (self.value(), self.value());
        let mut ops = vec![op(KvVerb::Set, key.clone(), first, LogIndex(0))];
        if other != key {
            ops.push(op(KvVerb::Set, other, second, LogIndex(0)));
        }
        if stage.draw.once_in(2) {
            ops.insert(0, op(KvVerb::CheckIndex, key, Bytes::new(), known));
        }
        Command::Txn(ops)
    }

    /// Receives the response to a request.
    pub fn receive_response(&mut self, stage: &mut Stage, wish: &Wish, response: &Response) {
        self.served |= stage.calm;
        let (Request::Propose(_, command), Response::Applied(Applied { index, reply })) =
            (&wish.request, response)
        else {
            return;
        };
        match (command, reply) {
            (Command::Kv(KvCommand::Set(entry)), Reply::Succeeded(true)) => {
                self.known.insert(entry.key.clone(), *index);
            }
            (Command::Kv(KvCommand::Cas(entry, _)), Reply::Succeeded(true)) => {
                stage.hit(Mark::CasWon);
                self.known.insert(entry.key.clone(), *index);
            }
            (Command::Kv(KvCommand::Cas(..)), Reply::Succeeded(false)) => stage.hit(Mark::CasLost),
            (Command::Txn(ops), Reply::Txn(_)) => {
                for op in ops {
                    if let TxnOp::Kv(TxnKv { verb: KvVerb::Set, key, .. }) = op {
                        self.known.insert(key.clone(), *index);
                    }
                }
            }
            (Command::Txn(_), Reply::TxnFailed(_)) => stage.hit(Mark::TxnFailed),
            _ => {}
        }
    }
}
