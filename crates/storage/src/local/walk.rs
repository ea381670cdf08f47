//! Lists a folder in the byte order of keys.
//!
//! The order of keys is not that of the names in each folder: `a-b` comes before `a/c`. Comparing
//! each folder's name with a `/` appended, as in every key below it, gives the order of keys.

use std::fs;
use std::io;
use std::path::Path;

use silt_format::{Error, Result};

use super::is_absent;
use crate::key::is_part;
use crate::{Key, LIST_PAGE_OBJECTS_MAX, ListPage};

/// Returns one page of the objects below `root`; a missing folder has none.
///
/// Reads only folders that can hold such objects, and holds only the names of the folders on the
/// current path.
pub(super) fn list(root: &Path, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
    let mut page = ListPage { objects: Vec::new(), truncated: false };
    let start = match prefix.rfind('/') {
        // No key begins with such a prefix, which must not be used as a path.
        Some(end) if Key::new(&prefix[..end]).is_err() => return Ok(page),
        Some(end) => &prefix[..=end],
        None => "",
    };
    let wanted = Wanted { prefix, after: after.map_or("", Key::as_str) };
    let mut levels = vec![read_folder(root, start, wanted)?.into_iter()];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.next() else {
            levels.pop();
            continue;
        };
        if name.ends_with('/') {
            levels.push(read_folder(root, &name, wanted)?.into_iter());
            continue;
        }
        let Some(size) = file_size(&root.join(&name))? else { continue };
        if page.objects.len() == LIST_PAGE_OBJECTS_MAX {
            page.truncated = true;
            break;
        }
        page.objects.push((Key::new(name)?, size));
    }
    Ok(page)
}

#[derive(Clone, Copy)]
struct Wanted<'a> {
    prefix: &'a str,
    /// Empty for the start: every key comes after it.
    after: &'a str,
}

impl Wanted<'_> {
    fn object(self, key: &str) -> bool {
        key.starts_with(self.prefix) && key > self.after
    }

    /// Whether keys that begin with `folder`, which ends in a slash, can be in the page.
    fn folder(self, folder: &str) -> bool {
        (folder.starts_with(self.prefix) || self.prefix.starts_with(folder))
            && (folder > self.after || self.after.starts_with(folder))
    }
}

/// The wanted keys and folders (with a `/` at the end) right below `folder`, in key order.
fn read_folder(root: &Path, folder: &str, wanted: Wanted<'_>) -> Result<Vec<String>> {
    let path = root.join(folder);
    let failed = |error| Error::io(format!("list {}", path.display()), error);
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let file_name = entry.file_name();
        let Some(part) = file_name.to_str().filter(|part| is_part(part)) else { continue };
        let mut name = format!("{folder}{part}");
        // Also ends a walk through a cycle of links, if the kernel does not do so earlier.
        if Key::new(&*name).is_err() {
            continue;
        }
        match is_folder(&entry) {
            Ok(Some(true)) => {
                name.push('/');
                if wanted.folder(&name) {
                    names.push(name);
                }
            }
            Ok(Some(false)) if wanted.object(&name) => names.push(name),
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether an entry is a folder or a file; `None` for anything else, or if it is gone.
fn is_folder(entry: &fs::DirEntry) -> io::Result<Option<bool>> {
    let mut kind = entry.file_type()?;
    if kind.is_symlink() {
        // Reads follow links, so listings do too: a readable object must be listed.
        match fs::metadata(entry.path()) {
            Ok(found) => kind = found.file_type(),
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(if kind.is_dir() {
        Some(true)
    } else if kind.is_file() {
        Some(false)
    } else {
        None
    })
}

/// The size in bytes, or `None` if the file was deleted meanwhile.
fn file_size(path: &Path) -> Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(found) => Ok(found.is_file().then_some(found.len())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(Error::io(format!("look at {}", path.display()), error)),
    }
}
