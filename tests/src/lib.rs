//! Proof that Lockmesh keeps its promises: the code that the tests in `tests/` share.
//!
//! **Invariant:** a test of the running program never asks Lockmesh's own code what Lockmesh did.
//! It checks only what an outside client can observe.
//!
//! `tests/README.md` lists what is proved where, and how to run it.
//!
//! | module | contents |
//! |---|---|
//! | `binary.rs`, `dev.rs` | build and run the tested program |
//! | `process.rs` | runs any of its commands, reads and signals it |
//! | `fleet.rs`, `member.rs` | several servers in one command; a server or an agent across restarts |
//! | `http.rs` | HTTP/1.1 byte by byte |
//! | `dialect.rs` | steps that tests share: create a session, acquire a lock, read an entry |
//! | `figures.rs`, `probe.rs` | read metrics as Prometheus does; inspect a process from outside |
//! | `cluster.rs`, `chaos/` | three real servers under a recorded load and one fault after another |
//! | `holds.rs` | holds of locks as clients see them, and their rules |
//! | `hosts/` | servers and agents in network namespaces; the death of a host whose lock others await; the same with Consul; large meshes on one host |
//! | `guards/` | `lockmesh lock` on these hosts, killed, stopped and blocked while its command runs |
//! | `stall/` | a leader with a hanging disk under renewed sessions; full load on a healthy disk |
//! | `upgrade/` | a rolling upgrade under load |
//! | `history/` | recorded histories and their checkers: one of ours, one by others |
//! | `ledger.rs`, `kill.rs` | acknowledged writes, compared with the state after `kill -9` |
//! | `service.rs` | scripted servers for tests of agents, with a log of the calls |
//! | `quorum.rs` | real servers in the test's process, killed between two messages |
//! | `readme/` | types the commands of the documents, and compares the output |
//! | `target.rs` | an HTTP server that checks look at |
//! | `stand_ins.rs` | many agents in one process, each with its own socket and connections |
//! | `bin/`, `options.rs` | the tests' own programs |
//! | `fuzz/` | one function per decoder |
//! | `sim/` | the whole quorum in one thread and in virtual time, from one seed; start with `mod.rs` |
//! | `sim/invariant/` | invariants, one file each |
//! | `sim/fleet/` | the same world without storms, with many hosts, for measurements |
//! | `hunt/` | breaks rules on purpose in a copy of the tree, and runs what must find each |
//! | `tidy/` | reads the sources, for the rules of style |

pub mod binary;
pub mod chaos;
pub mod cluster;
pub mod dev;
pub mod dialect;
pub mod figures;
pub mod fleet;
pub mod fuzz;
pub mod guards;
pub mod history;
pub mod holds;
pub mod hosts;
pub mod http;
pub mod hunt;
pub mod kill;
pub mod ledger;
pub mod member;
pub mod options;
pub mod probe;
pub mod process;
pub mod quorum;
pub mod readme;
pub mod service;
pub mod sim;
pub mod stall;
pub mod stand_ins;
pub mod target;
pub mod tidy;
pub mod upgrade;
