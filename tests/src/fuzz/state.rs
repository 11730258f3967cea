//! The replicated state machine under commands in any order: it replies to every valid message of
//! an agent, its invariants hold, and its changes are complete.

use super::samples;
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{AgentRegistration, Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, SessionId, Term, WallTime};
use lockmesh_protocol::query::Query;
use lockmesh_protocol::record::{Node, SessionSpec};
use lockmesh_protocol::rpc::MAX_FRAME_BYTES;
use lockmesh_protocol::wire;

/// Decodes proposals in the order of a log, then queries.
pub fn state_commands(data: &[u8]) {
    let Ok((proposals, queries)) = wire::decode::<(Vec<Proposal>, Vec<Query>), MAX_FRAME_BYTES>(data) else {
        return;
    };
    let (mut state, mut copy) = (State::new(), State::new());
    let mut changes: Vec<Change> = Vec::new();
    for (index, proposal) in (2..).zip(&proposals) {
        state.apply(LogIndex(index), Term(1), proposal, &mut changes);
        changes.drain(..).for_each(|change| copy.load(change));
        state.check().expect("the invariants hold");
    }
    assert!(state.rows().eq(copy.rows()), "the changes are incomplete");
    for query in &queries {
        let _ = state.query(query);
    }
}

/// Returns seeds of [`state_commands`].
pub fn command_seeds() -> Vec<Vec<u8>> {
    let all: Vec<Command> = samples::of::<Proposal>().into_iter().map(|proposal| proposal.command).collect();
    let (session, new) =
        (SessionId::from_random([1; 16]), || NewEntry { key: "a".into(), value: "value".into(), flags: 42 });
    let acquire = || Command::Kv(KvCommand::Acquire(new(), session));
    let story = vec![
        Command::CreateSession(SessionSpec {
            node_checks: Vec::new(),
            ..SessionSpec::of(session, "a".into())
        }),
        acquire(),
        Command::Kv(KvCommand::Release(new(), session)),
        acquire(),
        Command::DestroySession(session),
    ];
    let story = [story, all.clone()].concat();
    let queries = samples::of();
    all.chunks(5).chain([&story[..5], &story]).map(|commands| seed(commands, &queries)).collect()
}

/// Returns commands of one agent after its registration, and queries.
fn seed(commands: &[Command], queries: &[Query]) -> Vec<u8> {
    let node = Node::of("a".into(), "6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a002".into(), "127.0.0.1");
    let register = Command::RegisterAgent(AgentRegistration::of(node));
    let numbered = |(sequence, command): (u64, &Command)| {
        let request = RequestId { agent: AgentNumber(1), generation: Generation(1), sequence, lowest: 1 };
        Proposal::new(Some(request), WallTime(1), command.clone())
    };
    let registration = Proposal::new(None, WallTime(1), register);
    let log: Vec<Proposal> = [registration].into_iter().chain((1..).zip(commands).map(numbered)).collect();
    wire::encode(&(log, queries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::reply::Reply;

    #[test]
    fn seeds_do_something() {
        let mut granted = 0;
        for seed in command_seeds() {
            let decoded = wire::decode::<(Vec<Proposal>, Vec<Query>), MAX_FRAME_BYTES>(&seed);
            let (proposals, _) = decoded.expect("a seed decodes");
            let mut state = State::new();
            for (index, proposal) in (2..).zip(&proposals) {
                let applied = state.apply(LogIndex(index), Term(1), proposal, &mut Vec::new());
                granted += usize::from(matches!(applied.reply, Reply::Granted { .. }));
            }
            state_commands(&seed);
        }
        assert!(granted > 0, "a lock is taken in one of them");
    }
}
