//! The loss of a session as clients see it: in the list of losses, and as the reason that guards
//! get.

use crate::go::duration::silence;
use lockmesh_client::shape::lockmesh;
use lockmesh_protocol::id::{CheckId, Key};
use lockmesh_protocol::record::{Loss, LossCause};

/// Returns the name of a cause, and the check that it is about.
fn cause_and_check(cause: &LossCause) -> (&'static str, Option<&CheckId>) {
    match cause {
        LossCause::Destroyed => ("destroyed", None),
        LossCause::TtlExpired => ("ttl-expired", None),
        LossCause::CheckCritical(check) | LossCause::CheckFailed { check, .. } => {
            ("check-critical", Some(check))
        }
        LossCause::CheckDeregistered(check) => ("check-deregistered", Some(check)),
        LossCause::NodeDeregistered => ("node-deregistered", None),
        LossCause::NodeFailed { .. } => ("node-failed", None),
        LossCause::HostReplaced => ("host-replaced", None),
        LossCause::NodeLeft => ("node-left", None),
        LossCause::NodeForcedToLeave => ("node-forced-to-leave", None),
        LossCause::NodeReaped => ("node-reaped", None),
        LossCause::GivenUp { .. } => ("given-up", None),
        LossCause::KeyDeleted => ("key-deleted", None),
        LossCause::ProcessExited { .. } => ("process-exited", None),
    }
}

/// Returns a loss as clients see it.
pub(crate) fn shape(loss: &Loss) -> lockmesh::Loss {
    let (cause, check) = cause_and_check(&loss.cause);
    let (health_window, confirmed_by, silent_for) = match &loss.cause {
        LossCause::NodeFailed { window, confirmed_by, silent_for } => (
            window.as_str().into(),
            confirmed_by.iter().map(ToString::to_string).collect(),
            silence(*silent_for),
        ),
        LossCause::GivenUp { silent_for } => (String::new(), Vec::new(), silence(*silent_for)),
        _ => Default::default(),
    };
    let check_output = match &loss.cause {
        LossCause::CheckFailed { output, .. } => output.clone(),
        _ => String::new(),
    };
    let pid = match &loss.cause {
        LossCause::ProcessExited { pid } => Some(*pid),
        _ => None,
    };
    let lost = |key: &Key, fence: u64| lockmesh::LostKey { key: key.to_string(), fence };
    lockmesh::Loss {
        index: loss.index.0,
        at_ms: loss.at.0,
        session: loss.session.to_string(),
        session_name: loss.session_name.clone(),
        node: loss.node.to_string(),
        cause: cause.into(),
        check_id: check.map(ToString::to_string).unwrap_or_default(),
        check_output,
        health_window,
        confirmed_by,
        silent_for,
        pid,
        keys: loss.keys.iter().map(|(key, fence)| lost(key, fence.0)).collect(),
        key_count: loss.key_count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::{LogIndex, SessionId, WallTime};
    use lockmesh_protocol::lease::HealthWindow;
    use std::time::Duration;

    #[test]
    fn client_parses_every_loss_cause() {
        let check = || "c".into();
        let failed = LossCause::NodeFailed {
            window: HealthWindow::Default,
            confirmed_by: Vec::new(),
            silent_for: Duration::ZERO,
        };
        let causes = [
            LossCause::Destroyed,
            LossCause::TtlExpired,
            LossCause::CheckCritical(check()),
            LossCause::CheckDeregistered(check()),
            LossCause::NodeDeregistered,
            failed,
            LossCause::HostReplaced,
            LossCause::NodeLeft,
            LossCause::NodeForcedToLeave,
            LossCause::NodeReaped,
            LossCause::GivenUp { silent_for: Duration::ZERO },
            LossCause::KeyDeleted,
            LossCause::ProcessExited { pid: 7 },
        ];
        let shaped = |cause| {
            let session = SessionId::NIL;
            let at = WallTime(0);
            let index = LogIndex(1);
            let node = "n".into();
            let (keys, key_count) = (Vec::new(), 0);
            shape(&Loss { index, at, session, session_name: String::new(), node, cause, keys, key_count })
        };
        assert_eq!(causes.map(|cause| shaped(cause).cause), lockmesh::Loss::CAUSES);
        let failed = shaped(LossCause::CheckFailed { check: check(), output: "refused".into() });
        assert_eq!(failed.in_words(), "check-critical (c: refused)");
        assert_eq!(shaped(LossCause::ProcessExited { pid: 7 }).in_words(), "process-exited (process 7)");
    }
}
