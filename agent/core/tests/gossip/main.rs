//! The mesh in virtual time: processes with the production driver, and a simulated network.

mod events;
mod hostile;
mod hosts;
mod mesh;
mod peace;
mod suspects;
