//! The file format of a backup: a gzip'd tar of `meta.json`, `state.bin` and `SHA256SUMS`, as in
//! Consul.
//!
//! `meta.json` also has Consul's fields, so that `consul snapshot save` and `inspect` accept the
//! file. Go ignores the case of field names, so no Lockmesh field may have the name of a Consul
//! field in another case. Only Lockmesh reads `state.bin`, and backups of Consul cannot be restored
//! here.
//!
//! `state.bin` is a sequence of parts, each a length of four bytes (little-endian) and an encoded
//! list of rows, preceded by the version of its format ([`lockmesh_protocol::format`]). Only one
//! part is in memory at a time: writing spools to unnamed temporary files, and reading streams the
//! file.
//!
//! **Invariant:** [`verify`] checks everything (format, version, checksums, every part) before any
//! part is used, so that a damaged or foreign file changes nothing.

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

/// The format of the archive. Earlier formats contain other rows, which this build does not read.
pub const FORMAT: u32 = 7;
const META: &str = "meta.json";
const STATE: &str = "state.bin";
const SUMS: &str = "SHA256SUMS";
/// The maximum size of the two small files.
const SMALL_LIMIT: u64 = 64 * 1024;
/// The maximum data after the three files: the end marks of a tar, padded.
const PADDING_LIMIT: u64 = 1 << 20;

/// The metadata of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The format of the archive.
    pub format: u32,
    /// The version of the rows' format.
    pub row_format: u8,
    /// The build that wrote it.
    #[serde(alias = "version")]
    pub build: String,
    /// The id of its cluster.
    pub cluster_id: String,
    /// The index of the state in it.
    #[serde(rename = "Index", alias = "index")]
    pub index: u64,
    /// The term of that index.
    #[serde(rename = "Term", alias = "term")]
    pub term: u64,
    /// The number of parts.
    pub parts: u32,
    /// The number of rows.
    pub rows: u64,
    /// The creation time: milliseconds since 1970 by the agent's clock.
    pub made_at_ms: u64,
    /// The size of the rows in bytes.
    #[serde(rename = "Size")]
    pub size: u64,
}

/// `meta.json`: Lockmesh's fields, and the fields that Consul's programs need.
#[derive(Serialize)]
struct MetaFile<'a> {
    /// Always 1: the only version that Consul's programs accept.
    #[serde(rename = "Version")]
    version: u32,
    #[serde(rename = "ID")]
    id: String,
    /// A backup holds no membership: a restore keeps the current servers.
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

/// The reason why a file cannot be used. No part of it was used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It cannot be read or written.
    #[error("the backup cannot be read: {0}")]
    Io(io::Error),
    /// It is another kind of file, or damaged.
    #[error("this is no backup of Lockmesh, or it is damaged: {0}")]
    Malformed(String),
    /// Another build wrote it.
    #[error(
        "this backup is of format {0}, but this build reads format {FORMAT} only: restore it with the build that wrote it \
         (formats before {FORMAT} are not supported; later ones need a newer lockmesh)"
    )]
    Format(u32),
    /// A newer build wrote its rows.
    #[error("the rows of this backup cannot be read: {0}")]
    Rows(FormatError),
    /// Its contents differ from what was written.
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
    /// Starts a backup, with a temporary file for the rows.
    ///
    /// # Errors
    /// No temporary file can be created. Nothing was written.
    pub fn new() -> io::Result<Self> {
        let rows = BufWriter::new(tempfile::tempfile()?);
        Ok(Self { rows, digest: Sha256::new(), parts: 0, count: 0 })
    }

    /// Adds the next part.
    ///
    /// # Errors
    /// The temporary file cannot be written and is incomplete: drop the writer and start over.
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

    /// Completes `meta`, and returns the whole file, positioned at its start, with its length.
    ///
    /// # Errors
    /// A temporary file cannot be read or written. It is removed with this value: start over.
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
        // In the order in which a streaming reader needs them.
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
    // If unpacked by hand, the rows stay private to their owner: values may be secrets.
    header.set_mode(0o600);
    header.set_mtime(now_ms() / 1000);
    header
}

/// Returns the milliseconds since 1970, for display.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a whole backup and verifies every byte of it. Leaves the file positioned at its end.
///
/// # Errors
/// The file is not a complete backup of a format that this build reads, or cannot be read. The file
/// is unchanged: use another backup, or the build that the error names.
pub fn verify<R: Read>(file: R) -> Result<Meta, ArchiveError> {
    walk(file, |_, _| Ok(()))
}

/// Reads a backup and passes its parts to `take` in order; an error of `take` stops the reading.
/// Only for a verified file, because the checksum comes last.
///
/// # Errors
/// The file cannot be read, or `take` failed. Parts that were passed on before stay with the
/// caller.
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
    // Raw, because a long name or an extension of any length would otherwise be read into memory.
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
    // Unverified data must not pass as verified.
    if entries.next().is_some() {
        return Err(malformed("there is more in it than there should be"));
    }
    let sums = String::from_utf8(sums).map_err(malformed)?;
    check_sum(&sums, META, &Sha256::digest(&meta_bytes))?;
    check_sum(&sums, STATE, &digest)?;
    // The gzip's own checksum is verified when its end is read.
    let rest = io::copy(&mut archive.into_inner().take(PADDING_LIMIT), &mut io::sink()).map_err(malformed)?;
    if rest == PADDING_LIMIT {
        return Err(malformed("there is more in it than there should be"));
    }
    Ok(meta)
}

fn small<R: Read>(entry: Entry<'_, R>) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    // The length that the file claims may exceed the memory.
    entry.take(SMALL_LIMIT).read_to_end(&mut bytes).map_err(malformed)?;
    Ok(bytes)
}

fn parse_meta(bytes: &[u8]) -> Result<Meta, ArchiveError> {
    #[derive(Deserialize)]
    struct Versions {
        format: Option<u32>,
    }
    // Parsed separately and first: another format may lack all the other fields.
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

/// Reads every part and returns the checksum of all.
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
        // Before the memory for it is allocated.
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

    /// Packs any files like a backup.
    fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, bytes) in files {
            builder.append_data(&mut header(bytes.len() as u64), name, *bytes).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn written_backup_reads_back() {
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
    fn corruption_and_truncation_are_detected() {
        let bytes = backup();
        let unpacked = |bytes: &[u8]| {
            let mut tar = Vec::new();
            GzDecoder::new(bytes).read_to_end(&mut tar).map(|_| tar)
        };
        let whole = unpacked(&bytes).unwrap();
        // The header of a gzip contains a time stamp and a system, which are irrelevant; so are a
        // few padding bits at its end.
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
    fn foreign_files_are_rejected() {
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
    fn layout_matches_consul_snapshot() {
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
        // A file with another name makes `consul snapshot` fail.
        assert_eq!(files.keys().map(String::as_str).collect::<Vec<_>>(), [SUMS, META, STATE]);
        let meta: serde_json::Value = serde_json::from_slice(&files[META]).unwrap();
        assert_eq!((&meta["Version"], &meta["Index"], &meta["Term"]), (&1.into(), &42.into(), &7.into()));
        assert_eq!(meta["Size"], files[STATE].len());
        assert!(meta["ID"].as_str().is_some_and(|id| id.starts_with("7-42-")), "{meta}");
        assert_eq!(meta["Configuration"]["Servers"], serde_json::json!([]));
        assert!(meta["Peers"].is_null() && meta["ConfigurationIndex"].is_u64(), "{meta}");
        // Go ignores the case of names: the last of two would win, of any type.
        let mut names: Vec<_> = meta.as_object().unwrap().keys().map(|name| name.to_lowercase()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), meta.as_object().unwrap().len());
        let sums = String::from_utf8(files[SUMS].clone()).unwrap();
        assert_eq!(sums.lines().count(), 2);
        assert!(sums.contains(&format!("{}  {STATE}\n", hex(&Sha256::digest(&files[STATE])))), "{sums}");
    }

    #[test]
    fn other_formats_are_rejected() {
        // Archives of builds whose rows had no versions, and one of a future build.
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
    fn newer_rows_are_rejected() {
        let meta = Meta { format: FORMAT, row_format: format::NEWEST + 1, ..Meta::default() };
        let meta = serde_json::to_vec(&meta).unwrap();
        let error = verify(&packed(&[(META, &meta)])[..]).unwrap_err().to_string();
        assert!(error.ends_with("install a newer lockmesh"), "{error}");
    }

    #[test]
    fn checksum_and_size_mismatch_detected() {
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
    fn consumer_error_stops_reading() {
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
