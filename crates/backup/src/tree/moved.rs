//! Finding a renamed directory in the parent by its inode number.

use std::collections::HashSet;

use silt_format::Result;
use silt_format::tree::{Entry, EntryKind, Subtree, TreePage};
use silt_repository::objects::is_damage;
use silt_repository::tree::TreeReader;

/// Maximum number of directories in the table, which take 5 MiB. Files in other renamed directories
/// are read again.
const DIRECTORIES_MAX: usize = 65_536;

/// The number of a file system in the tree, and an inode number.
pub(crate) type FileNumber = (u16, u64);

/// The directories of the parent by their numbers. Finding a directory proves nothing, as inode
/// numbers are reused: the metadata of each entry is compared as usual.
pub(crate) struct Moved {
    directories: Vec<(FileNumber, Subtree)>,
}

impl Moved {
    /// Reads all pages of the parent's tree. Stops without an error at the first damaged one.
    pub(crate) fn read(reader: &TreeReader, root: &Entry) -> Result<Self> {
        let mut directories = Vec::new();
        let read = reader.each_page(root, &mut HashSet::new(), &mut |_, page| {
            let TreePage::Leaf(entries) = page else { return Ok(()) };
            let found = entries.iter().filter(|it| it.metadata.kind == EntryKind::Directory);
            let found = found.filter_map(|it| Some((number(it), it.subtree?)));
            let room = DIRECTORIES_MAX - directories.len();
            directories.extend(found.take(room));
            Ok(())
        });
        match read {
            Err(error) if !is_damage(&error) => return Err(error),
            _ => {}
        }
        directories.sort_unstable_by_key(|(number, _)| *number);
        Ok(Self { directories })
    }

    pub(crate) fn find(&self, number: FileNumber) -> Option<Subtree> {
        let place = self.directories.binary_search_by_key(&number, |(number, _)| *number);
        place.ok().map(|place| self.directories[place].1)
    }
}

fn number(entry: &Entry) -> FileNumber {
    (entry.metadata.file_system, entry.metadata.inode)
}
