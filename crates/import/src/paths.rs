//! Paths in archives.

use silt_format::tree::NAME_BYTES_MAX;

/// Maximum length of a path in bytes: 32 times that of a path that Linux opens at once.
pub(crate) const PATH_BYTES_MAX: usize = 128 << 10;

/// Separates the names of a key. No name contains it, and it is below every byte that one can
/// contain. So keys ascend in the order of a tree: a directory comes right before its content.
pub(crate) const SEPARATOR: u8 = 0;

/// The names of a path, joined by [`SEPARATOR`]; empty for the root of the archive.
///
/// `./`, repeated slashes and a slash at the end mean nothing. The error is the reason why the
/// path is refused.
pub(crate) fn key(path: &[u8]) -> Result<Vec<u8>, &'static str> {
    if path.len() > PATH_BYTES_MAX {
        return Err("its path is longer than 128 KiB");
    }
    if path.is_empty() {
        return Err("it has no path");
    }
    if path.contains(&SEPARATOR) {
        return Err("its path contains a zero byte");
    }
    if path.starts_with(b"/") {
        return Err("its path is absolute");
    }
    let mut key = Vec::with_capacity(path.len());
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        if name == b".." {
            return Err("its path contains '..'");
        }
        if name.len() > NAME_BYTES_MAX {
            return Err("a name in its path is longer than 255 bytes");
        }
        if !key.is_empty() {
            key.push(SEPARATOR);
        }
        key.extend_from_slice(name);
    }
    Ok(key)
}

/// The key of a path below `root`; `None` if it is elsewhere.
pub(crate) fn below<'k>(key: &'k [u8], root: &[u8]) -> Option<&'k [u8]> {
    if root.is_empty() {
        return Some(key);
    }
    match key.strip_prefix(root)? {
        [] => Some(&[]),
        [SEPARATOR, rest @ ..] => Some(rest),
        _ => None,
    }
}

/// The path of a key, as a user knows it.
pub(crate) fn path_of(key: &[u8]) -> Vec<u8> {
    if key.is_empty() {
        return b".".to_vec();
    }
    key.iter().map(|byte| if *byte == SEPARATOR { b'/' } else { *byte }).collect()
}

/// The names of a key; none for the root.
pub(crate) fn names(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    key.split(|byte| *byte == SEPARATOR).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_keys_or_are_refused() {
        assert_eq!(key(b"./a//b/./c/"), Ok(b"a\0b\0c".to_vec()));
        assert_eq!(key(b"./"), Ok(Vec::new()));
        assert_eq!(key(b"a..b/...").unwrap(), b"a..b\0...");
        for path in [&b"/etc"[..], b"a/../b", b"..", b"", b"a\0b"] {
            assert!(key(path).is_err(), "{path:?}");
        }
        assert!(key(&[b'a'; 255]).is_ok());
        assert!(key(&[b'a'; 256]).is_err());
        assert!(key(&b"a/".repeat(70_000)).is_err());
    }

    #[test]
    fn keys_ascend_in_the_order_of_a_tree() {
        let mut keys: Vec<Vec<u8>> =
            [&b"a!"[..], b"a/b", b"a", b"a/b!/x", b"a/b/c", b"A"].map(|it| key(it).unwrap()).into();
        keys.sort();
        let paths: Vec<_> = keys.iter().map(|key| path_of(key)).collect();
        assert_eq!(paths, [&b"A"[..], b"a", b"a/b", b"a/b/c", b"a/b!/x", b"a!"]);
    }

    #[test]
    fn a_root_is_taken_off() {
        let root = key(b"srv/home").unwrap();
        assert_eq!(below(&key(b"srv/home/x").unwrap(), &root), Some(&b"x"[..]));
        assert_eq!(below(&key(b"srv/home").unwrap(), &root), Some(&b""[..]));
        assert_eq!(below(&key(b"srv/homes/x").unwrap(), &root), None);
        assert_eq!(below(&key(b"srv").unwrap(), &root), None);
    }
}
