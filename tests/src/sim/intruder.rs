//! A client of a cluster with access control lists: it sends requests with and without the right,
//! changes the rights of its own token, and looks for rows that it may not see.

use super::client::{Wish, lock_key};
use super::judge::Judge;
use super::marks::Mark;
use super::stage::Stage;
use bytes::Bytes;
use lockmesh_protocol::acl::peer::{PeerField, SelectorStep};
use lockmesh_protocol::acl::{
    AclCommand, BindType, Caller, Level, Links, NewBindingRule, NewPolicy, NewToken, Resource, Rule,
    SecretHash, UnixPeer,
};
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{Key, SessionId};
use lockmesh_protocol::query::{Answer, Consistency, Query, Rows};
use lockmesh_protocol::record::{LockMode, RequestedLock, SessionSpec};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::sync::Arc;
use std::time::Duration;

/// The secret of the management token, which all other clients use.
pub const MANAGEMENT: &str = "management";

/// The name of its sessions.
const NAME: &str = "intruder";

/// The only keys that the limited token may ever read.
const OWN_KEYS: &str = "own/";

/// The secrets that the client uses; the empty one is no token.
const SECRETS: [&str; 5] = ["", "unknown", LIMITED_SECRET, USER, MANAGEMENT];

/// In place of a secret: the user of a host that is bound to the limited policy.
const USER: &str = "user 1000";
const METHOD: &str = "peers";
const RULE: &str = "88888888-2222-3333-4444-555555555555";
const LIMITED_SECRET: &str = "11111111-2222-3333-4444-666666666666";
const LIMITED: &str = "11111111-2222-3333-4444-555555555555";
const POLICY: &str = "77777777-2222-3333-4444-555555555555";

/// The state of the client.
#[derive(Debug)]
pub struct Intruder {
    node: String,
    /// The secret of the request under way.
    secret: &'static str,
    served: bool,
}

impl Intruder {
    /// Returns the client of an agent.
    pub fn new(place: usize) -> Self {
        Self { node: format!("n{place}"), secret: "", served: false }
    }

    /// Returns `true` if the client was served since the storm ended.
    pub fn is_content(&self) -> bool {
        self.served
    }

    /// Returns the next request, if any.
    pub fn wish(&mut self, stage: &mut Stage, judge: &Judge) -> Option<Wish> {
        if self.served {
            return None;
        }
        self.secret = if stage.calm { MANAGEMENT } else { *stage.draw.pick(&SECRETS) };
        let request = match self.secret {
            MANAGEMENT if stage.draw.once_in(4) => self.own_write(stage),
            MANAGEMENT if !stage.calm => Request::Propose(None, Command::Acl(self.change_of_rights(stage))),
            MANAGEMENT => self.own_write(stage),
            _ => self.forbidden_or_own(stage, judge),
        };
        Some(Wish { caller: caller(self.secret), ..Wish::new(stage.now, request) })
    }

    fn own_write(&self, stage: &mut Stage) -> Request {
        let key = format!("{OWN_KEYS}{}", stage.draw.below(3)).into();
        put(stage, key)
    }

    fn change_of_rights(&self, stage: &mut Stage) -> AclCommand {
        let links = Links { policies: vec![POLICY.into()], ..Links::default() };
        let token = NewToken {
            accessor: LIMITED.into(),
            secret: LIMITED_SECRET.into(),
            description: self.node.clone(),
            links,
            is_local: false,
            expires_at: None,
        };
        let levels = [Level::Read, Level::Write, Level::Deny];
        let mut rule = |resource, label: &str| Rule {
            resource,
            is_prefix: true,
            label: label.into(),
            level: *stage.draw.pick(&levels),
        };
        let rules = vec![rule(Resource::Key, OWN_KEYS), rule(Resource::Session, &self.node)];
        let policy = Box::new(NewPolicy {
            id: POLICY.into(),
            name: "limited".into(),
            description: String::new(),
            text: format!("{rules:?}"),
            rules: rules.into(),
            datacenters: Vec::new(),
        });
        let binding = Box::new(NewBindingRule {
            id: RULE.into(),
            description: String::new(),
            method: METHOD.into(),
            selector: "uid == 1000".into(),
            steps: vec![SelectorStep::Has(PeerField::Uid, "1000".into())],
            bind_type: BindType::Policy,
            bind_name: "limited".into(),
        });
        match stage.draw.below(10) {
            6 => AclCommand::SetAuthMethod(METHOD.into(), String::new()),
            7 => AclCommand::DeleteAuthMethod(METHOD.into()),
            8 => AclCommand::CreateBindingRule(binding),
            9 => AclCommand::DeleteBindingRule(RULE.into()),
            0 => AclCommand::DeleteToken(LIMITED.into()),
            1 => AclCommand::DeletePolicy(POLICY.into()),
            2 => AclCommand::CreatePolicy(policy),
            3 => AclCommand::UpdatePolicy(policy),
            4 => AclCommand::UpdateToken(Box::new(token)),
            _ => AclCommand::CreateToken(Box::new(token)),
        }
    }

    fn forbidden_or_own(&self, stage: &mut Stage, judge: &Judge) -> Request {
        let command = |command| Request::Propose(None, command);
        // A session of another client only without any right: nobody else may end it.
        let has_rights = [LIMITED_SECRET, USER].contains(&self.secret);
        let mut sessions = judge.history.state().sessions();
        let session = sessions.find(|session| !has_rights || session.spec.name == NAME);
        let session = session.map_or(SessionId::NIL, |session| session.spec.id);
        match stage.draw.below(9) {
            0 => command(Command::DestroySession(session)),
            1 => {
                let lock = RequestedLock {
                    key: lock_key(stage),
                    mode: LockMode::Exclusive,
                    value: Bytes::new(),
                    flags: 0,
                };
                command(Command::AcquireLocks { locks: vec![lock], session, wait: Duration::ZERO })
            }
            2 => command(Command::Kv(KvCommand::DeleteTree(Key::from("")))),
            3 => {
                let node = format!("n{}", stage.draw.below(2));
                let mut bytes = [7; 16];
                bytes[..8].copy_from_slice(&stage.draw.bits().to_be_bytes());
                let id = SessionId::from_random(bytes);
                let spec = SessionSpec { name: NAME.into(), ..SessionSpec::of(id, node.as_str().into()) };
                command(Command::CreateSession(spec))
            }
            4 => {
                let key = lock_key(stage);
                put(stage, key)
            }
            5 => command(Command::Acl(AclCommand::DeleteToken(LIMITED.into()))),
            6 => read(Query::Entries(Key::from(""))),
            7 => read(Query::Sessions),
            _ => self.own_write(stage),
        }
    }

    /// Receives the response to a request.
    ///
    /// # Errors
    /// A row was shown to which its token never has a right.
    pub fn receive_response(&mut self, stage: &mut Stage, response: &Response) -> Result<(), String> {
        match response {
            Response::Applied(Applied { reply: Reply::Refused(Refusal::NoAccess(_)), .. })
            | Response::Unavailable(Unavailable::NoAccess(_)) => stage.hit(Mark::AccessRefused),
            Response::Applied(_) => {
                stage.hit(Mark::AccessGranted);
                self.served |= stage.calm;
            }
            Response::Answer(Answer { rows, .. }) => return self.check(rows),
            _ => {}
        }
        Ok(())
    }

    /// Checks that no row is visible to which the token never has a right.
    fn check(&self, rows: &Rows) -> Result<(), String> {
        let is_limited = [LIMITED_SECRET, USER].contains(&self.secret);
        let hidden = match rows {
            Rows::Entries(rows) => rows
                .iter()
                .find(|row| !is_limited || !row.key.as_str().starts_with(OWN_KEYS))
                .map(|row| row.key.to_string()),
            Rows::Sessions(rows) if !is_limited => rows.first().map(|row| row.spec.id.to_string()),
            _ => None,
        };
        match hidden {
            Some(row) => Err(format!("{row} was shown to the secret {:?}", self.secret)),
            None => Ok(()),
        }
    }
}

/// Returns the caller with a secret.
pub fn caller(secret: &str) -> Caller {
    match secret {
        "" => Caller::Anonymous,
        USER => Caller::Peer(Arc::new(UnixPeer {
            uid: 1000,
            gid: 1000,
            user: "user".into(),
            group: String::new(),
            groups: Vec::new(),
            otherwise: None,
        })),
        secret => Caller::Token(SecretHash::of(secret)),
    }
}

fn put(stage: &mut Stage, key: Key) -> Request {
    // Unique, as all values: see the invariant `outcomes`.
    let value = format!("intruder {:x}", stage.draw.bits()).into();
    let new = NewEntry { key, value, flags: 0 };
    Request::Propose(None, Command::Kv(KvCommand::Set(new)))
}

fn read(query: Query) -> Request {
    Request::Read { query, consistency: Consistency::Default, blocking: None }
}
