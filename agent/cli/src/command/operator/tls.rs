//! `lockmesh operator tls`: a CA for the fleet, and a certificate for each node.
//!
//! Existing files are never overwritten: other nodes may trust them.

use super::super::arguments::ValueError;
use super::super::error::CliError;
use super::super::output::print_line;
use lockmesh_net::config::{NodeConfig, Section};
use lockmesh_net::{Authority, Peer, Role};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Create the CA and node certificates
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Init(InitArgs),
    Issue(IssueArgs),
}

/// Create a CA: ca.pem, which every node trusts, and ca-key.pem, which must stay secret
#[derive(clap::Args, Debug)]
struct InitArgs {
    /// Output folder
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Name of the authority
    #[arg(long, value_name = "NAME", default_value = "Lockmesh authority")]
    name: String,
    /// Validity in days
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Create a node certificate: ROLE.pem and ROLE-key.pem
#[derive(clap::Args, Debug)]
struct IssueArgs {
    /// Role of the node: server or agent
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Role,
    /// Node name, as in its configuration
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Additional host name or IP address, for other tools; repeatable
    #[arg(long = "address", value_name = "ADDR")]
    addresses: Vec<String>,
    /// Folder with ca.pem and ca-key.pem
    #[arg(long, value_name = "DIR", default_value = ".")]
    ca: PathBuf,
    /// Output folder
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Validity in days; agent and server log a warning 30 days before the end
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Runs the command.
///
/// # Errors
/// A file cannot be used, or is there already. What was there is not touched; of a new pair the key
/// may have been written alone.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    match args.command {
        Command::Init(args) => init(&args)?,
        Command::Issue(args) => issue(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn init(args: &InitArgs) -> Result<(), CliError> {
    // First: an authority that machines trust must not be replaced by a slip.
    let (certificate, key) = fresh_pair(&args.out, "ca")?;
    let authority = Authority::create(&args.name, days(args.days)).map_err(CliError::failed)?;
    authority.save(&certificate, &key).map_err(CliError::failed)?;
    print_line(&format!("Made {} and {}", certificate.display(), key.display()))?;
    print_line("Give ca.pem to every machine; keep ca-key.pem offline: its owner can impersonate any server.")
}

fn issue(args: &IssueArgs) -> Result<(), CliError> {
    if args.node.is_empty() {
        return Err(CliError::usage(
            "--node must not be empty: give the node's name as in its configuration",
        ));
    }
    // A member with such a name in its configuration would not start.
    let config = NodeConfig { name: args.node.clone(), ..NodeConfig::default() };
    config.check().map_err(|error| CliError::usage(format!("--node: {}", error.problem)))?;
    let (certificate, key) = fresh_pair(&args.out, args.role.as_str())?;
    let authority =
        Authority::load(&args.ca.join("ca.pem"), &args.ca.join("ca-key.pem")).map_err(CliError::failed)?;
    let owner = Peer { role: args.role, node: args.node.as_str().into() };
    let issued = authority.issue(&owner, &args.addresses, days(args.days)).map_err(CliError::failed)?;
    issued.save(&certificate, &key).map_err(CliError::failed)?;
    print_line(&format!("Made {} and {}", certificate.display(), key.display()))
}

/// The two files of a name, neither of which may be there; the folder is made.
fn fresh_pair(folder: &Path, name: &str) -> Result<(PathBuf, PathBuf), CliError> {
    let pair = (folder.join(format!("{name}.pem")), folder.join(format!("{name}-key.pem")));
    if let Some(there) = [&pair.0, &pair.1].into_iter().find(|file| file.exists()) {
        let text = format!("{} is there already: move it away, or choose another --out", there.display());
        return Err(CliError::failed(text));
    }
    std::fs::create_dir_all(folder)
        .map_err(|error| CliError::failed(format!("cannot make {}: {error}", folder.display())))?;
    Ok(pair)
}

fn days(days: u32) -> Duration {
    Duration::from_secs(u64::from(days) * 86_400)
}

fn role(word: &str) -> Result<Role, ValueError> {
    Role::parse(word).ok_or(ValueError::Role)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_net::{Identity, IdentityFiles};

    #[test]
    fn issued_certificate_identifies_role_and_node() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [ca, out] = ["ca", "out"].map(|name| folder.path().join(name));
        let made = InitArgs { out: ca.clone(), name: "Test".into(), days: 10 };
        init(&made).expect("an authority is made");
        let args = IssueArgs {
            role: Role::Agent,
            node: "web-1".into(),
            addresses: vec!["10.0.0.7".into(), "web-1.example".into()],
            ca: ca.clone(),
            out: out.clone(),
            days: 5,
        };
        issue(&args).expect("a certificate is made");
        let files = IdentityFiles {
            authorities: ca.join("ca.pem"),
            certificate: out.join("agent.pem"),
            key: out.join("agent-key.pem"),
        };
        let identity = Identity::load(&files).expect("the pieces fit");
        assert_eq!(identity.peer(), &Peer { role: Role::Agent, node: "web-1".into() });
    }

    #[test]
    fn invalid_node_name_rejected() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ca = folder.path().join("ca");
        init(&InitArgs { out: ca.clone(), name: "Test".into(), days: 10 }).expect("an authority is made");
        for (node, problem) in [("", "must not be empty"), ("../../x", "without spaces and slashes")] {
            let out = folder.path().join("out");
            let (role, node, addresses) = (Role::Agent, node.to_owned(), Vec::new());
            let args = IssueArgs { role, node, addresses, ca: ca.clone(), out: out.clone(), days: 5 };
            let refused = issue(&args).expect_err("it is no name").to_string();
            assert!(refused.contains("--node") && refused.contains(problem), "{refused}");
            assert!(!out.exists(), "nothing was made");
        }
    }

    #[test]
    fn existing_files_not_overwritten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("ca-key.pem"), "mine").expect("it can be written");
        let args = InitArgs { out: folder.path().into(), name: "Test".into(), days: 10 };
        let refused = init(&args).expect_err("a key is there").to_string();
        assert!(refused.contains("ca-key.pem is there already"), "{refused}");
        let kept = std::fs::read_to_string(folder.path().join("ca-key.pem"));
        assert_eq!(kept.expect("it can be read"), "mine");
    }
}
