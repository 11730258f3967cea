//! Everything that shows that Lockmesh keeps its promises.

pub mod tidy;
