//! The file that a backup is: a gzip'd tar of `meta.json`, `state.bin` and `SHA256SUMS`, as
//! Consul's is.
//!
//! `meta.json` has the fields of Consul's too, so that `consul snapshot save` and `inspect` take
//! the file for one of theirs; Go reads names without regard to case, and so no field of ours may
//! be called like one of them. What lies in `state.bin` only we read, and nobody else's can be
//! restored here.
//!
//! `state.bin` is a row of parts, each a length of four bytes (little end first) and an encoded
//! list of rows behind the version of its format ([`lockmesh_protocol::format`]). Nothing is held
//! in memory but one part: writing spools to unnamed temporary files, reading walks through the
//! file.
//!
//! **Invariant:** [`verify`] looks at everything (format, version, checksums, every part) before
//! anybody acts on a part, so that a damaged or a foreign file changes nothing.

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format::{self, FormatError};
use lockmesh_protocol::rpc::MAX_FRAME_BYTES;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::time::{SystemTime, UNIX_EPOCH};
use tar::{Archive, Builder, Entry, Header};

/// The format of the archive. Those of earlier numbers hold other rows, and this build does not
/// read them.
pub const FORMAT: u32 = 7;
const META: &str = "meta.json";
const STATE: &str = "state.bin";
const SUMS: &str = "SHA256SUMS";
/// The longest that the two small files may be.
const SMALL_LIMIT: u64 = 64 * 1024;
/// What may stand behind the three files: the end marks of a tar, padded.
const PADDING_LIMIT: u64 = 1 << 20;

/// What a backup says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The format of the archive.
    pub format: u32,
    /// The version of the rows' format.
    pub row_format: u8,
    /// The build that wrote it.
    #[serde(alias = "version")]
    pub build: String,
    /// The cluster that it is of.
    pub cluster_id: String,
    /// The index that it stands for.
    #[serde(rename = "Index", alias = "index")]
    pub index: u64,
    /// That index's term.
    #[serde(rename = "Term", alias = "term")]
    pub term: u64,
    /// How many parts the rows come in.
    pub parts: u32,
    /// How many rows there are.
    pub rows: u64,
    /// When it was made: milliseconds since 1970 by the agent's clock.
    pub made_at_ms: u64,
    /// How many bytes the rows are.
    #[serde(rename = "Size")]
    pub size: u64,
}

/// `meta.json`: what we say, and what Consul's programs look for beside it.
#[derive(Serialize)]
struct MetaFile<'a> {
    /// Always 1: the only version that Consul's programs know.
    #[serde(rename = "Version")]
    version: u32,
    #[serde(rename = "ID")]
    id: String,
    /// A backup holds no membership: a restore keeps the servers that are there.
    #[serde(rename = "Peers")]
    peers: Option<()>,
    #[serde(rename = "Configuration")]
    configuration: Configuration,
    #[serde(rename = "ConfigurationIndex")]
    configuration_index: u64,
    #[serde(flatten)]
    meta: &'a Meta,
}

#[derive(Default, Serialize)]
struct Configuration {
    #[serde(rename = "Servers")]
    servers: [(); 0],
}

/// Why a file cannot be used. Nothing was taken from it.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It cannot be read or written.
    #[error("the backup cannot be read: {0}")]
    Io(io::Error),
    /// It is something else, or damaged.
    #[error("this is no backup of Lockmesh, or it is damaged: {0}")]
    Malformed(String),
    /// Another build wrote it.
    #[error(
        "this backup is of format {0}, but this build reads format {FORMAT} only: restore it with the build that wrote it \
         (of backups before format {FORMAT} no promise was made; newer ones need a newer lockmesh)"
    )]
    Format(u32),
    /// A newer build wrote its rows.
    #[error("the rows of this backup cannot be read: {0}")]
    Rows(FormatError),
    /// Its bytes are not those that were written.
    #[error("the checksum of {0} is wrong: the backup is damaged")]
    Checksum(&'static str),
}

fn malformed(reason: impl ToString) -> ArchiveError {
    ArchiveError::Malformed(reason.to_string())
}

/// Writes a backup part by part.
#[derive(Debug)]
pub struct ArchiveWriter {
    rows: BufWriter<File>,
    digest: Sha256,
    parts: u32,
    count: u64,
}

impl ArchiveWriter {
    /// Begins, with a temporary file for the rows.
    ///
    /// # Errors
    /// No temporary file can be made. Nothing was written.
    pub fn new() -> io::Result<Self> {
        let rows = BufWriter::new(tempfile::tempfile()?);
        Ok(Self { rows, digest: Sha256::new(), parts: 0, count: 0 })
    }

    /// Adds the next part.
    ///
    /// # Errors
    /// The temporary file cannot be written, and what it holds is not whole: drop the writer and
    /// begin anew.
    pub fn push(&mut self, rows: &Vec<Change>) -> io::Result<()> {
        let bytes = format::encode(rows);
        let length = u32::try_from(bytes.len()).map_err(|_| io::Error::other("a part of 4 GiB"))?;
        for piece in [&length.to_le_bytes()[..], &bytes] {
            self.digest.update(piece);
            self.rows.write_all(piece)?;
        }
        self.parts += 1;
        self.count += rows.len() as u64;
        Ok(())
    }

    /// Ends: fills in what `meta` cannot know yet, and gives the whole file, at its beginning, with
    /// its length.
    ///
    /// # Errors
    /// A temporary file cannot be read or written. It goes away with this value: begin anew.
    pub fn finish(self, mut meta: Meta) -> io::Result<(File, u64)> {
        meta.format = FORMAT;
        meta.row_format = format::NEWEST;
        meta.parts = self.parts;
        meta.rows = self.count;
        let mut rows = self.rows.into_inner().map_err(io::IntoInnerError::into_error)?;
        let length = rows.stream_position()?;
        rows.rewind()?;
        meta.size = length;
        let meta = serde_json::to_vec_pretty(&MetaFile {
            version: 1,
            id: format!("{}-{}-{}", meta.term, meta.index, meta.made_at_ms),
            peers: None,
            configuration: Configuration::default(),
            configuration_index: 0,
            meta: &meta,
        })?;
        let sums =
            format!("{}  {META}\n{}  {STATE}\n", hex(&Sha256::digest(&meta)), hex(&self.digest.finalize()));

        let packed = GzEncoder::new(BufWriter::new(tempfile::tempfile()?), Compression::fast());
        let mut builder = Builder::new(packed);
        // In the order in which a reader that goes through once needs them.
        builder.append_data(&mut header(meta.len() as u64), META, &meta[..])?;
        builder.append_data(&mut header(length), STATE, BufReader::new(rows))?;
        builder.append_data(&mut header(sums.len() as u64), SUMS, sums.as_bytes())?;
        let mut file =
            builder.into_inner()?.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        let length = file.stream_position()?;
        file.rewind()?;
        Ok((file, length))
    }
}

fn header(length: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(length);
    // Unpacked by hand the rows stay their owner's: values may be secrets.
    header.set_mode(0o600);
    header.set_mtime(now_ms() / 1000);
    header
}

/// Milliseconds since 1970, for people.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a whole backup and looks at every byte of it. Leaves the file where it ends.
///
/// # Errors
/// The file is no whole backup of a format that this build reads, or cannot be read. The file is as
/// it was: take another backup, or the build that the error asks for.
pub fn verify<R: Read>(file: R) -> Result<Meta, ArchiveError> {
    walk(file, |_, _| Ok(()))
}

/// Reads a backup and hands out its parts in order; `take` ends the reading by an error. Only for a
/// file that was verified: the checksum comes last.
///
/// # Errors
/// The file cannot be read, or `take` said so. What was handed out before that stays with whoever
/// took it.
pub fn read_parts<R: Read>(
    file: R,
    mut take: impl FnMut(u32, Vec<Change>) -> io::Result<()>,
) -> Result<Meta, ArchiveError> {
    walk(file, |number, rows| take(number, rows).map_err(ArchiveError::Io))
}

fn walk<R: Read>(
    file: R,
    take: impl FnMut(u32, Vec<Change>) -> Result<(), ArchiveError>,
) -> Result<Meta, ArchiveError> {
    let mut archive = Archive::new(GzDecoder::new(file));
    // Raw, because a long name or an extension would be read into memory whole, however long it is.
    let mut entries = archive.entries().map_err(malformed)?.raw(true);
    let mut next = |name: &'static str| -> Result<Entry<'_, GzDecoder<R>>, ArchiveError> {
        let entry =
            entries.next().ok_or_else(|| malformed(format!("{name} is missing")))?.map_err(malformed)?;
        match entry.path_bytes().as_ref() == name.as_bytes() {
            true => Ok(entry),
            false => Err(malformed(format!("{name} is not where it should be"))),
        }
    };
    let meta_bytes = small(next(META)?)?;
    let meta = parse_meta(&meta_bytes)?;
    let digest = read_rows(next(STATE)?, &meta, take)?;
    let sums = small(next(SUMS)?)?;
    // What nobody has looked at must not pass for verified.
    if entries.next().is_some() {
        return Err(malformed("there is more in it than there should be"));
    }
    let sums = String::from_utf8(sums).map_err(malformed)?;
    check_sum(&sums, META, &Sha256::digest(&meta_bytes))?;
    check_sum(&sums, STATE, &digest)?;
    // The gzip's own checksum is looked at when its end is read.
    let rest = io::copy(&mut archive.into_inner().take(PADDING_LIMIT), &mut io::sink()).map_err(malformed)?;
    if rest == PADDING_LIMIT {
        return Err(malformed("there is more in it than there should be"));
    }
    Ok(meta)
}

fn small<R: Read>(entry: Entry<'_, R>) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    // The length that the file claims may fill the memory.
    entry.take(SMALL_LIMIT).read_to_end(&mut bytes).map_err(malformed)?;
    Ok(bytes)
}

fn parse_meta(bytes: &[u8]) -> Result<Meta, ArchiveError> {
    #[derive(Deserialize)]
    struct Versions {
        format: Option<u32>,
    }
    // Alone and first: another format may have none of the other fields.
    let versions: Versions = serde_json::from_slice(bytes).map_err(malformed)?;
    let Some(format) = versions.format else {
        return Err(malformed("it does not say its format; a backup of Consul's cannot be restored here"));
    };
    if format != FORMAT {
        return Err(ArchiveError::Format(format));
    }
    let meta: Meta = serde_json::from_slice(bytes).map_err(malformed)?;
    format::check_version(&[meta.row_format], format::NEWEST).map_err(ArchiveError::Rows)?;
    Ok(meta)
}

/// Reads every part and gives the checksum of all.
fn read_rows<R: Read>(
    mut entry: Entry<'_, R>,
    meta: &Meta,
    mut take: impl FnMut(u32, Vec<Change>) -> Result<(), ArchiveError>,
) -> Result<Vec<u8>, ArchiveError> {
    if entry.size() != meta.size {
        return Err(malformed(format!("{STATE} has {} bytes, but {} are due", entry.size(), meta.size)));
    }
    let mut digest = Sha256::new();
    let (mut left, mut number, mut count) = (entry.size(), 0_u32, 0_u64);
    while left > 0 {
        let mut length = [0; 4];
        entry.read_exact(&mut length).map_err(malformed)?;
        let size = u32::from_le_bytes(length) as usize;
        // Before the memory for it is taken.
        if size > MAX_FRAME_BYTES || size as u64 + 4 > left {
            return Err(malformed(format!("part {number} claims {size} bytes")));
        }
        let mut bytes = vec![0; size];
        entry.read_exact(&mut bytes).map_err(malformed)?;
        digest.update(length);
        digest.update(&bytes);
        let rows: Vec<Change> = format::decode(&bytes).map_err(|error| match error {
            // Not damaged: a newer build reads it.
            FormatError::Unknown { .. } => ArchiveError::Rows(error),
            error => malformed(format!("part {number} is {error}")),
        })?;
        count += rows.len() as u64;
        take(number, rows)?;
        left -= size as u64 + 4;
        number += 1;
    }
    if (number, count) != (meta.parts, meta.rows) {
        return Err(malformed(format!(
            "{number} parts with {count} rows, but {} and {} are due",
            meta.parts, meta.rows
        )));
    }
    Ok(digest.finalize().to_vec())
}

fn check_sum(sums: &str, name: &'static str, digest: &[u8]) -> Result<(), ArchiveError> {
    let line = format!("{}  {name}", hex(digest));
    sums.lines().any(|known| known == line).then_some(()).ok_or(ArchiveError::Checksum(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::Fence;
    use proptest::prelude::*;

    fn backup() -> Vec<u8> {
        let mut writer = ArchiveWriter::new().unwrap();
        for part in 0..3 {
            writer.push(&(0..100).map(|row| Change::Fence(Fence(part * 100 + row))).collect()).unwrap();
        }
        let meta = Meta { cluster_id: "c".into(), index: 42, term: 7, ..Meta::default() };
        let (mut file, length) = writer.finish(meta).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, length);
        bytes
    }

    /// Packs any three files as a backup is packed.
    fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, bytes) in files {
            builder.append_data(&mut header(bytes.len() as u64), name, *bytes).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let bytes = backup();
        let meta = verify(&bytes[..]).unwrap();
        assert_eq!((meta.index, meta.term, meta.parts, meta.rows), (42, 7, 3, 300));
        let mut seen = Vec::new();
        read_parts(&bytes[..], |number, rows| {
            seen.push((number, rows.len()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(0, 100), (1, 100), (2, 100)]);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let bytes = backup();
        let unpacked = |bytes: &[u8]| {
            let mut tar = Vec::new();
            GzDecoder::new(bytes).read_to_end(&mut tar).map(|_| tar)
        };
        let whole = unpacked(&bytes).unwrap();
        // The head of a gzip holds a time stamp and a system, which mean nothing; so do a few bits
        // that pad its end.
        for at in (10..bytes.len()).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let harmless = unpacked(&damaged).is_ok_and(|tar| tar == whole);
            assert!(harmless || verify(&damaged[..]).is_err(), "byte {at}");
        }
        for length in (0..bytes.len()).step_by(11) {
            assert!(verify(&bytes[..length]).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn foreign_files_are_refused_with_a_reason() {
        assert!(matches!(verify(&b"nonsense"[..]), Err(ArchiveError::Malformed(_))));
        assert!(matches!(verify(&b""[..]), Err(ArchiveError::Malformed(_))));
        let other = packed(&[("metadata.json", b"{}"), ("state.bin", b""), (SUMS, b"")]);
        let error = verify(&other[..]).unwrap_err().to_string();
        assert!(error.contains("meta.json is not where it should be"), "{error}");
        let consuls = br#"{"Version":1,"ID":"2-12-1600000000000","Index":12,"Term":2,"Size":0}"#;
        let consuls = packed(&[(META, consuls), (STATE, b""), (SUMS, b"")]);
        let error = verify(&consuls[..]).unwrap_err().to_string();
        assert!(error.contains("a backup of Consul's cannot be restored here"), "{error}");
    }

    #[test]
    fn consuls_programs_find_what_they_look_for() {
        let bytes = backup();
        let mut archive = Archive::new(GzDecoder::new(&bytes[..]));
        let mut files = std::collections::BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(name, bytes);
        }
        // What is in it by another name ends `consul snapshot`.
        assert_eq!(files.keys().map(String::as_str).collect::<Vec<_>>(), [SUMS, META, STATE]);
        let meta: serde_json::Value = serde_json::from_slice(&files[META]).unwrap();
        assert_eq!((&meta["Version"], &meta["Index"], &meta["Term"]), (&1.into(), &42.into(), &7.into()));
        assert_eq!(meta["Size"], files[STATE].len());
        assert!(meta["ID"].as_str().is_some_and(|id| id.starts_with("7-42-")), "{meta}");
        assert_eq!(meta["Configuration"]["Servers"], serde_json::json!([]));
        assert!(meta["Peers"].is_null() && meta["ConfigurationIndex"].is_u64(), "{meta}");
        // Go reads a name without regard to case: the last of two would win, of whatever type.
        let mut names: Vec<_> = meta.as_object().unwrap().keys().map(|name| name.to_lowercase()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), meta.as_object().unwrap().len());
        let sums = String::from_utf8(files[SUMS].clone()).unwrap();
        assert_eq!(sums.lines().count(), 2);
        assert!(sums.contains(&format!("{}  {STATE}\n", hex(&Sha256::digest(&files[STATE])))), "{sums}");
    }

    #[test]
    fn other_formats_are_refused_by_number() {
        // What the builds wrote whose rows had no versions, and one that is still to come.
        let older = r#"{"format":2,"wire":1,"build":"0.1.0","cluster_id":"c","Index":42,"Term":7,"parts":0,"rows":0,"made_at_ms":5,"Size":0}"#;
        for (meta, format) in
            [(older, 2), (r#"{"format":1,"wire":1}"#, 1), (r#"{"format":5,"future":[]}"#, 5)]
        {
            let error = verify(&packed(&[(META, meta.as_bytes())])[..]).unwrap_err();
            assert!(matches!(error, ArchiveError::Format(found) if found == format), "{error}");
            assert!(error.to_string().contains("restore it with the build that wrote it"), "{error}");
        }
    }

    #[test]
    fn rows_of_a_newer_build_are_refused_by_number() {
        let meta = Meta { format: FORMAT, row_format: format::NEWEST + 1, ..Meta::default() };
        let meta = serde_json::to_vec(&meta).unwrap();
        let error = verify(&packed(&[(META, &meta)])[..]).unwrap_err().to_string();
        assert!(error.ends_with("install a newer lockmesh"), "{error}");
    }

    #[test]
    fn a_wrong_checksum_is_seen_where_gzip_is_content() {
        let meta =
            serde_json::to_vec(&Meta { format: FORMAT, row_format: format::NEWEST, ..Meta::default() })
                .unwrap();
        let sums = format!("{}  {META}\n{}  {STATE}\n", hex(&Sha256::digest(&meta)), hex(&[0; 32]));
        let bytes = packed(&[(META, &meta), (STATE, b""), (SUMS, sums.as_bytes())]);
        assert!(matches!(verify(&bytes[..]), Err(ArchiveError::Checksum(STATE))));
        let bytes = packed(&[(META, &meta), (STATE, b"\xff\xff\xff\xff1234"), (SUMS, b"")]);
        assert!(verify(&bytes[..]).unwrap_err().to_string().contains("has 8 bytes, but 0 are due"));
        let meta = Meta { format: FORMAT, row_format: format::NEWEST, size: 8, ..Meta::default() };
        let meta = serde_json::to_vec(&meta).unwrap();
        let bytes = packed(&[(META, &meta), (STATE, b"\xff\xff\xff\xff1234"), (SUMS, b"")]);
        assert!(verify(&bytes[..]).unwrap_err().to_string().contains("part 0 claims"));
    }

    #[test]
    fn an_error_of_the_taker_ends_the_reading() {
        let outcome = read_parts(&backup()[..], |_, _| Err(io::Error::other("enough")));
        assert!(matches!(outcome, Err(ArchiveError::Io(error)) if error.to_string() == "enough"));
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = verify(&bytes[..]);
            let _ = verify(&packed(&[(META, &bytes[..])])[..]);
        }
    }
}
