//! The checkers of histories, held to known histories: the good ones pass, and every bad one is
//! found.

mod bad;
mod good;
mod independent;
mod queue;
mod storm;
mod story;
mod world;
