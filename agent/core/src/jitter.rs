//! Small differences between agents, so that a thousand of them do not come at once.

/// A stream of numbers that its seed decides: good enough to keep agents out of step, and for nothing else.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number from 0 to 1, evenly.
    pub fn fraction(&mut self) -> f64 {
        f64::from((self.mixed() >> 32) as u32) / f64::from(u32::MAX)
    }

    /// A seed for a stream of its own.
    pub fn seed(&mut self) -> u64 {
        self.mixed()
    }

    fn mixed(&mut self) -> u64 {
        // A step of splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }
}
