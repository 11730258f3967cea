//! The owners of files: a process uses those of its own user and of root, and no others.
//!
//! **Invariant:** another user cannot choose what this process reads, nor where it writes. The
//! owner of a file is read from the open file, so that the file cannot be replaced in between.
//! Files that Lockmesh itself writes are opened without following a symbolic link.
//!
//! In a user namespace, one id stands for all owners that have none there: it is another user.
//!
//! Folders above a folder are not checked: like the binary, they are the operator's choice.

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The environment variable of the configuration key `allow_other_owners`, for commands without a
/// configuration.
pub const ALLOW_VARIABLE: &str = "LOCKMESH_CONFIG_ALLOW_OTHER_OWNERS";

/// The maximum number of symbolic links that are followed, as in Linux.
const MAX_LINKS: usize = 40;

/// Set if files of all users may be used: a property of the process, like its umask.
static ALLOW_OTHERS: AtomicBool = AtomicBool::new(false);

/// The id that stands for all owners without an id in the user namespace of this process; `None` if
/// each owner has one.
static UNMAPPED: LazyLock<Option<u32>> = LazyLock::new(|| {
    let [map, id] = ["/proc/self/uid_map", "/proc/sys/kernel/overflowuid"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    unmapped_id(&map, &id)
});

/// The reason why a file or folder must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another user can replace it.
    #[error(
        "it belongs to user {owner}, who can replace it, and this process runs as user {user}: run it as the owner, \
         name another path, or change the owner with `chown` if nothing in it is harmful; to use it as it is, set \
         `allow_other_owners` or `{ALLOW_VARIABLE}=true`"
    )]
    Owner {
        /// The user id of its owner.
        owner: u32,
        /// The user id of this process.
        user: u32,
    },
    /// Any user outside of this user namespace may be its owner.
    #[error(
        "its owner has no id in this user namespace, where {0} stands for all such users: run this with a mapped user \
         id and change the owner to it with `chown`; to use it as it is, set `allow_other_owners` or \
         `{ALLOW_VARIABLE}=true`"
    )]
    Unmapped(u32),
    /// Its target may be any file.
    #[error("it is a symbolic link, which is not followed here: put the file or folder itself in its place")]
    Link,
    /// It is a folder, a pipe, a device, or the like.
    #[error("it is no regular file: remove it, or name another path")]
    NoFile,
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refusal)
    }
}

/// The owners whose files a process uses.
#[derive(Clone, Copy, Debug)]
struct Owners {
    /// The effective user of the process.
    user: u32,
    /// `true` if the files of all users are used.
    allow_others: bool,
    /// See [`UNMAPPED`].
    unmapped: Option<u32>,
}

/// The facts of a file that decide.
#[derive(Clone, Copy, Debug)]
struct Facts {
    owner: u32,
    is_link: bool,
    is_file: bool,
}

impl Owners {
    fn of_process() -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self { user, allow_others: others_are_allowed(), unmapped: *UNMAPPED }
    }

    fn check_owner(self, owner: u32) -> Result<(), Refusal> {
        // First: a process may itself have that id, which proves nothing about the owner.
        if self.unmapped == Some(owner) && !self.allow_others {
            return Err(Refusal::Unmapped(owner));
        }
        let is_allowed = owner == self.user || owner == 0 || self.allow_others;
        if is_allowed { Ok(()) } else { Err(Refusal::Owner { owner, user: self.user }) }
    }

    /// Checks an entry of a folder that Lockmesh itself writes.
    fn check_own(self, facts: Facts) -> Result<(), Refusal> {
        self.check_owner(facts.owner)?;
        if facts.is_link { Err(Refusal::Link) } else { Ok(()) }
    }

    /// Checks a file that Lockmesh itself writes.
    fn check_own_file(self, facts: Facts) -> Result<(), Refusal> {
        self.check_own(facts)?;
        if facts.is_file { Ok(()) } else { Err(Refusal::NoFile) }
    }

    fn check_path(self, path: &Path) -> io::Result<()> {
        let mut path = PathBuf::from(path);
        for _ in 0..MAX_LINKS {
            let Some(found) = metadata(&path)? else { return Ok(()) };
            self.check_owner(found.uid())?;
            if !found.is_symlink() {
                return Ok(());
            }
            let target = fs::read_link(&path)?;
            // A relative target begins at the folder of its link; an absolute one replaces it.
            path = folder_of(&path).join(target);
        }
        Err(Refusal::Link.into())
    }

    fn check_target(self, path: &Path) -> io::Result<()> {
        // The owner of the folder can replace the file at any time.
        self.check_path(folder_of(path))?;
        metadata(path)?.map_or(Ok(()), |found| Ok(self.check_own_file((&found).into())?))
    }

    fn open(self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        // A pipe must not block.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
        let file = opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP) => Refusal::Link.into(),
            _ => error,
        })?;
        self.check_own_file((&file.metadata()?).into())?;
        Ok(file)
    }

    fn read_linked(self, path: &Path) -> io::Result<String> {
        self.check_path(path)?;
        let file = File::open(path)?;
        // The file may have been replaced since its path was checked.
        self.check_owner(file.metadata()?.uid())?;
        text_of(file)
    }
}

impl From<&Metadata> for Facts {
    fn from(found: &Metadata) -> Self {
        let kind = found.file_type();
        Self { owner: found.uid(), is_link: kind.is_symlink(), is_file: kind.is_file() }
    }
}

/// Sets whether this process uses the files of all users.
pub fn allow_others(allow: bool) {
    ALLOW_OTHERS.store(allow, Ordering::Relaxed);
}

/// Returns `true` if this process uses the files of all users.
pub(crate) fn others_are_allowed() -> bool {
    ALLOW_OTHERS.load(Ordering::Relaxed)
}

/// Checks the owners of a file or folder, and of each symbolic link on the way to it. It may be
/// missing.
///
/// # Errors
/// A [`Refusal`], or its metadata cannot be read.
pub fn check(path: &Path) -> io::Result<()> {
    Owners::of_process().check_path(path)
}

/// Checks the owners of a file that is to be written: of its folder, and of what is there already.
///
/// # Errors
/// As [`check`]; also if there is anything else than a regular file.
pub fn check_target(path: &Path) -> io::Result<()> {
    Owners::of_process().check_target(path)
}

/// Checks the metadata of an entry of a folder that Lockmesh itself writes.
///
/// # Errors
/// A [`Refusal`], also of a symbolic link.
pub fn check_metadata(found: &Metadata) -> io::Result<()> {
    Ok(Owners::of_process().check_own(found.into())?)
}

/// Opens a file that Lockmesh itself writes. No symbolic link is followed.
///
/// # Errors
/// A [`Refusal`], or the file cannot be opened. A file that was created stays.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    Owners::of_process().open(options, path)
}

/// Reads a file that Lockmesh itself writes. No symbolic link is followed.
///
/// # Errors
/// As [`open`], or the file is not text.
pub fn read(path: &Path) -> io::Result<String> {
    text_of(open(OpenOptions::new().read(true), path)?)
}

/// Reads a file of the operator, which may be a symbolic link.
///
/// # Errors
/// As [`check`], or the file is not text.
pub fn read_linked(path: &Path) -> io::Result<String> {
    Owners::of_process().read_linked(path)
}

/// Returns the id of all owners that a namespace's map does not have; `None` if it has all.
fn unmapped_id(map: &str, id: &str) -> Option<u32> {
    let lengths = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    // All ids except the highest, which means "no user" to the kernel.
    let has_all = lengths.sum::<u64>() >= u64::from(u32::MAX);
    // The kernel's default, if its setting cannot be read.
    (!has_all).then(|| id.trim().parse().unwrap_or(65_534))
}

fn text_of(mut file: File) -> io::Result<String> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the metadata of a file, which is not followed; `None` if it is missing.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the folder of a path.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::{lchown, symlink};

    const FILE: Facts = Facts { owner: 990, is_link: false, is_file: true };

    fn refusal(result: io::Result<()>) -> Option<Refusal> {
        let error = result.err()?;
        error.get_ref()?.downcast_ref().copied()
    }

    #[test]
    fn foreign_owner_rejected_unless_allowed() {
        let owners = |user, allow_others| Owners { user, allow_others, unmapped: None };
        let check = |owners: Owners, owner| owners.check_own(Facts { owner, ..FILE });
        for (user, owner) in [(990, 990), (990, 0), (0, 0)] {
            assert_eq!(check(owners(user, false), owner), Ok(()), "{user} uses files of {owner}");
        }
        for (user, owner) in [(990, 1001), (0, 990)] {
            assert_eq!(check(owners(user, false), owner), Err(Refusal::Owner { owner, user }));
            assert_eq!(check(owners(user, true), owner), Ok(()), "it is permitted");
        }
        let words = Refusal::Owner { owner: 1001, user: 990 }.to_string();
        assert!(words.contains("user 1001") && words.contains("user 990"), "{words}");
        assert!(words.contains("`chown`") && words.contains("`allow_other_owners`"), "{words}");
    }

    #[test]
    fn unmapped_owner_is_a_stranger() {
        assert_eq!(unmapped_id("         0          0 4294967295\n", "65534\n"), None);
        let unmapped = unmapped_id("0 100000 65536\n", "65534\n");
        assert_eq!(unmapped, Some(65_534));
        let check = |allow_others, owner| {
            let owners = Owners { user: 65_534, allow_others, unmapped };
            owners.check_own(Facts { owner, ..FILE })
        };
        assert_eq!(check(false, 65_534), Err(Refusal::Unmapped(65_534)));
        assert_eq!((check(true, 65_534), check(false, 0)), (Ok(()), Ok(())));
    }

    #[test]
    fn symlinks_and_special_files_rejected() {
        for allow_others in [false, true] {
            let owners = Owners { user: 990, allow_others, unmapped: None };
            assert_eq!(owners.check_own(Facts { is_link: true, ..FILE }), Err(Refusal::Link));
            assert_eq!(owners.check_own_file(Facts { is_file: false, ..FILE }), Err(Refusal::NoFile));
            assert_eq!(owners.check_own(Facts { is_file: false, ..FILE }), Ok(()), "a socket");
        }
    }

    #[test]
    fn only_read_linked_follows_symlinks() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "mine").unwrap();
        symlink("file", &link).unwrap();
        assert_eq!(read(&file).unwrap(), "mine");
        assert_eq!(read_linked(&link).unwrap(), "mine");
        assert_eq!(refusal(read(&link).map(drop)), Some(Refusal::Link));
        let written = open(OpenOptions::new().write(true).create(true).truncate(true), &link);
        assert_eq!(refusal(written.map(drop)), Some(Refusal::Link));
        assert_eq!(refusal(check_target(&link)), Some(Refusal::Link));
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");

        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(refusal(read(&pipe).map(drop)), Some(Refusal::NoFile));
        symlink("circle", folder.path().join("circle")).unwrap();
        assert_eq!(refusal(check(&folder.path().join("circle"))), Some(Refusal::Link));
    }

    /// Root tries the files of user 7, who cannot be given any by others: those try files of their
    /// own as another user.
    #[test]
    fn foreign_file_and_symlink_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, inner] = ["file", "link", "folder"].map(|name| folder.path().join(name));
        fs::write(&file, "").unwrap();
        fs::create_dir(&inner).unwrap();
        symlink("file", &link).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let (owner, user) = if user == 0 { (7, 0) } else { (user, user + 1) };
        let refused = Some(Refusal::Owner { owner, user });
        let owners = Owners { user, allow_others: false, unmapped: None };
        let as_other = |path: &Path| refusal(owners.check_path(path));
        let give = |path: &Path, to: u32| {
            if user == 0 {
                lchown(path, Some(to), None).unwrap();
            }
        };
        give(&link, owner);
        assert_eq!(as_other(&link), refused, "of the link itself");
        give(&link, 0);
        give(&file, owner);
        give(&inner, owner);
        for path in [&link, &file, &inner] {
            assert_eq!(as_other(path), refused, "{}", path.display());
        }
        assert_eq!(refusal(owners.open(OpenOptions::new().read(true), &file).map(drop)), refused);
        assert_eq!(refusal(owners.read_linked(&file).map(drop)), refused);
        assert_eq!(refusal(owners.check_target(&inner.join("new"))), refused);
        let permitted = Owners { allow_others: true, ..owners };
        assert!(permitted.check_path(&link).is_ok() && permitted.read_linked(&link).is_ok());
    }
}
