//! A node's lease as shown to people. Unknown values are empty.

use lockmesh_client::shape::agent::NodeLease;
use lockmesh_protocol::duration;
use std::time::Duration;

/// The time until the node's window ends without a renewal.
pub(super) fn deadline(lease: &NodeLease) -> String {
    match lease.deadline_in_ms {
        Some(0) => "over".into(),
        Some(milliseconds) => format!("in {}", rounded(milliseconds)),
        None => String::new(),
    }
}

/// The time since the leader received the node's last renewal.
pub(super) fn last_heard(lease: &NodeLease) -> String {
    lease.last_heard_ago_ms.map(|ago| format!("{} ago", rounded(ago))).unwrap_or_default()
}

/// The nodes that suspect this one.
pub(super) fn suspected_by(lease: &NodeLease) -> String {
    lease.suspected_by.join(", ")
}

/// To tenths of a second, and long ones to seconds: it was some milliseconds on its way already.
fn rounded(milliseconds: u64) -> String {
    match milliseconds {
        ..60_000 => format!("{}.{}s", milliseconds / 1_000, milliseconds % 1_000 / 100),
        _ => duration::format(Duration::from_secs(milliseconds / 1_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rounded_unknown_values_empty() {
        let heard = |ago| last_heard(&NodeLease { last_heard_ago_ms: ago, ..NodeLease::default() });
        for (ago, shown) in
            [(0, "0.0s ago"), (1_999, "1.9s ago"), (59_999, "59.9s ago"), (90_500, "1m30s ago")]
        {
            assert_eq!(heard(Some(ago)), shown);
        }
        let ends = |ends| deadline(&NodeLease { deadline_in_ms: ends, ..NodeLease::default() });
        assert_eq!([ends(Some(1_234)), ends(Some(0))], ["in 1.2s", "over"]);
        assert_eq!([heard(None), ends(None), suspected_by(&NodeLease::default())], ["", "", ""]);
    }
}
