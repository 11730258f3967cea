//! Stories and storms of the whole core, in virtual time and from seeds: no clock, no disk, no
//! socket.

mod batches;
mod cells;
mod checkpoints;
mod corruption;
mod deadlines;
mod disk_stall;
mod frontend;
mod judge;
mod members;
#[path = "../names/mod.rs"]
mod names;
mod queue;
mod quorum;
mod removal;
mod script;
mod service_watches;
mod setback;
mod single;
mod solo;
mod stalled_renewals;
mod storm;
mod upgrade;
mod views;
mod virtual_time;
mod watched;
