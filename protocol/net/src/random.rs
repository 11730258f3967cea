//! Random numbers from the system: the one place that takes any.

use std::io;

/// So many bytes that nobody can guess.
///
/// # Errors
/// The system has none. Nothing was made.
pub fn bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes).map_err(|error| {
        io::Error::new(io::ErrorKind::Unsupported, format!("this machine has no random numbers: {error}"))
    })?;
    Ok(bytes)
}

/// A number that differs each time: the seed of what shall differ from process to process, or an id
/// of short life.
///
/// # Panics
/// The system has no random numbers, as with every hash map of the standard library.
pub fn seed() -> u64 {
    u64::from_le_bytes(bytes().expect("this machine has random numbers: hash maps need them too"))
}

#[cfg(test)]
mod tests {
    use super::{bytes, seed};

    #[test]
    fn no_two_are_alike() {
        assert_ne!(bytes::<16>().expect("random bytes"), bytes::<16>().expect("random bytes"));
        assert_ne!(seed(), seed());
    }
}
