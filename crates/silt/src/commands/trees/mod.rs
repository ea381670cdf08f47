//! File trees: what is backed up of them, `silt ls` and `silt cat`, and restoring them.

mod compare;
mod dump;
mod find;
mod list;
mod restore;

use std::path::Path;

use serde_json::{Value, json};
use silt_format::tree::{FileKind, KindCounts, Tree, TreeCounts};
use silt_format::{Error, ErrorKind, Volume, VolumeKind};
use siltstone::{Found, FoundVolume};

pub use compare::compare;
pub use dump::dump;
pub use find::{find, versions};
pub use list::{cat, ls};
pub use restore::{failures_json, restore};

use super::Failure;
use crate::output;

/// Prints the counts of a tree, and how much it has of each kind of files.
pub fn print_kinds(volume: &Volume) {
    let Some(tree) = volume.tree() else { return };
    output::line(&format!("  {}", counts_text(tree)));
    let all: u64 = tree.kinds.iter().map(|kind| kind.bytes).sum();
    let mut kinds: Vec<_> = FileKind::ALL.iter().zip(tree.kinds).collect();
    kinds.retain(|(_, counts)| counts.files > 0);
    kinds.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.bytes));
    let row = |(kind, counts): (&FileKind, KindCounts)| {
        vec![
            format!("  {}", kind.name()),
            counts.files.to_string(),
            output::bytes(counts.bytes),
            output::percent(counts.bytes, all),
        ]
    };
    let rows: Vec<_> = kinds.into_iter().map(row).collect();
    output::table(&["  KIND", "FILES", "BYTES", "SHARE"], &rows, &[1, 2, 3]);
}

/// How many entries a tree has, and what happened to others.
pub fn counts_text(tree: &Tree) -> String {
    let (counts, below) = (tree.counts, tree.root.subtree.as_ref());
    let mut text = format!(
        "{}, {}, {}, {}; {} left out",
        output::count(counts.files, "file"),
        output::count(counts.directories, "directory"),
        output::count(counts.others, "other"),
        output::bytes(below.map_or(0, |below| below.bytes_below)),
        counts.excluded
    );
    for (count, what) in [
        (counts.changed, "changed while read"),
        (counts.vanished, "vanished before read"),
        (counts.unreadable, "unreadable"),
    ] {
        if count > 0 {
            text = format!("{text}, {count} {what}");
        }
    }
    text
}

/// The same as JSON.
pub fn counts_json(volume: &Volume) -> Value {
    let Some(tree) = volume.tree() else { return Value::Null };
    let TreeCounts { files, directories, others, unreadable, changed, excluded, vanished } =
        tree.counts;
    json!({
        "files": files, "directories": directories, "others": others, "unreadable": unreadable,
        "changed": changed, "left_out": excluded, "vanished": vanished,
    })
}

/// The kinds of a tree's files as JSON, by their names.
pub fn kinds_json(volume: &Volume) -> Value {
    let Some(tree) = volume.tree() else { return Value::Null };
    let pairs = FileKind::ALL.iter().zip(tree.kinds).map(|(kind, counts)| {
        (kind.name().to_owned(), json!({"files": counts.files, "bytes": counts.bytes}))
    });
    Value::Object(pairs.collect())
}

/// Whether a volume on the command line is a directory tree.
pub fn is_tree(path: &Path) -> bool {
    path.is_dir()
}

/// Whether a volume of a snapshot is a file tree.
pub fn is_tree_volume(of: &FoundVolume<'_>) -> bool {
    matches!(of.volume().kind, VolumeKind::Tree(_))
}

/// The file tree of a snapshot: the one that is named, or the only one.
pub fn tree<'f>(found: &'f Found, name: Option<&str>) -> Result<FoundVolume<'f>, Failure> {
    let is_tree = is_tree_volume;
    if let Some(name) = name {
        let of = found.volume(name)?;
        if is_tree(&of) {
            return Ok(of);
        }
        let message = format!("{} is a disk; `silt files` reads files inside disks", of.describe());
        return Err(Error::new(ErrorKind::Invalid, message).into());
    }
    let mut trees = found.volumes().filter(is_tree);
    match (trees.next(), trees.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => {
            let message = "the snapshot has no file tree; `silt files` reads files inside disks";
            Err(Error::new(ErrorKind::NotFound, message).into())
        }
        (Some(first), Some(_)) => {
            let names = found.volumes().filter(is_tree).map(|of| of.volume().name.clone());
            Err(Failure::Usage(format!(
                "the snapshot has several file trees ({}); name one, as in {}@latest:{}/PATH",
                names.collect::<Vec<_>>().join(", "),
                found.head.shown(),
                first.volume().name
            )))
        }
    }
}
