//! `silt diff` of file trees.

use serde_json::json;
use silt_format::tree::Metadata;
use siltstone::{ChangeKind, FoundVolume, Repository, TreeChange};

use super::list::nanoseconds;
use super::restore::{failed, failures_json};
use crate::commands::{Failure, Session, listing};
use crate::output;

/// Prints what differs between places in two file trees.
pub fn compare(
    session: &Session<'_>,
    repository: &Repository,
    old: (FoundVolume<'_>, &[u8]),
    new: (FoundVolume<'_>, &[u8]),
) -> Result<u8, Failure> {
    let name = &new.0.volume().name;
    let mut sink = |change: &TreeChange| {
        if session.global.json {
            print_json(name, change);
        } else {
            print(change);
        }
        Ok(())
    };
    let memory = session.global.memory << 20;
    let diff = repository.diff_trees(old, new, memory, &mut sink)?;
    if session.global.json {
        let value = json!({
            "volume": name,
            "added": diff.added,
            "removed": diff.removed,
            "content": diff.content,
            "attributes": diff.attributes,
            "types": diff.types,
            "moved": diff.moved,
            "added_bytes": diff.added_bytes,
            "removed_bytes": diff.removed_bytes,
            "failed": diff.failures.count,
            "failures": failures_json(&diff.failures.first),
        });
        output::message("diff", value);
    } else {
        output::line(&format!(
            "Volume '{name}': {} added, {} removed, {} with different content, {} with different \
             attributes, {} of a different type, {} renamed; {} new, {} gone",
            diff.added,
            diff.removed,
            diff.content,
            diff.attributes,
            diff.types,
            diff.moved,
            output::bytes(diff.added_bytes),
            output::bytes(diff.removed_bytes),
        ));
    }
    Ok(failed(&diff.failures.first, diff.failures.count, "NOT compared"))
}

fn print(change: &TreeChange) {
    let letter = match change.kind {
        ChangeKind::Added => '+',
        ChangeKind::Removed => '-',
        ChangeKind::Content => 'M',
        ChangeKind::Attributes => 'U',
        ChangeKind::Type => 'T',
        ChangeKind::Moved => 'R',
    };
    let mut text = format!("{letter} /{}", String::from_utf8_lossy(&change.path));
    if let Some(old) = &change.old_path {
        text = format!("{letter} /{} -> {}", String::from_utf8_lossy(old), &text[2..]);
    }
    if !change.attributes.is_empty() && change.kind != ChangeKind::Content {
        text = format!("{text} ({})", change.attributes.join(", "));
    }
    output::line(&text);
}

fn print_json(volume: &str, change: &TreeChange) {
    let kind = match change.kind {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Content => "content",
        ChangeKind::Attributes => "attributes",
        ChangeKind::Type => "type",
        ChangeKind::Moved => "moved",
    };
    let side = |metadata: &Option<Box<Metadata>>| {
        metadata.as_deref().map(|metadata| {
            json!({
                "type": listing::kind_name(metadata.kind),
                "bytes": metadata.size,
                "modified": output::rfc3339(nanoseconds(metadata.modified)),
            })
        })
    };
    let mut value = json!({
        "volume": volume,
        "change": kind,
        "old": side(&change.old),
        "new": side(&change.new),
        "attributes": change.attributes,
    });
    for (key, path) in [("path", Some(&change.path)), ("old_path", change.old_path.as_ref())] {
        if let Some(path) = path {
            listing::set_bytes(&mut value, key, path);
            value[key] = format!("/{}", String::from_utf8_lossy(path)).into();
        }
    }
    output::message("change", value);
}
