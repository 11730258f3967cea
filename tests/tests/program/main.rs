//! The running program: the behavior that Consul's clients rely on, and the operators' view of
//! servers that are killed, stopped, copied and emptied. Every module has a server of its own, and
//! its tests mostly wait. They form one program so that more of them run at a time than the machine
//! has cores.
//!
//! **Invariant:** a test here passes on an arbitrarily slow machine. Time is only bounded from
//! below.

mod acl;
mod agent;
mod alerting;
mod blocking;
mod check_sessions;
mod children;
mod cluster;
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
mod lists;
mod lock_delay;
mod locks;
mod mesh;
mod monitoring;
mod operator;
mod outputs;
mod queries_monitor;
mod queue;
mod reload;
mod services;
mod sessions;
mod ttl;
mod txn;
