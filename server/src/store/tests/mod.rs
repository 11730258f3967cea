//! The store under power losses, full disks and foreign files.

mod power;
mod refusals;
mod rows;
mod script;
mod speed;
mod told;
mod turns;
mod work;
