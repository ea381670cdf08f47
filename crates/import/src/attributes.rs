//! Extended attributes, access control lists and flags as archives have them.

use silt_format::tree::{XATTR_BYTES_MAX, XATTRS_BYTES_MAX, Xattr};
use silt_tree::Owners;

/// Maximum length of an attribute's name in bytes, as of Linux.
const NAME_BYTES_MAX: usize = 255;
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// The tags of an access control list's entries, in the order in which the kernel has them.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of entries that name nobody.
const NOBODY: u32 = u32::MAX;
/// Flags of files by the names that libarchive gives them, and their bits of `FS_IOC_GETFLAGS`.
const FLAGS: [(&str, u32); 16] = [
    ("secdel", 0x1),
    ("undel", 0x2),
    ("compress", 0x4),
    ("sync", 0x8),
    ("schg", 0x10),
    ("schange", 0x10),
    ("simmutable", 0x10),
    ("sappnd", 0x20),
    ("sappend", 0x20),
    ("nodump", 0x40),
    ("noatime", 0x80),
    ("journal-data", 0x4000),
    ("journal", 0x4000),
    ("dirsync", 0x1_0000),
    ("topdir", 0x2_0000),
    ("nocow", 0x80_0000),
];

/// The name of an attribute without the escapes that GNU tar writes for `%` and `=`, or with
/// `all` without those that libarchive writes for many bytes.
pub(crate) fn decoded(name: &[u8], all: bool) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, behind @ ..] = rest {
        let escaped = match behind {
            [high, low, ..] if *first == b'%' => {
                digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low)
            }
            _ => None,
        };
        if let Some(byte) = escaped.filter(|byte| all || matches!(byte, b'%' | b'=')) {
            plain.push(byte);
            rest = &behind[2..];
        } else {
            plain.push(*first);
            rest = behind;
        }
    }
    plain
}

/// The mode of a file with an access control list: its bits are those of the owner, of the mask
/// and of others. bsdtar writes those of the group in place of the mask.
pub(crate) fn mode_of(mode: u16, acl: &[u8]) -> u16 {
    let Some(entries) = acl.get(4..) else { return mode };
    let (entries, _) = entries.as_chunks::<8>();
    let bits = |wanted: u16| {
        let has_tag = |entry: &&[u8; 8]| u16::from_le_bytes([entry[0], entry[1]]) == wanted;
        entries.iter().find(has_tag).map(|entry| u16::from_le_bytes([entry[2], entry[3]]) & 7)
    };
    match (bits(OWNER), bits(MASK).or(bits(OWNING_GROUP)), bits(OTHER)) {
        (Some(owner), Some(group), Some(other)) => mode & 0o7000 | owner << 6 | group << 3 | other,
        _ => mode,
    }
}

/// The attributes of an entry in the order of their names; of several with one name, the last
/// counts. Those that can't be stored are left out, and returned as well.
pub(crate) fn sorted(xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> (Vec<Xattr>, Vec<Vec<u8>>) {
    let (mut kept, mut left_out): (Vec<Xattr>, Vec<_>) = (Vec::new(), Vec::new());
    let mut xattrs: Vec<Xattr> =
        xattrs.into_iter().map(|(name, value)| Xattr { name, value }).collect();
    xattrs.reverse();
    xattrs.sort_by(|a, b| a.name.cmp(&b.name));
    xattrs.dedup_by(|later, first| later.name == first.name);
    let mut bytes = 0;
    for xattr in xattrs {
        let sum = bytes + xattr.name.len() + xattr.value.len();
        let is_name = (1..=NAME_BYTES_MAX).contains(&xattr.name.len()) && !xattr.name.contains(&0);
        if !is_name || xattr.value.len() > XATTR_BYTES_MAX || sum > XATTRS_BYTES_MAX {
            left_out.push(xattr.name);
            continue;
        }
        bytes = sum;
        kept.push(xattr);
    }
    (kept, left_out)
}

/// An access control list in the kernel's form. `None` if the text is none, or names somebody who
/// is known neither to the archive nor to this machine.
pub(crate) fn acl(text: &[u8], owners: &[&Owners]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for line in text.split(['\n', ',']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            entries.push(acl_entry(line, owners)?);
        }
    }
    entries.sort_unstable_by_key(|(tag, id, _)| (*tag, *id));
    entries.dedup_by_key(|(tag, id, _)| (*tag, *id));
    let has = |wanted| entries.iter().any(|(tag, ..)| *tag == wanted);
    let needs_mask = has(USER) || has(GROUP);
    if ![OWNER, OWNING_GROUP, OTHER].into_iter().all(has) || (needs_mask && !has(MASK)) {
        return None;
    }
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Some(value)
}

/// Whether a list says no more than the mode of the file, so that the file has none.
pub(crate) fn is_mode_only(acl: &[u8]) -> bool {
    acl.len() == 4 + 3 * 8
}

/// Tag, id and permissions of an entry such as `user:1000:r-x`. star and libarchive add the number
/// behind a name: `user:lisa:r-x:502`.
fn acl_entry(line: &str, owners: &[&Owners]) -> Option<(u16, u32, u16)> {
    let fields: Vec<&str> = line.split(':').map(str::trim).collect();
    let (kind, name, permissions, number) = match fields[..] {
        [kind @ ("mask" | "m" | "other" | "o"), permissions] => (kind, "", permissions, None),
        [kind, name, permissions] => (kind, name, permissions, None),
        [kind, name, permissions, number] => (kind, name, permissions, Some(number)),
        _ => return None,
    };
    let is_user = matches!(kind, "user" | "u");
    let (tag, tag_of_named) = match kind {
        "user" | "u" => (OWNER, USER),
        "group" | "g" => (OWNING_GROUP, GROUP),
        "mask" | "m" => (MASK, MASK),
        "other" | "o" => (OTHER, OTHER),
        _ => return None,
    };
    let id = if name.is_empty() || tag == tag_of_named {
        NOBODY
    } else if let Some(id) = number.and_then(|number| number.parse().ok()) {
        id
    } else if let Ok(id) = name.parse() {
        id
    } else {
        owners.iter().find_map(|owners| {
            if is_user { owners.user_id(name.as_bytes()) } else { owners.group_id(name.as_bytes()) }
        })?
    };
    let bits = permissions.chars().try_fold(0, |bits, letter| match letter {
        'r' => Some(bits | 4),
        'w' => Some(bits | 2),
        'x' => Some(bits | 1),
        '-' => Some(bits),
        _ => None,
    })?;
    Some((if id == NOBODY { tag } else { tag_of_named }, id, bits))
}

/// Flags of a file by their names, and whether all names are known.
pub(crate) fn flags(text: &[u8]) -> (u32, bool) {
    let text = String::from_utf8_lossy(text);
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.fold((0, true), |(bits, all), name| {
        match FLAGS.iter().find(|(known, _)| *known == name) {
            Some((_, bit)) => (bits | bit, all),
            None => (bits, false),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_in_every_programs_spelling() {
        let known = Owners::parse(b"lisa:x:502:502::/:/bin/sh\n", b"staff:x:50:\n");
        let here = Owners::parse(b"lisa:x:7:7::/:/bin/sh\nmax:x:8:8::/:\n", b"");
        let expected = |text: &str| acl(text.as_bytes(), &[&known, &here]);
        let canonical = expected("user::rwx,user:502:r-x,group::r--,mask::r-x,other::---").unwrap();
        assert_eq!(canonical.len(), 4 + 5 * 8);
        assert_eq!(&canonical[12..20], [2, 0, 5, 0, 0xf6, 1, 0, 0]);
        for text in [
            "user::rwx\nuser:lisa:r-x\ngroup::r--\nmask::r-x\nother::---\n",
            "u::rwx,g::r,o::-,u:lisa:rx:502,m::rx",
            "user::rwx,user:nobody here:r-x:502,group::r--,mask:r-x,other:---",
            "user::rwx,user:lisa:r-x\t#effective:r--,group::r--,mask::r-x,other::---",
        ] {
            assert_eq!(expected(text), Some(canonical.clone()), "{text}");
        }
        let max = expected("user::rwx,user:max:r-x,group::r--,mask::r-x,other::---").unwrap();
        assert_eq!(max[16], 8, "this machine knows him");
        assert_eq!(mode_of(0o4777, &canonical), 0o4750);
        assert_eq!(mode_of(0o644, b""), 0o644);
        assert!(is_mode_only(&expected("user::rw-,group::r--,other::r--").unwrap()));
        for text in [
            "",
            "user::rwx",
            "user:ghost:r--,user::r,group::r,other::r,mask::r",
            "x::r",
            "user::rwz,group::r,other::r",
            "user:5:r,user::r,group::r,other::r",
        ] {
            assert_eq!(expected(text), None, "{text}");
        }
    }

    #[test]
    fn names_of_attributes_are_decoded_and_limits_kept() {
        assert_eq!(decoded(b"user.a%3Db%25%20%", false), b"user.a=b%%20%");
        assert_eq!(decoded(b"user.a%3db%25%20%2", true), b"user.a=b% %2");
        let large = (b"user.large".to_vec(), vec![0; XATTR_BYTES_MAX + 1]);
        let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        let (kept, left_out) =
            sorted(vec![pair(b"user.b", b"1"), pair(b"user.a", b""), large, pair(b"user.b", b"2")]);
        let kept: Vec<_> = kept.iter().map(|it| (&it.name[..], &it.value[..])).collect();
        assert_eq!(kept, [(&b"user.a"[..], &b""[..]), (b"user.b", b"2")]);
        assert_eq!(left_out, [b"user.large".to_vec()]);
        let many = (0..40).map(|at| (format!("user.{at}").into_bytes(), vec![0; 60_000]));
        let (kept, left_out) = sorted(many.collect());
        assert_eq!((kept.len(), left_out.len()), (17, 23));
    }

    #[test]
    fn flags_are_known_by_name() {
        assert_eq!(flags(b"schg,nodump"), (0x50, true));
        assert_eq!(flags(b"uarch,sappnd"), (0x20, false));
    }
}
