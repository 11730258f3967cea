//! `lockmesh acl token`: creates, changes, lists and deletes tokens.

use super::super::error::CliError;
use super::super::output::print_line;
use super::links::{self, AppendArgs, LinkArgs, RoleArgs};
use super::{FormatArgs, lines, meta, token_id};
use lockmesh_client::shape::acl::{NewToken, Token};
use lockmesh_client::{Acl, Read};

/// The width of the names in the layout of a token.
const WIDTH: usize = 18;

/// Manage tokens
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Create(CreateArgs),
    /// Show a token
    Read {
        /// Accessor ID, a unique prefix of it, or anonymous
        #[arg(long, value_name = "ID", visible_alias = "accessor-id", required_unless_present = "own")]
        id: Option<String>,
        /// The token that this command sends
        #[arg(long = "self", conflicts_with = "id")]
        own: bool,
        #[command(flatten)]
        format: FormatArgs,
    },
    Update(UpdateArgs),
    /// Delete a token; its sessions remain
    Delete {
        #[command(flatten)]
        token: TokenArgs,
    },
    /// Create a token with the policies, roles and identities of another one
    Clone {
        #[command(flatten)]
        token: TokenArgs,
        /// Description [default: that of the other token]
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        description: String,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List all tokens
    List {
        #[command(flatten)]
        format: FormatArgs,
    },
}

// The option that chooses a token. No doc comment, which would become the help of the command.
#[derive(clap::Args, Debug)]
struct TokenArgs {
    /// Accessor ID, a unique prefix of it, or anonymous
    #[arg(long, value_name = "ID", visible_alias = "accessor-id")]
    id: String,
}

/// Create a token and print its secret
#[derive(clap::Args, Debug)]
struct CreateArgs {
    /// Text for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    #[command(flatten)]
    links: LinkArgs,
    #[command(flatten)]
    roles: RoleArgs,
    /// Time until the token ends, 1m to 24h [default: unlimited]
    #[arg(long, value_name = "DURATION", default_value = "", hide_default_value = true)]
    expires_ttl: String,
    /// Mark as a token of one datacenter
    #[arg(long)]
    local: bool,
    /// Accessor ID, a UUID [default: a random one]
    #[arg(long, value_name = "UUID", default_value = "", hide_default_value = true)]
    accessor: String,
    /// Secret, a UUID, visible to other users of this host [default: a random one]
    #[arg(long, value_name = "UUID", default_value = "", hide_default_value = true)]
    secret: String,
    #[command(flatten)]
    format: FormatArgs,
}

/// Change a token
///
/// Policies, roles or identities that are given replace those of the same kind. Everything else is
/// kept.
#[derive(clap::Args, Debug)]
struct UpdateArgs {
    #[command(flatten)]
    token: TokenArgs,
    /// Text for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    #[command(flatten)]
    links: LinkArgs,
    #[command(flatten)]
    roles: RoleArgs,
    #[command(flatten)]
    append: AppendArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Runs the command.
///
/// # Errors
/// The request was rejected or not answered.
pub(super) async fn run(args: Args, acl: Acl<'_>) -> Result<(), CliError> {
    let read = Read::default();
    let (token, format) = match args.command {
        Command::Create(args) => create(args, acl).await?,
        Command::Read { id: None, format, .. } => (acl.own_token(&read).await?, format),
        Command::Read { id: Some(id), format, .. } => {
            (acl.token(&token_id(acl, &id).await?, &read).await?, format)
        }
        Command::Update(args) => update(args, acl).await?,
        Command::Delete { token } => {
            let accessor = token_id(acl, &token.id).await?;
            acl.delete_token(&accessor).await?;
            return print_line(&format!("Token \"{accessor}\" deleted successfully"));
        }
        Command::Clone { token, description, format } => {
            (acl.clone_token(&token_id(acl, &token.id).await?, &description).await?, format)
        }
        Command::List { format } => {
            let all = acl.tokens(&read).await?.value;
            let texts: Vec<String> = all.iter().map(|token| shown(token, format.meta)).collect();
            return format.print(&all, &texts.join("\n"));
        }
    };
    format.print(&token, &shown(&token, format.meta))
}

async fn create(args: CreateArgs, acl: Acl<'_>) -> Result<(Token, FormatArgs), CliError> {
    let mut links = args.links.links(acl).await?;
    links.roles = args.roles.links(acl).await?;
    let token = NewToken {
        accessor_id: args.accessor,
        secret_id: args.secret,
        description: args.description,
        links,
        local: args.local,
        expiration_ttl: args.expires_ttl,
    };
    Ok((acl.create_token(&token).await?, args.format))
}

async fn update(args: UpdateArgs, acl: Acl<'_>) -> Result<(Token, FormatArgs), CliError> {
    let accessor = token_id(acl, &args.token.id).await?;
    let mut given = args.links.links(acl).await?;
    given.roles = args.roles.links(acl).await?;
    let appended = args.append.links(acl).await?;
    let known = acl.token(&accessor, &Read::consistent()).await?;
    let token = NewToken {
        description: args.description.unwrap_or(known.description),
        links: links::merged(links::replaced(known.links, given), appended),
        local: known.local,
        ..NewToken::default()
    };
    Ok((acl.update_token(&accessor, &token).await?, args.format))
}

/// A token in Consul's layout.
pub(super) fn shown(token: &Token, with_meta: bool) -> String {
    let optional = [
        ("Auth Method", token.auth_method.clone()),
        ("Create Time", token.create_time.clone()),
        ("Expiration Time", token.expiration_time.clone().unwrap_or_default()),
    ];
    let rows = [
        ("AccessorID", token.accessor_id.clone()),
        ("SecretID", token.secret_id.clone()),
        ("Description", token.description.clone()),
        ("Local", token.local.to_string()),
    ];
    let optional = optional.into_iter().filter(|(_, value)| !value.is_empty());
    let meta = with_meta.then(|| meta(&token.hash, token.create_index, token.modify_index));
    let rows = rows.into_iter().chain(optional).chain(meta.into_iter().flatten());
    lines(rows, WIDTH) + &links::shown(&token.links, "")
}

/// The name and the links of a token, without its secret.
pub(in super::super) fn links_of(token: &Token) -> String {
    let rows = [("AccessorID", token.accessor_id.clone()), ("Description", token.description.clone())];
    lines(rows, WIDTH) + &links::shown(&token.links, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::shape::acl::{Link, Links};

    #[test]
    fn token_shown_in_consul_layout() {
        let token = Token {
            accessor_id: "a".into(),
            secret_id: "s".into(),
            description: "jobs".into(),
            links: Links { policies: vec![Link { id: "p".into(), name: "n".into() }], ..Links::default() },
            create_time: "2026-11-22T02:21:20Z".into(),
            create_index: 13,
            ..Token::default()
        };
        let expected = "AccessorID:       a\nSecretID:         s\nDescription:      jobs\n\
                        Local:            false\nCreate Time:      2026-11-22T02:21:20Z\nPolicies:\n   p - n\n";
        assert_eq!(shown(&token, false), expected);
        assert!(shown(&token, true).contains("Z\nHash:\nCreate Index:     13\nModify Index:     0\nPol"));
        assert!(!links_of(&token).contains("Secret"));
    }
}
