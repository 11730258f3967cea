//! Folders and files that only their owner may open, regardless of the process's umask.
//!
//! **Invariant:** files that do not belong to Lockmesh are never changed. A folder that contains
//! another program's file, or that is shared such as `/tmp`, keeps its permissions; only Lockmesh's
//! own files in it become private.
//!
//! Folders and files of other users are [refused](crate::owner).

use crate::files::FileError;
use crate::owner;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The permissions of a private folder.
const FOLDER_MODE: u32 = 0o700;

/// The permissions of a private file.
const FILE_MODE: u32 = 0o600;

/// The permission bits of other users and groups.
const OTHERS: u32 = 0o077;

/// The permission bit of a folder in which all users may create their own files.
const STICKY: u32 = 0o1000;

/// The permission bit to write of all users.
const WRITABLE: u32 = 0o002;

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
/// The folder does not exist and cannot be created, its path is not a folder, or it belongs to
/// another user. Parents that were created stay.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    let made = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(FOLDER_MODE).create(path) {
            // `is_dir` follows links, because the folder may be a link of this user.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => owner::check(path),
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
/// The file cannot be opened, or must not be used. An existing file keeps its content.
pub fn create_file(path: &Path) -> io::Result<File> {
    // Truncated only after its owner is known.
    let file = owner::open(file_options().read(true).write(true).create(true).truncate(false), path)?;
    file.set_len(0)?;
    Ok(file)
}

/// Removes other users' permissions from an existing folder and from its secrets, which earlier
/// versions and copies left open. Logs one line if a permission was removed or cannot be removed.
///
/// A folder or secret that only its owner, such as root, can close is used unless all users can
/// write to it.
///
/// A folder that is to stay `reachable`, because others read files in it, keeps its permissions.
///
/// # Errors
/// The folder or an entry of Lockmesh in it belongs to another user, an entry of Lockmesh is a
/// symbolic link, the folder cannot be read, or a permission cannot be removed. Earlier removals
/// stay in effect; the rest may still be open.
pub fn close(folder: &Path, reachable: bool, kind: impl Fn(&str) -> FolderEntry) -> Result<(), FileError> {
    let result = close_all(folder, reachable, kind);
    let (closed, in_the_way) =
        result.map_err(|source| FileError::new("use the folder", folder, explained(folder, source)))?;
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
    owner::check(folder)?;
    let (mut closed, mut in_the_way, mut kept) = (Vec::new(), None, None);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = kind(&name);
        if kind == FolderEntry::Foreign {
            in_the_way = Some(format!("{name} in it does not belong to lockmesh"));
            continue;
        }
        // The metadata of the entry, not of the target of a symbolic link.
        let found = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        let in_it = |error: io::Error| io::Error::new(error.kind(), format!("{name} in it: {error}"));
        owner::check_metadata(&found).map_err(in_it)?;
        if kind == FolderEntry::Secret {
            match closed_to_others(&entry.path()).map_err(in_it)? {
                Closing::Private => {}
                Closing::Closed => closed.push(name),
                Closing::Kept => kept = Some(format!("only its owner can close {name} in it")),
            }
        }
    }
    let mode = fs::metadata(folder)?.permissions().mode();
    if reachable || mode & OTHERS == 0 {
        return Ok((closed, kept));
    }
    if mode & STICKY != 0 {
        in_the_way = Some("it is shared by all users".into());
    }
    if in_the_way.is_none() {
        match closed_to_others(folder)? {
            Closing::Private => {}
            Closing::Closed => closed.insert(0, "the folder".into()),
            Closing::Kept => in_the_way = Some("only its owner can close it".into()),
        }
    }
    Ok((closed, in_the_way.or(kept)))
}

/// Adds the owner of a folder that this user may not enter, such as one that a failed start of root
/// left.
fn explained(folder: &Path, error: io::Error) -> io::Error {
    match fs::metadata(folder) {
        // Only an error of the system: this module's own ones name the owner and the remedy.
        Ok(found) if error.raw_os_error().is_some() && error.kind() == io::ErrorKind::PermissionDenied => {
            let owner = found.uid();
            io::Error::new(
                error.kind(),
                format!(
                    "{error}; it belongs to user {owner}: run this as that user, or change its owner with `chown`"
                ),
            )
        }
        _ => error,
    }
}

/// The outcome of making a file or folder private.
enum Closing {
    /// It was private.
    Private,
    /// It was open.
    Closed,
    /// It is open: this user may not change that.
    Kept,
}

/// Makes a file or folder private.
fn closed_to_others(path: &Path) -> io::Result<Closing> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & OTHERS == 0 {
        return Ok(Closing::Private);
    }
    match fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OTHERS)) {
        Ok(()) => Ok(Closing::Closed),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            may_stay_open(mode, owner::others_are_allowed()).map(|()| Closing::Kept)
        }
        Err(error) => Err(error),
    }
}

/// Decides about what only another user, such as root, can close.
fn may_stay_open(mode: u32, allow_others: bool) -> io::Result<()> {
    if mode & WRITABLE == 0 || allow_others {
        return Ok(());
    }
    let reason =
        "all users can write to it, and only its owner can change that: run `chmod o-w` as its owner";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// Returns `true` if a path still leads to an open file, which another process may have removed.
pub fn is_in_place(file: &File, path: &Path) -> bool {
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    file.metadata().map(id).ok() == fs::symlink_metadata(path).map(id).ok()
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
    fn created_paths_are_owner_only() {
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
    fn loose_permissions_tightened_once() {
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
    fn symlink_as_own_file_rejected() {
        let root = tempfile::tempdir().unwrap();
        let [folder, target] = ["data", "target"].map(|name| root.path().join(name));
        open_folder(&folder, &["foreign"]);
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, folder.join("secret")).unwrap();
        let refused = close(&folder, false, kind).unwrap_err().to_string();
        assert!(refused.contains("cannot use the folder") && refused.contains("secret in it"), "{refused}");
        assert!(refused.contains("it is a symbolic link"), "{refused}");
        create_file(&folder.join("secret")).unwrap_err();
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");

        let link = root.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        make_folder(&link).expect("the folder itself may be a link of this user");
        fs::rename(folder.join("secret"), folder.join("other")).unwrap();
        close(&link, false, kind).expect("a link of another program");
    }

    /// Only root can give a folder to user 7; the decision is tested in `owner.rs` for all users.
    #[test]
    fn foreign_folder_and_file_rejected() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        open_folder(&folder, &["secret"]);
        let give = |path: &Path, owner| std::os::unix::fs::chown(path, Some(owner), None).unwrap();
        give(&folder, 7);
        for refused in [make_folder(&folder), close(&folder, false, kind)] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("data: it belongs to user 7"), "{refused}");
        }
        assert_eq!(mode(&folder), 0o755, "it is not changed");
        give(&folder, 0);
        give(&folder.join("secret"), 7);
        let refused = close(&folder, false, kind).unwrap_err().to_string();
        assert!(refused.contains("secret in it: it belongs to user 7"), "{refused}");
    }

    /// Only root can try a folder of root as another user; the decision is tested for all users.
    #[test]
    fn open_folder_of_root_is_used() {
        for (mode, allow_others, is_used) in
            [(0o755, false, true), (0o775, false, true), (0o777, false, false), (0o777, true, true)]
        {
            assert_eq!(may_stay_open(mode, allow_others).is_ok(), is_used, "{mode:o}");
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        open_folder(&folder, &["secret"]);
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        let as_user = || {
            std::thread::scope(|scope| {
                let work = || {
                    let user = rustix::process::Uid::from_raw(7);
                    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                    close_all(&folder, false, kind)
                };
                scope.spawn(work).join().unwrap()
            })
        };
        assert_eq!(as_user().unwrap(), (vec![], Some("only its owner can close it".into())));
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let refused = as_user().unwrap_err().to_string();
        assert!(refused.contains("all users can write to it") && refused.contains("chmod o-w"), "{refused}");
    }

    #[test]
    fn shared_folder_keeps_permissions() {
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
