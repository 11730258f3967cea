//! The macro that describes the sections of a configuration: each key once, with its type, its
//! default and its valid values.

use super::ConfigError;
use lockmesh_protocol::duration;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

/// Defines sections: the structs, with [`Default`] and [`Section`].
///
/// A key is `name: Type = default;`, with `as "module"` after the type for `#[serde(with)]`, and
/// after the default: `, in least..=most`, where other keys are references; `, or value` for a
/// value besides the range; `, by function` for any other check. A key without a default is a
/// section. `by function` after the struct's name checks what keys must be together.
#[macro_export]
macro_rules! sections {
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@nested $key:ident, $path:ident) => { $crate::config::Section::check_at($key, &$path)? };
    (@nested $key:ident, $path:ident, $default:expr) => {};
    ($(
        $(#[$outer:meta])*
        pub struct $name:ident $(by $together:path)? {
            $(
                $(#[$inner:meta])*
                $key:ident: $type:ty $(as $with:literal)? $(
                    = $default:expr
                    $(, in $range:expr $(, or $other:expr)?)?
                    $(, by $check:path)?
                )?;
            )*
        }
    )*) => {$(
        $(#[$outer])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$inner])* $(#[serde(with = $with)])? pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $crate::sections!(@default $($default)?),)* }
            }
        }

        impl $crate::config::Section for $name {
            fn check_at(&self, section: &str) -> Result<(), $crate::config::ConfigError> {
                let Self { $($key),* } = self;
                $(
                    let path = $crate::config::path(section, stringify!($key));
                    $crate::sections!(@nested $key, path $(, $default)?);
                    $($($crate::config::check_range($key, &path, $range, &[$($other)?])?;)?)?
                    $($($check($key, &path)?;)?)?
                    // Both would be unused for a key without a check.
                    let _ = ($key, path);
                )*
                $($together(self)?;)?
                Ok(())
            }
        }
    )*};
}

/// A section of a configuration, or all of it.
pub trait Section {
    /// Rejects values that cannot work. `section` is the path of the section, empty for the whole.
    ///
    /// # Errors
    /// The first key whose value cannot be used, and its valid values.
    fn check_at(&self, section: &str) -> Result<(), ConfigError>;

    /// Rejects values that cannot work in a whole configuration.
    ///
    /// # Errors
    /// As [`Self::check_at`].
    fn check(&self) -> Result<(), ConfigError> {
        self.check_at("")
    }
}

/// A value that can have a range.
pub trait Bounded: PartialOrd {
    /// Returns the value as text.
    fn text(&self) -> String;
}

macro_rules! bounded {
    ($($type:ty => $text:expr),*) => {
        $(impl Bounded for $type {
            fn text(&self) -> String {
                $text(*self)
            }
        })*
    };
}

bounded!(u32 => |n| format!("{n}"), u64 => |n| format!("{n}"), usize => |n| format!("{n}"), Duration => duration::format);

/// Rejects a value outside its range, unless it is one of the `others`.
///
/// # Errors
/// The key, its value and the valid range.
pub fn check_range<T: Bounded>(
    value: &T,
    key: &str,
    range: RangeInclusive<T>,
    others: &[T],
) -> Result<(), ConfigError> {
    if range.contains(value) || others.contains(value) {
        return Ok(());
    }
    let [value, least, most] = [value, range.start(), range.end()].map(Bounded::text);
    Err(ConfigError::new(key, format!("is {value}, but must be {least} to {most}")))
}

/// Rejects an empty path.
///
/// # Errors
/// The key and the requirement.
pub fn check_path(path: &Path, key: &str) -> Result<(), ConfigError> {
    match path.as_os_str().is_empty() {
        true => Err(ConfigError::new(key, "must not be empty")),
        false => Ok(()),
    }
}

/// Returns the path of a key in a section.
pub fn path(section: &str, key: &str) -> String {
    if section.is_empty() { key.into() } else { format!("{section}.{key}") }
}

/// Returns a number of milliseconds.
pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns a number of seconds.
pub const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Returns a number of minutes.
pub const fn mins(count: u64) -> Duration {
    secs(60 * count)
}

/// Returns a number of hours.
pub const fn hours(count: u64) -> Duration {
    mins(60 * count)
}
