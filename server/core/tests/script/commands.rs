//! Parses commands of the script language.

use super::queries::query_id;
use super::words::Words;
use crate::names::session;
use bytes::Bytes;
use lockmesh_protocol::command::{
    AgentRegistration, CatalogVerb, Command, Deregistration, KvCommand, KvVerb, NewEntry, NewQuery,
    NodeFailure, NodeLeave, QueryCommand, Registration, TxnKv, TxnOp,
};
use lockmesh_protocol::deadlock::DeadlockPolicy;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{
    AgentNumber, CheckId, Key, LogIndex, NodeName, ServerId, ServiceId, SessionId, Term,
};
use lockmesh_protocol::lease::{HealthWindow, LeaseId, LeaseKey};
use lockmesh_protocol::prepared_query::{NAME_PREFIX_MATCH, QueryService, QuerySpec, QueryTemplate};
use lockmesh_protocol::record::{
    Autopilot, Behavior, Check, CheckStatus, Coordinate, Finite, Incarnation, LockMode, NewServer, Node,
    ProcessBinding, RequestedLock, Service, ServiceCheck, SessionSpec,
};
use std::time::Duration;

/// Parses a line as a command; `None` if its first word is not a command.
pub(crate) fn command(line: &str) -> Result<Option<Command>, String> {
    if let Some(ops) = line.strip_prefix("txn ") {
        let ops: Result<Vec<TxnOp>, String> = ops.split(';').map(|op| txn_op(op.trim())).collect();
        return Ok(Some(Command::Txn(ops?)));
    }
    if let Some(line) = line.strip_prefix("restricted ") {
        return Ok(command(line)?.map(Command::restricted));
    }
    let mut words = Words::new(line);
    let command = match words.word()?.as_str() {
        "session" => create_session(&mut words)?,
        "process-ended" => Command::EndOfProcess(session_id(&mut words)?),
        "destroy" => Command::DestroySession(session_id(&mut words)?),
        "give-up" => {
            let session = session_id(&mut words)?;
            let silent_for = words.number_option("silent-ms")?.unwrap_or(0);
            Command::GiveUpSession { session, silent_for: Duration::from_millis(silent_for) }
        }
        "expire" => {
            let session = session_id(&mut words)?;
            let term = Term(words.number_option("term")?.unwrap_or(1));
            Command::ExpireSession { session, term, base: words.number_option("base")?.unwrap_or(0) }
        }
        "end-delay" => {
            let base = words.number_option("base")?.unwrap_or(0);
            Command::EndLockDelay { key: key(&mut words)?, started_at_index: index(&mut words)?, base }
        }
        "end-wait" => {
            let (key, queue_position, enqueued_at_index) =
                (key(&mut words)?, index(&mut words)?, index(&mut words)?);
            Command::EndWait { key, queue_position, enqueued_at_index }
        }
        "lock" => lock(&mut words)?,
        "deadlocks" => Command::ConfigureDeadlocks(policy(&words.word()?)?),
        "operator-hosts" => operator_hosts(&words.word_or_empty()),
        "format" => Command::RaiseFormat(words.number()? as u8),
        "coordinate" => coordinate(&mut words)?,
        "reap" => Command::ReapTombstones { up_to: index(&mut words)? },
        "register" => Command::Register(registration(&mut words)?),
        "deregister" => Command::Deregister(deregistration(&mut words)?),
        "bootstrap" => bootstrap(&mut words)?,
        "admit-server" => Command::AdmitServer(admitted(&mut words)?),
        "update-server" => {
            let id = ServerId(words.number()?);
            Command::UpdateServer(admitted(&mut words)?.with_id(id))
        }
        "query" => {
            Command::PreparedQuery(QueryCommand::Create(query_id(&words.word()?), new_query(&mut words)))
        }
        "update-query" => {
            Command::PreparedQuery(QueryCommand::Update(query_id(&words.word()?), new_query(&mut words)))
        }
        "delete-query" => Command::PreparedQuery(QueryCommand::Delete(query_id(&words.word()?))),
        "forget-server" => Command::ForgetServer(ServerId(words.number()?)),
        "autopilot" => {
            let expected = words.number_option("index")?.map(LogIndex);
            let min_quorum = u32::try_from(words.number()?).map_err(|error| error.to_string())?;
            Command::ConfigureAutopilot(Autopilot { min_quorum, ..Autopilot::default() }, expected)
        }
        other if let Some(command) = super::acl::command(other, &mut words)? => Command::Acl(command),
        other => match (member_command(other, &mut words)?, kv_command(other, &mut words)?) {
            (Some(command), _) => command,
            (None, Some(command)) => Command::Kv(command),
            (None, None) => return Ok(None),
        },
    };
    words.end()?;
    Ok(Some(command))
}

fn operator_hosts(names: &str) -> Command {
    let hosts = names.split(',').filter(|host| !host.is_empty()).map(NodeName::from);
    Command::ConfigureOperatorHosts(hosts.collect())
}

fn bootstrap(words: &mut Words) -> Result<Command, String> {
    let servers = words.list_option("servers").unwrap_or_default();
    let servers = (1..).map(ServerId).zip(servers).map(|(id, name)| new_server(&name).with_id(id)).collect();
    Ok(Command::Bootstrap { cluster_id: words.word()?, servers, lease_key: LeaseKey([7; 32]) })
}

fn policy(word: &str) -> Result<DeadlockPolicy, String> {
    match word {
        "report" => Ok(DeadlockPolicy::Report),
        "refuse" => Ok(DeadlockPolicy::Refuse),
        other => Err(format!("what is the policy {other:?}?")),
    }
}

/// A request for locks, such as `s1 a:shared,b`.
fn lock(words: &mut Words) -> Result<Command, String> {
    let wait = words.seconds_option("wait")?;
    let session = session_id(words)?;
    let locks = words.word()?;
    let locks = locks.split(',').map(|lock| {
        let (key, mode) = lock.split_once(':').unwrap_or((lock, "exclusive"));
        let mode = LockMode::parse(mode).ok_or_else(|| format!("what is the mode {mode:?}?"))?;
        Ok::<_, String>(RequestedLock { key: key.into(), mode, value: Bytes::from(key.to_owned()), flags: 0 })
    });
    Ok(Command::AcquireLocks { locks: locks.collect::<Result<_, _>>()?, session, wait })
}

/// A server whose other fields default to values derived from its name.
fn admitted(words: &mut Words) -> Result<NewServer, String> {
    let address = words.option("address");
    let instance_id = words.option("instance");
    let new = new_server(&words.word()?);
    Ok(NewServer {
        address: address.unwrap_or(new.address),
        instance_id: instance_id.unwrap_or(new.instance_id),
        ..new
    })
}

fn new_server(name: &str) -> NewServer {
    let node_id = format!("00000000-0000-0000-0000-{name:0>12}");
    NewServer {
        node: name.into(),
        node_id,
        address: format!("{name}:8300"),
        instance_id: format!("{name}-1"),
        format: format::NEWEST,
    }
}

fn kv_command(verb: &str, words: &mut Words) -> Result<Option<KvCommand>, String> {
    let command = match verb {
        "put" => KvCommand::Set(new_entry(words)?),
        "cas" => {
            let expected = words.number_option("index")?.ok_or("which index=?")?;
            let expected = Some(LogIndex(expected)).filter(|index| index.0 > 0);
            KvCommand::Cas(new_entry(words)?, expected)
        }
        "acquire" => {
            let (key, session) = (key(words)?, session_id(words)?);
            KvCommand::Acquire(entry_of(key, words)?, session)
        }
        "enqueue" => {
            let wait = words.seconds_option("wait")?;
            let (key, session) = (key(words)?, session_id(words)?);
            KvCommand::Enqueue { new: entry_of(key, words)?, session, wait }
        }
        "leave" => KvCommand::Leave {
            key: key(words)?,
            session: session_id(words)?,
            enqueued_at_index: index(words)?,
        },
        "stop-waiting" => KvCommand::StopWaiting {
            key: key(words)?,
            session: session_id(words)?,
            enqueued_at_index: index(words)?,
        },
        "release" => {
            let (key, session) = (key(words)?, session_id(words)?);
            KvCommand::Release(entry_of(key, words)?, session)
        }
        "delete" => KvCommand::Delete(key(words)?),
        "delete-cas" => KvCommand::DeleteCas(key(words)?, index(words)?),
        "delete-tree" => KvCommand::DeleteTree(Key::from(words.word_or_empty())),
        _ => return Ok(None),
    };
    Ok(Some(command))
}

fn create_session(words: &mut Words) -> Result<Command, String> {
    let Some(pid) = words.number_option("pid")? else {
        return Ok(Command::CreateSession(new_session(words)?));
    };
    let (pid, keeps_lock_delay) = (pid as u32, words.option("keeps-delay").is_some());
    let binding = ProcessBinding { pid, started_at: 100, boot_id: [1; 16], keeps_lock_delay };
    Ok(Command::CreateBoundSession(new_session(words)?, binding))
}

fn new_session(words: &mut Words) -> Result<SessionSpec, String> {
    let id = session_id(words)?;
    let checks = |list: Option<Vec<String>>| -> Vec<CheckId> {
        list.unwrap_or_default().into_iter().map(CheckId::from).collect()
    };
    let service_check = |id: String| ServiceCheck { id: CheckId::from(id), namespace: String::new() };
    let ttl = words.seconds_option("ttl")?;
    Ok(SessionSpec {
        id,
        name: words.option("name").unwrap_or_default(),
        node: NodeName::from(words.option("node").unwrap_or_else(|| "n1".into())),
        lock_delay: words.seconds_option("lock-delay")?,
        behavior: match words.option("behavior").as_deref() {
            None | Some("release") => Behavior::Release,
            Some("delete") => Behavior::Delete,
            Some(other) => return Err(format!("what is the behavior {other:?}?")),
        },
        ttl_text: if ttl.is_zero() { String::new() } else { format!("{}s", ttl.as_secs()) },
        ttl: Some(ttl).filter(|ttl| !ttl.is_zero()),
        checks: checks(words.list_option("old-checks")),
        node_checks: checks(words.list_option("checks")),
        service_checks: words
            .list_option("service-checks")
            .map(|list| list.into_iter().map(service_check).collect()),
        health_window: match words.option("window") {
            None => HealthWindow::Default,
            Some(word) => {
                HealthWindow::parse(&word).ok_or_else(|| format!("what is the window {word:?}?"))?
            }
        },
    })
}

/// Parses a command about agents and their nodes; `None` for another word.
fn member_command(word: &str, words: &mut Words) -> Result<Option<Command>, String> {
    Ok(Some(match word {
        "agent" => {
            let services = words.list_option("services").unwrap_or_default();
            let node = node(words)?;
            let services = services.iter().map(|id| service(&node.name, id)).collect();
            // Another process has another lease; another host also has another boot.
            let process = [words.number_option("process")?.unwrap_or(0) as u8; 16];
            let boot = [words.number_option("boot")?.unwrap_or(0) as u8; 16];
            let incarnation = Incarnation { process, boot, ..Incarnation::default() };
            let registration = AgentRegistration { services, incarnation, ..AgentRegistration::of(node) };
            Command::RegisterAgent(registration)
        }
        "fail" => {
            let (lease, window) = (lease(words)?, window(&words.word()?)?);
            let by = words.list_option("by").unwrap_or_default();
            let ids: Result<Vec<u64>, _> = by.iter().map(|id| id.parse()).collect();
            Command::FailNode(NodeFailure {
                lease,
                window,
                confirmed_by: ids.map_err(|error| error.to_string())?.into_iter().map(ServerId).collect(),
                silent_for: words.seconds_option("silent")?,
                term: Term(words.number_option("term")?.unwrap_or(1)),
                base: words.number_option("base")?.unwrap_or(0),
            })
        }
        "end-former" => {
            let (lease, window) = (lease(words)?, window(&words.word()?)?);
            let term = Term(words.number_option("term")?.unwrap_or(1));
            let base = words.number_option("base")?.unwrap_or(0);
            Command::EndFormerSessions { lease, window, term, base }
        }
        "leave-node" => {
            let (prune, lease) = (words.option("prune").is_some(), lease(words)?);
            Command::LeaveNode(NodeLeave { node: NodeName::from(words.word()?), lease: Some(lease), prune })
        }
        "force-leave" => {
            let prune = words.option("prune").is_some();
            Command::LeaveNode(NodeLeave { node: NodeName::from(words.word()?), lease: None, prune })
        }
        "announce-restart" => Command::AnnounceRestart(lease(words)?),
        "reconcile" => {
            let numbers = words.list_option("members").unwrap_or_default();
            let numbers: Result<Vec<u32>, _> = numbers.iter().map(|number| number.parse()).collect();
            let members = numbers.map_err(|error| error.to_string())?.into_iter().map(AgentNumber).collect();
            let strangers = words.list_option("strangers").unwrap_or_default();
            Command::Reconcile { members, strangers: strangers.into_iter().map(NodeName::from).collect() }
        }
        "reap-member" => {
            let lease = lease(words)?;
            let term = Term(words.number_option("term")?.unwrap_or(1));
            Command::ReapMember { lease, term, base: words.number_option("base")?.unwrap_or(0) }
        }
        "end-restart" => {
            // The agent's number, and the index of the announcement: `1@3`.
            let LeaseId { agent, began: announced_at } = lease(words)?;
            let term = Term(words.number_option("term")?.unwrap_or(1));
            let base = words.number_option("base")?.unwrap_or(0);
            Command::EndRestart { agent, announced_at, term, base }
        }
        "rotate-gossip-key" => Command::RotateGossipKey { from: words.number()? as u32 },
        _ => return Ok(None),
    }))
}

/// `1@3`: the agent's number, and the index at which its lease began.
fn lease(words: &mut Words) -> Result<LeaseId, String> {
    let text = words.word()?;
    let (agent, began) = text.split_once('@').ok_or("a lease is agent@index")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    Ok(LeaseId { agent: AgentNumber(number(agent)? as u32), began: LogIndex(number(began)?) })
}

fn window(word: &str) -> Result<HealthWindow, String> {
    HealthWindow::parse(word).ok_or_else(|| format!("what is the window {word:?}?"))
}

/// `register n1 id=… address=… service=web:tag,tag checks=alive:passing,web-ok:critical:web
/// output=…`; `\n`, `\t` and `\e` stand for a line feed, a tab and an escape character.
fn registration(words: &mut Words) -> Result<Registration, String> {
    let service_text = words.option("service");
    let check_texts = words.list_option("checks").unwrap_or_default();
    let skip_node_update = words.option("skip-node-update").is_some();
    let check_node = words.option("check-node").unwrap_or_default();
    let output = words.option("output").unwrap_or_default();
    let output = output.replace("\\n", "\n").replace("\\t", "\t").replace("\\e", "\x1b");
    let node = node(words)?;
    let service = service_text.map(|text| service(&node.name, &text));
    let check_node = NodeName::from(check_node);
    let checks: Result<Vec<Check>, String> =
        check_texts.iter().map(|text| check(&check_node, text)).collect();
    let checks = checks?.into_iter().map(|check| Check { output: output.clone(), ..check }).collect();
    Ok(Registration { service, checks, skip_node_update, node })
}

/// `coordinate n1 at=0.003,0.004 height=…`: the first dimensions of its position; the others are
/// zero.
fn coordinate(words: &mut Words) -> Result<Command, String> {
    let number = |text: String| {
        let number: f64 = text.parse().map_err(|error| format!("{text}: {error}"))?;
        Finite::try_from(number).map_err(|error| error.to_string())
    };
    let mut coordinate = Coordinate::default();
    for (place, text) in coordinate.vec.iter_mut().zip(words.list_option("at").unwrap_or_default()) {
        *place = number(text)?;
    }
    if let Some(height) = words.option("height") {
        coordinate.height = number(height)?;
    }
    Ok(Command::UpdateCoordinate { node: NodeName::from(words.word()?), coordinate })
}

/// `service=web name=frontend session=s1 template=yes wrong="Bad Regexp"`; `name=?q1` is the id of
/// `q1` in upper case.
fn new_query(words: &mut Words) -> Box<NewQuery> {
    let name = words.option("name").unwrap_or_default();
    let name = name.strip_prefix('?').map(|id| query_id(id).to_string().to_uppercase()).unwrap_or(name);
    let kind = words.option("template").map(|_| NAME_PREFIX_MATCH.to_owned()).unwrap_or_default();
    let service = QueryService {
        service: words.option("service").unwrap_or_else(|| "web".into()),
        ..QueryService::default()
    };
    let spec = QuerySpec {
        name,
        session: words.option("session").map(|word| session(&word)),
        template: QueryTemplate { kind, ..QueryTemplate::default() },
        service,
        ..QuerySpec::default()
    };
    Box::new(NewQuery { spec, template_error: words.option("wrong") })
}

fn deregistration(words: &mut Words) -> Result<Deregistration, String> {
    Ok(Deregistration {
        node: NodeName::from(words.word_or_empty()),
        service: words.option("service").map(ServiceId::from),
        check: words.option("check").map(CheckId::from),
    })
}

fn node(words: &mut Words) -> Result<Node, String> {
    Ok(Node::of(
        NodeName::from(words.word_or_empty()),
        words.option("id").map(|digit| uuid(&digit)).unwrap_or_default(),
        &words.option("address").unwrap_or_else(|| "10.0.0.1".into()),
    ))
}

/// A single hexadecimal digit is expanded to a UUID; longer text is returned unchanged.
pub(crate) fn uuid(text: &str) -> String {
    let Some(digit) = text.chars().next().filter(|_| text.len() == 1) else { return text.into() };
    let group = |length: usize| digit.to_string().repeat(length);
    [8, 4, 4, 4, 12].map(group).join("-")
}

/// `web` or `web:tag`.
fn service(node: &NodeName, text: &str) -> Service {
    let (id, tag) = text.split_once(':').unwrap_or((text, ""));
    Service {
        tags: Some(tag).filter(|tag| !tag.is_empty()).map(str::to_owned).into_iter().collect(),
        port: 80,
        ..Service::of(
            node.clone(),
            ServiceId::from(id),
            id.trim_end_matches(|letter: char| letter.is_ascii_digit()),
        )
    }
}

/// `id:status` or `id:status:service`.
fn check(node: &NodeName, text: &str) -> Result<Check, String> {
    let mut parts = text.split(':');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (id, status, service_id) = (part(), part(), part());
    Ok(Check {
        service_id: Some(service_id).filter(|id| !id.is_empty()).map(ServiceId::from),
        ..Check::of(
            node.clone(),
            CheckId::from(id.as_str()),
            CheckStatus::parse(&status).ok_or_else(|| format!("what is the status {status:?}?"))?,
        )
    })
}

/// `set a 1`, `lock a session=s1`, `get a`, `node set n1`, `service delete n1 web`, `check set n1
/// web-ok:critical`.
pub(crate) fn txn_op(text: &str) -> Result<TxnOp, String> {
    let mut words = Words::new(text);
    let expected = LogIndex(words.number_option("index")?.unwrap_or_default());
    let op = match words.word()?.as_str() {
        "node" => TxnOp::Node { verb: CatalogVerb::parse(&words.word()?), node: node(&mut words)?, expected },
        "service" => {
            let (verb, node) = (CatalogVerb::parse(&words.word()?), NodeName::from(words.word()?));
            TxnOp::Service { verb, service: service(&node, &words.word()?), expected }
        }
        "check" => {
            let (verb, node) = (CatalogVerb::parse(&words.word()?), NodeName::from(words.word()?));
            let text = words.word()?;
            let text = if text.contains(':') { text } else { format!("{text}:passing") };
            TxnOp::Check { verb, check: check(&node, &text)?, expected }
        }
        verb => TxnOp::Kv(TxnKv {
            verb: KvVerb::parse(verb),
            session: words.option("session").map(|word| written(&word)),
            flags: words.number_option("flags")?.unwrap_or_default(),
            index: expected,
            key: Key::from(words.word_or_empty()),
            value: Bytes::from(words.word_or_empty()),
        }),
    };
    words.end()?;
    Ok(op)
}

fn new_entry(words: &mut Words) -> Result<NewEntry, String> {
    let key = key(words)?;
    entry_of(key, words)
}

fn entry_of(key: Key, words: &mut Words) -> Result<NewEntry, String> {
    let flags = words.number_option("flags")?.unwrap_or_default();
    Ok(NewEntry { key, value: Bytes::from(words.word_or_empty()), flags })
}

fn key(words: &mut Words) -> Result<Key, String> {
    words.word().map(Key::from)
}

fn index(words: &mut Words) -> Result<LogIndex, String> {
    words.number().map(LogIndex)
}

/// A session as a client may write it: `S1` is the id of `s1` in upper case, `?s1` is no id.
fn written(word: &str) -> String {
    match word.strip_prefix('?') {
        Some(text) => text.into(),
        None if word.chars().any(char::is_uppercase) => {
            session(&word.to_lowercase()).to_string().to_uppercase()
        }
        None => session(word).to_string(),
    }
}

fn session_id(words: &mut Words) -> Result<SessionId, String> {
    words.word().map(|word| session(&word))
}
