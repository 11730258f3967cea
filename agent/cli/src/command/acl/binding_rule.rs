//! `lockmesh acl binding-rule`: creates, changes, lists and deletes binding rules.

use super::super::error::CliError;
use super::super::output::{print_line, printable};
use super::{FormatArgs, ID_LENGTH, lines, meta, unique};
use lockmesh_client::shape::acl::{BindingRule, NewBindingRule};
use lockmesh_client::{Acl, Read};

/// The width of the names in the layout of a binding rule.
const WIDTH: usize = 14;

/// Manage binding rules
///
/// A binding rule gives a policy or a role to the users that its selector matches, on requests over
/// the agent's Unix socket. A selector compares uid, gid, user, group, groups and node.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create a binding rule
    #[command(override_usage = "lockmesh acl binding-rule create <OPTIONS>")]
    Create {
        /// Name of the auth method
        #[arg(long, value_name = "NAME")]
        method: String,
        /// Kind of the object: policy or role
        #[arg(long, value_name = "KIND", value_parser = ["policy", "role"], hide_possible_values = true)]
        bind_type: String,
        /// Name of the policy or role; may contain ${user}, ${uid} and ${node}
        #[arg(long, value_name = "NAME")]
        bind_name: String,
        /// Condition on the user, such as 'user == "deploy"' [default: all users]
        #[arg(long, value_name = "EXPRESSION", default_value = "", hide_default_value = true)]
        selector: String,
        /// Text for people
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        description: String,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show a binding rule
    Read {
        /// ID, or a unique prefix of it
        #[arg(long, value_name = "ID")]
        id: String,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Change a binding rule; fields that are not given are kept
    Update {
        /// ID, or a unique prefix of it
        #[arg(long, value_name = "ID")]
        id: String,
        #[command(flatten)]
        fields: FieldArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Delete a binding rule
    Delete {
        /// ID, or a unique prefix of it
        #[arg(long, value_name = "ID")]
        id: String,
    },
    /// List all binding rules
    List {
        /// Name of an auth method, to list only its rules
        #[arg(long, value_name = "NAME")]
        method: Option<String>,
        #[command(flatten)]
        format: FormatArgs,
    },
}

// The fields that can change. No doc comment, which would become the help of the command.
#[derive(clap::Args, Debug, Default)]
struct FieldArgs {
    /// Kind of the object: policy or role
    #[arg(long, value_name = "KIND", value_parser = ["policy", "role"], hide_possible_values = true)]
    bind_type: Option<String>,
    /// Name of the policy or role; may contain ${user}, ${uid} and ${node}
    #[arg(long, value_name = "NAME")]
    bind_name: Option<String>,
    /// Condition on the user, such as 'user == "deploy"'
    #[arg(long, value_name = "EXPRESSION")]
    selector: Option<String>,
    /// Text for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Remove the selector and the description if they are not given; without a selector, the rule
    /// matches all users
    #[arg(long)]
    no_merge: bool,
}

impl FieldArgs {
    fn changed(self, known: NewBindingRule) -> NewBindingRule {
        let kept = |text: String| if self.no_merge { String::new() } else { text };
        NewBindingRule {
            description: self.description.unwrap_or_else(|| kept(known.description)),
            auth_method: known.auth_method,
            selector: self.selector.unwrap_or_else(|| kept(known.selector)),
            bind_type: self.bind_type.unwrap_or(known.bind_type),
            bind_name: self.bind_name.unwrap_or(known.bind_name),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The request was rejected or not answered.
pub(super) async fn run(args: Args, acl: Acl<'_>) -> Result<(), CliError> {
    let (rule, format) = match args.command {
        Command::Create { method, bind_type, bind_name, selector, description, format } => {
            let rule = NewBindingRule { description, auth_method: method, selector, bind_type, bind_name };
            (acl.create_binding_rule(&rule).await?, format)
        }
        Command::Read { id, format } => (picked(&id, acl).await?, format),
        Command::Update { id, fields, format } => {
            let BindingRule { id, spec, .. } = picked(&id, acl).await?;
            (acl.update_binding_rule(&id, &fields.changed(spec)).await?, format)
        }
        Command::Delete { id } => {
            let id = whole_id(&id, acl).await?;
            acl.delete_binding_rule(&id).await?;
            return print_line(&format!("Binding rule \"{}\" deleted successfully", printable(&id)));
        }
        Command::List { method, format } => {
            let mut all = acl.binding_rules(&Read::default()).await?.value;
            let is_of = |name: &str| method.as_ref().is_none_or(|method| method.eq_ignore_ascii_case(name));
            all.retain(|rule| is_of(&rule.spec.auth_method));
            let texts: String = all.iter().map(|rule| listed(rule, format.meta)).collect();
            return format.print(&all, &texts);
        }
    };
    format.print(&rule, &shown(&rule, format.meta))
}

async fn picked(id: &str, acl: Acl<'_>) -> Result<BindingRule, CliError> {
    Ok(acl.binding_rule(&whole_id(id, acl).await?, &Read::consistent()).await?)
}

/// The id of a binding rule, from a unique prefix.
async fn whole_id(text: &str, acl: Acl<'_>) -> Result<String, CliError> {
    if text.len() == ID_LENGTH {
        return Ok(text.into());
    }
    let all = acl.binding_rules(&Read::default()).await?.value;
    unique("binding-rule", text, all.into_iter().map(|rule| rule.id))
}

fn rows(rule: &BindingRule, with_meta: bool) -> impl Iterator<Item = (&'static str, String)> {
    let spec = rule.spec.clone();
    let rows = [
        ("AuthMethod", spec.auth_method),
        ("Description", spec.description),
        ("BindType", spec.bind_type),
        ("BindName", spec.bind_name),
        ("Selector", spec.selector),
    ];
    // A binding rule has no digest.
    let meta = with_meta.then(|| meta("", rule.create_index, rule.modify_index));
    rows.into_iter().chain(meta.into_iter().flatten().skip(1))
}

/// A binding rule in Consul's layout.
fn shown(rule: &BindingRule, with_meta: bool) -> String {
    let id = [("ID", rule.id.clone())];
    lines(id.into_iter().chain(rows(rule, with_meta)), WIDTH)
}

/// A binding rule in Consul's layout of lists.
fn listed(rule: &BindingRule, with_meta: bool) -> String {
    let rows = lines(rows(rule, with_meta), WIDTH);
    let rows: String = rows.lines().map(|row| format!("   {row}\n")).collect();
    format!("{}:\n{rows}", printable(&rule.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> BindingRule {
        let spec = NewBindingRule {
            description: "d".into(),
            auth_method: "host".into(),
            selector: "user == \"deploy\"".into(),
            bind_type: "policy".into(),
            bind_name: "jobs".into(),
        };
        BindingRule { id: "b1".into(), spec, ..BindingRule::default() }
    }

    #[test]
    fn binding_rule_shown_in_consul_layout() {
        let rows = ["AuthMethod:   host", "Description:  d", "BindType:     policy", "BindName:     jobs"];
        let selector = "Selector:     user == \"deploy\"\n";
        assert_eq!(shown(&rule(), false), format!("ID:           b1\n{}\n{selector}", rows.join("\n")));
        assert_eq!(listed(&rule(), false), format!("b1:\n   {}\n   {selector}", rows.join("\n   ")));
    }

    #[test]
    fn unspecified_fields_kept_on_update() {
        assert_eq!(FieldArgs::default().changed(rule().spec), rule().spec);
        let fields = FieldArgs { bind_name: Some("ops".into()), no_merge: true, ..FieldArgs::default() };
        let changed = fields.changed(rule().spec);
        assert_eq!((changed.bind_name.as_str(), changed.selector.as_str()), ("ops", ""));
        assert_eq!((changed.bind_type.as_str(), changed.description.as_str()), ("policy", ""));
    }
}
