//! The running program: what Consul's clients rely on, and what operators see of servers that are
//! killed, stopped, copied and emptied. Every module has a server of its own, and most of what its
//! tests do is wait; so they are one program, in which more of them run at a time than the machine
//! has cores.
//!
//! **Invariant:** a test here holds however late it and the servers are. Time is only bounded from
//! below.

mod agent;
mod audit;
mod bad_input;
mod blocking;
mod children;
mod cluster;
mod conventions;
mod copied;
mod corruption;
mod dev_nodes;
mod dev_servers;
mod events;
mod guides;
mod identity;
mod kill;
mod kv;
mod leave;
mod lock_delay;
mod locks;
mod mesh;
mod monitoring;
mod operator;
mod queue;
mod reload;
mod sessions;
mod ttl;
mod txn;
