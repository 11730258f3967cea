//! `lockmesh acl auth-method`: creates, changes, lists and deletes auth methods.

use super::super::error::CliError;
use super::super::output::{print_line, printable};
use super::{FormatArgs, lines, meta};
use lockmesh_client::shape::acl::{AuthMethod, NewAuthMethod};
use lockmesh_client::{Acl, Read};
use lockmesh_protocol::acl::peer::UNIX_PEER;

/// The width of the names in the layout of an auth method.
const WIDTH: usize = 14;

/// Manage auth methods
///
/// The only type is unix-peer: callers on the agent's Unix socket are identified by their user. Its
/// binding rules give them policies and roles.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create an auth method
    Create {
        /// Name, unique
        #[arg(long, value_name = "NAME")]
        name: String,
        /// Type: unix-peer
        #[arg(long = "type", value_name = "TYPE", default_value = UNIX_PEER, hide_default_value = true)]
        kind: String,
        /// Text for people
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        description: String,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show an auth method
    Read {
        /// Name
        #[arg(long, value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Change the description of an auth method
    Update {
        /// Name
        #[arg(long, value_name = "NAME")]
        name: String,
        /// Text for people
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Remove the description if it is not given
        #[arg(long)]
        no_merge: bool,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Delete an auth method and its binding rules
    Delete {
        /// Name
        #[arg(long, value_name = "NAME")]
        name: String,
    },
    /// List all auth methods
    List {
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// Runs the command.
///
/// # Errors
/// The request was rejected or not answered.
pub(super) async fn run(args: Args, acl: Acl<'_>) -> Result<(), CliError> {
    let (method, format) = match args.command {
        Command::Create { name, kind, description, format } => {
            (acl.create_auth_method(&NewAuthMethod { name, kind, description }).await?, format)
        }
        Command::Read { name, format } => (acl.auth_method(&name, &Read::consistent()).await?, format),
        Command::Update { name, description, no_merge, format } => {
            let known = acl.auth_method(&name, &Read::consistent()).await?;
            (acl.update_auth_method(&changed(known, description, no_merge)).await?, format)
        }
        Command::Delete { name } => {
            acl.delete_auth_method(&name).await?;
            return print_line(&format!("Auth-method \"{}\" deleted successfully", printable(&name)));
        }
        Command::List { format } => {
            let all = acl.auth_methods(&Read::default()).await?.value;
            let texts: String = all.iter().map(|method| listed(method, format.meta)).collect();
            return format.print(&all, &texts);
        }
    };
    format.print(&method, &shown(&method, format.meta))
}

fn changed(known: AuthMethod, description: Option<String>, no_merge: bool) -> NewAuthMethod {
    let kept = if no_merge { String::new() } else { known.description };
    NewAuthMethod { name: known.name, kind: known.kind, description: description.unwrap_or(kept) }
}

fn rows(method: &AuthMethod, with_meta: bool) -> impl Iterator<Item = (&'static str, String)> {
    let rows = [("Type", method.kind.clone()), ("Description", method.description.clone())];
    // An auth method has no digest.
    let meta = with_meta.then(|| meta("", method.create_index, method.modify_index));
    rows.into_iter().chain(meta.into_iter().flatten().skip(1))
}

/// An auth method in Consul's layout.
fn shown(method: &AuthMethod, with_meta: bool) -> String {
    let name = [("Name", method.name.clone())];
    lines(name.into_iter().chain(rows(method, with_meta)), WIDTH)
}

/// An auth method in Consul's layout of lists.
fn listed(method: &AuthMethod, with_meta: bool) -> String {
    let rows = lines(rows(method, with_meta), WIDTH);
    let rows: String = rows.lines().map(|row| format!("   {row}\n")).collect();
    format!("{}:\n{rows}", printable(&method.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method() -> AuthMethod {
        let (name, kind, description) = ("host".into(), UNIX_PEER.into(), "d".into());
        AuthMethod { name, kind, description, create_index: 3, modify_index: 4 }
    }

    #[test]
    fn auth_method_shown_in_consul_layout() {
        let expected = "Name:         host\nType:         unix-peer\nDescription:  d\n";
        assert_eq!(shown(&method(), false), expected);
        let expected = "host:\n   Type:         unix-peer\n   Description:  d\n   Create Index: 3\n   \
                        Modify Index: 4\n";
        assert_eq!(listed(&method(), true), expected);
    }

    #[test]
    fn description_kept_unless_replaced() {
        let text =
            |given: Option<&str>, no_merge| changed(method(), given.map(str::to_owned), no_merge).description;
        assert_eq!((text(None, false), text(None, true)), ("d".into(), String::new()));
        assert_eq!(text(Some("e"), false), "e");
    }
}
