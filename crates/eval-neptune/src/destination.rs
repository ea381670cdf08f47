//! What the destination finds fingerprints and bases by: all at once, or by groups of alike files.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::size_of;

use silt_format::Fingerprint;
use silt_similarity::{Candidate, GroupParameters, Groups, Sketch, SketchCache, SketchIndex};

use crate::prepare::{Cut, Prepared, Sketches};
use crate::set::DIMENSIONS;

/// Bytes of the chunks of a container.
pub const CONTAINER_BYTES: usize = 4_718_592;
/// Bytes of a slot of a hash map, beside what is in it.
const SLOT_BYTES: usize = 1;
/// Bytes of a Bloom filter for each fingerprint: 1 % of the answers are wrong.
pub const BLOOM_BYTES: f64 = 1.2;

/// How a destination is searched.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Groups of alike files, of which only those like the file are searched.
    pub groups: Option<GroupParameters>,
    /// Chunks of the groups in memory, those used last; all of them if it is `None`.
    pub group_chunks: Option<usize>,
    /// Sketches of so many chunks in memory, by the containers in which duplicates were found, in
    /// place of an index of all sketches.
    pub cached_chunks: Option<usize>,
    /// Bytes of the chunks of a container.
    pub container_bytes: usize,
}

/// Groups of files. Published are neither the number of tables and functions nor the width, which
/// was chosen among those that the evaluation's table of groups shows.
pub const GROUPS: GroupParameters =
    GroupParameters { tables: 4, functions: 3, width: 12.0, seed: 0 };

/// Everything is indexed, and everything is searched.
pub const WHOLE: Search = Search {
    groups: None,
    group_chunks: None,
    cached_chunks: None,
    container_bytes: CONTAINER_BYTES,
};

/// What is known of one group.
#[derive(Default)]
struct Group {
    prints: HashMap<Fingerprint, u32>,
    index: Option<SketchIndex>,
    sketched: Vec<u32>,
}

impl Group {
    fn bytes(&self) -> usize {
        let prints = self.prints.capacity() * (size_of::<(Fingerprint, u32)>() + SLOT_BYTES);
        prints + self.index.as_ref().map_or(0, SketchIndex::bytes)
    }

    /// Adds a chunk; the index grows like a vector.
    fn add(&mut self, number: u32, print: Fingerprint, sketches: Option<&Sketches>) {
        self.prints.insert(print, number);
        let Some(sketches) = sketches else { return };
        let Some(sketch) = &sketches.of[number as usize] else { return };
        self.sketched.push(number);
        if self.index.as_ref().is_none_or(|index| index.len() < self.sketched.len() - 1)
            || self.sketched.len().is_power_of_two()
        {
            let of = |number: &u32| sketches.of[*number as usize].map(|it| (it, *number));
            let super_features = sketches.parameters.super_features;
            let mut index = SketchIndex::new(self.sketched.len() * 2, super_features);
            self.sketched.iter().filter_map(of).for_each(|(it, at)| index.add(&it, at.into()));
            self.index = Some(index);
        } else if let Some(index) = &mut self.index {
            index.add(sketch, number.into());
        }
    }
}

/// The destination.
pub struct Destination<'p> {
    prepared: &'p Prepared,
    sketches: Option<&'p Sketches>,
    search: Search,
    groups: Vec<Group>,
    alike: Option<Groups>,
    leaders: Vec<[f64; DIMENSIONS]>,
    /// Whether the destination has a chunk in any group, which the search need not find.
    has: Vec<bool>,
    /// The container of each chunk, and the chunks of each container.
    container_of: HashMap<u32, u64>,
    containers: Vec<Vec<u32>>,
    container_bytes: usize,
    cache: SketchCache,
    /// Sketches of the container that is being filled, if sketches are cached by container.
    open: SketchIndex,
    /// Groups in memory, those used last at the end, and how many chunks they have.
    used: VecDeque<u32>,
    used_chunks: usize,
    pub loads: u64,
    /// Chunks of the groups that were searched, over all searches.
    pub scope: u64,
    pub searches: u64,
    /// The most that was in memory, in bytes.
    pub memory: usize,
}

impl<'p> Destination<'p> {
    /// An empty destination; without sketches, it only finds fingerprints.
    pub fn new(prepared: &'p Prepared, sketches: Option<&'p Sketches>, search: Search) -> Self {
        Self {
            prepared,
            sketches,
            search,
            groups: if search.groups.is_some() { Vec::new() } else { vec![Group::default()] },
            alike: search.groups.map(|parameters| Groups::new(DIMENSIONS, parameters)),
            leaders: Vec::new(),
            has: vec![false; prepared.chunks.len()],
            container_of: HashMap::new(),
            containers: vec![Vec::new()],
            container_bytes: 0,
            cache: SketchCache::new(search.cached_chunks.unwrap_or(0)),
            open: empty_container(search),
            used: VecDeque::new(),
            used_chunks: 0,
            loads: 0,
            scope: 0,
            searches: 0,
            memory: 0,
        }
    }

    /// The groups that a file is searched in, the one it is added to first; a file that is like no
    /// other begins one.
    pub fn groups_of(&mut self, version: &Cut) -> Vec<u32> {
        let found = match &mut self.alike {
            None => vec![0],
            Some(alike) => {
                let mut found = alike.alike(&version.vector);
                let distance = |group: u32| -> f64 {
                    let leader = &self.leaders[group as usize];
                    leader.iter().zip(&version.vector).map(|(a, b)| (a - b) * (a - b)).sum()
                };
                found.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
                if found.is_empty() {
                    let group = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
                    alike.add(group, &version.vector);
                    self.leaders.push(version.vector);
                    self.groups.push(Group::default());
                    found.push(group);
                }
                found
            }
        };
        self.searches += 1;
        for group in &found {
            self.scope += self.groups[*group as usize].prints.len() as u64;
            self.load(*group);
        }
        found
    }

    /// Brings a group into memory, and lets those go that were used longest ago.
    fn load(&mut self, group: u32) {
        let Some(most) = self.search.group_chunks else { return };
        let chunks = |group: u32| self.groups[group as usize].prints.len();
        if let Some(place) = self.used.iter().position(|used| *used == group) {
            self.used.remove(place);
        } else {
            self.loads += u64::from(chunks(group) > 0);
        }
        self.used.push_back(group);
        self.used_chunks = self.used.iter().map(|group| chunks(*group)).sum();
        while self.used_chunks > most && self.used.len() > 1 {
            let Some(oldest) = self.used.pop_front() else { return };
            self.used_chunks -= chunks(oldest);
        }
    }

    /// Whether the search finds a chunk; what its container has is then in the cache.
    pub fn finds(&mut self, groups: &[u32], number: u32) -> bool {
        let print = &self.prepared.chunks[number as usize].print;
        let mut found = groups.iter().map(|group| self.groups[*group as usize].prints.get(print));
        let is_found = found.any(|found| found.is_some());
        if is_found && self.search.cached_chunks.is_some() {
            self.warm(number);
        }
        is_found
    }

    fn warm(&mut self, number: u32) {
        let Some(container) = self.container_of.get(&number) else { return };
        let Some(sketches) = self.sketches else { return };
        if *container + 1 == self.containers.len() as u64 {
            return;
        }
        let chunks = &self.containers[usize::try_from(*container).unwrap_or(0)];
        let read = || {
            let of = |number: &u32| Some((sketches.of[*number as usize]?, u64::from(*number)));
            Ok::<_, std::convert::Infallible>(chunks.iter().filter_map(of).collect())
        };
        let Ok(_) = self.cache.warm(*container, read);
    }

    /// Whether the destination has a chunk, found or not.
    pub fn has(&self, number: u32) -> bool {
        self.has[number as usize]
    }

    /// The chunks that resemble `sketch` most, at most `count`.
    pub fn candidates(&self, groups: &[u32], sketch: &Sketch, count: usize) -> Vec<Candidate> {
        let (mut all, mut found): (Vec<Candidate>, _) = (Vec::new(), Vec::new());
        if self.search.cached_chunks.is_some() {
            self.open.candidates(sketch, count, &mut all);
            all.extend(self.cache.candidates(sketch, count));
        }
        for group in groups {
            let Some(index) = &self.groups[*group as usize].index else { continue };
            index.candidates(sketch, count, &mut found);
            all.extend(&found);
        }
        all.sort_by_key(|candidate| usize::MAX - candidate.equal);
        let mut seen = HashSet::new();
        all.retain(|candidate| seen.insert(candidate.base));
        all.truncate(count);
        all
    }

    /// Adds a chunk to the group that the file belongs to.
    pub fn store(&mut self, groups: &[u32], number: u32) {
        let chunk = &self.prepared.chunks[number as usize];
        let Some(home) = groups.first() else { return };
        let is_cached = self.search.cached_chunks.is_some();
        let indexed = self.sketches.filter(|_| !is_cached);
        self.groups[*home as usize].add(number, chunk.print, indexed);
        if !std::mem::replace(&mut self.has[number as usize], true) {
            if self.container_bytes + chunk.bytes.len() > self.search.container_bytes {
                self.containers.push(Vec::new());
                self.container_bytes = 0;
                self.open = empty_container(self.search);
            }
            let sketch = self.sketches.and_then(|sketches| sketches.of[number as usize]);
            if let Some(sketch) = sketch.filter(|_| is_cached) {
                self.open.add(&sketch, number.into());
            }
            self.container_bytes += chunk.bytes.len();
            let last = self.containers.len() - 1;
            self.containers[last].push(number);
            self.container_of.insert(number, last as u64);
        }
    }

    /// How many groups there are.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Notes what is in memory now, by the sizes of the structures: the functions of the groups and
    /// their buckets, groups that are loaded, sketches that are cached, and a Bloom filter if not
    /// every fingerprint is in memory.
    pub fn measure(&mut self) {
        let stored = self.has.iter().filter(|has| **has).count() as f64;
        let bloom = silt_report::floor(stored * BLOOM_BYTES);
        let leaders = self.leaders.len() * size_of::<[f64; DIMENSIONS]>();
        let alike = leaders + self.alike.as_ref().map_or(0, Groups::bytes);
        let loaded: usize = if self.search.group_chunks.is_none() {
            self.groups.iter().map(Group::bytes).sum()
        } else {
            let used = self.used.iter().map(|group| self.groups[*group as usize].bytes());
            bloom + used.sum::<usize>()
        };
        let open = self.search.cached_chunks.map_or(0, |_| self.open.bytes());
        self.memory = self.memory.max(alike + loaded + self.cache.bytes() + open);
    }
}

/// An index for the sketches of one container; the smallest chunks have a quarter of the mean.
fn empty_container(search: Search) -> SketchIndex {
    let chunks = if search.cached_chunks.is_some() { search.container_bytes >> 11 } else { 0 };
    SketchIndex::new(chunks, silt_similarity::SUPER_FEATURES)
}
