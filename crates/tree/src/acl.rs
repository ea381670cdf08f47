//! POSIX ACLs as text.

/// The extended attribute that holds the ACL of an entry.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The extended attribute that holds the ACL for new entries of a directory.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// A user or a group in an ACL, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclOwner {
    /// A user id.
    User(u32),
    /// A group id.
    Group(u32),
}

/// Returns the users and groups in an ACL, in its order; nothing if `value` is not in the layout of
/// Linux.
pub fn acl_owners(value: &[u8]) -> impl Iterator<Item = AclOwner> {
    entries(value).unwrap_or_default().iter().copied().filter_map(owner)
}

/// Returns the entries of an ACL as `getfacl` shows them, such as `user:alice:r--`. `name` returns
/// the name of a user or group. Returns `None` if `value` is not in the layout of Linux.
pub fn acl_text(value: &[u8], name: &dyn Fn(AclOwner) -> String) -> Option<Vec<String>> {
    let line = |entry: [u8; 8]| {
        let who = match (owner(entry), number(entry, 0)) {
            (Some(of @ AclOwner::User(_)), _) => format!("user:{}", name(of)),
            (Some(of @ AclOwner::Group(_)), _) => format!("group:{}", name(of)),
            (None, 0x01) => "user:".to_owned(),
            (None, 0x04) => "group:".to_owned(),
            (None, 0x10) => "mask:".to_owned(),
            (None, 0x20) => "other:".to_owned(),
            _ => return None,
        };
        Some(format!("{who}:{}", permissions(number(entry, 2))))
    };
    entries(value)?.iter().copied().map(line).collect()
}

/// Returns the entries of the ACL that a mode alone stands for.
pub fn mode_acl_text(mode: u16) -> Vec<String> {
    let classes = [("user", 6), ("group", 3), ("other", 0)];
    classes.map(|(who, shift)| format!("{who}::{}", permissions(mode >> shift))).to_vec()
}

fn permissions(bits: u16) -> String {
    [(4, 'r'), (2, 'w'), (1, 'x')]
        .map(|(bit, it)| if bits & bit == 0 { '-' } else { it })
        .iter()
        .collect()
}

fn entries(value: &[u8]) -> Option<&[[u8; 8]]> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    let (entries, rest) = entries.as_chunks::<8>();
    (u32::from_le_bytes(*version) == 2 && rest.is_empty()).then_some(entries)
}

fn owner(entry: [u8; 8]) -> Option<AclOwner> {
    let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
    match number(entry, 0) {
        0x02 => Some(AclOwner::User(id)),
        0x08 => Some(AclOwner::Group(id)),
        _ => None,
    }
}

fn number(entry: [u8; 8], at: usize) -> u16 {
    u16::from_le_bytes([entry[at], entry[at + 1]])
}
