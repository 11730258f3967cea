//! The history checkers, tested on known histories: good ones pass, and every bad one is detected.

mod bad;
mod good;
mod independent;
mod queue;
mod storm;
mod story;
mod world;
