//! Names of users and groups, and mapping their ids between machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;

use silt_format::tree::{NAMES_MAX, OwnerName};
use silt_format::{Error, ErrorKind, Result};

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
/// Maximum size of either file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The users and groups of a machine, from `/etc/passwd` and `/etc/group`. It does not include
/// those of directory services such as LDAP; their ids are not mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    users: BTreeMap<u32, Vec<u8>>,
    groups: BTreeMap<u32, Vec<u8>>,
}

impl Owners {
    /// Reads those of this machine. A file that does not exist counts as empty.
    pub fn of_this_machine() -> Result<Self> {
        Ok(Self::parse(&read(USERS)?, &read(GROUPS)?))
    }

    /// Parses the content of `/etc/passwd` and `/etc/group`. If an id has several names, the first
    /// counts. Malformed lines are skipped.
    pub fn parse(users: &[u8], groups: &[u8]) -> Self {
        Self { users: lines(users), groups: lines(groups) }
    }

    /// Adds the name of an owner; of several names of a number, the first counts. Holds at most
    /// [`NAMES_MAX`] names; further ones, and those that are empty, are left out.
    pub fn add_user(&mut self, id: u32, name: &[u8]) {
        add(&mut self.users, id, name);
    }

    /// Adds the name of a group in the same way.
    pub fn add_group(&mut self, id: u32, name: &[u8]) {
        add(&mut self.groups, id, name);
    }

    /// The lowest number of an owner of this name.
    pub fn user_id(&self, name: &[u8]) -> Option<u32> {
        self.users.iter().find(|(_, known)| *known == name).map(|(id, _)| *id)
    }

    /// The lowest number of a group of this name.
    pub fn group_id(&self, name: &[u8]) -> Option<u32> {
        self.groups.iter().find(|(_, known)| *known == name).map(|(id, _)| *id)
    }

    /// Returns the names of these user ids, at most [`NAMES_MAX`], in ascending order of the ids.
    pub fn users(&self, numbers: &BTreeSet<u32>) -> Vec<OwnerName> {
        named(&self.users, numbers)
    }

    /// Returns the names of these group ids, at most [`NAMES_MAX`], in ascending order of the ids.
    pub fn groups(&self, numbers: &BTreeSet<u32>) -> Vec<OwnerName> {
        named(&self.groups, numbers)
    }
}

fn add(known: &mut BTreeMap<u32, Vec<u8>>, id: u32, name: &[u8]) {
    let is_name = (1..=usize::from(u16::MAX)).contains(&name.len());
    if is_name && known.len() < NAMES_MAX && !known.contains_key(&id) {
        known.insert(id, name.to_vec());
    }
}

fn named(known: &BTreeMap<u32, Vec<u8>>, numbers: &BTreeSet<u32>) -> Vec<OwnerName> {
    let names = numbers.iter().filter_map(|id| Some((*id, known.get(id)?)));
    names.take(NAMES_MAX).map(|(id, name)| OwnerName { id, name: name.clone() }).collect()
}

fn read(path: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| Error::io(format!("opening {path}"), error));
    let file = match file {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(bytes),
        file => file?,
    };
    file.take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io(format!("reading {path}"), error))?;
    Ok(bytes)
}

fn lines(text: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let mut found = BTreeMap::new();
    for line in text.split(|&byte| byte == b'\n') {
        let mut fields = line.split(|&byte| byte == b':');
        let (name, _, id) = (fields.next(), fields.next(), fields.next());
        let id = id.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        if let (Some(name), Some(id)) = (name, id)
            && (1..=usize::from(u16::MAX)).contains(&name.len())
        {
            found.entry(id).or_insert_with(|| name.to_vec());
        }
    }
    found
}

/// Maps user and group ids of another machine to those of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerMap {
    users: BTreeMap<u32, u32>,
    groups: BTreeMap<u32, u32>,
}

impl OwnerMap {
    /// Maps every id in `users` and `groups` to the id that its name has in `here`. Ids whose name
    /// is unknown here are kept.
    pub fn by_name(users: &[OwnerName], groups: &[OwnerName], here: &Owners) -> Self {
        Self { users: mapped(users, &here.users), groups: mapped(groups, &here.groups) }
    }

    /// Returns the user id on this machine.
    pub fn user(&self, id: u32) -> u32 {
        self.users.get(&id).copied().unwrap_or(id)
    }

    /// Returns the group id on this machine.
    pub fn group(&self, id: u32) -> u32 {
        self.groups.get(&id).copied().unwrap_or(id)
    }
}

fn mapped(names: &[OwnerName], here: &BTreeMap<u32, Vec<u8>>) -> BTreeMap<u32, u32> {
    // If several ids have the same name, the lowest counts.
    let ids: BTreeMap<&[u8], u32> = here.iter().rev().map(|(id, name)| (&**name, *id)).collect();
    names.iter().filter_map(|owner| Some((owner.id, *ids.get(&*owner.name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_found_by_number_and_mapped_by_name() {
        let there = Owners::parse(
            b"root:x:0:0:root:/root:/bin/sh\nanna:x:1000:1000::/home/anna:\nbad line\n:x:7:7\n\
              toor:x:0:0::\nbob:x:1001:1001::/:\nhuge:x:4294967296:0::\n",
            b"root:x:0:\nstaff:x:50:anna,bob\n",
        );
        let users = there.users(&BTreeSet::from([0, 7, 1000, 1001, 5]));
        let names: Vec<_> = users.iter().map(|user| (user.id, &*user.name)).collect();
        assert_eq!(names, [(0, &b"root"[..]), (1000, b"anna"), (1001, b"bob")]);
        let groups = there.groups(&BTreeSet::from([50]));
        let here = Owners::parse(b"root:x:0:0\nanna:x:2000:1\n", b"staff:x:51:\n");
        let map = OwnerMap::by_name(&users, &groups, &here);
        let seen: Vec<u32> = [0, 1000, 1001, 9].map(|id| map.user(id)).into();
        assert_eq!(seen, [0, 2000, 1001, 9]);
        assert_eq!((map.group(50), map.group(1000)), (51, 1000));
        assert!(Owners::of_this_machine().unwrap().users(&BTreeSet::from([0])).len() == 1);
        let mut more = there.clone();
        [(1000, &b"other"[..]), (3000, b"carl"), (3001, b"")]
            .into_iter()
            .for_each(|(id, name)| more.add_user(id, name));
        more.add_group(51, b"carl");
        assert_eq!((more.user_id(b"anna"), more.user_id(b"carl")), (Some(1000), Some(3000)));
        assert_eq!((more.user_id(b"other"), more.user_id(b"")), (None, None));
        assert_eq!((more.group_id(b"carl"), more.group_id(b"anna")), (Some(51), None));
    }
}
