//! The replicated state machine under commands in any order: it replies to every valid message of
//! an agent, its invariants hold, and its changes are complete.

use super::samples;
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, RequestId, Term};
use lockmesh_protocol::query::Query;
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
    let registration = samples::proposals().into_iter().find(is_registration);
    let registration = Proposal { request: None, ..registration.expect("one of the samples registers") };
    let after_registration = |number: usize, proposal: Proposal| {
        let sequence = number as u64 + 1;
        let request = RequestId { agent: AgentNumber(1), generation: Generation(1), sequence, lowest: 1 };
        Proposal { request: Some(request), ..proposal }
    };
    let numbered = samples::proposals().into_iter().filter(|proposal| !is_registration(proposal)).enumerate();
    let all: Vec<Proposal> =
        numbered.map(|(number, proposal)| after_registration(number, proposal)).collect();
    let seed = |proposals: &[Proposal]| {
        let log: Vec<&Proposal> = [&registration].into_iter().chain(proposals).collect();
        wire::encode(&(log, samples::queries()))
    };
    let first = |is_it: fn(&Command) -> bool| {
        all.iter().find(|proposal| is_it(&proposal.command)).expect("one of the samples").clone()
    };
    let created = first(|command| matches!(command, Command::CreateSession(_)));
    let destroyed = first(|command| matches!(command, Command::DestroySession(_)));
    let acquired = first(|command| matches!(command, Command::Kv(KvCommand::Acquire(..))));
    let released = first(|command| matches!(command, Command::Kv(KvCommand::Release(..))));
    let story = [created, acquired.clone(), released, acquired, destroyed];
    all.chunks(5).map(seed).chain([seed(&all), seed(&story)]).collect()
}

fn is_registration(proposal: &Proposal) -> bool {
    matches!(proposal.command, Command::RegisterAgent(_))
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
