//! Random numbers of the system: the only source of randomness.

use std::io;

/// Returns `COUNT` unpredictable bytes.
///
/// # Errors
/// The system provides none.
pub fn bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes).map_err(|error| {
        io::Error::new(io::ErrorKind::Unsupported, format!("this machine has no random numbers: {error}"))
    })?;
    Ok(bytes)
}

/// Returns a different number each time: a seed that differs between processes, or a short-lived
/// id.
///
/// # Panics
/// If the system has no random numbers, like every hash map of the standard library.
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
