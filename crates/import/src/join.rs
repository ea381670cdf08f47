//! The final state of every path, and what hard links link to.
//!
//! A path can be in an archive several times; the last entry counts, and a hard link is the file
//! that its target was at the link's place in the archive.

use silt_format::{Error, Result};

use crate::paths::{self, SEPARATOR};
use crate::refused::{BYTES_MAX, Counted, Refusals};
use crate::sorter::{Merge, Record, Sorted};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Directory,
    /// A hard link.
    Link,
    /// A file, a symbolic link, a device or a pipe.
    Other,
}

/// An entry of the archive: its class, where its metadata is in the spool, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) class: Class,
    pub(crate) start: u64,
    pub(crate) bytes: u32,
    pub(crate) size: u64,
}

impl Version {
    pub(crate) fn encode(&self) -> [u8; 21] {
        let mut encoded = [0; 21];
        encoded[0] = match self.class {
            Class::Directory => 0,
            Class::Link => 1,
            Class::Other => 2,
        };
        encoded[1..9].copy_from_slice(&self.start.to_le_bytes());
        encoded[9..13].copy_from_slice(&self.bytes.to_le_bytes());
        encoded[13..].copy_from_slice(&self.size.to_le_bytes());
        encoded
    }

    /// Reads what [`encode`](Self::encode) wrote; it was sealed meanwhile.
    fn decode(from: &[u8]) -> Self {
        let class = match from[0] {
            0 => Class::Directory,
            1 => Class::Link,
            _ => Class::Other,
        };
        let (mut start, mut bytes, mut size) = ([0; 8], [0; 4], [0; 8]);
        start.copy_from_slice(&from[1..9]);
        bytes.copy_from_slice(&from[9..13]);
        size.copy_from_slice(&from[13..21]);
        let (start, size) = (u64::from_le_bytes(start), u64::from_le_bytes(size));
        Self { class, start, bytes: u32::from_le_bytes(bytes), size }
    }
}

/// A file with several names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The number of its entry, which is also its inode number.
    pub(crate) number: u64,
    pub(crate) version: Version,
    /// How many names it has in the tree.
    pub(crate) names: u32,
}

/// All hard links of an archive.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Numbers of the links' entries and of their targets' entries, in ascending order.
    resolved: Vec<(u64, u64)>,
    /// In the order of their numbers.
    targets: Vec<Target>,
}

impl Links {
    /// Finds the targets of `links`, whose keys are their targets' paths.
    pub(crate) fn join(entries: &Sorted, links: &Sorted) -> Result<Self> {
        let (mut entries, mut links) = (entries.merge()?, links.merge()?);
        let (mut resolved, mut targets) = (Vec::new(), Vec::new());
        let mut next = entries.next()?;
        // The newest entry of the path that was read last.
        let mut newest: Option<Record> = None;
        while let Some(link) = links.next()? {
            let at = |item: &Record| (item.key.as_slice(), item.number) < (&link.key, link.number);
            while let Some(item) = next.take_if(|item| at(item)) {
                newest = Some(item);
                next = entries.next()?;
            }
            let Some(found) = newest.as_ref().filter(|found| found.key == link.key) else {
                continue;
            };
            let version = Version::decode(&found.payload);
            if version.class == Class::Directory {
                continue;
            }
            resolved.push((link.number, found.number));
            if version.class == Class::Other {
                targets.push(Target { number: found.number, version, names: 0 });
            }
        }
        resolved.sort_unstable();
        targets.sort_unstable_by_key(|target| target.number);
        targets.dedup_by_key(|target| target.number);
        let mut all = Self { resolved: Vec::with_capacity(resolved.len()), targets };
        // A link to a link is one to that link's target, which has a lower number and is known.
        for (link, found) in resolved {
            if all.target(found).is_some() {
                all.resolved.push((link, found));
            } else if let Some(target) = all.of(found) {
                all.resolved.push((link, target));
            }
        }
        Ok(all)
    }

    /// The number of a link's target.
    fn of(&self, link: u64) -> Option<u64> {
        let place = self.resolved.binary_search_by_key(&link, |(link, _)| *link).ok()?;
        Some(self.resolved[place].1)
    }

    fn target(&self, number: u64) -> Option<usize> {
        self.targets.binary_search_by_key(&number, |target| target.number).ok()
    }

    /// The file that an entry is, if that has several names or had them.
    pub(crate) fn file(&self, last: &Last) -> Option<Target> {
        let number = match last.version.class {
            Class::Link => self.of(last.number)?,
            _ => last.number,
        };
        self.target(number).map(|place| self.targets[place])
    }

    /// Counts the names of all files, and names the entries that are not in the tree.
    pub(crate) fn counted(
        mut self,
        entries: &Sorted,
        counted: &mut Counted,
        refusals: &mut Refusals,
    ) -> Result<Self> {
        let mut paths = Paths::new(entries, &self)?;
        let mut names = vec![0_u32; self.targets.len()];
        while let Some(path) = paths.next(&self)? {
            let shown = || paths::path_of(&path.key);
            for _ in 0..path.lost_links {
                let reason = "it is a hard link to what is not a file before it in the archive";
                refusals.add(shown(), reason);
            }
            if path.is_displaced {
                let reason = "it is no directory, but the archive has entries below it";
                refusals.add(shown(), reason);
            }
            let Some(last) = path.last else { continue };
            counted.entries += 1;
            let file = self.file(&last);
            if let Some(place) = file.and_then(|file| self.target(file.number)) {
                names[place] = names[place].saturating_add(1);
            }
            let size = match file {
                Some(file) if last.version.class == Class::Link => file.version.size,
                _ => last.version.size,
            };
            counted.bytes = counted.bytes.saturating_add(size);
            if counted.bytes > BYTES_MAX {
                return Err(Error::invalid("the files of the archive are larger than 4 EiB"));
            }
        }
        for (target, names) in self.targets.iter_mut().zip(names) {
            target.names = names;
        }
        Ok(self)
    }
}

/// The entry that counts for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    pub(crate) number: u64,
    pub(crate) version: Version,
}

/// A path of the tree.
#[derive(Debug)]
pub(crate) struct FinalPath {
    pub(crate) key: Vec<u8>,
    /// `None` for a directory that the archive itself does not have, and for a path of which every
    /// entry was refused.
    pub(crate) last: Option<Last>,
    /// Whether an entry that is no directory was refused, because others are below it.
    pub(crate) is_displaced: bool,
    /// How many hard links were refused because their target is missing.
    pub(crate) lost_links: u64,
}

/// All entries of one path, folded.
#[derive(Default)]
struct Group {
    key: Vec<u8>,
    directory: Option<Last>,
    newest: Option<Last>,
    lost_links: u64,
}

/// The paths of an archive in the order of the tree.
pub(crate) struct Paths {
    merge: Merge,
    record: Option<Record>,
    group: Option<Group>,
}

impl Paths {
    pub(crate) fn new(entries: &Sorted, links: &Links) -> Result<Self> {
        let mut merge = entries.merge()?;
        let record = merge.next()?;
        let mut paths = Self { merge, record, group: None };
        paths.group = paths.group(links)?;
        Ok(paths)
    }

    /// The next path that has an entry in the archive.
    pub(crate) fn next(&mut self, links: &Links) -> Result<Option<FinalPath>> {
        let Some(group) = self.group.take() else { return Ok(None) };
        self.group = self.group(links)?;
        let is_above = |next: &Group| {
            let rest = next.key.strip_prefix(group.key.as_slice());
            rest.is_some_and(|rest| group.key.is_empty() || rest.first() == Some(&SEPARATOR))
        };
        let has_content = self.group.as_ref().is_some_and(is_above);
        let last = if has_content { group.directory } else { group.newest };
        let is_displaced = last != group.newest;
        Ok(Some(FinalPath { key: group.key, last, is_displaced, lost_links: group.lost_links }))
    }

    /// Reads all entries of the next path.
    fn group(&mut self, links: &Links) -> Result<Option<Group>> {
        let Some(first) = &self.record else { return Ok(None) };
        let mut group = Group { key: first.key.clone(), ..Group::default() };
        while let Some(record) = self.record.take_if(|record| record.key == group.key) {
            let last = Last { number: record.number, version: Version::decode(&record.payload) };
            match last.version.class {
                Class::Link if links.file(&last).is_none() => group.lost_links += 1,
                Class::Directory => (group.directory, group.newest) = (Some(last), Some(last)),
                _ => group.newest = Some(last),
            }
            self.record = self.merge.next()?;
        }
        Ok(Some(group))
    }
}
