//! `lockmesh acl policy`: creates, changes, lists and deletes policies.

use super::super::error::CliError;
use super::super::output::{print_line, printable};
use super::{FormatArgs, PickArgs, lines, meta, policy_id, text_of};
use lockmesh_client::shape::acl::{NewPolicy, Policy};
use lockmesh_client::{Acl, Read};

/// The width of the names in the layout of a policy.
const WIDTH: usize = 14;

/// Manage policies
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create a policy
    Create {
        /// Name, unique
        #[arg(long, value_name = "NAME")]
        name: String,
        #[command(flatten)]
        fields: FieldArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show a policy and its rules
    Read {
        #[command(flatten)]
        pick: PickArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Change a policy; fields that are not given are kept
    Update {
        /// ID, or a unique prefix of it [default: that of the policy with --name]
        #[arg(long, value_name = "ID", required_unless_present = "name")]
        id: Option<String>,
        /// Name; with --id, the new one
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        fields: FieldArgs,
        /// Reset the fields that are not given
        #[arg(long)]
        no_merge: bool,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Delete a policy, and remove it from all tokens and roles
    Delete {
        #[command(flatten)]
        pick: PickArgs,
    },
    /// List all policies without their rules
    List {
        #[command(flatten)]
        format: FormatArgs,
    },
}

// The fields of a policy. No doc comment, which would become the help of the command.
#[derive(clap::Args, Debug, Default)]
struct FieldArgs {
    /// Text for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Rules in HCL or JSON: @FILE, - for stdin, or the rules themselves
    #[arg(long, value_name = "RULES")]
    rules: Option<String>,
    /// Datacenter in which the policy counts; repeatable [default: all]
    #[arg(long = "valid-datacenter", value_name = "NAME")]
    valid_datacenters: Vec<String>,
}

impl FieldArgs {
    /// The policy with these fields; the others are those of `known`.
    fn changed(self, known: Policy) -> Result<NewPolicy, CliError> {
        let given = self.valid_datacenters;
        Ok(NewPolicy {
            name: known.name,
            description: self.description.unwrap_or(known.description),
            rules: self.rules.map(|rules| text_of(&rules)).transpose()?.or(known.rules).unwrap_or_default(),
            datacenters: if given.is_empty() { known.datacenters } else { given },
        })
    }
}

/// Runs the command.
///
/// # Errors
/// The rules cannot be read, or the request was rejected or not answered.
pub(super) async fn run(args: Args, acl: Acl<'_>) -> Result<(), CliError> {
    let (policy, format) = match args.command {
        Command::Create { name, fields, format } => {
            let policy = fields.changed(Policy { name, ..Policy::default() })?;
            (acl.create_policy(&policy).await?, format)
        }
        Command::Read { pick, format } => (picked(&pick, acl).await?, format),
        Command::Update { id, name, fields, no_merge, format } => {
            let known = picked(&PickArgs { id: id.clone(), name: name.clone() }, acl).await?;
            let name = name.unwrap_or_else(|| known.name.clone());
            let id = known.id.clone();
            let base = if no_merge { Policy::default() } else { known };
            (acl.update_policy(&id, &fields.changed(Policy { name, ..base })?).await?, format)
        }
        Command::Delete { pick } => {
            let id = picked(&pick, acl).await?.id;
            acl.delete_policy(&id).await?;
            return print_line(&format!("Policy \"{id}\" deleted successfully"));
        }
        Command::List { format } => {
            let all = acl.policies(&Read::default()).await?.value;
            let texts: String = all.iter().map(|policy| listed(policy, format.meta)).collect();
            return format.print(&all, &texts);
        }
    };
    format.print(&policy, &shown(&policy, format.meta))
}

async fn picked(pick: &PickArgs, acl: Acl<'_>) -> Result<Policy, CliError> {
    let read = Read::consistent();
    match (&pick.id, &pick.name) {
        (Some(id), _) => Ok(acl.policy(&policy_id(acl, id).await?, &read).await?),
        (None, name) => Ok(acl.policy_by_name(name.as_deref().unwrap_or_default(), &read).await?),
    }
}

fn rows(policy: &Policy, with_meta: bool) -> impl Iterator<Item = (&'static str, String)> {
    let rows = [("Description", policy.description.clone()), ("Datacenters", policy.datacenters.join(", "))];
    let meta = with_meta.then(|| meta(&policy.hash, policy.create_index, policy.modify_index));
    rows.into_iter().chain(meta.into_iter().flatten())
}

/// A policy in Consul's layout.
fn shown(policy: &Policy, with_meta: bool) -> String {
    let names = [("ID", policy.id.clone()), ("Name", policy.name.clone())];
    let rules: Vec<String> = policy.rules.iter().flat_map(|rules| rules.lines()).map(printable).collect();
    lines(names.into_iter().chain(rows(policy, with_meta)), WIDTH) + "Rules:\n" + &rules.join("\n")
}

/// A policy in Consul's layout of lists.
fn listed(policy: &Policy, with_meta: bool) -> String {
    let id = [("ID", policy.id.clone())];
    let rows = lines(id.into_iter().chain(rows(policy, with_meta)), WIDTH);
    let rows: String = rows.lines().map(|row| format!("   {row}\n")).collect();
    format!("{}:\n{rows}", printable(&policy.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy {
            id: "p1".into(),
            name: "jobs".into(),
            description: "d".into(),
            rules: Some("a\n\u{1b}b\n".into()),
            datacenters: vec!["dc1".into()],
            ..Policy::default()
        }
    }

    #[test]
    fn policy_shown_in_consul_layout() {
        let rows = "Description:  d\nDatacenters:  dc1\n";
        let expected = format!("ID:           p1\nName:         jobs\n{rows}Rules:\na\n\\u{{1b}}b");
        assert_eq!(shown(&policy(), false), expected);
        let expected = "jobs:\n   ID:           p1\n   Description:  d\n   Datacenters:  dc1\n";
        assert_eq!(listed(&policy(), false), expected);
    }

    #[test]
    fn unspecified_fields_kept_on_update() {
        let kept = FieldArgs::default().changed(policy()).expect("there is nothing to read");
        assert_eq!((kept.name.as_str(), kept.description.as_str()), ("jobs", "d"));
        assert_eq!((kept.rules.as_str(), kept.datacenters), ("a\n\u{1b}b\n", vec!["dc1".to_owned()]));
        let given = FieldArgs { rules: Some("acl = \"read\"".into()), ..FieldArgs::default() };
        let changed = given.changed(policy()).expect("it is the text itself");
        assert_eq!((changed.rules.as_str(), changed.description.as_str()), ("acl = \"read\"", "d"));
        let lost = FieldArgs { rules: Some("@/nowhere".into()), ..FieldArgs::default() };
        assert!(lost.changed(policy()).is_err());
    }
}
