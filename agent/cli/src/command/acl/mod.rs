//! `lockmesh acl`: tokens, policies, roles, auth methods and binding rules, with the options and
//! the layout of `consul acl`.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the first token; ids by their prefixes; the formats of output |
//! | `links.rs` | the options and the layout of links |
//! | `token.rs`, `policy.rs`, `role.rs`, `auth_method.rs`, `binding_rule.rs` | the commands of each table |

mod auth_method;
mod binding_rule;
mod links;
mod policy;
mod role;
mod token;

use super::context::Context;
use super::error::CliError;
use super::output::{print_json, print_line, printable};
use lockmesh_client::{Acl, Read};
use lockmesh_protocol::acl::record::ANONYMOUS;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

pub(super) use token::links_of;

/// The length of a whole id.
const ID_LENGTH: usize = 36;

/// Manage the tokens, policies, roles and bindings of access control
///
/// A token permits what its policies permit; a role is a set of policies under a name. Access
/// control is off until `lockmesh operator acl --mode` turns it on.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create the first management token and print its secret
    ///
    /// It works once. If all management tokens are lost, the error names the reset index: write it
    /// into the file acl-bootstrap-reset in the leader's data folder, and retry.
    Bootstrap {
        /// File with the secret to use, a UUID; - for stdin [default: a random one]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        format: FormatArgs,
    },
    Token(token::Args),
    Policy(policy::Args),
    Role(role::Args),
    AuthMethod(auth_method::Args),
    BindingRule(binding_rule::Args),
}

// The options of commands that print an object. No doc comment, which would become their help.
#[derive(clap::Args, Clone, Debug, Default)]
struct FormatArgs {
    /// Print the JSON of the agent's API
    #[arg(long)]
    json: bool,
    /// Output format: pretty or json [default: pretty]
    #[arg(long, value_name = "FORMAT", value_parser = ["pretty", "json"], hide_possible_values = true)]
    format: Option<String>,
    /// Also print digests and indexes
    #[arg(long)]
    meta: bool,
}

impl FormatArgs {
    fn print<T: Serialize + ?Sized>(&self, value: &T, text: &str) -> Result<(), CliError> {
        match self.json || self.format.as_deref() == Some("json") {
            true => print_json(value),
            // An empty list prints nothing, as in Consul.
            false if text.is_empty() => Ok(()),
            false => print_line(text.trim_end_matches('\n')),
        }
    }
}

// The options that choose a policy or a role. No doc comment, which would become the help.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct PickArgs {
    /// ID, or a unique prefix of it
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The request was rejected or not answered. Without an answer a change may have been done: check
/// with `list`.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    match args.command {
        Command::Bootstrap { file, format } => {
            let secret = file.map(|file| secret_of(&file)).transpose()?;
            let token = client.acl().bootstrap(secret.as_deref()).await?;
            format.print(&token, &token::shown(&token, format.meta))?;
        }
        Command::Token(args) => token::run(args, client.acl()).await?,
        Command::Policy(args) => policy::run(args, client.acl()).await?,
        Command::Role(args) => role::run(args, client.acl()).await?,
        Command::AuthMethod(args) => auth_method::run(args, client.acl()).await?,
        Command::BindingRule(args) => binding_rule::run(args, client.acl()).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn secret_of(file: &std::path::Path) -> Result<String, CliError> {
    let text = match file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()),
        _ => std::fs::read_to_string(file),
    };
    let failed = |error| CliError::failed(format!("cannot read the secret from {}: {error}", file.display()));
    text.map(|text| text.trim().to_owned()).map_err(failed)
}

/// The text of an option: the content of `@file`, stdin for `-`, or the argument.
fn text_of(argument: &str) -> Result<String, CliError> {
    let bytes = super::kv::value::bytes_of(argument, &mut std::io::stdin())?;
    String::from_utf8(bytes).map_err(|error| CliError::failed(format!("the rules are no text: {error}")))
}

/// The accessor id of a token, from a unique prefix.
async fn token_id(acl: Acl<'_>, text: &str) -> Result<String, CliError> {
    match text {
        "anonymous" => Ok(ANONYMOUS.into()),
        whole if whole.len() == ID_LENGTH => Ok(whole.into()),
        prefix => {
            let all = acl.tokens(&Read::default()).await?.value;
            unique("token", prefix, all.into_iter().map(|token| token.accessor_id))
        }
    }
}

/// The id of a policy, from a unique prefix.
async fn policy_id(acl: Acl<'_>, text: &str) -> Result<String, CliError> {
    if text.len() == ID_LENGTH {
        return Ok(text.into());
    }
    let all = acl.policies(&Read::default()).await?.value;
    unique("policy", text, all.into_iter().map(|policy| policy.id))
}

/// The id of a role, from a unique prefix.
async fn role_id(acl: Acl<'_>, text: &str) -> Result<String, CliError> {
    if text.len() == ID_LENGTH {
        return Ok(text.into());
    }
    let all = acl.roles(&Read::default()).await?.value;
    unique("role", text, all.into_iter().map(|role| role.id))
}

/// The only id that begins with this prefix.
fn unique(table: &str, prefix: &str, ids: impl Iterator<Item = String>) -> Result<String, CliError> {
    let prefix = prefix.to_ascii_lowercase();
    let mut found = ids.filter(|id| !prefix.is_empty() && id.to_ascii_lowercase().starts_with(&prefix));
    let (first, other) = (found.next(), found.next());
    match (first, other) {
        (Some(id), None) => Ok(id),
        (Some(_), Some(_)) => Err(CliError::failed(format!(
            "several IDs begin with {prefix:?}; add characters, or see `lockmesh acl {table} list`"
        ))),
        (None, _) => Err(CliError::failed(format!(
            "no {table} has an ID that begins with {prefix:?}; see `lockmesh acl {table} list`"
        ))),
    }
}

/// Lines `Name:  value`, the values in one column. Characters that could control a terminal are
/// escaped.
fn lines<'a>(rows: impl IntoIterator<Item = (&'a str, String)>, width: usize) -> String {
    let line = |(name, value): (&str, String)| {
        let name = format!("{name}:");
        format!("{}\n", format!("{name:<width$}{}", printable(&value)).trim_end())
    };
    rows.into_iter().map(line).collect()
}

/// Digests and indexes.
fn meta(hash: &str, create_index: u64, modify_index: u64) -> [(&'static str, String); 3] {
    [
        ("Hash", hash.into()),
        ("Create Index", create_index.to_string()),
        ("Modify Index", modify_index.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::understand;
    use super::*;

    fn parsed(line: &str) -> Result<(), clap::Error> {
        understand(format!("lockmesh {line}").split(' ').map(std::ffi::OsString::from)).map(|_| ())
    }

    #[test]
    fn accepts_consul_command_lines() {
        for line in [
            "acl bootstrap",
            "acl bootstrap - -format=json",
            "acl token create -description=d -policy-name=a -policy-name b -role-id=ab",
            "acl token create -service-identity=web:dc1,dc2 -node-identity=n1:dc1 -local",
            "acl token create -templated-policy=builtin/service -var=name:web",
            "acl token create -accessor=a -secret=s -expires-ttl=1h -meta",
            "acl token read -self",
            "acl token read -accessor-id=ab -format json",
            "acl token update -id=ab -append-policy-name=a -role-name=r",
            "acl token clone -id ab -description=copy",
            "acl token delete -id ab",
            "acl policy create -name=jobs -rules @jobs.hcl -valid-datacenter=dc1",
            "acl policy create -name=jobs -rules -",
            "acl policy update -id=ab -name=new -no-merge",
            "acl policy read -name=jobs",
            "acl role update -name=ops -policy-name=jobs",
            "acl role delete -id=ab",
            "acl auth-method create -type=unix-peer -name=host -description=d",
            "acl auth-method update -name=host -no-merge",
            "acl binding-rule create -method=host -bind-type=policy -bind-name=jobs -selector=uid==7",
            "acl binding-rule update -id=ab -selector=uid==8",
            "acl binding-rule list -method=host -format=json",
            "-token=t whoami -json",
            "whoami -can key:write jobs/x -can=operator:read",
            "operator acl -mode=enforce -default-policy=deny -key-list-policy=true",
            "operator acl -peer-management=true",
        ] {
            assert!(parsed(line).is_ok(), "{line}: {:?}", parsed(line));
        }
    }

    #[test]
    fn contradictory_lines_exit_with_2() {
        for line in [
            "acl",
            "acl token read",
            "acl token read -self -id=a",
            "acl token update -id=a -policy-name=a -append-policy-id=b",
            "acl token create -node-identity=n1",
            "acl token create -var=name:web",
            "acl policy create -rules=x",
            "acl policy read -id=a -name=b",
            "acl role delete",
            "acl role list -format=xml",
            "acl auth-method read",
            "acl binding-rule create -method=host -bind-type=service -bind-name=web",
            "whoami -can=key",
            "whoami -can=keys:read a",
            "operator acl -mode=on",
        ] {
            assert_eq!(parsed(line).expect_err("it makes no sense").exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn id_from_unique_prefix() {
        let ids = ["ab1".to_owned(), "ab2".into(), "c".into()];
        let found = |prefix| unique("role", prefix, ids.iter().cloned()).map_err(|error| error.to_string());
        assert_eq!((found("C"), found("ab1")), (Ok("c".into()), Ok("ab1".into())));
        assert!(found("ab").is_err_and(|error| error.starts_with("several IDs begin with \"ab\"")));
        assert!(found("").is_err_and(|error| error.ends_with("see `lockmesh acl role list`")));
    }

    #[test]
    fn lines_aligned_and_escaped() {
        let rows = [("ID", "a\u{1b}".to_owned()), ("Description", String::new())];
        assert_eq!(lines(rows, 14), "ID:           a\\u{1b}\nDescription:\n");
    }
}
