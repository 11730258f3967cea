//! Everything that shows that Lockmesh keeps its promises: what the tests in `tests/` share.
//!
//! In reading order: [`binary`] (builds the program that is tested), [`dev`] (runs `lockmesh dev`
//! as a process of its own), [`fleet`] (the same with several servers), [`process`] (any other
//! command), [`http`] (talks to it byte by byte), [`dialect`] (what the tests say over and over:
//! make a session, take a lock, read an entry), [`figures`] (reads what monitoring reads).
//! [`history`] records what clients ask and are told, and holds it to what was promised;
//! [`cluster`] runs three servers and agents with a network between them that obeys, and [`chaos`]
//! strikes them under a recorded load; [`hosts`] gives each a network of its own, and lets the
//! holder's host die, or very many one together; [`stall`] lets a leader's disk hang, and
//! [`upgrade`] replaces one build by another. [`stand_ins`] are very many agents in one process,
//! and [`probe`] looks at a process from outside. [`tidy`] reads the sources instead, and [`fuzz`]
//! plays with every decoder; [`service`] is a server's QUIC service with a driver that a test
//! commands. [`hunt`] breaks rules on purpose and says what finds each. [`readme`] types what the
//! README tells to type.
//!
//! **Invariant:** a test of the running program never calls Lockmesh's own code to learn what
//! Lockmesh did. It believes only what a stranger's client would see.

pub mod binary;
pub mod chaos;
pub mod cluster;
pub mod dev;
pub mod dialect;
pub mod figures;
pub mod fleet;
pub mod fuzz;
pub mod history;
pub mod hosts;
pub mod http;
pub mod hunt;
pub mod kill;
pub mod ledger;
pub mod probe;
pub mod process;
pub mod quorum;
pub mod readme;
pub mod service;
pub mod sim;
pub mod stall;
pub mod stand_ins;
pub mod tidy;
pub mod upgrade;
