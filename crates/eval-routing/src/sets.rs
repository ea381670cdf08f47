//! Generated stand-ins of the published sets: fingerprints of streams, drawn from a seed.
//!
//! A set is a number of generations of the same files. A file is replaced as a whole from one
//! generation to the next, or some of its blocks are; some blocks are the same in several files. A
//! chunk is made of units of 1 KiB, so that every scheme can cut the same stream its own way.

use silt_routing::{Chunk, Print, mix};

use silt_report::{Random, floor};

/// Bytes of a unit, the smallest chunk.
pub const UNIT_BYTES: u64 = 1 << 10;
/// Units of a block, which changes as a whole.
const BLOCK_UNITS: u64 = 16;
/// Units that a stream emits at a time.
const PART_UNITS: u64 = 1024;

/// What a set is made of. All of it is input.
pub struct Profile {
    pub name: &'static str,
    /// The published size in GB, and the ratio of logical to stored bytes.
    pub gigabytes: f64,
    pub published: &'static str,
    /// Whether the published trace has files. Without, schemes that route files do not apply.
    pub has_files: bool,
    pub generations: u64,
    pub files: Files,
    /// Of the files, the share that the next generation replaces.
    pub replaced: f64,
    /// Of the blocks of the others, the share that changes.
    pub changed: f64,
    /// Of the blocks, the share that all files of a group have in common.
    pub common: f64,
    pub group: u64,
    /// Units of a chunk where each application has its own: the published best choice, or 4.
    pub own_units: u64,
}

/// How many files a generation has.
pub enum Files {
    /// As many as fit, of this mean size in bytes.
    OfBytes(f64),
    /// This many, which grow with the set.
    Count(u64),
}

/// The seven sets. Generations, sizes and groups are chosen; shares that change are chosen so that
/// each set's ratio is near the published one, which is an input therefore.
pub const PROFILES: [Profile; 7] = [
    Profile {
        name: "Linux",
        gigabytes: 160.0,
        published: "8.23 / 7.96",
        has_files: true,
        generations: 12,
        files: Files::OfBytes(65e3),
        replaced: 0.01,
        changed: 0.032,
        common: 0.0,
        group: 1,
        own_units: 4,
    },
    Profile {
        name: "VM",
        gigabytes: 313.0,
        published: "4.34 / 4.11",
        has_files: true,
        generations: 2,
        files: Files::Count(8),
        replaced: 0.0,
        changed: 0.1,
        common: 0.743,
        group: 4,
        own_units: 8,
    },
    Profile {
        name: "audio",
        gigabytes: 158.0,
        published: "1.39 / 1.21",
        has_files: true,
        generations: 2,
        files: Files::OfBytes(3.1e6),
        replaced: 0.4,
        changed: 0.065,
        common: 0.0,
        group: 1,
        own_units: 4,
    },
    Profile {
        name: "video",
        gigabytes: 366.0,
        published: "1.83 / 1.14",
        has_files: true,
        generations: 2,
        files: Files::OfBytes(170e6),
        replaced: 0.05,
        changed: 0.045,
        common: 0.0,
        group: 1,
        own_units: 2,
    },
    Profile {
        name: "photo",
        gigabytes: 208.0,
        published: "1.58 / 1.35",
        has_files: true,
        generations: 2,
        files: Files::OfBytes(1.4e6),
        replaced: 0.2,
        changed: 0.0825,
        common: 0.0,
        group: 1,
        own_units: 4,
    },
    Profile {
        name: "mail",
        gigabytes: 526.0,
        published: "10.52",
        has_files: false,
        generations: 16,
        files: Files::OfBytes(64e6),
        replaced: 0.0,
        changed: 0.0347,
        common: 0.0,
        group: 1,
        own_units: 4,
    },
    Profile {
        name: "web",
        gigabytes: 43.0,
        published: "1.9",
        has_files: false,
        generations: 2,
        files: Files::OfBytes(1e6),
        replaced: 0.0,
        changed: 0.0526,
        common: 0.0,
        group: 1,
        own_units: 4,
    },
];

/// Gigabytes of all published sets.
pub fn published_gigabytes() -> f64 {
    PROFILES.iter().map(|profile| profile.gigabytes).sum()
}

/// Where a part of a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Inside,
    File,
    /// A generation, which is a backup of its own.
    Backup,
    Stream,
}

/// The chunks of a set in the order in which a client reads them.
pub struct Stream {
    profile: &'static Profile,
    seed: u64,
    chunk_units: u64,
    files: u64,
    mean_units: f64,
    generation: u64,
    file: u64,
    unit: u64,
    /// Of the file that is read.
    units: u64,
    identity: u64,
}

impl Stream {
    /// A set of about `bytes` in all generations, in chunks of `chunk_units` units.
    pub fn new(profile: &'static Profile, seed: u64, bytes: f64, chunk_units: u64) -> Self {
        let units = bytes / profile.generations as f64 / UNIT_BYTES as f64;
        let (files, mean_units) = match profile.files {
            Files::Count(count) => (count, units / count as f64),
            Files::OfBytes(mean) => {
                let files = (units * UNIT_BYTES as f64 / mean).max(1.0);
                (floor(files) as u64, units / files.floor())
            }
        };
        let seed = mix(seed ^ mix(profile.gigabytes.to_bits()));
        let mut stream = Self {
            profile,
            seed,
            chunk_units,
            files,
            mean_units,
            generation: 0,
            file: 0,
            unit: 0,
            units: 0,
            identity: 0,
        };
        stream.open();
        stream
    }

    /// Bytes of all generations.
    pub fn bytes(&self) -> u64 {
        let files: u64 = (0..self.files).map(|file| self.size(file)).sum();
        files * self.profile.generations * UNIT_BYTES
    }

    /// Files of a generation.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// A number from 0 to 1 that stands for these four.
    fn unit_of(&self, kind: u64, one: u64, two: u64, three: u64) -> f64 {
        let number = mix(mix(mix(mix(self.seed ^ kind) ^ one) ^ two) ^ three);
        (number >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Units of a file: log-normal around the mean with a deviation of 1, or equal if there are
    /// few files.
    fn size(&self, file: u64) -> u64 {
        if matches!(self.profile.files, Files::Count(_)) || self.files < 8 {
            return (floor(self.mean_units) as u64).max(1);
        }
        let mut random = Random(mix(self.seed ^ mix(file)));
        let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
        (floor(self.mean_units * (normal - 0.5).exp()) as u64).max(1)
    }

    fn open(&mut self) {
        self.unit = 0;
        self.units = self.size(self.file);
        self.identity = self.file << 8 | self.last(1, self.file, 0, self.profile.replaced);
    }

    /// The last generation so far in which something changed that changes with this probability.
    fn last(&self, kind: u64, one: u64, two: u64, probability: f64) -> u64 {
        let is_changed = |generation: &u64| {
            probability > 0.0 && self.unit_of(kind, one, two, *generation) < probability
        };
        (1..=self.generation).rev().find(is_changed).unwrap_or(0)
    }

    /// What a block holds, as a number. Blocks of a file begin at a place that is not that of a
    /// chunk.
    fn block(&self, block: u64) -> u64 {
        let group = self.file / self.profile.group;
        let is_common =
            self.profile.common > 0.0 && self.unit_of(2, group, block, 0) < self.profile.common;
        let whose = if is_common { mix(1 << 60 | group) } else { mix(self.identity) };
        let last = self.last(3, whose, block, self.profile.changed);
        mix(mix(mix(self.seed ^ whose) ^ block) ^ last)
    }

    /// Appends some chunks to `into`.
    pub fn part(&mut self, into: &mut Vec<Chunk>) -> Part {
        if self.generation >= self.profile.generations {
            return Part::Stream;
        }
        let shift = mix(self.file / self.profile.group) % BLOCK_UNITS;
        let (mut number, mut content) = (u64::MAX, 0);
        let end = (self.unit + PART_UNITS).min(self.units);
        while self.unit < end {
            let chunk_end = (self.unit + self.chunk_units).min(end);
            let bytes = u32::try_from((chunk_end - self.unit) * UNIT_BYTES).unwrap_or(0);
            let mut print: Print = u64::from(bytes);
            for unit in self.unit..chunk_end {
                let block = (unit + shift) / BLOCK_UNITS;
                if block != number {
                    (number, content) = (block, self.block(block));
                }
                print = mix(print ^ content.wrapping_add((unit + shift) % BLOCK_UNITS));
            }
            into.push(Chunk { print, bytes });
            self.unit = chunk_end;
        }
        if self.unit < self.units {
            return Part::Inside;
        }
        self.file += 1;
        let is_last = self.file == self.files;
        if is_last {
            (self.file, self.generation) = (0, self.generation + 1);
        }
        self.open();
        if is_last { Part::Backup } else { Part::File }
    }
}
