//! Well-formed values of any type that is encoded, as seeds for fuzzers: every variant of every
//! enum, every option with and without a value, and lists of one, two and no elements. They are not
//! consistent with each other.

use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The number of values from which the samples are chosen: at least this many, and more until every
/// variant was generated.
const ROUNDS: usize = 20_000;
const MAX_ROUNDS: usize = 4_000_000;
const NUMBERS: [u32; 4] = [1, 300, 7, 70_000];
const TEXTS: [&str; 3] = ["a", "web-1", ""];

/// Returns the values that show something for the first time.
///
/// # Panics
/// A variant of an enum was never generated, or a type rejects a generated value.
pub fn of<T: DeserializeOwned>() -> Vec<T> {
    let (samples, missing) = generate(MAX_ROUNDS);
    assert_eq!(missing, None, "a variant of it was not generated");
    samples
}

/// Like [`of`], except that variants deep inside may be missing.
pub fn some<T: DeserializeOwned>() -> Vec<T> {
    generate(ROUNDS).0
}

/// Returns the samples, and an enum of which a variant was not generated.
fn generate<T: DeserializeOwned>(most: usize) -> (Vec<T>, Option<&'static str>) {
    let mut plan = Plan::default();
    let mut samples = Vec::new();
    for round in 0..most {
        if round >= ROUNDS && round % 1_000 == 0 && plan.missing().is_none() {
            break;
        }
        let before = plan.shown.len();
        plan.taken.clear();
        let sampler = Sampler { plan: &mut plan, path: 0, place: 0 };
        let value = T::deserialize(sampler).expect("a generated value is valid");
        if plan.shown.len() > before {
            samples.push(value);
            for choice in &plan.taken {
                plan.tries.insert(*choice, 0);
            }
        }
    }
    (samples, plan.missing())
}

/// The state of a generation.
#[derive(Default)]
struct Plan {
    /// The number of numbers and texts so far at each path.
    turns: BTreeMap<u64, usize>,
    /// The number of times that each choice was taken since it last led to something new, by place.
    tries: BTreeMap<(u64, usize), usize>,
    /// The choices of the present value.
    taken: Vec<(u64, usize)>,
    /// The choices that were taken so far.
    shown: BTreeSet<(u64, usize)>,
    /// The number of variants of each enum.
    enums: BTreeMap<&'static str, usize>,
}

impl Plan {
    /// Returns an enum of which a variant was not generated.
    fn missing(&self) -> Option<&'static str> {
        let is_shown = |name: &str, at: usize| self.shown.contains(&(hash(0, name), at));
        let mut enums = self.enums.iter();
        enums.find(|(name, count)| !(0..**count).all(|at| is_shown(name, at))).map(|(name, _)| *name)
    }
}

/// Generates one value. Of choices, it prefers those that led to something new lately.
struct Sampler<'a> {
    plan: &'a mut Plan,
    /// The variants and fields from the whole value to here.
    path: u64,
    /// The field of the innermost struct or variant.
    place: u64,
}

fn hash(before: u64, next: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, next).hash(&mut hasher);
    hasher.finish()
}

impl<'a> Sampler<'a> {
    fn turn(&mut self, choices: usize) -> usize {
        let turn = self.plan.turns.entry(self.path).or_default();
        *turn += 1;
        (*turn - 1) % choices
    }

    fn choose(&mut self, choices: usize) -> usize {
        let tries = |choice: &usize| self.plan.tries.get(&(self.place, *choice)).copied().unwrap_or(0);
        let choice = (0..choices).min_by_key(tries).expect("there is a choice");
        *self.plan.tries.entry((self.place, choice)).or_default() += 1;
        self.plan.taken.push((self.place, choice));
        self.plan.shown.insert((self.place, choice));
        choice
    }

    fn number(&mut self) -> u32 {
        NUMBERS[self.turn(NUMBERS.len())]
    }

    fn at(&mut self, place: u64) -> Sampler<'_> {
        Sampler { plan: self.plan, path: self.path, place }
    }

    fn parts<'de, V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Parts { sampler: self, at: 0, length })
    }
}

/// The elements of a list, or the fields of a struct or of a variant.
struct Parts<'a> {
    sampler: Sampler<'a>,
    at: usize,
    length: usize,
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if self.at == self.length {
            return Ok(None);
        }
        self.at += 1;
        let at = self.at;
        let place = hash(self.sampler.place, at);
        let path = hash(self.sampler.path, at);
        seed.deserialize(Sampler { path, ..self.sampler.at(place) }).map(Some)
    }
}

impl<'de> MapAccess<'de> for Parts<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let (path, place) = (hash(self.sampler.path, "value"), hash(self.sampler.place, "value"));
        seed.deserialize(Sampler { path, ..self.sampler.at(place) })
    }
}

/// Implements the methods for numbers.
macro_rules! numbers {
    ($($method:ident $visit:ident $number:ty),*) => {
        $(fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.number() as $number)
        })*
    };
}

impl<'de> Deserializer<'de> for Sampler<'_> {
    type Error = Error;

    numbers!(
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_u128 visit_u128 u128, deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
        deserialize_f32 visit_f32 f32, deserialize_f64 visit_f64 f64
    );

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_bool<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.turn(2) == 1)
    }

    fn deserialize_str<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(TEXTS[self.turn(TEXTS.len())])
    }

    fn deserialize_bytes<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bytes(TEXTS[self.turn(TEXTS.len())].as_bytes())
    }

    fn deserialize_option<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        match self.choose(2) {
            0 => visitor.visit_some(Sampler { path: hash(self.path, "some"), ..self }),
            _ => visitor.visit_none(),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let length = (self.turn(3) + 1) % 3;
        self.parts(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let length = 1 - self.turn(2);
        visitor.visit_map(Parts { sampler: self, at: 0, length })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.parts(length, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.at(hash(0, name)).parts(length, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.at(hash(0, name)).parts(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.plan.enums.insert(name, variants.len());
        let choice = self.at(hash(0, name)).choose(variants.len());
        let (path, place) = (hash(self.path, choice), hash(hash(0, name), choice));
        visitor.visit_enum(Variant { sampler: Sampler { path, ..self.at(place) }, choice: choice as u32 })
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        unreachable!("an encoding describes its types")
    }

    serde::forward_to_deserialize_any! { char unit unit_struct identifier ignored_any }
}

/// The chosen variant of an enum.
struct Variant<'a> {
    sampler: Sampler<'a>,
    choice: u32,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = Sampler<'a>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Sampler<'a>), Error> {
        Ok((seed.deserialize(self.choice.into_deserializer())?, self.sampler))
    }
}

impl<'de> VariantAccess<'de> for Sampler<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.parts(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.parts(fields.len(), visitor)
    }
}
