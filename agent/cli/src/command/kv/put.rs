//! `lockmesh kv put`: writes a key, plainly, conditionally, or together with its lock.

use super::super::error::CliError;
use super::super::output::print_line;
use super::value;
use lockmesh_client::{Acquired, Client};

/// Write a key
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Key
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// Value, @FILE, or - for stdin [default: empty]
    #[arg(value_name = "DATA", allow_negative_numbers = true)]
    data: Option<String>,
    /// Acquire the key's lock for --session
    #[arg(long, conflicts_with_all = ["cas", "release"])]
    acquire: bool,
    /// Decode the value from base64
    #[arg(long)]
    base64: bool,
    /// Write only if the modify index is --modify-index, or without it, if the key does not exist
    #[arg(long, conflicts_with = "release")]
    cas: bool,
    /// Number stored with the key
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    flags: u64,
    /// Modify index for --cas; 0 for a key that does not exist
    #[arg(long, value_name = "INDEX")]
    modify_index: Option<u64>,
    /// Release the key's lock for --session
    #[arg(long)]
    release: bool,
    /// Session for --acquire and --release
    #[arg(long, value_name = "ID")]
    session: Option<String>,
}

pub(super) async fn run(args: Args, client: &Client) -> Result<(), CliError> {
    let said = CliError::in_consuls_words::<String>;
    let key = args.key.as_deref().unwrap_or_default();
    if key.is_empty() {
        return Err(said("Error! Missing KEY argument".into()));
    }
    // Consul's client rejects the slash in writes, and overlooks it in reads.
    if key.starts_with('/') {
        return Err(said(format!("Error! Invalid key. Key must not begin with a '/': {key}")));
    }
    let session = session_of(&args)?;
    if args.modify_index.is_some() && !args.cas {
        return Err(CliError::usage("--modify-index means nothing without --cas: add it, or leave both out"));
    }
    // After all other checks, because it may wait for stdin.
    let mut data = match &args.data {
        Some(data) => value::bytes_of(data, &mut std::io::stdin().lock())?,
        None => Vec::new(),
    };
    if args.base64 {
        data = value::decode(&data)?;
    }
    write(&args, client, key, session, data).await
}

async fn write(
    args: &Args,
    client: &Client,
    key: &str,
    session: &str,
    data: Vec<u8>,
) -> Result<(), CliError> {
    let said = CliError::in_consuls_words::<String>;
    let (kv, flags, index) = (client.kv(), args.flags, args.modify_index.unwrap_or(0));
    if args.acquire {
        return match kv.acquire(key, session, data, flags).await? {
            Acquired::Granted { .. } => print_line(&format!("Success! Lock acquired on: {key}")),
            Acquired::Refused { .. } => Err(said("Error! Did not acquire lock".into())),
        };
    }
    if args.release {
        return match kv.release(key, session, data, flags).await? {
            true => print_line(&format!("Success! Lock released on: {key}")),
            false => Err(said("Error! Did not release lock".into())),
        };
    }
    let is_written = match args.cas {
        true => kv.cas(key, data, flags, index).await?,
        false => kv.put(key, data, flags).await?,
    };
    let why = match (is_written, index) {
        (true, _) => return print_line(&format!("Success! Data written to: {key}")),
        (false, 0) => "CAS performed with index=0 and key already exists.",
        (false, _) => "CAS failed",
    };
    Err(said(format!("Error! Did not write to {key}: {why}")))
}

fn session_of(args: &Args) -> Result<&str, CliError> {
    let locks = args.acquire || args.release;
    match args.session.as_deref().filter(|session| !session.is_empty()) {
        Some(_) if !locks => Err(CliError::usage(
            "--session means nothing here without --acquire or --release: add one, or leave it out",
        )),
        Some(session) => Ok(session),
        None if locks => {
            Err(CliError::in_consuls_words("Error! Missing -session (required with -acquire and -release)"))
        }
        None => Ok(""),
    }
}
