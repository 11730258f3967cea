//! A small mutator. The same seed produces the same inputs on every machine, so failures are
//! reproducible.

/// A generator of numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator; the same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 1).map_or(0, |number| number % bound.max(1))
    }
}

/// Bytes at the boundaries of decoders: ends of ranges, lengths of bincode, signs and quotes of
/// text.
const EDGES: [u8; 24] = [
    0, 1, 2, 127, 128, 250, 251, 252, 253, 254, 255, b'0', b'9', b'-', b'.', b'%', b'"', b'{', b'[', b'\\',
    b'\n', b'=', b'&', b'/',
];

/// The maximum length of a generated input.
const MOST_BYTES: usize = 1 << 14;

/// Derives a new input from two old ones.
pub fn mutate(input: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut output = input.to_vec();
    for _ in 0..=dice.below(4) {
        step(&mut output, other, dice);
    }
    output.truncate(MOST_BYTES);
    output
}

fn step(output: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(output.len() + 1);
    let (from, to) = range(output.len(), dice);
    match dice.below(8) {
        0 if at < output.len() => output[at] ^= 1 << dice.below(8),
        1 if at < output.len() => output[at] = EDGES[dice.below(EDGES.len())],
        2 => output.insert(at, EDGES[dice.below(EDGES.len())]),
        3 => drop(output.drain(from..to)),
        4 => output.truncate(at),
        5 => {
            let piece = output[from..to].to_vec();
            output.splice(at..at, piece);
        }
        6 => {
            let (from, to) = range(other.len(), dice);
            output.splice(at..at, other[from..to].iter().copied());
        }
        _ => {
            let length = 1 + dice.below(8);
            let noise: Vec<u8> = (0..length).map(|_| dice.below(256) as u8).collect();
            output.splice(at..at, noise);
        }
    }
}

fn range(length: usize, dice: &mut Dice) -> (usize, usize) {
    let from = dice.below(length + 1);
    (from, from + dice.below((length - from).min(64) + 1))
}
