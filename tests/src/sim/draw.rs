//! Randomness, all of it from one seed: the simulator has no other source.

use std::time::Duration;

/// A seeded sequence of random draws.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Returns the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// Returns a number in `least..=most`.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Returns `true` with probability 1 in `times`; never for 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// Returns a duration in `least..=most`.
    pub fn duration(&mut self, least: Duration, most: Duration) -> Duration {
        Duration::from_micros(self.within(least.as_micros() as u64, most.as_micros() as u64))
    }

    /// Returns a duration between 0.5 and 1.5 times `mean`.
    pub fn around(&mut self, mean: Duration) -> Duration {
        self.duration(mean / 2, mean * 3 / 2)
    }

    /// Returns one of at least one element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Returns one of the elements, if there are any.
    pub fn any<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(*self.pick(from)) }
    }
}
