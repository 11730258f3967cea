//! `lockmesh acl role`: creates, changes, lists and deletes roles.

use super::super::error::CliError;
use super::super::output::{print_line, printable};
use super::links::{self, LinkArgs};
use super::{FormatArgs, PickArgs, lines, meta, role_id};
use lockmesh_client::shape::acl::{Links, NewRole, Role};
use lockmesh_client::{Acl, Read};

/// The width of the names in the layout of a role.
const WIDTH: usize = 14;

/// Manage roles
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create a role
    Create {
        /// Name, unique
        #[arg(long, value_name = "NAME")]
        name: String,
        /// Text for people
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        description: String,
        #[command(flatten)]
        links: LinkArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show a role
    Read {
        #[command(flatten)]
        pick: PickArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Change a role; policies and identities that are given are added
    Update {
        /// ID, or a unique prefix of it [default: that of the role with --name]
        #[arg(long, value_name = "ID", required_unless_present = "name")]
        id: Option<String>,
        /// Name; with --id, the new one
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Text for people
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        #[command(flatten)]
        links: LinkArgs,
        /// Remove the description, policies and identities that are not given
        #[arg(long)]
        no_merge: bool,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Delete a role, and remove it from all tokens
    Delete {
        #[command(flatten)]
        pick: PickArgs,
    },
    /// List all roles
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
    let (role, format) = match args.command {
        Command::Create { name, description, links, format } => {
            let role = NewRole { name, description, links: links.links(acl).await? };
            (acl.create_role(&role).await?, format)
        }
        Command::Read { pick, format } => (picked(&pick, acl).await?, format),
        Command::Update { id, name, description, links, no_merge, format } => {
            let given = links.links(acl).await?;
            let known = picked(&PickArgs { id, name: name.clone() }, acl).await?;
            let id = known.id.clone();
            (acl.update_role(&id, &changed(known, name, description, given, no_merge)).await?, format)
        }
        Command::Delete { pick } => {
            let id = picked(&pick, acl).await?.id;
            acl.delete_role(&id).await?;
            return print_line(&format!("Role \"{id}\" deleted successfully"));
        }
        Command::List { format } => {
            let all = acl.roles(&Read::default()).await?.value;
            let texts: String = all.iter().map(|role| listed(role, format.meta)).collect();
            return format.print(&all, &texts);
        }
    };
    format.print(&role, &shown(&role, format.meta))
}

async fn picked(pick: &PickArgs, acl: Acl<'_>) -> Result<Role, CliError> {
    let read = Read::consistent();
    match (&pick.id, &pick.name) {
        (Some(id), _) => Ok(acl.role(&role_id(acl, id).await?, &read).await?),
        (None, name) => Ok(acl.role_by_name(name.as_deref().unwrap_or_default(), &read).await?),
    }
}

fn changed(
    known: Role,
    name: Option<String>,
    description: Option<String>,
    given: Links,
    no_merge: bool,
) -> NewRole {
    let name = name.unwrap_or(known.name);
    match no_merge {
        true => NewRole { name, description: description.unwrap_or_default(), links: given },
        false => NewRole {
            name,
            description: description.unwrap_or(known.description),
            links: links::merged(known.links, given),
        },
    }
}

fn rows(role: &Role, with_meta: bool) -> impl Iterator<Item = (&'static str, String)> {
    let meta = with_meta.then(|| meta(&role.hash, role.create_index, role.modify_index));
    [("Description", role.description.clone())].into_iter().chain(meta.into_iter().flatten())
}

/// A role in Consul's layout.
fn shown(role: &Role, with_meta: bool) -> String {
    let names = [("ID", role.id.clone()), ("Name", role.name.clone())];
    lines(names.into_iter().chain(rows(role, with_meta)), WIDTH) + &links::shown(&role.links, "")
}

/// A role in Consul's layout of lists.
fn listed(role: &Role, with_meta: bool) -> String {
    let id = [("ID", role.id.clone())];
    let rows = lines(id.into_iter().chain(rows(role, with_meta)), WIDTH);
    let rows: String = rows.lines().map(|row| format!("   {row}\n")).collect();
    format!("{}:\n{rows}{}", printable(&role.name), links::shown(&role.links, "   "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::shape::acl::Link;

    fn linked(name: &str) -> Links {
        Links { policies: vec![Link { id: "p1".into(), name: name.into() }], ..Links::default() }
    }

    fn role() -> Role {
        Role {
            id: "r1".into(),
            name: "ops".into(),
            description: "d".into(),
            links: linked("a"),
            ..Role::default()
        }
    }

    #[test]
    fn role_shown_in_consul_layout() {
        let expected = "ID:           r1\nName:         ops\nDescription:  d\nPolicies:\n   p1 - a\n";
        assert_eq!(shown(&role(), false), expected);
        let expected = "ops:\n   ID:           r1\n   Description:  d\n   Policies:\n      p1 - a\n";
        assert_eq!(listed(&role(), false), expected);
    }

    #[test]
    fn update_adds_or_replaces_links() {
        let added = changed(role(), None, None, linked("b"), false);
        assert_eq!((added.name.as_str(), added.description.as_str()), ("ops", "d"));
        assert_eq!(added.links.policies.len(), 2);
        let replaced = changed(role(), Some("dev".into()), None, linked("b"), true);
        assert_eq!(replaced, NewRole { name: "dev".into(), description: String::new(), links: linked("b") });
    }
}
