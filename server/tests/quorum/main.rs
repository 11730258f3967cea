//! Three and five real servers: they find each other, elect a leader, lose a server, recover it,
//! and admit new ones.

mod bootstrap;
mod cluster;
mod joining;
