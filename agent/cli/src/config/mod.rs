//! What each role is told, put together from file, environment and flags.

pub mod load;

pub use load::{LoadError, load};
