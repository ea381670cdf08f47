//! Lists of paths to which a walk is limited.

use std::io::{BufRead, Read as _};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use silt_format::number::{to_u32, to_u64};
use silt_format::{Error, Result};

/// Maximum size of all paths of a list in bytes.
const LIST_BYTES_MAX: usize = 1 << 30;

/// The paths of files and directories to which a walk is limited, each relative to the root or
/// absolute.
///
/// Holds the paths and 8 bytes for each; a walk needs 8 more for each path below its root.
#[derive(Clone, Debug, Default)]
pub struct PathList {
    bytes: Vec<u8>,
    paths: Vec<Span>,
}

/// A part of [`PathList::bytes`].
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    bytes: u32,
}

impl PathList {
    /// Adds a path. Ignores an empty one. Fails with `Invalid` if it contains `..` or a zero byte,
    /// or if the list becomes larger than 1 GiB.
    pub fn add(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() {
            return Ok(());
        }
        let start = self.bytes.len();
        if path.len() > LIST_BYTES_MAX - start {
            return Err(too_large());
        }
        let is_absolute = path[0] == b'/';
        for name in path.split(|&byte| byte == b'/') {
            match name {
                b"" | b"." => continue,
                b".." => return Err(refused(path, "contains '..'")),
                name if name.contains(&0) => return Err(refused(path, "contains a zero byte")),
                _ => {}
            }
            if is_absolute || self.bytes.len() > start {
                self.bytes.push(b'/');
            }
            self.bytes.extend_from_slice(name);
        }
        if is_absolute && self.bytes.len() == start {
            self.bytes.push(b'/');
        }
        let bytes = to_u32(self.bytes.len() - start);
        self.paths.push(Span { start: to_u32(start), bytes });
        Ok(())
    }

    /// Adds the lines of a file. Ignores empty lines and those that begin with `#`. Fails as
    /// [`add`](Self::add) does, with the number of the line.
    pub fn add_lines(&mut self, from: impl BufRead) -> Result<()> {
        self.read(from, b'\n', |line| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.starts_with(b"#") { b"" } else { line }
        })
    }

    /// Adds paths that end with zero bytes, as `find -print0` writes them. Fails as
    /// [`add`](Self::add) does.
    pub fn add_zero_terminated(&mut self, from: impl BufRead) -> Result<()> {
        self.read(from, 0, |path| path)
    }

    fn read(
        &mut self,
        mut from: impl BufRead,
        end: u8,
        path_of: impl Fn(&[u8]) -> &[u8],
    ) -> Result<()> {
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let room = to_u64(LIST_BYTES_MAX - self.bytes.len()) + 2;
            let read = from.by_ref().take(room).read_until(end, &mut line);
            if read.map_err(|error| Error::io("reading a list of paths", error))? == 0 {
                break;
            }
            let path = path_of(line.strip_suffix(&[end]).unwrap_or(&line));
            self.add(path).map_err(|error| error.context(format!("path {number} of the list")))?;
        }
        Ok(())
    }

    /// Returns whether the list has no path.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns whether a path is relative.
    pub fn has_relative(&self) -> bool {
        self.paths.iter().any(|span| !self.path(*span).starts_with(b"/"))
    }

    /// Returns the absolute paths that are in none of these directories.
    pub fn outside<'l>(&'l self, roots: &[&Path]) -> Result<impl Iterator<Item = &'l [u8]>> {
        let forms = roots.iter().map(|root| absolute_forms(root)).collect::<Result<Vec<_>>>()?;
        let forms: Vec<Vec<u8>> = forms.into_iter().flatten().collect();
        Ok(self.paths.iter().map(move |span| self.path(*span)).filter(move |path| {
            path.starts_with(b"/") && forms.iter().all(|root| below(root, path).is_none())
        }))
    }

    fn path(&self, span: Span) -> &[u8] {
        &self.bytes[span.start as usize..][..span.bytes as usize]
    }
}

fn too_large() -> Error {
    Error::invalid(format!("a list of paths is larger than {} MiB", LIST_BYTES_MAX >> 20))
}

fn refused(path: &[u8], why: &str) -> Error {
    Error::invalid(format!("'{}' {why}", crate::status::shown(path)))
}

/// Returns the absolute path of a directory as it was given, and without symbolic links.
fn absolute_forms(root: &Path) -> Result<Vec<Vec<u8>>> {
    let failed = |error| Error::io(format!("path of '{}'", root.display()), error);
    let given = std::path::absolute(root).map_err(failed)?;
    let real = std::fs::canonicalize(root).map_err(failed)?;
    Ok([given, real].map(|path| path.as_os_str().as_bytes().to_vec()).to_vec())
}

/// Returns the part of a path below a directory; empty for the directory itself, `None` if it is
/// elsewhere.
fn below<'p>(root: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let rest = path.strip_prefix(root)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// The listed paths below a root, in the order of a walk.
#[derive(Debug)]
pub(crate) struct Selection {
    list: Arc<PathList>,
    /// Relative to the root, without the root itself.
    paths: Vec<Span>,
    /// Whether the root itself is listed.
    has_root: bool,
}

/// The listed paths below a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Below {
    pub(crate) range: Range<usize>,
    /// Length of the directory's path with a slash behind it; 0 for the root.
    skip: usize,
    /// Whether the directory, or one above it, is listed itself, so that all entries are taken.
    pub(crate) is_taken: bool,
}

impl Selection {
    /// Selects the paths of a list that are in `root`.
    pub(crate) fn new(list: &Arc<PathList>, root: &Path) -> Result<Self> {
        let roots = absolute_forms(root)?;
        let mut selection = Self { list: Arc::clone(list), paths: Vec::new(), has_root: false };
        for span in &list.paths {
            let path = list.path(*span);
            let inside = if path.starts_with(b"/") {
                roots.iter().find_map(|root| below(root, path))
            } else {
                Some(path)
            };
            let Some(inside) = inside else { continue };
            let (skipped, bytes) = (path.len() - inside.len(), inside.len());
            selection.has_root |= bytes == 0;
            if bytes > 0 {
                let start = span.start + to_u32(skipped);
                selection.paths.push(Span { start, bytes: to_u32(bytes) });
            }
        }
        let names = |span: &Span| list.path(*span).split(|&byte| byte == b'/');
        selection.paths.sort_unstable_by(|a, b| names(a).cmp(names(b)));
        selection.paths.dedup_by(|a, b| list.path(*a) == list.path(*b));
        Ok(selection)
    }

    /// Returns the paths below the root.
    pub(crate) fn of_root(&self) -> Below {
        Below { range: 0..self.paths.len(), skip: 0, is_taken: self.has_root }
    }

    /// Returns a path relative to the root.
    pub(crate) fn path(&self, at: usize) -> &[u8] {
        self.list.path(self.paths[at])
    }

    /// Returns the name that a path has in a directory above it.
    fn name(&self, at: usize, skip: usize) -> &[u8] {
        let rest = &self.path(at)[skip..];
        let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        &rest[..end]
    }

    /// Returns the paths below an entry of a directory, with that of the entry itself.
    pub(crate) fn within(&self, directory: &Below, name: &[u8]) -> Range<usize> {
        let (range, paths) = (&directory.range, &self.paths[directory.range.clone()]);
        let name_of = |span: &Span| {
            let rest = &self.list.path(*span)[directory.skip..];
            rest.split(|&byte| byte == b'/').next().unwrap_or_default()
        };
        let start = paths.partition_point(|span| name_of(span) < name);
        let end = paths.partition_point(|span| name_of(span) <= name);
        range.start + start..range.start + end
    }

    /// Returns the paths below an entry of a directory.
    pub(crate) fn below(&self, directory: &Below, name: &[u8]) -> Below {
        let Range { mut start, end } = self.within(directory, name);
        let skip = directory.skip + name.len();
        let is_listed = start < end && self.path(start).len() == skip;
        start += usize::from(is_listed);
        Below { range: start..end, skip: skip + 1, is_taken: directory.is_taken || is_listed }
    }

    /// Returns the listed names in a directory.
    pub(crate) fn names(self: &Arc<Self>, directory: &Below) -> ListedNames {
        let (mut starts, mut at) = (Vec::new(), directory.range.start);
        while at < directory.range.end {
            starts.push(to_u32(at));
            at = self.within(directory, self.name(at, directory.skip)).end;
        }
        ListedNames { selection: Arc::clone(self), skip: directory.skip, starts }
    }
}

/// The listed names in a directory, in byte order.
#[derive(Debug)]
pub(crate) struct ListedNames {
    selection: Arc<Selection>,
    skip: usize,
    /// The first path with each name.
    starts: Vec<u32>,
}

impl ListedNames {
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(crate) fn name(&self, at: usize) -> &[u8] {
        self.selection.name(self.starts[at] as usize, self.skip)
    }

    /// Removes all names but one.
    pub(crate) fn retain_only(&mut self, name: &[u8]) {
        let (selection, skip) = (&self.selection, self.skip);
        self.starts.retain(|&start| selection.name(start as usize, skip) == name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(paths: &[&str]) -> Arc<PathList> {
        let mut list = PathList::default();
        paths.iter().for_each(|path| list.add(path.as_bytes()).unwrap());
        Arc::new(list)
    }

    fn selected(list: &Arc<PathList>, root: &Path) -> Vec<String> {
        let selection = Selection::new(list, root).unwrap();
        let text = |at| String::from_utf8(selection.path(at).to_vec()).unwrap();
        selection.of_root().range.map(text).collect()
    }

    #[test]
    fn paths_are_in_the_order_of_the_walk_and_each_is_there_once() {
        let list = list(&["b", "./a//x/", "a.b", "a", "a/x", "a-/y", "", "a/./x"]);
        assert_eq!(selected(&list, Path::new("/")), ["a", "a/x", "a-/y", "a.b", "b"]);
    }

    #[test]
    fn absolute_paths_belong_to_the_directory_that_contains_them() {
        let list = list(&["/usr/bin/env", "/usr", "/usrx", "/etc/x", "relative"]);
        assert_eq!(selected(&list, Path::new("/usr/")), ["bin/env", "relative"]);
        assert!(Selection::new(&list, Path::new("/usr")).unwrap().has_root);
        let roots = [Path::new("/usr"), Path::new("/tmp")];
        let outside: Vec<_> = list.outside(&roots).unwrap().collect();
        assert_eq!(outside, [&b"/usrx"[..], b"/etc/x"]);
        assert!(list.outside(&[Path::new("/")]).unwrap().next().is_none());
    }

    #[test]
    fn lists_have_lines_or_end_paths_with_zeros() {
        let mut list = PathList::default();
        list.add_lines(&b"a\r\n\n# no path\n./#b\nlast"[..]).unwrap();
        list.add_zero_terminated(&b"# a\npath\0c"[..]).unwrap();
        let paths: Vec<_> = list.paths.iter().map(|span| list.path(*span)).collect();
        assert_eq!(paths, [&b"a"[..], b"#b", b"last", b"# a\npath", b"c"]);
        for bad in ["a/../b", "..", "a\0b"] {
            let error = list.add_lines(format!("x\n{bad}\n").as_bytes()).unwrap_err();
            assert!(error.to_string().contains("path 2 of the list"), "{error}");
        }
    }

    #[test]
    fn entries_are_found_by_their_names() {
        let list = list(&["a", "a/b/c", "a/b/d", "a-/e"]);
        let selection = Arc::new(Selection::new(&list, Path::new("/")).unwrap());
        let root = selection.of_root();
        let names = selection.names(&root);
        assert_eq!((names.len(), names.name(0), names.name(1)), (2, &b"a"[..], &b"a-"[..]));
        let a = selection.below(&root, b"a");
        assert_eq!((a.range.clone(), a.is_taken), (1..3, true));
        let b = selection.below(&a, b"b");
        assert_eq!((b.range.clone(), b.is_taken), (1..3, true));
        assert_eq!(selection.names(&b).len(), 2);
        let e = selection.below(&root, b"a-");
        assert_eq!((e.range.clone(), e.is_taken), (3..4, false));
        assert_eq!(selection.below(&root, b"other").range.len(), 0);
    }
}
