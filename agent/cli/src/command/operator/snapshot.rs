//! `lockmesh operator snapshot`: backups of the whole state.
//!
//! `save` and `restore` go through the agent; `inspect` reads a file without it. A backup from
//! stdin or for stdout is buffered in an unnamed temporary file, and verified as a whole before
//! use.

use super::super::confirm::confirm;
use super::super::context::{ConnectionArgs, ConsistencyArgs};
use super::super::error::CliError;
use super::super::instant;
use super::super::output::{JsonArgs, Table, print_json};
use lockmesh_agent::http::archive::{self, ArchiveError, Meta};
use lockmesh_client::{Client, Read};
use lockmesh_protocol::change::Change;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, IsTerminal, Seek};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::fs::File;

/// Save and restore backups of the whole state
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Save and verify a backup
    Save {
        #[command(flatten)]
        connection: ConnectionArgs,
        /// Backup file, replaced when the backup is complete; - for stdout
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        consistency: ConsistencyArgs,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Replace the whole state with a backup; later changes are lost
    Restore {
        #[command(flatten)]
        connection: ConnectionArgs,
        /// Backup file, or - for stdin
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Do not ask for confirmation; nothing is asked without a terminal
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Verify a backup and show its contents; needs no agent
    Inspect {
        /// Backup file, or - for stdin
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        output: JsonArgs,
    },
}

/// Runs the command.
///
/// # Errors
/// `save` replaces a file only with a complete and verified backup. After a failed `restore` the
/// state is unchanged; without an answer the outcome is unknown, and must be checked before a
/// retry.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    match args.command {
        Command::Save { connection, file, consistency, output } => {
            let (client, read) = (connection.context()?.client()?, consistency.read());
            match is_stream(&file) {
                true if output.json => {
                    return Err(CliError::usage("--json needs a file: stdout is the backup"));
                }
                true => save_to_stdout(&client, &read).await?,
                false => save(&file, &client, &read, output).await?,
            }
        }
        Command::Restore { connection, file, yes, output } => {
            let context = connection.context()?;
            // A file that is not a backup is an error here, before the agent receives it.
            let mut source = open(&file)?;
            let contents = Contents::of(&source, &file)?;
            confirm(&context, yes, &contents.danger(&file)).await?;
            source.rewind().map_err(|error| cannot("read", &file, &error))?;
            context.client()?.operator().restore_snapshot(&mut File::from_std(source)).await?;
            output.print(&contents.shape(), &format!("Restored {}", file.display()))?;
        }
        Command::Inspect { file, output } => {
            let contents = Contents::of(&open(&file)?, &file)?;
            match output.json {
                true => print_json(&contents.shape())?,
                false => contents.table().print()?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn save(file: &Path, client: &Client, read: &Read, output: JsonArgs) -> Result<(), CliError> {
    let part = part_beside(file)?;
    let handle = part.reopen().map_err(|error| cannot("write", part.path(), &error))?;
    client.operator().save_snapshot(&mut File::from_std(handle), read).await?;
    // Before it takes the name: a loss of power leaves the old backup or the whole new one.
    part.as_file().sync_all().map_err(|error| cannot("write", file, &error))?;
    // A damaged backup must not replace a good one.
    let contents = Contents::of(&open(part.path())?, part.path())?;
    part.persist(file).map_err(|error| cannot("write", file, &error.error))?;
    let (bytes, index) = (contents.bytes, contents.meta.index);
    let line = format!("Saved and verified {}: {bytes} bytes, index {index}", file.display());
    output.print(&contents.shape(), &line)
}

/// Writes the backup to stdout, without a message.
async fn save_to_stdout(client: &Client, read: &Read) -> Result<(), CliError> {
    if std::io::stdout().is_terminal() {
        return Err(CliError::failed("a backup is no text: send it to a file or to another command"));
    }
    let mut spool = unnamed()?;
    let handle = spool.try_clone()?;
    client.operator().save_snapshot(&mut File::from_std(handle), read).await?;
    // The handle shares its position with the file.
    spool.rewind()?;
    Contents::of(&spool, Path::new("the backup"))?;
    spool.rewind()?;
    std::io::copy(&mut spool, &mut std::io::stdout().lock())?;
    Ok(())
}

/// `true` if the name of the file means stdin or stdout.
fn is_stream(file: &Path) -> bool {
    file == Path::new("-")
}

/// Opens a backup to be read more than once.
fn open(file: &Path) -> Result<fs::File, CliError> {
    if !is_stream(file) {
        return fs::File::open(file).map_err(|error| cannot("read", file, &error));
    }
    let mut spool = unnamed()?;
    std::io::copy(&mut std::io::stdin().lock(), &mut spool)?;
    spool.rewind()?;
    Ok(spool)
}

fn unnamed() -> Result<fs::File, CliError> {
    tempfile::tempfile().map_err(|error| cannot("write to", &std::env::temp_dir(), &error))
}

/// The contents of a backup.
#[derive(Debug)]
struct Contents {
    /// The size of the file in bytes.
    bytes: u64,
    meta: Meta,
    /// The number of rows of each kind.
    kinds: BTreeMap<&'static str, u64>,
}

impl Contents {
    /// Looks at every byte of a file, which errors call by this name.
    fn of(source: &fs::File, name: &Path) -> Result<Self, CliError> {
        let bytes = source.metadata().map_err(|error| cannot("read", name, &error))?.len();
        let mut kinds = BTreeMap::new();
        let count = |_, rows: Vec<Change>| {
            rows.iter().for_each(|row| *kinds.entry(kind_of(row)).or_default() += 1);
            Ok(())
        };
        let meta = archive::read_parts(BufReader::new(source), count)
            .map_err(|error: ArchiveError| CliError::failed(format!("{}: {error}", name.display())))?;
        Ok(Self { bytes, meta, kinds })
    }

    /// The effect of a restore on a cluster.
    fn danger(&self, file: &Path) -> String {
        let count = |kind| self.kinds.get(kind).copied().unwrap_or_default();
        let (keys, sessions) = (count("keys"), count("sessions"));
        let (cluster, made) = (&self.meta.cluster_id, instant::utc(self.meta.made_at_ms));
        format!(
            "loses every change since the backup: its whole state is replaced by {} ({keys} keys, {sessions} sessions), \
             made {made} of the cluster {cluster}",
            file.display()
        )
    }

    /// The output of `--json`.
    fn shape(&self) -> serde_json::Value {
        let Meta { format, row_format, build, cluster_id, index, term, parts, rows, made_at_ms, size } =
            &self.meta;
        serde_json::json!({
            "ArchiveFormat": format, "Format": row_format, "Build": build, "ClusterID": cluster_id,
            "Index": index, "Term": term, "Parts": parts, "Rows": rows, "Kinds": self.kinds,
            "MadeAtMs": made_at_ms, "Size": size, "Bytes": self.bytes,
        })
    }

    fn table(&self) -> Table {
        let mut table = Table::new(["Cluster", &self.meta.cluster_id]);
        for (name, value) in [
            ("Index", self.meta.index.to_string()),
            ("Term", self.meta.term.to_string()),
            ("Made", instant::utc(self.meta.made_at_ms)),
            ("By", format!("lockmesh {}", self.meta.build)),
            ("Format", format!("{}, archive {}", self.meta.row_format, self.meta.format)),
            ("Bytes", self.bytes.to_string()),
            ("Rows", self.meta.rows.to_string()),
        ] {
            table.row([name.into(), value]);
        }
        for (kind, count) in &self.kinds {
            table.row([format!("  {kind}"), count.to_string()]);
        }
        table
    }
}

fn kind_of(row: &Change) -> &'static str {
    match row {
        Change::Entry(..) => "keys",
        Change::Session(..) => "sessions",
        Change::Node(..) => "nodes",
        Change::Service(..) => "services",
        Change::Check(..) => "checks",
        Change::Coordinate(..) => "coordinates",
        Change::Tombstone(..) => "tombstones",
        Change::LockDelay(..) => "lock-delays",
        Change::Waiter(..) => "waiters",
        Change::Agent(..) => "agents",
        Change::Loss(..) => "losses",
        Change::PreparedQuery(..) => "prepared queries",
        Change::Binding(..) => "bindings of sessions to processes",
        _ => "other",
    }
}

/// A file of ours in the same folder, readable for its owner alone, that goes away unless it is
/// renamed.
fn part_beside(file: &Path) -> Result<tempfile::NamedTempFile, CliError> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(".lockmesh-snapshot-")
        .tempfile_in(folder)
        .map_err(|error| cannot("write to", folder, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> CliError {
    CliError::failed(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::format;
    use lockmesh_protocol::id::Fence;
    use std::io::Read as _;

    fn backup() -> Vec<u8> {
        let mut writer = archive::ArchiveWriter::new().expect("a temporary file");
        let entry = |key: &str| Change::Entry(key.into(), None);
        writer.push(&vec![entry("a"), entry("b")]).expect("it can be written");
        writer.push(&vec![Change::Fence(Fence(7))]).expect("it can be written");
        let meta = Meta { cluster_id: "c1".into(), index: 42, term: 3, ..Meta::default() };
        let (mut file, _) = writer.finish(meta).expect("it can be written");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("it can be read");
        bytes
    }

    fn contents(bytes: &[u8]) -> Result<Contents, String> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        fs::write(file.path(), bytes).expect("it can be written");
        Contents::of(file.as_file(), file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn table_shows_backup_contents() {
        let contents = contents(&backup()).expect("it is good");
        assert_eq!(contents.kinds, BTreeMap::from([("keys", 2), ("other", 1)]));
        let text = contents.table().render();
        assert!(text.starts_with("Cluster  c1\nIndex    42\nTerm     3\n"), "{text}");
        assert!(text.ends_with("Rows     3\n  keys   2\n  other  1"), "{text}");
        let shape = contents.shape();
        assert_eq!((&shape["Format"], &shape["Kinds"]["keys"]), (&format::NEWEST.into(), &2.into()));
        let is_upper = |key: &String| key.starts_with(|first: char| first.is_ascii_uppercase());
        assert!(shape.as_object().expect("an object").keys().all(is_upper), "{shape}");
    }

    #[test]
    fn confirmation_names_backup_and_cluster() {
        let danger = contents(&backup()).expect("it is good").danger(Path::new("b.snap"));
        assert!(danger.contains("b.snap (2 keys, 0 sessions)") && danger.ends_with("cluster c1"), "{danger}");
    }

    #[test]
    fn damaged_or_foreign_file_rejected() {
        let mut bytes = backup();
        let middle = bytes.len() / 2;
        // The checksum at a gzip's end; a bit in the middle may be one that changes nothing of what
        // is unpacked.
        let checksum = bytes.len() - 8;
        bytes[checksum] ^= 1;
        assert!(contents(&bytes).is_err());
        assert!(contents(b"no backup").expect_err("it is none").contains("no backup of Lockmesh"));
        assert!(contents(&backup()[..middle]).is_err());
    }
}
