//! Folders and files that only their owner may open, regardless of the process's umask.
//!
//! **Invariant:** files that do not belong to Lockmesh are never changed. A folder that contains
//! another program's file, or that is shared such as `/tmp`, keeps its permissions; only Lockmesh's
//! own files in it become private.

use crate::files::FileError;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The permissions of a private folder.
const FOLDER_MODE: u32 = 0o700;

/// The permissions of a private file.
const FILE_MODE: u32 = 0o600;

/// The permission bits of other users and groups.
const OTHERS: u32 = 0o077;

/// The permission bit of a folder in which all users may create their own files.
const STICKY: u32 = 0o1000;

/// The kind of an entry in a private folder, determined by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderEntry {
    /// A file or folder of Lockmesh that only its owner may open.
    Secret,
    /// A file of Lockmesh that every user may read.
    Public,
    /// An entry of another program.
    Foreign,
}

/// Creates a folder that only its owner may enter, and its missing parents with default
/// permissions. An existing folder is unchanged: see [`close`].
///
/// # Errors
/// The folder does not exist and cannot be created, or its path is not a folder. Parents that were
/// created stay.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    let made = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(FOLDER_MODE).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made,
        }
    };
    made().map_err(|source| FileError::new("make the folder", path, source))
}

/// Returns the options to open a file that only its owner may read, if it is created.
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Creates an empty file that only its owner may read, or truncates an existing one.
///
/// # Errors
/// The file cannot be opened. An existing file keeps its content.
pub fn create_file(path: &Path) -> io::Result<File> {
    file_options().write(true).create(true).truncate(true).open(path)
}

/// Removes other users' permissions from an existing folder and from its secrets, which earlier
/// versions and copies left open. Logs one line if a permission was removed or cannot be removed.
///
/// A folder that is to stay `reachable`, because others read files in it, keeps its permissions.
///
/// # Errors
/// The folder cannot be read, or a permission cannot be removed. Earlier removals stay in effect;
/// the rest may still be open.
pub fn close(folder: &Path, reachable: bool, kind: impl Fn(&str) -> FolderEntry) -> Result<(), FileError> {
    let result = close_all(folder, reachable, kind);
    let (closed, in_the_way) =
        result.map_err(|source| FileError::new("take other users' access from", folder, source))?;
    let folder = folder.display();
    if !closed.is_empty() {
        let closed = closed.join(", ");
        tracing::warn!(%folder, closed, "removed other users' access to the folder");
    }
    if let Some(reason) = in_the_way {
        tracing::warn!(%folder, %reason, "other users can access the folder: use a dedicated folder");
    }
    Ok(())
}

/// Returns the entries that were made private, and the reason why the folder itself stays open.
fn close_all(
    folder: &Path,
    reachable: bool,
    kind: impl Fn(&str) -> FolderEntry,
) -> io::Result<(Vec<String>, Option<String>)> {
    let (mut closed, mut in_the_way) = (Vec::new(), None);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A symbolic link refers to a target that was meant for another location, and has no
        // permissions of its own.
        let is_ours = entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir());
        match kind(&name) {
            FolderEntry::Secret if is_ours => closed.extend(closed_to_others(&entry.path())?.then_some(name)),
            FolderEntry::Secret | FolderEntry::Public => {}
            FolderEntry::Foreign => in_the_way = Some(format!("{name} in it does not belong to lockmesh")),
        }
    }
    let mode = fs::metadata(folder)?.permissions().mode();
    if reachable || mode & OTHERS == 0 {
        return Ok((closed, None));
    }
    if mode & STICKY != 0 {
        in_the_way = Some("it is shared by all users".into());
    }
    if in_the_way.is_none() && closed_to_others(folder)? {
        closed.insert(0, "the folder".into());
    }
    Ok((closed, in_the_way))
}

/// Makes a file or folder private; returns `true` if it was open.
fn closed_to_others(path: &Path) -> io::Result<bool> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & OTHERS == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OTHERS))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn kind(name: &str) -> FolderEntry {
        match name {
            "secret" | "inner" => FolderEntry::Secret,
            "public" => FolderEntry::Public,
            _ => FolderEntry::Foreign,
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// Creates a folder that every user may read, with the named files.
    fn open_folder(folder: &Path, names: &[&str]) {
        fs::create_dir_all(folder.join("inner")).unwrap();
        for name in names {
            fs::write(folder.join(name), "").unwrap();
            fs::set_permissions(folder.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        for folder in [folder, &folder.join("inner")] {
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
    }

    fn modes(folder: &Path) -> BTreeMap<String, u32> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.file_name().into_string().unwrap(), mode(&entry.path()))).collect()
    }

    fn of(modes: &[(&str, u32)]) -> BTreeMap<String, u32> {
        modes.iter().map(|(name, mode)| ((*name).to_owned(), *mode)).collect()
    }

    #[test]
    fn what_is_made_is_its_owners_alone() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("above/data");
        make_folder(&folder).unwrap();
        make_folder(&folder).expect("it is there");
        create_file(&folder.join("secret")).unwrap();
        assert_eq!((mode(&folder), modes(&folder)), (0o700, of(&[("secret", 0o600)])));
        fs::write(root.path().join("file"), "").unwrap();
        let error = make_folder(&root.path().join("file")).unwrap_err();
        assert!(error.to_string().contains("cannot make the folder"), "{error}");
    }

    #[test]
    fn what_was_left_open_is_closed_once() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        open_folder(&folder, &["secret", "public"]);
        let (mut closed, in_the_way) = close_all(&folder, false, kind).unwrap();
        closed.sort();
        assert_eq!((closed, in_the_way), (["inner", "secret", "the folder"].map(String::from).into(), None));
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(modes(&folder), of(&[("inner", 0o700), ("public", 0o644), ("secret", 0o600)]));
        assert_eq!(close_all(&folder, false, kind).unwrap(), (Vec::new(), None));
    }

    #[test]
    fn a_folder_that_others_need_keeps_its_permissions() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        open_folder(&folder, &["secret"]);
        assert_eq!(close_all(&folder, true, kind).unwrap().1, None, "it stays accessible as requested");
        assert_eq!((mode(&folder), mode(&folder.join("secret"))), (0o755, 0o600));

        let shared = root.path().join("shared");
        open_folder(&shared, &["secret", "foreign"]);
        let (closed, in_the_way) = close_all(&shared, false, kind).unwrap();
        assert_eq!(closed.len(), 2);
        assert_eq!(in_the_way.unwrap(), "foreign in it does not belong to lockmesh");
        assert_eq!((mode(&shared), mode(&shared.join("foreign"))), (0o755, 0o644));

        fs::remove_file(shared.join("foreign")).unwrap();
        fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(close_all(&shared, false, kind).unwrap().1.unwrap(), "it is shared by all users");
        assert_eq!(mode(&shared), 0o1777);
    }
}
