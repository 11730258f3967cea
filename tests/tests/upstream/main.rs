//! An agent's way to the quorum, on real QUIC in this process: against servers made up for the
//! test, and against real ones that are killed. `direct` and `strangers` do without the agent, and
//! say what none would say. `challenges` is about what servers ask of agents,
//! `fleet` about very many of them.

mod challenges;
mod direct;
mod election;
mod failover;
mod figures;
mod fleet;
mod one_server;
mod strangers;
