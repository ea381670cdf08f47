//! A bounded cache in a local folder. It holds whole objects of which many small parts are read,
//! and the ends of larger ones. A [`CachePolicy`] says which objects these are, and where their
//! ends begin.
//!
//! A name can come to hold another object, for example after a rollback. So before a process uses a
//! cached object for the first time, it reads the object's beginning from the storage and compares
//! it; objects begin with random bytes of their own. If the storage tells tags in listings, an
//! unchanged tag is enough. Names of [`Keep::Settled`] and [`Keep::SettledEnds`] hold one object
//! for ever and are not compared: whoever must know whether the object is still there asks the
//! storage.

mod kept;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use silt_format::Result;

use self::kept::{Kept, Opened};
use crate::{
    Block, ByteRange, Filling, Guarantees, Key, ListPage, ObjectMeta, PutMode, Storage, TAIL_BYTES,
    TaggedPage, Usage,
};

/// Maximum size of a cached object; larger ones are not cached.
const OBJECT_BYTES_MAX: u64 = 32 << 20;
pub use self::kept::BEGINNING_BYTES;

/// How much of an object's end is read when less is asked for: mostly all that is kept of it.
const END_BYTES: u64 = 192 << 10;
/// How many files there must be in a folder before the tags of their objects are asked for.
const TAGGED_MIN: usize = 4;
/// Tags are asked for from the name of this many files before the one that is compared.
const TOLD_BEFORE: usize = 250;
/// How many files are compared with their objects at once.
const COMPARED_AT_ONCE: usize = 16;
/// Most tags that are remembered from listings.
const LISTED_MAX: usize = 4096;

/// What tells an object from another of the same name.
const BEGINNING: ByteRange = ByteRange::Bounded { offset: 0, length: BEGINNING_BYTES as u64 };

/// Caches objects that a policy selects, or parts of them, as files with a digest each.
pub struct CachedStorage {
    inner: Arc<dyn Storage>,
    folder: PathBuf,
    policy: CachePolicy,
    bytes_max: u64,
    state: Mutex<State>,
    /// Held while a file is compared with its object, so that of several threads one asks; by the
    /// name's hash.
    comparing: [Mutex<()>; COMPARED_AT_ONCE],
    /// Held while tags are asked for, by the prefix's hash.
    asking: [Mutex<()>; COMPARED_AT_ONCE],
}

/// The part of an object that is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// All of it; its name may come to hold another object.
    Whole,
    /// The same, and nothing refers to it: its name is found by a listing each time.
    Listed,
    /// All of it; its name holds one object or none, for good.
    Settled,
    /// Only its beginning and its end; its name may come to hold another object.
    Ends,
    /// The same; its name holds one object or none, for good. What is before its end is read from
    /// the storage, also if it is kept: so it is noticed if the object is gone.
    SettledEnds,
}

impl Keep {
    /// Whether what is kept need not be compared with the object.
    fn is_settled(self) -> bool {
        matches!(self, Self::Settled | Self::SettledEnds)
    }

    /// Whether only the ends are kept.
    fn is_of_ends(self) -> bool {
        matches!(self, Self::Ends | Self::SettledEnds)
    }

    /// Whether what is kept of an object may serve for a range of it.
    fn serves(self, range: &ByteRange) -> bool {
        match self {
            Self::Nothing => false,
            Self::SettledEnds => matches!(range, ByteRange::Tail(_)) || *range == BEGINNING,
            Self::Whole | Self::Listed | Self::Settled | Self::Ends => true,
        }
    }
}

/// Which objects are cached. The caller defines it, because a storage does not know what its
/// objects are.
#[derive(Clone, Copy, Debug)]
pub struct CachePolicy {
    /// Returns the part of an object that is cached.
    pub keep: fn(&Key) -> Keep,
    /// Finds the end of an object of which only the ends are kept in its last bytes; `None` if
    /// they do not tell. The bytes come from the storage and are not verified.
    pub end: fn(&[u8]) -> Option<End>,
}

/// The end of an object, from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Offset of its first byte. More is cached if readers first ask for more ([`TAIL_BYTES`]).
    pub offset: u64,
    /// Size of the object in bytes.
    pub object_bytes: u64,
    /// What the object begins with, if its end tells.
    pub beginning: Option<[u8; BEGINNING_BYTES]>,
}

#[derive(Default)]
struct State {
    /// Objects whose file is known to be whole and the storage's own.
    verified: HashMap<Key, Kept>,
    /// Bytes of all files, once they were counted.
    bytes: Option<u64>,
    tags: Tags,
    /// Tags that the last listings told of objects with [`Keep::Listed`]. Whoever reads one of
    /// these has found its name in such a listing, and gets what was there then.
    listed: BTreeMap<Key, String>,
    /// Whether the storage tells no tags.
    tags_are_untold: bool,
}

/// Tags that storage has told since the last listing.
///
/// A name that nobody refers to may come to hold another object at any time, one that is referred
/// to never does. Who refers to what is found out by listings, so only what was told after the last
/// one counts.
#[derive(Default)]
struct Tags {
    listings: u64,
    by_key: HashMap<Key, String>,
    /// Prefixes, and from which name to which they were told; with no end to the prefix's.
    told: Vec<(String, Key, Option<Key>)>,
    /// Prefixes of which few objects have a file, so that one answer does not reach far.
    far_apart: HashSet<String>,
}

impl Tags {
    /// Whether the storage has told an object's tag, or that there is none.
    fn has_told(&self, prefix: &str, key: &Key) -> bool {
        let is_told = |(of, first, last): &(String, Key, Option<Key>)| {
            of == prefix && first <= key && last.as_ref().is_none_or(|last| key <= last)
        };
        self.told.iter().any(is_told)
    }

    fn add(&mut self, prefix: &str, first: &Key, page: &ListPage, tags: Vec<(Key, String)>) {
        let last = page.objects.last().filter(|_| page.truncated).map(|(key, _)| key.clone());
        self.told.push((prefix.to_owned(), first.clone(), last));
        self.by_key.extend(tags);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one of these that is of a name.
fn one_of<'m>(mutexes: &'m [Mutex<()>], name: &str) -> &'m Mutex<()> {
    let hash = blake3::hash(name.as_bytes());
    &mutexes[usize::from(hash.as_bytes()[0]) % mutexes.len()]
}

/// A file of the cache.
struct Cached {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl CachedStorage {
    /// A cache of at most about `bytes_max` in `folder`. A folder that can't be used makes no
    /// difference but to speed.
    pub fn new(
        inner: Arc<dyn Storage>,
        folder: impl Into<PathBuf>,
        policy: CachePolicy,
        bytes_max: u64,
    ) -> Self {
        let state = Mutex::default();
        let [comparing, asking] = [(); 2].map(|()| std::array::from_fn(|_| Mutex::default()));
        Self { inner, folder: folder.into(), policy, bytes_max, state, comparing, asking }
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.folder.join(key.as_str())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What the cache has of the object, if it is the storage's.
    fn verified(&self, key: &Key) -> Result<Option<Kept>> {
        let known = || self.state().verified.get(key).copied();
        if let Some(kept) = known() {
            return Ok(Some(kept));
        }
        let _comparing = lock(one_of(&self.comparing, key.as_str()));
        if let Some(kept) = known() {
            return Ok(Some(kept));
        }
        let Ok(file) = fs::read(self.file(key)) else { return Ok(None) };
        let Some(opened) = Kept::open(&file) else {
            self.drop_file(key);
            return Ok(None);
        };
        if !(self.policy.keep)(key).is_settled() && !self.is_of_object(key, &opened)? {
            self.drop_file(key);
            return Ok(None);
        }
        self.state().verified.insert(key.clone(), opened.kept);
        Ok(Some(opened.kept))
    }

    /// Whether a file is the storage's object: by the tag that the storage tells, or by its
    /// beginning.
    fn is_of_object(&self, key: &Key, file: &Opened<'_>) -> Result<bool> {
        // The tag first: if the object is another one by the time its beginning is read, that
        // differs.
        let tag = self.tag(key);
        if tag.as_ref().is_some_and(|tag| file.has_tag(tag)) {
            return Ok(true);
        }
        let mut beginning = Vec::new();
        self.inner.get(key, BEGINNING, &mut beginning)?;
        let is_same = file.beginning == beginning;
        // A listing may be so old that its tag is that of the object before.
        let is_new = !file.is_tagged() || (self.policy.keep)(key) != Keep::Listed;
        if let Some(tag) = tag.filter(|_| is_same && is_new) {
            file.note_tag(&self.file(key), &tag);
        }
        Ok(is_same)
    }

    /// The tag of an object, where storage tells many at once and that pays.
    fn tag(&self, key: &Key) -> Option<String> {
        let name = key.as_str();
        let prefix = &name[..=name.rfind('/')?];
        // Of several threads, one asks for all.
        let _asking = lock(one_of(&self.asking, prefix));
        let known = |state: &State| state.tags.by_key.get(key).cloned();
        let listings = {
            let state = self.state();
            if let Some(tag) = state.listed.get(key) {
                return Some(tag.clone());
            }
            if state.tags.has_told(prefix, key) || state.tags_are_untold {
                return known(&state);
            }
            state.tags.listings
        };
        // If the first answer does not reach it, the second begins with it.
        loop {
            let first = self.first_to_tell(prefix, key)?;
            // What is before all names that are not before this one.
            let after = Key::new(&first.as_str()[..first.as_str().len() - 1]).ok();
            let TaggedPage { page, tags } = self.inner.list_tagged(prefix, after.as_ref()).ok()?;
            let mut state = self.state();
            if state.tags.listings != listings {
                return None;
            }
            let Some(tags) = tags else {
                state.tags_are_untold = true;
                return None;
            };
            state.tags.add(prefix, &first, &page, tags);
            if first >= *key || state.tags.has_told(prefix, key) {
                return known(&state);
            }
            state.tags.far_apart.insert(prefix.to_owned());
        }
    }

    /// Notes the tags of a listing, if it told any. All that was told before of names below its
    /// prefix is forgotten, and all that was told of names that are referred to.
    ///
    /// Names of [`Keep::Listed`] may come back with other objects while a process goes on. So those
    /// of which a listing tells another tag than before, or none, are compared again.
    fn note_listed(&self, prefix: &str, after: Option<&Key>, listed: &TaggedPage) {
        let is_kept = |key: &Key| (self.policy.keep)(key) == Keep::Listed;
        let is_told = |key: &Key, tag: &str, state: &State| {
            state.listed.get(key).is_some_and(|told| told == tag)
        };
        let mut state = self.state();
        let tags = listed.tags.as_deref().unwrap_or_default();
        let told = tags.iter().filter(|(key, tag)| is_told(key, tag, &state));
        let same: HashSet<&Key> = told.map(|(key, _)| key).collect();
        for (key, _) in listed.page.objects.iter().filter(|(key, _)| is_kept(key)) {
            if !same.contains(key) {
                state.verified.remove(key);
            }
        }
        state.tags = Tags { listings: state.tags.listings + 1, ..Tags::default() };
        state.tags_are_untold = listed.tags.is_none();
        let is_listed =
            |key: &Key| key.as_str().starts_with(prefix) && after.is_none_or(|after| key > after);
        state.listed.retain(|key, _| !is_listed(key));
        let kept = tags.iter().filter(|(key, _)| is_kept(key));
        state.listed.extend(kept.take(LISTED_MAX).cloned());
        while state.listed.len() > LISTED_MAX {
            state.listed.pop_first();
        }
    }

    /// The name from which on tags are asked for: that of a file some way before this one, since
    /// readers go back, too. `None` if so few files of the prefix are here that it does not pay.
    fn first_to_tell(&self, prefix: &str, key: &Key) -> Option<Key> {
        let folder = fs::read_dir(self.folder.join(prefix)).ok()?;
        let names = folder.flatten().filter_map(|file| file.file_name().into_string().ok());
        let mut names = names.filter_map(|name| Key::new(format!("{prefix}{name}")).ok());
        let few: Vec<Key> = names.by_ref().take(TAGGED_MIN).collect();
        if few.len() < TAGGED_MIN {
            return None;
        }
        if self.state().tags.far_apart.contains(prefix) {
            return Some(key.clone());
        }
        let mut names: Vec<Key> = few.into_iter().chain(names).collect();
        names.sort_unstable();
        let at = names.partition_point(|name| name < key);
        names.into_iter().nth(at.saturating_sub(TOLD_BEFORE))
    }

    /// Whether there was a file.
    fn drop_file(&self, key: &Key) -> bool {
        let mut state = self.state();
        state.verified.remove(key);
        state.listed.remove(key);
        drop(state);
        fs::remove_file(self.file(key)).is_ok()
    }

    /// Keeps what `kept` says of an object, which `pieces` hold, with its tag if that is known;
    /// returns whether it could.
    fn keep(&self, key: &Key, kept: Kept, pieces: &[&[u8]], tag: Option<&str>) -> bool {
        let bytes = kept.file_bytes();
        if bytes > OBJECT_BYTES_MAX.min(self.bytes_max) {
            return false;
        }
        let mut state = self.state();
        let held = state.bytes.unwrap_or_else(|| files(&self.folder).iter().map(|f| f.bytes).sum());
        let held = if held + bytes > self.bytes_max { self.make_room(bytes) } else { held };
        state.bytes = Some(held + bytes);
        let is_written = kept.write(&self.file(key), pieces, tag).is_ok();
        if is_written {
            state.verified.insert(key.clone(), kept);
        }
        is_written
    }

    /// Keeps a whole object.
    fn keep_whole(&self, key: &Key, pieces: &[&[u8]], tag: Option<&str>) -> bool {
        let size: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        size >= BEGINNING_BYTES as u64 && self.keep(key, Kept::whole(size), pieces, tag)
    }

    /// Keeps the beginning of an object and, of its last bytes in `end`, what the policy says and
    /// at least what readers ask for at first, if that is all there.
    fn keep_ends(
        &self,
        key: &Key,
        (beginning, found): (&[u8], End),
        end: &[&[u8]],
        tag: Option<&str>,
    ) -> bool {
        let (size, behind_beginning) = (found.object_bytes, BEGINNING_BYTES as u64);
        if size < behind_beginning {
            return false;
        }
        let tail_offset = size.saturating_sub(TAIL_BYTES);
        let rest_offset = found.offset.min(tail_offset).max(behind_beginning);
        let end_bytes: u64 = end.iter().map(|piece| piece.len() as u64).sum();
        let Some(mut skipped) = end_bytes.checked_sub(size - rest_offset) else { return false };
        let mut pieces = vec![beginning];
        for piece in end {
            let skip = skipped.min(piece.len() as u64);
            skipped -= skip;
            pieces.push(&piece[usize::try_from(skip).unwrap_or(piece.len())..]);
        }
        self.keep(key, Kept { size, rest_offset }, &pieces, tag)
    }

    /// Reads a whole object, keeps it, and gives a range of it.
    fn get_whole(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        let mut bytes = Vec::new();
        into.clear();
        self.inner.get(key, ByteRange::Full, &mut bytes)?;
        self.keep_whole(key, &[&bytes], None);
        let range = range.resolve(key, bytes.len() as u64)?;
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        into.extend_from_slice(&bytes[at(range.start)..at(range.end)]);
        Ok(())
    }

    /// Reads a part of an object; if that is its end, the end and the beginning are kept.
    fn get_part(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        let ByteRange::Tail(length) = range else { return self.inner.get(key, range, into) };
        self.inner.get(key, ByteRange::Tail(length.max(END_BYTES)), into)?;
        if let Some(found) = (self.policy.end)(into) {
            self.keep_end(key, found, into);
        }
        let surplus = (into.len() as u64).saturating_sub(length);
        into.drain(..usize::try_from(surplus).unwrap_or(usize::MAX));
        Ok(())
    }

    /// Keeps the end of an object that was read, and its beginning, which is read if the end does
    /// not tell it.
    fn keep_end(&self, key: &Key, found: End, end: &[u8]) {
        let mut read = Vec::new();
        let beginning = match &found.beginning {
            Some(beginning) => beginning,
            None if found.object_bytes.saturating_sub(found.offset) > end.len() as u64 => return,
            // Whoever needs the beginning reads it again, and reports what is wrong with it.
            None if self.inner.get(key, BEGINNING, &mut read).is_err() => return,
            None => &read[..],
        };
        if beginning.len() == BEGINNING_BYTES {
            self.keep_ends(key, (beginning, found), &[end], None);
        }
    }

    /// Removes the files that were written the longest time ago, until there is room, and a tenth
    /// more; the bytes that are left.
    fn make_room(&self, wanted: u64) -> u64 {
        let mut all = files(&self.folder);
        all.sort_by_key(|file| file.used);
        let mut held: u64 = all.iter().map(|file| file.bytes).sum();
        for file in all {
            if held + wanted <= self.bytes_max / 10 * 9 {
                break;
            }
            if fs::remove_file(&file.path).is_ok() {
                held -= file.bytes;
            }
        }
        held
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<Cached> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => {
                    let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.push(Cached { path: entry.path(), bytes: metadata.len(), used });
                }
                // Somebody else has removed it.
                Err(_) => {}
            }
        }
    }
    found
}

impl Storage for CachedStorage {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.put_tagged(key, body, mode).map(drop)
    }

    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        let keep = (self.policy.keep)(key);
        if keep != Keep::Nothing {
            self.drop_file(key);
        }
        let tag = self.inner.put_tagged(key, body, mode)?;
        let pieces: Vec<&[u8]> = body.iter().map(|piece| &piece[..]).collect();
        let _is_kept = match (keep, &pieces[..]) {
            (Keep::Whole | Keep::Listed | Keep::Settled, _) => {
                self.keep_whole(key, &pieces, tag.as_deref())
            }
            (Keep::Ends | Keep::SettledEnds, [first, ..]) => {
                let found = pieces.last().and_then(|last| (self.policy.end)(last));
                let ends = first.get(..BEGINNING_BYTES).zip(found);
                ends.is_some_and(|ends| self.keep_ends(key, ends, &pieces, tag.as_deref()))
            }
            _ => false,
        };
        Ok(tag)
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        let keep = (self.policy.keep)(key);
        if !keep.serves(&range) {
            return self.inner.get(key, range, into);
        }
        if let Some(kept) = self.verified(key)? {
            let range = range.resolve(key, kept.size).inspect_err(|_| into.clear())?;
            if kept.holds(&range) {
                if kept.read(&self.file(key), &range, into) {
                    return Ok(());
                }
                // Another process has made room.
                self.drop_file(key);
            }
        }
        if keep.is_of_ends() {
            self.get_part(key, range, into)
        } else {
            self.get_whole(key, range, into)
        }
    }

    fn get_blocks(&self, key: &Key, blocks: Vec<Block>) -> Result<Vec<Block>> {
        let mut filling = Filling::new(key, blocks)?;
        let range = filling.range().resolve(key, u64::MAX)?;
        if (self.policy.keep)(key).serves(&filling.range())
            && let Some(kept) = self.verified(key)?.filter(|kept| kept.holds(&range))
        {
            let mut all = Vec::new();
            if kept.read(&self.file(key), &range, &mut all) {
                filling.add(&all);
                return filling.full(key);
            }
            // Another process has made room.
            self.drop_file(key);
        }
        self.inner.get_blocks(key, filling.unread())
    }

    fn copies(&self, key: &Key) -> usize {
        self.inner.copies(key)
    }

    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.inner.get_from(copy, key, range, into)
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.inner.settle(key)
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        for key in keys.iter().filter(|key| (self.policy.keep)(key) != Keep::Nothing) {
            self.drop_file(key);
        }
        self.inner.delete(keys)
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let listed = self.inner.list_tagged(prefix, after)?;
        self.note_listed(prefix, after, &listed);
        Ok(listed.page)
    }

    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.inner.list_from(copy, prefix, after)
    }

    fn usage(&self) -> Option<Usage> {
        self.inner.usage()
    }

    fn forget(&self, key: &Key) -> bool {
        let was_kept = (self.policy.keep)(key) != Keep::Nothing && self.drop_file(key);
        self.inner.forget(key) || was_kept
    }

    fn uploads(&self) -> usize {
        self.inner.uploads()
    }

    fn requests_at_once(&self) -> usize {
        self.inner.requests_at_once()
    }

    fn request_bytes(&self) -> u64 {
        self.inner.request_bytes()
    }

    fn soonest_answer_ns(&self) -> Option<u64> {
        self.inner.soonest_answer_ns()
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
