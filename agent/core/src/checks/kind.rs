//! The kinds of checks, and their definitions in the catalog.

use lockmesh_protocol::duration::{format, parse};
use lockmesh_protocol::record::Check;
use std::time::Duration;

/// The field of a check's definition that holds its TTL; the catalog does not show it.
pub const DEFINITION_TTL: &str = "TTL";

/// The check that marks the whole node as in maintenance.
pub const NODE_MAINTENANCE: &str = "_node_maintenance";

const TTL_KIND: &str = "ttl";
const MAINTENANCE_KIND: &str = "maintenance";

/// The kind of a check: the way in which its status is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// An application reports within this time, or the check turns critical. Longer than zero.
    Ttl(Duration),
    /// The node is in maintenance: critical until the check is removed.
    Maintenance,
}

impl CheckKind {
    /// Returns the kind of a check in the catalog; `None` if this agent has no such kind, so that
    /// another client registered the check.
    pub fn of(check: &Check) -> Option<Self> {
        match check.kind.as_str() {
            TTL_KIND => defined_ttl(&check.definition).map(Self::Ttl),
            MAINTENANCE_KIND => (check.id.as_str() == NODE_MAINTENANCE).then_some(Self::Maintenance),
            _ => None,
        }
    }

    /// Returns the maximum interval between reports; `None` for a kind without reports.
    pub fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Ttl(ttl) => Some(*ttl),
            Self::Maintenance => None,
        }
    }

    /// Sets the fields of a record that depend on the kind.
    pub(super) fn describe(&self, record: &mut Check) {
        match self {
            Self::Ttl(ttl) => {
                record.kind = TTL_KIND.into();
                (record.interval, record.timeout) = ("0s".into(), "0s".into());
                record.definition = serde_json::json!({ DEFINITION_TTL: format(*ttl) }).to_string();
            }
            Self::Maintenance => record.kind = MAINTENANCE_KIND.into(),
        }
    }
}

/// Returns the TTL with which an agent registered a check of the catalog.
fn defined_ttl(definition: &str) -> Option<Duration> {
    let definition: serde_json::Value = serde_json::from_str(definition).ok()?;
    parse(definition.get(DEFINITION_TTL)?.as_str()?).ok().filter(|ttl| !ttl.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::record::CheckStatus;

    fn record(id: &str) -> Check {
        Check::of("node-one".into(), id.into(), CheckStatus::Passing)
    }

    #[test]
    fn a_kind_is_read_from_its_own_description() {
        for (id, kind) in [
            ("app", CheckKind::Ttl(Duration::from_millis(1_500))),
            (NODE_MAINTENANCE, CheckKind::Maintenance),
        ] {
            let mut record = record(id);
            kind.describe(&mut record);
            assert_eq!(CheckKind::of(&record), Some(kind), "{record:?}");
        }
    }

    #[test]
    fn other_clients_checks_have_no_kind_here() {
        for (id, kind, definition) in [
            ("app", "", r#"{"TTL":"10s"}"#),
            ("app", "http", r#"{"TTL":"10s"}"#),
            ("app", "ttl", ""),
            ("app", "ttl", r#"{"Interval":"10s"}"#),
            ("app", "ttl", r#"{"TTL":"0s"}"#),
            ("app", "ttl", r#"{"TTL":"ten"}"#),
            ("app", "maintenance", ""),
        ] {
            let check = Check { kind: kind.into(), definition: definition.into(), ..record(id) };
            assert_eq!(CheckKind::of(&check), None, "{check:?}");
        }
    }
}
