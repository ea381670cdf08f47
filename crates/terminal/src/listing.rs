//! Files as `ls -l` shows them, of disks and of file trees.

use serde_json::{Value, json};
use silt_format::tree::{EntryKind, Xattr};
use silt_tree::mode_acl_text;

use crate::output;

/// A file to show.
pub struct Listed<'a> {
    /// The name, or the path that is shown in its place.
    pub name: &'a [u8],
    /// Its type.
    pub kind: EntryKind,
    /// The twelve bits of the mode.
    pub mode: u16,
    /// The inode number.
    pub inode: u64,
    /// The number of names that it has.
    pub links: u32,
    /// The number of its owner.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// The name of its owner, where it is known.
    pub user: Option<String>,
    /// The name of its group, where it is known.
    pub group: Option<String>,
    /// The size of a file.
    pub bytes: u64,
    /// When its content was changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// When it was read, where that is known.
    pub accessed_ns: Option<i64>,
    /// Where a symbolic link leads.
    pub target: Option<&'a [u8]>,
    /// Extended attributes, with those that hold ACLs.
    pub xattrs: &'a [Xattr],
    /// The ACL as lines of `getfacl`.
    pub acl: Option<Vec<String>>,
    /// The ACL for new entries of a directory.
    pub default_acl: Option<Vec<String>>,
}

/// How the names of the extended attributes begin that hold ACLs.
const ACLS: &[u8] = b"system.posix_acl_";

/// The headings of [`Listed::row`].
pub const HEADER: [&str; 7] = ["MODE", "LINKS", "OWNER", "GROUP", "SIZE", "MODIFIED", "NAME"];
/// The columns that are numbers.
pub const RIGHT: [usize; 2] = [1, 4];

impl Listed<'_> {
    /// The cells of a row, under [`HEADER`].
    pub fn row(&self) -> Vec<String> {
        let mut shown = String::from_utf8_lossy(self.name).into_owned();
        if let Some(target) = self.target {
            shown.push_str(" -> ");
            shown.push_str(&String::from_utf8_lossy(target));
        }
        vec![
            self.mode_text(),
            self.links.to_string(),
            self.user.clone().unwrap_or_else(|| self.uid.to_string()),
            self.group.clone().unwrap_or_else(|| self.gid.to_string()),
            self.bytes.to_string(),
            output::time(self.modified_ns),
            shown,
        ]
    }

    /// The fields of a JSON message.
    pub fn json(&self) -> Value {
        let mut value = json!({
            "type": kind_name(self.kind),
            "mode": format!("{:04o}", self.mode),
            "inode": self.inode,
            "links": self.links,
            "uid": self.uid,
            "gid": self.gid,
            "bytes": self.bytes,
            "modified": output::rfc3339(self.modified_ns),
        });
        if let Some(accessed) = self.accessed_ns {
            value["accessed"] = output::rfc3339(accessed).into();
        }
        set_bytes(&mut value, "name", self.name);
        if let Some(target) = self.target {
            set_bytes(&mut value, "target", target);
        }
        if !self.xattrs.is_empty() {
            let names = self.xattrs.iter().map(|xattr| String::from_utf8_lossy(&xattr.name));
            value["xattrs"] = names.collect();
        }
        for (key, acl) in [("acl", &self.acl), ("default_acl", &self.default_acl)] {
            if let Some(lines) = acl {
                value[key] = json!(lines);
            }
        }
        for (key, name) in [("user", &self.user), ("group", &self.group)] {
            if let Some(name) = name {
                value[key] = name.as_str().into();
            }
        }
        value
    }

    /// Owner, group and ACL as `getfacl` prints them, so that `setfacl --restore` reads them.
    pub fn acl_lines(&self) -> Vec<String> {
        let owner = |name: &Option<String>, id: u32| name.clone().unwrap_or_else(|| id.to_string());
        let mut lines = vec![
            format!("# file: {}", acl_name(self.name)),
            format!("# owner: {}", owner(&self.user, self.uid)),
            format!("# group: {}", owner(&self.group, self.gid)),
        ];
        if self.mode & 0o7000 != 0 {
            let flag = |bit, letter| if self.mode & bit == 0 { '-' } else { letter };
            let flags = [flag(0o4000, 's'), flag(0o2000, 's'), flag(0o1000, 't')];
            lines.push(format!("# flags: {}", flags.iter().collect::<String>()));
        }
        lines.extend(self.acl.clone().unwrap_or_else(|| mode_acl_text(self.mode)));
        let default = self.default_acl.iter().flatten();
        lines.extend(default.map(|line| format!("default:{line}")));
        lines
    }

    fn mode_text(&self) -> String {
        let letter = match self.kind {
            EntryKind::File => '-',
            EntryKind::Directory => 'd',
            EntryKind::Symlink => 'l',
            EntryKind::CharDevice => 'c',
            EntryKind::BlockDevice => 'b',
            EntryKind::Fifo => 'p',
            EntryKind::Socket => 's',
        };
        let has = |bit: u16| self.mode & bit != 0;
        let mut text = String::from(letter);
        for (shift, special, plain, alone) in
            [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
        {
            text.push(if has(0o4 << shift) { 'r' } else { '-' });
            text.push(if has(0o2 << shift) { 'w' } else { '-' });
            text.push(match (has(0o1 << shift), has(special)) {
                (true, true) => plain,
                (false, true) => alone,
                (true, false) => 'x',
                (false, false) => '-',
            });
        }
        if self.xattrs.iter().any(|xattr| xattr.name.starts_with(ACLS)) {
            text.push('+');
        }
        text
    }
}

/// A name as `setfacl --restore` reads it: backslashes, bytes that a terminal would obey, and those
/// that are no text are octal numbers.
fn acl_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            let mut bytes = [0; 4];
            let shown = letter.encode_utf8(&mut bytes);
            if letter == '\\' || output::visible(shown) != *shown {
                text.extend(shown.bytes().map(octal));
            } else {
                text.push(letter);
            }
        }
        text.extend(chunk.invalid().iter().copied().map(octal));
    }
    text
}

fn octal(byte: u8) -> String {
    format!("\\{byte:03o}")
}

/// Sets a field to a name, and a field of its bytes in hexadecimal digits if it is not UTF-8.
pub fn set_bytes(value: &mut Value, key: &str, name: &[u8]) {
    value[key] = String::from_utf8_lossy(name).into();
    if let Some(digits) = hex(name) {
        value[format!("{key}_hex")] = digits.into();
    }
}

/// The bytes of a name that is not UTF-8, in hexadecimal digits.
pub fn hex(name: &[u8]) -> Option<String> {
    let is_text = std::str::from_utf8(name).is_ok();
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16));
    (!is_text).then(|| name.iter().flat_map(digits).flatten().collect())
}

/// The name of a kind of file.
pub fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink => "symlink",
        EntryKind::CharDevice => "character device",
        EntryKind::BlockDevice => "block device",
        EntryKind::Fifo => "fifo",
        EntryKind::Socket => "socket",
    }
}
