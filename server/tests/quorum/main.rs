//! Three and five real servers: they find each other, agree, lose one, take it back, and take in
//! new ones.

mod bootstrap;
mod cluster;
mod joining;
