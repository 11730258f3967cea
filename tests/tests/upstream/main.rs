//! An agent's connection to the quorum, on real QUIC in this process: against services made for the
//! test, and against real servers that are killed. `direct` and `strangers` bypass the agent, and
//! send requests that no agent sends. `challenges` tests the servers' challenges of agents, `fleet`
//! tests very many agents.

mod challenges;
mod direct;
mod election;
mod failover;
mod fleet;
mod one_server;
mod strangers;
