//! The mesh in virtual time: processes with the shipped driver, and a network between them.

mod events;
mod hostile;
mod hosts;
mod mesh;
mod peace;
mod suspects;
