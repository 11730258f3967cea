//! The store's threads at work on a real folder.
