//! Files by attribute vectors, with versions by edits, drawn from a seed.

use crate::Result;
use crate::set::{Attributes, Version};
use silt_report::{Random, floor};

/// Sites that replicate to one destination.
pub const SOURCES: u32 = 8;
/// Users of the published file system trace.
const OWNERS: usize = 236;
/// Words of text.
const WORDS: usize = 4096;
/// Bytes of an insertion, deletion, replacement or move, the mean.
const EDIT_BYTES: f64 = 48.0;
/// Templates of a kind that files are derived from.
const TEMPLATES: usize = 3;

/// The proportions of a set. All of them are inputs.
#[derive(Clone, Copy)]
pub struct Profile {
    pub name: &'static str,
    pub rounds: u32,
    /// Sizes of files in bytes are log-normal: the median, and the deviation of the logarithm.
    pub size_median: f64,
    pub size_deviation: f64,
    /// Kinds of files, and which share of them is text, and which records; the rest is noise.
    pub kinds: usize,
    pub text: f64,
    pub records: f64,
    /// Of new files, the share that is derived from a template of its kind.
    pub derived: f64,
    /// Of the files, the share that is written in a round.
    pub written: f64,
    /// Of what is written, the share that is a copy of another file, and that is a new file. The
    /// rest are next versions.
    pub copies: f64,
    pub created: f64,
    /// Edits in 8 KiB of a next version, and in a file that is derived.
    pub edits: f64,
    pub derived_edits: f64,
    /// Bytes that a next version appends, as a share of the file.
    pub appended: f64,
}

/// One set for each published one, named after what it is. Copies are the published share of exact
/// duplicates.
pub const PROFILES: [Profile; 4] = [
    Profile {
        name: "archive lines",
        rounds: 6,
        size_median: 48_000.0,
        size_deviation: 0.8,
        kinds: 8,
        text: 0.75,
        records: 0.25,
        derived: 0.3,
        written: 0.3,
        copies: 0.226,
        created: 0.2,
        edits: 0.5,
        derived_edits: 4.0,
        appended: 0.05,
    },
    Profile {
        name: "users' files",
        rounds: 10,
        size_median: 64_000.0,
        size_deviation: 1.2,
        kinds: 24,
        text: 0.5,
        records: 0.25,
        derived: 0.3,
        written: 0.2,
        copies: 0.226,
        created: 0.15,
        edits: 1.0,
        derived_edits: 6.0,
        appended: 0.02,
    },
    Profile {
        name: "10-minute intervals",
        rounds: 12,
        size_median: 32_000.0,
        size_deviation: 1.0,
        kinds: 12,
        text: 0.4,
        records: 0.4,
        derived: 0.4,
        written: 0.263,
        copies: 0.226,
        created: 0.1,
        edits: 2.0,
        derived_edits: 8.0,
        appended: 0.02,
    },
    Profile {
        name: "jobs and tasks",
        rounds: 7,
        size_median: 40_000.0,
        size_deviation: 0.5,
        kinds: 16,
        text: 0.5,
        records: 0.5,
        derived: 0.8,
        written: 0.3,
        copies: 0.226,
        created: 0.5,
        edits: 1.0,
        derived_edits: 3.0,
        appended: 0.1,
    },
];

struct Live {
    attributes: Attributes,
    bytes: Vec<u8>,
}

struct Generator {
    profile: Profile,
    random: Random,
    words: Vec<Vec<u8>>,
    templates: Vec<Vec<u8>>,
    files: Vec<Live>,
}

/// Generates a set whose round 0 has about `bytes`, and passes each version on.
pub fn generate(
    profile: &Profile,
    seed: u64,
    bytes: u64,
    into: &mut dyn FnMut(Version) -> Result<()>,
) -> Result<()> {
    let mut generator = Generator::new(*profile, seed);
    let mut total = 0;
    while total < bytes {
        let file = generator.create(0);
        total += generator.files[file].bytes.len() as u64;
        into(generator.version(file, 0)?)?;
    }
    for round in 1..=profile.rounds {
        let count = generator.random.around(generator.files.len() as f64 * profile.written);
        for _ in 0..count {
            let file = generator.write(round);
            into(generator.version(file, round)?)?;
        }
    }
    Ok(())
}

impl Generator {
    fn new(profile: Profile, seed: u64) -> Self {
        let mut random = Random(seed);
        let words = (0..WORDS)
            .map(|_| {
                let letters = 2 + random.below(8);
                (0..letters).map(|_| b'a' + random.next().to_le_bytes()[0] % 26).collect()
            })
            .collect();
        let (templates, files) = (Vec::new(), Vec::new());
        let mut generator = Self { profile, random, words, templates, files };
        for kind in 0..profile.kinds {
            for _ in 0..TEMPLATES {
                let length = floor(profile.size_median * 2.0);
                let template = generator.content(kind, length);
                generator.templates.push(template);
            }
        }
        generator
    }

    fn version(&self, file: usize, round: u32) -> Result<Version> {
        let live = &self.files[file];
        let file = u32::try_from(file)?;
        let (source, vector) = (file % SOURCES, live.attributes.vector());
        Ok(Version { file, round, source, vector, bytes: live.bytes.clone() })
    }

    /// Bytes of a kind, which is text, records or noise.
    fn content(&mut self, kind: usize, length: usize) -> Vec<u8> {
        let share = (kind as f64 + 0.5) / self.profile.kinds as f64;
        let mut bytes = Vec::with_capacity(length + 32);
        if share < self.profile.text {
            while bytes.len() < length {
                let word = floor((WORDS as f64).powf(self.random.unit())) - 1;
                bytes.extend_from_slice(&self.words[word]);
                bytes.push(if self.random.happens(0.1) { b'\n' } else { b' ' });
            }
        } else if share < self.profile.text + self.profile.records {
            let mut number = self.random.next() >> 32;
            while bytes.len() < length {
                number += self.random.next() % 8;
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(&(kind as u64).to_le_bytes());
                bytes.extend_from_slice(&self.random.next().to_le_bytes());
                bytes.extend_from_slice(&[0; 8]);
            }
        } else {
            while bytes.len() < length {
                bytes.extend_from_slice(&self.random.next().to_le_bytes());
            }
        }
        bytes.truncate(length);
        bytes
    }

    /// A normal number, by Box and Muller's method.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.random.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.random.unit()).cos()
    }

    fn create(&mut self, round: u32) -> usize {
        let exponent = self.normal() * self.profile.size_deviation;
        let length = floor(self.profile.size_median * exponent.exp()).clamp(512, 1 << 20);
        let kind = self.random.below(self.profile.kinds);
        let mut bytes = Vec::new();
        if self.random.happens(self.profile.derived) {
            let template = kind * TEMPLATES + self.random.below(TEMPLATES);
            bytes.clone_from(&self.templates[template]);
            bytes.truncate(length);
            self.edit(&mut bytes, kind, self.profile.derived_edits);
        }
        let rest = length.saturating_sub(bytes.len());
        bytes.extend(self.content(kind, rest));
        let attributes = Attributes {
            size: bytes.len(),
            created: f64::from(round),
            written: f64::from(round),
            kind: kind as u64,
            owner: self.random.below(OWNERS) as u64,
        };
        self.files.push(Live { attributes, bytes });
        self.files.len() - 1
    }

    /// What is written next: a copy, a new file, or the next version of a file, of which a tenth is
    /// written as often as all others.
    fn write(&mut self, round: u32) -> usize {
        if self.random.happens(self.profile.created) {
            return self.create(round);
        }
        let hot = (self.files.len() / 10).max(1);
        let of = if self.random.happens(0.5) { hot } else { self.files.len() };
        let file = self.random.below(of);
        if self.random.happens(self.profile.copies / (1.0 - self.profile.created)) {
            let (mut attributes, bytes) =
                (self.files[file].attributes, self.files[file].bytes.clone());
            attributes.created = f64::from(round);
            attributes.written = f64::from(round);
            if self.random.happens(0.5) {
                attributes.owner = self.random.below(OWNERS) as u64;
            }
            self.files.push(Live { attributes, bytes });
            return self.files.len() - 1;
        }
        let kind = usize::try_from(self.files[file].attributes.kind).unwrap_or(0);
        let mut bytes = std::mem::take(&mut self.files[file].bytes);
        self.edit(&mut bytes, kind, self.profile.edits);
        let appended = floor(bytes.len() as f64 * self.profile.appended * 2.0 * self.random.unit());
        bytes.extend(self.content(kind, appended));
        let live = &mut self.files[file];
        live.attributes.size = bytes.len();
        live.attributes.written = f64::from(round);
        live.bytes = bytes;
        file
    }

    /// Inserts, deletes, replaces and moves, so often in 8 KiB.
    fn edit(&mut self, bytes: &mut Vec<u8>, kind: usize, rate: f64) {
        let count = self.random.around(bytes.len() as f64 / 8192.0 * rate).max(1);
        for _ in 0..count {
            let drawn = -EDIT_BYTES * (1.0 - self.random.unit()).ln();
            let length = (1 + floor(drawn)).min(bytes.len() / 2);
            let at = self.random.below(bytes.len() - length + 1);
            match self.random.below(4) {
                0 => {
                    let inserted = self.content(kind, length);
                    bytes.splice(at..at, inserted);
                }
                1 if bytes.len() > 512 => drop(bytes.drain(at..at + length)),
                2 => {
                    let moved: Vec<u8> = bytes.drain(at..at + length).collect();
                    let to = self.random.below(bytes.len() + 1);
                    bytes.splice(to..to, moved);
                }
                _ => {
                    let replaced = self.content(kind, length);
                    bytes[at..at + length].copy_from_slice(&replaced);
                }
            }
        }
    }
}
