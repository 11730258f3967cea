//! `lockmesh whoami`: the caller's token, and its permissions.

use super::acl::links_of;
use super::arguments::ValueError;
use super::context::Context;
use super::error::CliError;
use super::output::{JsonArgs, printable};
use lockmesh_client::shape::acl::{Permission, Token};
use lockmesh_client::{Acl, Error, Read};
use lockmesh_protocol::acl::record::ANONYMOUS;
use lockmesh_protocol::acl::{Access, Resource};
use serde::Serialize;
use std::process::ExitCode;

/// Print the token that this command sends, or its permissions
///
/// Without a token, a user that binding rules select is shown by its name and node; another caller
/// has the permissions of the anonymous token. With --can, the exit
/// code is 1 if a permission is missing.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Permission to check, as RESOURCE:ACCESS; repeatable
    #[arg(long, value_name = "PERMISSION", value_parser = permission)]
    can: Vec<(Resource, Access)>,
    /// Name of the object of each permission except acl, keyring and operator, in their order
    #[arg(value_name = "NAME", requires = "can")]
    names: Vec<String>,
    #[command(flatten)]
    json: JsonArgs,
}

/// The JSON of the command.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Caller {
    /// `false` if no request is judged.
    enabled: bool,
    /// The token, without its secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    /// The permissions that were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    permissions: Vec<Permission>,
}

/// Runs the command.
///
/// # Errors
/// The names do not match the permissions, or the agent did not reply.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let asked = permissions(args.can, args.names)?;
    let client = context.client()?;
    let caller =
        if asked.is_empty() { own(client.acl()).await? } else { judged(client.acl(), asked).await? };
    args.json.print(&caller, caller.text().trim_end_matches('\n'))?;
    Ok(if caller.has_all() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn own(acl: Acl<'_>) -> Result<Caller, CliError> {
    match acl.own_token(&Read::default()).await {
        Ok(token) => {
            let token = Token { id: String::new(), secret_id: "<hidden>".into(), ..token };
            Ok(Caller { enabled: true, token: Some(token), permissions: Vec::new() })
        }
        Err(error) if is_off(&error) => Ok(Caller::default()),
        Err(error) => Err(error.into()),
    }
}

async fn judged(acl: Acl<'_>, asked: Vec<Permission>) -> Result<Caller, CliError> {
    match acl.authorize(&asked).await {
        Ok(permissions) => Ok(Caller { enabled: true, token: None, permissions }),
        Err(error) if is_off(&error) => {
            let allowed = |asked| Permission { allow: Some(true), ..asked };
            let permissions = asked.into_iter().map(allowed).collect();
            Ok(Caller { permissions, ..Caller::default() })
        }
        Err(error) => Err(error.into()),
    }
}

/// `true` for the reply of an agent whose cluster has no access control.
fn is_off(error: &Error) -> bool {
    matches!(error, Error::Refused { status: 401, text } if text == "ACL support disabled")
}

impl Caller {
    fn has_all(&self) -> bool {
        self.permissions.iter().all(|permission| permission.allow == Some(true))
    }

    /// One line for each permission, or the token.
    fn text(&self) -> String {
        let line = |permission: &Permission| {
            let verdict = if permission.allow == Some(true) { "allowed" } else { "denied" };
            let Permission { resource, access, segment, .. } = permission;
            let text = format!("{verdict:<8} {resource}:{access} {}", printable(segment));
            format!("{}\n", text.trim_end())
        };
        match &self.token {
            _ if !self.permissions.is_empty() => self.permissions.iter().map(line).collect(),
            Some(token) if token.accessor_id == ANONYMOUS => {
                format!("anonymous: no token was sent\n{}", links_of(token))
            }
            Some(token) => links_of(token),
            None => "access control is off: no token is needed".into(),
        }
    }
}

/// The permissions, each with its name unless its resource has none.
fn permissions(can: Vec<(Resource, Access)>, names: Vec<String>) -> Result<Vec<Permission>, CliError> {
    let mut names = names.into_iter();
    let mut asked = Vec::new();
    for (resource, access) in can {
        let segment = match resource.is_single() {
            true => String::new(),
            false => names.next().ok_or_else(|| {
                CliError::usage(format!(
                    "--can {resource}:{access} needs a name: --can {resource}:{access} NAME"
                ))
            })?,
        };
        asked.push(Permission {
            resource: resource.to_string(),
            access: access.to_string(),
            segment,
            allow: None,
        });
    }
    match names.next() {
        None => Ok(asked),
        Some(name) => Err(CliError::usage(format!("{name:?} belongs to no permission: add --can"))),
    }
}

fn permission(text: &str) -> Result<(Resource, Access), ValueError> {
    let (resource, access) = text.split_once(':').ok_or(ValueError::Permission)?;
    let pair = Resource::named(resource).zip(Access::named(access));
    pair.ok_or(ValueError::Permission)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(can: &[&str], names: &[&str]) -> Result<Vec<Permission>, String> {
        let can = can.iter().map(|text| permission(text).expect("it is good")).collect();
        permissions(can, names.iter().map(|name| (*name).into()).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_follow_their_permissions() {
        let asked_for = asked(&["key:write", "operator:read", "node:read"], &["jobs/x", "n1"]);
        let segments: Vec<_> = asked_for.expect("it is good").into_iter().map(|it| it.segment).collect();
        assert_eq!(segments, ["jobs/x", "", "n1"]);
        assert!(asked(&["key:write"], &[]).is_err_and(|error| error.contains("key:write NAME")));
        assert!(asked(&["acl:read"], &["x"]).is_err_and(|error| error.contains("\"x\"")));
        for wrong in ["key", "keys:read", "key:deny", ":"] {
            assert_eq!(permission(wrong), Err(ValueError::Permission), "{wrong}");
        }
    }

    #[test]
    fn verdicts_shown_one_per_line() {
        let mut permissions = asked(&["key:write", "acl:read"], &["jobs/x"]).expect("it is good");
        permissions[0].allow = Some(true);
        let mut caller = Caller { enabled: true, token: None, permissions };
        assert_eq!(caller.text(), "allowed  key:write jobs/x\ndenied   acl:read\n");
        assert!(!caller.has_all());
        caller.permissions.truncate(1);
        assert!(caller.has_all());
    }

    #[test]
    fn caller_described_without_secret() {
        assert_eq!(Caller::default().text(), "access control is off: no token is needed");
        let token = Token { accessor_id: ANONYMOUS.into(), secret_id: "s3cret".into(), ..Token::default() };
        let text = Caller { enabled: true, token: Some(token), permissions: Vec::new() }.text();
        assert!(text.starts_with("anonymous: no token was sent\nAccessorID:") && !text.contains("s3cret"));
    }
}
