//! What a backup tells of file trees.

use serde_json::{Value, json};
use siltstone::{LeftOut, Omission, Unreliable};

use crate::{listing, output};

/// Says that a dry run found an entry that a backup leaves out.
pub fn left_out(entry: &LeftOut<'_>) -> String {
    let path = String::from_utf8_lossy(entry.path);
    let what = if entry.is_content { "the content of " } else { "" };
    let why = match entry.why {
        Omission::Pattern(pattern) => {
            format!("it matches '{}'", String::from_utf8_lossy(pattern))
        }
        Omission::Cache => "CACHEDIR.TAG marks it as a cache".to_owned(),
        Omission::Marker(name) => format!("it has '{}'", String::from_utf8_lossy(name)),
        Omission::TooLarge(limit) => format!("it is larger than {}", output::bytes(limit)),
        Omission::NoDump => "its flag nodump is set".to_owned(),
        Omission::OtherFileSystem => "it is on another file system".to_owned(),
        Omission::PseudoFileSystem => "it is on a file system of the kernel".to_owned(),
        other => other.name().to_owned(),
    };
    format!("Would leave out {what}'{path}': {why}")
}

pub fn left_out_json(entry: &LeftOut<'_>) -> Value {
    let mut value = json!({"content_only": entry.is_content, "reason": entry.why.name()});
    listing::set_bytes(&mut value, "path", entry.path);
    match entry.why {
        Omission::Pattern(pattern) => listing::set_bytes(&mut value, "pattern", pattern),
        Omission::Marker(name) => listing::set_bytes(&mut value, "marker", name),
        Omission::TooLarge(limit) => value["limit_bytes"] = limit.into(),
        _ => {}
    }
    value
}

/// Says which metadata is ignored on a file system, and what is missed without it.
pub fn unreliable(found: &Unreliable<'_>) -> String {
    let consequence = match (found.ignores_inode, found.ignores_changed) {
        (true, true) => {
            "files are compared by size and modification time only; a change that keeps both is \
             missed without --reread"
        }
        (false, _) => {
            "files are compared without change times; a change that keeps size and modification \
             time is missed without --reread"
        }
        (true, false) => {
            "files are compared without inode numbers, so those in renamed directories are read \
             again"
        }
    };
    let path = String::from_utf8_lossy(found.path);
    format!("'{path}' is on {}: {consequence}", found.file_system)
}

pub fn unreliable_json(found: &Unreliable<'_>) -> Value {
    let mut value = json!({
        "type": found.file_system,
        "ignores_inode": found.ignores_inode,
        "ignores_ctime": found.ignores_changed,
    });
    listing::set_bytes(&mut value, "path", found.path);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_told() {
        let told = |is_content, why| left_out(&LeftOut { path: b"/a/b", is_content, why });
        assert_eq!(
            told(false, Omission::Pattern(b"*.o")),
            "Would leave out '/a/b': it matches '*.o'"
        );
        assert_eq!(
            told(true, Omission::Cache),
            "Would leave out the content of '/a/b': CACHEDIR.TAG marks it as a cache"
        );
        let large = LeftOut { path: b"/\xff", is_content: false, why: Omission::TooLarge(9) };
        assert_eq!(
            left_out_json(&large),
            json!({"path": "/\u{fffd}", "path_hex": "2fff", "content_only": false,
                "reason": "size", "limit_bytes": 9})
        );
    }

    #[test]
    fn the_consequence_depends_on_what_is_ignored() {
        let told = |ignores_inode, ignores_changed| {
            let (path, file_system) = (&b"/mnt"[..], "FUSE");
            unreliable(&Unreliable { path, file_system, ignores_inode, ignores_changed })
        };
        assert!(told(true, true).starts_with("'/mnt' is on FUSE: files are compared by size"));
        assert!(told(false, true).contains("without change times"));
        assert!(told(true, false).contains("renamed directories are read again"));
    }
}
