//! The users and groups of this host, as `/etc/passwd` and `/etc/group` list them. Accounts of a
//! directory service, such as LDAP, are unknown here by name; they can be configured by number.

use lockmesh_protocol::acl::peer::GROUPS_MAX;
use lockmesh_protocol::acl::{SecretHash, UnixPeer};
use std::collections::BTreeSet;

/// The lists of users and groups, as read at one moment.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// Reads both files. One that cannot be read lists nothing.
    pub(crate) fn read() -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self { passwd: text("/etc/passwd"), group: text("/etc/group") }
    }

    /// Returns the number of a user, given by name or number.
    pub(crate) fn user(&self, user: &str) -> Option<u32> {
        number(&self.passwd, user)
    }

    /// Returns the number of a group, given by name or number.
    pub(crate) fn group(&self, group: &str) -> Option<u32> {
        number(&self.group, group)
    }

    /// Returns a user of this host for the rules of access control.
    pub(crate) fn peer(&self, (uid, gid): (u32, u32), otherwise: Option<SecretHash>) -> UnixPeer {
        let named = |file, number: u32| {
            rows(file).find(|row| row[2].parse() == Ok(number)).map_or(String::new(), |row| row[0].into())
        };
        let user = named(&self.passwd, uid);
        let lists = |row: &Vec<&str>| {
            let members = row.get(3).copied().unwrap_or_default();
            row[2].parse() == Ok(gid) || !user.is_empty() && members.split(',').any(|member| member == user)
        };
        let groups = rows(&self.group).filter(lists).flat_map(|row| [row[0].to_owned(), row[2].to_owned()]);
        let mut groups: Vec<String> = groups.take(GROUPS_MAX).collect();
        // A group of a directory service.
        if !groups.contains(&gid.to_string()) {
            groups.push(gid.to_string());
        }
        UnixPeer { uid, gid, group: named(&self.group, gid), user, groups, otherwise }
    }

    /// Returns the users of a group: those whose primary group it is, and its listed members.
    pub(crate) fn members(&self, group: u32) -> BTreeSet<u32> {
        let primary = rows(&self.passwd).filter(|row| row.get(3).is_some_and(|own| own.parse() == Ok(group)));
        let primary = primary.filter_map(|row| row[2].parse().ok());
        let groups = rows(&self.group).filter(|row| row[2].parse() == Ok(group));
        let listed = groups.flat_map(|row| row.get(3).map(|names| names.split(',')).into_iter().flatten());
        let by_name = |name: &str| rows(&self.passwd).find(|row| row[0] == name)?[2].parse().ok();
        primary.chain(listed.filter_map(by_name)).collect()
    }
}

/// Returns the fields of each row, the first of which are name, password and number.
fn rows(file: &str) -> impl Iterator<Item = Vec<&str>> {
    file.lines().map(|line| line.split(':').collect::<Vec<_>>()).filter(|row| row.len() > 2)
}

fn number(file: &str, account: &str) -> Option<u32> {
    // By name first: a name may be a number.
    let listed = rows(file).find(|row| row[0] == account).and_then(|row| row[2].parse().ok());
    listed.or_else(|| account.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_precede_numbers() {
        let group = "root:x:0:\n# no group\nlockers:x:1007:a,b\n12:x:13:\nbad:x:many:\n".into();
        let accounts = Accounts { group, ..Accounts::default() };
        for (name, number) in
            [("root", Some(0)), ("lockers", Some(1007)), ("12", Some(13)), ("99", Some(99)), ("bad", None)]
        {
            assert_eq!(accounts.group(name), number, "{name}");
        }
        assert_eq!((accounts.group("lock"), accounts.group("")), (None, None));
    }

    /// Contract: 167.
    #[test]
    fn peer_has_primary_and_listed_groups() {
        let accounts = Accounts {
            passwd: "root:x:0:0::/:\nann:x:7:70::/:\n".into(),
            group: "web:x:70:\nwheel:x:10:root,ann\nother:x:80:annie\n".into(),
        };
        let ann = accounts.peer((7, 70), None);
        assert_eq!((ann.user.as_str(), ann.group.as_str()), ("ann", "web"));
        assert_eq!(ann.groups, ["web", "70", "wheel", "10"]);
        let unknown = accounts.peer((9, 90), None);
        assert_eq!((unknown.user.as_str(), unknown.groups.as_slice()), ("", &["90".to_owned()][..]));
    }

    #[test]
    fn members_include_primary_users() {
        let accounts = Accounts {
            passwd: "root:x:0:0::/:\nann:x:7:70::/:\nbob:x:8:80::/:\nbad:x::70:\n".into(),
            group: "web:x:70:bob,gone\nother:x:80:root\nalias:x:70:root\nshort:x:70\n".into(),
        };
        assert_eq!(accounts.members(70), [0, 7, 8].into());
        assert_eq!((accounts.members(80), accounts.members(9)), ([0, 8].into(), [].into()));
        assert_eq!(
            (accounts.user("ann"), accounts.user("7"), accounts.user("eve")),
            (Some(7), Some(7), None)
        );
    }
}
