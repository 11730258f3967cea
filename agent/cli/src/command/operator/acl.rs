//! `lockmesh operator acl`: the settings of access control.

use super::super::context::{ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::output::{OutputArgs, Table, print_line};
use lockmesh_client::shape::acl::{AclChange, AclMode, AclSettings, DefaultPolicy};
use std::process::ExitCode;

/// Show the settings of access control, or change them
///
/// Begin with `--mode log`: requests are judged, and refusals are only logged. With `--mode
/// enforce` they are refused. `lockmesh acl bootstrap` creates the first token.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Effect: off, log or enforce
    #[arg(long, value_name = "MODE", value_parser = ["off", "log", "enforce"], hide_possible_values = true)]
    mode: Option<String>,
    /// Reaction to requests without a rule: allow or deny
    #[arg(long, value_name = "POLICY", value_parser = ["allow", "deny"], hide_possible_values = true)]
    default_policy: Option<String>,
    /// Demand the level list for recursive reads of keys
    #[arg(long, value_name = "BOOL", hide_possible_values = true)]
    key_list_policy: Option<bool>,
    /// Demand session:write on its node to lock with a session
    #[arg(long, value_name = "BOOL", hide_possible_values = true)]
    session_ownership: Option<bool>,
    /// Let binding rules without a condition on the node bind users to management
    #[arg(long, value_name = "BOOL", hide_possible_values = true)]
    peer_management: Option<bool>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply, or the token has no right to it. The settings may have been changed:
/// the same command can be repeated.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let change = args.change();
    if change != AclChange::default() {
        client.acl().configure(&change).await?;
        print_line("Configuration updated!")?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = client.acl().settings(&args.consistency.read()).await?;
    args.output.print(&settings, table)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn change(&self) -> AclChange {
        AclChange {
            mode: self.mode.as_deref().map(|mode| match mode {
                "enforce" => AclMode::Enforce,
                "log" => AclMode::Log,
                _ => AclMode::Off,
            }),
            default_policy: self.default_policy.as_deref().map(|policy| match policy {
                "deny" => DefaultPolicy::Deny,
                _ => DefaultPolicy::Allow,
            }),
            key_list_policy: self.key_list_policy,
            session_ownership: self.session_ownership,
            peer_management: self.peer_management,
        }
    }
}

fn table(settings: &AclSettings) -> Table {
    let mode = match settings.mode {
        AclMode::Off => "off",
        AclMode::Log => "log",
        AclMode::Enforce => "enforce",
    };
    let policy = match settings.default_policy {
        DefaultPolicy::Allow => "allow",
        DefaultPolicy::Deny => "deny",
    };
    let mut table = Table::new(["Mode", mode]);
    table.row(["DefaultPolicy".into(), policy.into()]);
    table.row(["KeyListPolicy".into(), settings.key_list_policy.to_string()]);
    table.row(["SessionOwnership".into(), settings.session_ownership.to_string()]);
    table.row(["PeerManagement".into(), settings.peer_management.to_string()]);
    table.row(["BootstrapIndex".into(), settings.bootstrap_index.to_string()]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn change(line: &[&str]) -> AclChange {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("acl").no_binary_name(true));
        let matches = command.try_get_matches_from(line).expect("it is good");
        Args::from_arg_matches(&matches).expect("it is good").change()
    }

    #[test]
    fn only_given_settings_changed() {
        assert_eq!(change(&[]), AclChange::default());
        let mode = AclChange { mode: Some(AclMode::Enforce), ..AclChange::default() };
        assert_eq!(change(&["--mode=enforce"]), mode);
        let others = AclChange {
            default_policy: Some(DefaultPolicy::Deny),
            session_ownership: Some(false),
            peer_management: Some(true),
            ..AclChange::default()
        };
        let line = ["--default-policy=deny", "--session-ownership=false", "--peer-management=true"];
        assert_eq!(change(&line), others);
    }

    #[test]
    fn settings_shown_one_per_row() {
        let shown = table(&AclSettings { mode: AclMode::Log, ..AclSettings::default() }).render();
        let expected = "Mode              log\nDefaultPolicy     allow\nKeyListPolicy     false\n\
                        SessionOwnership  false\nPeerManagement    false\nBootstrapIndex    0";
        assert_eq!(shown, expected);
    }
}
