//! The text form of single values in a file.

use lockmesh_protocol::lease::HealthWindow;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;

/// Permissions of a file, written in octal as `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(D::Error::custom(format!("{text:?} is not a file mode such as \"0660\""))),
        }
    }
}

/// A window, written as `"fast"`, `"default"` or `"safe"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowWord(pub HealthWindow);

impl Serialize for WindowWord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for WindowWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let window = HealthWindow::parse(&text);
        let unknown = || D::Error::custom(format!("{text:?} is not a window: use fast, default or safe"));
        window.map(Self).ok_or_else(unknown)
    }
}

/// Definitions of checks. The name was that of a section before.
pub(super) mod definitions {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use serde_json::Value;

    pub(crate) fn serialize<S: Serializer>(list: &[Value], serializer: S) -> Result<S::Ok, S::Error> {
        list.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Value>, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Array(list) => Ok(list),
            _ => Err(D::Error::custom(
                "`[[checks]]` defines a check; the limits of checks, earlier in `[checks]`, are in `[registry]`",
            )),
        }
    }
}
