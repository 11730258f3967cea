//! Who may define checks that run a script: such a check runs any command as the agent's user.

use lockmesh_agent_core::definitions::NewCheck;
use lockmesh_agent_core::registry::Source;
use serde::{Deserialize, Serialize};

/// Who may define checks that run a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scripts {
    /// No one.
    #[default]
    Disabled,
    /// The configuration file.
    Config,
    /// The configuration file, and the clients on the Unix socket.
    UnixSocket,
}

impl Scripts {
    /// Returns `true` if a check of this origin may run. What a client registered was permitted to
    /// it by its socket.
    pub fn permit(self, check: &NewCheck, source: Source) -> bool {
        match (self, source) {
            _ if !check.runs_script() => true,
            (Self::Disabled, _) | (Self::Config, Source::Api) => false,
            (Self::Config, Source::Config) | (Self::UnixSocket, _) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_agent_core::definitions::{CheckKind, Probe, Target};
    use lockmesh_protocol::record::CheckStatus;
    use std::time::Duration;

    #[test]
    fn script_permission_by_source() {
        let check = |target: Target| {
            let kind = CheckKind::Probe(Probe { target, interval: Duration::from_secs(1), timeout: None });
            NewCheck::of("app".into(), CheckStatus::Critical, kind)
        };
        let script = check(Target::Script { args: vec!["true".into()] });
        let ping = check(Target::Udp { address: "localhost:9".into() });
        for (scripts, of_config, of_api) in [
            (Scripts::Disabled, false, false),
            (Scripts::Config, true, false),
            (Scripts::UnixSocket, true, true),
        ] {
            assert_eq!(scripts.permit(&script, Source::Config), of_config, "{scripts:?}");
            assert_eq!(scripts.permit(&script, Source::Api), of_api, "{scripts:?}");
            assert!(scripts.permit(&ping, Source::Api));
        }
    }
}
