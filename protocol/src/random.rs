//! Seeded pseudorandom numbers: the only generator of all pure types.

/// A pseudorandom generator, determined by its seed: for jitter, not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator; different seeds give different sequences.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number, uniformly distributed; also usable as a seed for another generator.
    pub fn number(&mut self) -> u64 {
        // A step of splitmix64: it passes the usual tests, and all seeds are equally good.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the next number, uniformly distributed from 0 to 1 (exclusive).
    pub fn fraction(&mut self) -> f64 {
        // The 53 bits that a double represents exactly.
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_decides_the_numbers() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            [(); 3].map(|()| random.number())
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        // The first numbers of the published splitmix64 for this seed.
        assert_eq!(
            numbers(1_234_567),
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn fractions_cover_range_below_one() {
        let mut random = Random::new(1);
        let fractions: Vec<f64> = (0..1000).map(|_| random.fraction()).collect();
        assert!(fractions.iter().all(|fraction| (0.0..1.0).contains(fraction)));
        for tenth in 0..10 {
            let (low, high) = (f64::from(tenth) / 10.0, f64::from(tenth + 1) / 10.0);
            let count = fractions.iter().filter(|fraction| (low..high).contains(fraction)).count();
            assert!((50..150).contains(&count), "{count} of 1000 between {low} and {high}");
        }
    }
}
