//! Which files of a tree damage hurts.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_format::number::to_u64;
use silt_format::tree::{Entry, EntryKind, Subtree, Tree, TreePage};
use silt_format::{BlockRef, ByteSpan, Error, Result, SEGMENT_BYTES, Volume};
use silt_repository::objects::is_damage;

use super::VolumePath;
use super::structure::Walk;

/// Maximum number of damaged ranges of a volume that are told apart; of more, those that are
/// close are taken for one.
const SPANS_MAX: usize = 65_536;
/// How close ranges are that are joined first.
const GAP_BYTES: u64 = 64 << 10;

/// What is damaged of a tree's volume.
#[derive(Default)]
pub(super) struct Hurt {
    /// The damaged objects.
    objects: Vec<String>,
    /// Ranges of the volume, each with its object.
    spans: Vec<Span>,
    /// Whether pages of directories can't be read, or name content that is not there.
    pub(super) has_pages: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    start: u64,
    end: u64,
    object: usize,
}

impl Hurt {
    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty() && !self.has_pages
    }

    /// Notes that an object is damaged that holds a range of the volume.
    pub(super) fn add(&mut self, object: &str, span: ByteSpan) {
        let last = self.objects.len().checked_sub(1).filter(|last| self.objects[*last] == object);
        let known = last.or_else(|| self.objects.iter().position(|known| known == object));
        let object = known.unwrap_or_else(|| {
            self.objects.push(object.to_owned());
            self.objects.len() - 1
        });
        let end = span.offset.saturating_add(span.length);
        match self.spans.last_mut() {
            Some(last) if last.object == object && last.end == span.offset => last.end = end,
            _ => self.spans.push(Span { start: span.offset, end, object }),
        }
        let mut gap = GAP_BYTES;
        while self.spans.len() > SPANS_MAX && gap < u64::MAX / 4 {
            self.join(gap);
            gap *= 4;
        }
    }

    /// Joins ranges of one object with less than this between them.
    fn join(&mut self, gap: u64) {
        self.spans.sort_unstable_by_key(|span| (span.object, span.start));
        self.spans.dedup_by(|next, last| {
            let joins = next.object == last.object && next.start <= last.end.saturating_add(gap);
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
    }

    fn into_index(self) -> Index {
        let Self { objects, mut spans, .. } = self;
        spans.sort_unstable();
        let mut furthest = 0;
        let up_to = |span: &Span| {
            furthest = furthest.max(span.end);
            furthest
        };
        let ends = spans.iter().map(up_to).collect();
        Index { objects, spans, ends }
    }
}

/// Damaged ranges in the order of their starts.
struct Index {
    objects: Vec<String>,
    spans: Vec<Span>,
    /// The furthest end of each range and those before it.
    ends: Vec<u64>,
}

impl Index {
    /// The objects that are damaged and hold a part of a file.
    fn objects_of(&self, entry: &Entry) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        for extent in &entry.extents {
            let Some(start) = extent.address else { continue };
            let end = start.saturating_add(extent.bytes);
            let mut at = self.spans.partition_point(|span| span.start < end);
            while at > 0 && self.ends[at - 1] > start {
                at -= 1;
                if self.spans[at].end > start {
                    found.insert(self.spans[at].object);
                }
            }
        }
        found
    }
}

impl Walk<'_> {
    /// Checks the pages of a file tree, and that the content of its files is in the volume.
    pub(super) fn tree(&mut self, tree: &Tree, volume: &Volume) -> Result<()> {
        let mut left: Vec<_> = page_of(tree.root.subtree.as_ref()).into_iter().collect();
        while let Some((block, level)) = left.pop() {
            self.repository.objects.context.check_interrupted()?;
            let is_known = self.tree_pages.contains(&(block.pack, block.offset));
            if is_known && !self.is_thorough && self.is_whole() {
                continue;
            }
            let page = match self.trees.page(block, level) {
                Ok(page) => page,
                Err(error) => {
                    self.damaged_page(block, &error)?;
                    continue;
                }
            };
            self.tree_pages.insert((block.pack, block.offset));
            match page {
                TreePage::Branch(level, children) => {
                    left.extend(children.iter().map(|child| (child.page, level - 1)));
                }
                TreePage::Leaf(entries) => {
                    for entry in &entries {
                        left.extend(page_of(entry.subtree.as_ref()));
                        if let Some(error) = self.content_error(entry, volume) {
                            self.damaged_page(block, &error)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn damaged_page(&mut self, block: BlockRef, error: &Error) -> Result<()> {
        if !is_damage(error) {
            return Err(Error::new(error.kind(), error.to_string()));
        }
        self.hurt.has_pages = true;
        self.findings.object(&self.pack_name(block), &error.to_string());
        Ok(())
    }

    /// What is wrong with the content of a file, as far as the map tells.
    fn content_error(&self, entry: &Entry, volume: &Volume) -> Option<Error> {
        let lacks = |segment: u64| {
            segment >= volume.bytes / to_u64(SEGMENT_BYTES)
                || matches!(self.reader.entry(volume.root, segment), Ok(None))
        };
        let segment = entry.segments().find(|segment| lacks(*segment))?;
        let name = entry.name.escape_ascii();
        Some(Error::corrupt(format!("the content of '{name}' is missing: no segment {segment}")))
    }

    /// Notes the paths of all files that what was found damaged of the volume belongs to, and the
    /// directories of which entries are lost.
    pub(super) fn name_paths(
        &mut self,
        tree: &Tree,
        volume: &Volume,
        place: VolumePath<'_>,
    ) -> Result<()> {
        let index = std::mem::take(&mut self.hurt).into_index();
        // Pages to read, each with the path of its directory.
        let root: Arc<[u8]> = Arc::from(&b"/"[..]);
        let mut left: Vec<_> = page_of(tree.root.subtree.as_ref())
            .map(|(block, level)| (block, level, root))
            .into_iter()
            .collect();
        while let Some((block, level, directory)) = left.pop() {
            self.repository.objects.context.check_interrupted()?;
            let page = match self.trees.page(block, level) {
                Ok(page) => page,
                Err(error) if is_damage(&error) => {
                    let object = self.pack_name(block);
                    self.findings.path(&object, &error.to_string(), place, &directory);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match page {
                TreePage::Branch(level, children) => {
                    let below = children.iter().rev();
                    left.extend(below.map(|child| (child.page, level - 1, directory.clone())));
                }
                TreePage::Leaf(entries) => {
                    for entry in &entries {
                        let path = [&*directory, &entry.name].concat();
                        self.name_path(entry, &path, (&index, block), volume, place);
                    }
                    for entry in entries.iter().rev() {
                        if let Some((block, level)) = page_of(entry.subtree.as_ref()) {
                            let path = [&*directory, &entry.name, b"/"].concat();
                            left.push((block, level, Arc::from(path)));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes the path of an entry if its content is damaged; `block` is the page that it is in.
    fn name_path(
        &mut self,
        entry: &Entry,
        path: &[u8],
        (index, block): (&Index, BlockRef),
        volume: &Volume,
        place: VolumePath<'_>,
    ) {
        if entry.metadata.kind != EntryKind::File {
            return;
        }
        for object in index.objects_of(entry) {
            // Its error is noted already.
            self.findings.path(&index.objects[object], "", place, path);
        }
        if let Some(error) = self.content_error(entry, volume) {
            let object = self.pack_name(block);
            self.findings.path(&object, &error.to_string(), place, path);
        }
    }
}

fn page_of(subtree: Option<&Subtree>) -> Option<(BlockRef, u8)> {
    subtree.map(|subtree| (subtree.page, subtree.level))
}

#[cfg(test)]
mod tests {
    use silt_format::tree::{DeviceNumber, Extent, FileKind, Metadata, State, Timestamp};

    use super::*;

    fn entry(extents: &[(u64, u64)]) -> Entry {
        let extents =
            extents.iter().map(|(at, bytes)| Extent { address: Some(*at), bytes: *bytes });
        Entry {
            name: b"x".to_vec(),
            metadata: Metadata {
                kind: EntryKind::File,
                mode: 0,
                uid: 0,
                gid: 0,
                modified: Timestamp { seconds: 0, nanoseconds: 0 },
                changed: Timestamp { seconds: 0, nanoseconds: 0 },
                size: 0,
                inode: 0,
                file_system: 0,
                links: 1,
                target: Vec::new(),
                device: DeviceNumber::default(),
                flags: 0,
                xattrs: Vec::new(),
            },
            state: State::Whole,
            content: FileKind::default(),
            extents: extents.collect(),
            subtree: None,
        }
    }

    #[test]
    fn a_file_is_hurt_by_every_range_that_it_overlaps_and_no_other() {
        let mut hurt = Hurt::default();
        for (object, offset, length) in
            [("a", 100, 10), ("b", 0, 1000), ("a", 110, 10), ("c", 2000, 1), ("a", 500, 1)]
        {
            hurt.add(object, ByteSpan { offset, length });
        }
        let index = hurt.into_index();
        let of = |extents: &[(u64, u64)]| -> Vec<&str> {
            let found = index.objects_of(&entry(extents));
            found.into_iter().map(|object| index.objects[object].as_str()).collect()
        };
        assert_eq!(of(&[(119, 1)]), ["a", "b"]);
        assert_eq!(of(&[(120, 5)]), ["b"]);
        assert_eq!(of(&[(1000, 1000)]), Vec::<&str>::new());
        assert_eq!(of(&[(1500, 501)]), ["c"]);
        assert_eq!(of(&[(5000, 1), (400, 200)]), ["a", "b"]);
    }

    #[test]
    fn ranges_stay_few_and_cover_all_that_is_damaged() {
        let mut hurt = Hurt::default();
        let ranges = 3 * to_u64(SPANS_MAX);
        for number in 0..ranges {
            let object = if number % 2 == 0 { "a" } else { "b" };
            hurt.add(object, ByteSpan { offset: number * 10_000, length: 100 });
            assert!(hurt.spans.len() <= SPANS_MAX);
        }
        let index = hurt.into_index();
        for number in (0..ranges).step_by(1001) {
            let found = index.objects_of(&entry(&[(number * 10_000, 1)]));
            let name = if number % 2 == 0 { "a" } else { "b" };
            assert!(found.iter().any(|object| index.objects[*object] == name), "{number}");
        }
    }
}
