//! Archives made byte by byte, and what becomes of them.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use silt_format::tree::Metadata;
use silt_format::{Config, Error};
use silt_import::{StageOptions, StagedTree, stage};
use silt_repository::Repository;
use silt_repository::env::Context;
use silt_repository::event::Silent;
use silt_repository::open::Protection;
use silt_repository::system::SystemEnv;
use silt_storage::MemoryStorage;
use silt_tree::{Step, TreeSource};

pub const BLOCK: usize = 512;

pub fn repository() -> Repository {
    let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    let context = Context::new(env, Arc::new(Silent));
    let (storage, config) = (Arc::new(MemoryStorage::new()), Config::default());
    Repository::init(storage, context, config, &Protection::None, None).unwrap()
}

/// An archive that is being written.
#[derive(Clone, Default)]
pub struct Archive(pub Vec<u8>);

impl Archive {
    /// Adds a header of POSIX with a right checksum; `edit` may change it before.
    pub fn header_with(
        mut self,
        kind: u8,
        name: &str,
        size: u64,
        edit: impl FnOnce(&mut [u8; BLOCK]),
    ) -> Self {
        let mut header = [0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..116].copy_from_slice(b"0001750\0");
        header[116..124].copy_from_slice(b"0000144\0");
        header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        header[136..148].copy_from_slice(b"00000000144\0");
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[265..269].copy_from_slice(b"anna");
        edit(&mut header);
        header[148..156].copy_from_slice(b"        ");
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
        self
    }

    pub fn header(self, kind: u8, name: &str, size: u64) -> Self {
        self.header_with(kind, name, size, |_| {})
    }

    /// Adds content, padded to whole blocks.
    pub fn content(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        self
    }

    pub fn file(self, name: &str, bytes: &[u8]) -> Self {
        self.header(b'0', name, bytes.len() as u64).content(bytes)
    }

    pub fn directory(self, name: &str) -> Self {
        self.header(b'5', name, 0)
    }

    pub fn link(self, kind: u8, name: &str, target: &str) -> Self {
        self.header_with(kind, name, 0, |header| {
            header[157..157 + target.len()].copy_from_slice(target.as_bytes());
        })
    }

    /// Adds an extended header.
    pub fn pax(self, kind: u8, records: &[(&str, &[u8])]) -> Self {
        let bytes: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.header(kind, "pax", bytes.len() as u64).content(&bytes)
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 2 * BLOCK]);
        self.0
    }
}

/// A record of an extended header.
pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key.as_bytes(), b"=", value, b"\n"].concat()
}

/// What was staged of an archive.
pub struct Staged {
    pub tree: StagedTree,
    /// Paths, metadata and content in the order of the tree; a directory ends with a slash.
    pub entries: Vec<(String, Metadata, Vec<u8>)>,
}

impl Staged {
    pub fn paths(&self) -> Vec<&str> {
        self.entries.iter().map(|(path, ..)| path.as_str()).collect()
    }

    #[track_caller]
    pub fn at(&self, path: &str) -> &(String, Metadata, Vec<u8>) {
        let found = self.entries.iter().find(|(it, ..)| it == path);
        found.unwrap_or_else(|| panic!("no {path} in {:?}", self.paths()))
    }

    pub fn refusals(&self) -> Vec<String> {
        let shown = self.tree.refusals().iter().map(|refused| {
            format!("{}: {}", String::from_utf8_lossy(&refused.path), refused.error)
        });
        shown.collect()
    }
}

pub fn staged(input: impl Read) -> Result<Staged, Error> {
    staged_below(input, "")
}

pub fn staged_below(input: impl Read, root: &str) -> Result<Staged, Error> {
    let options = StageOptions { root: root.into(), ..StageOptions::default() };
    let tree = stage(&repository(), input, &std::env::temp_dir(), &options)?;
    let entries = entries(&mut *tree.source()?);
    Ok(Staged { tree, entries })
}

/// Reads a tree to its end, as a backup does.
fn entries(source: &mut dyn TreeSource) -> Vec<(String, Metadata, Vec<u8>)> {
    let (mut all, mut open) = (Vec::<(String, Metadata, Vec<u8>)>::new(), Vec::<String>::new());
    let path = |open: &[String], name: &[u8]| {
        format!("{}{}", open.concat(), String::from_utf8_lossy(name))
    };
    while let Some(step) = source.next().unwrap() {
        match step {
            Step::Enter(found) => {
                let name = String::from_utf8_lossy(&found.name).into_owned() + "/";
                let name = if open.is_empty() { String::new() } else { name };
                all.push((path(&open, name.as_bytes()), found.metadata, Vec::new()));
                open.push(name);
            }
            Step::Entry(mut found) => {
                assert!(source.complete(&mut found));
                let mut content = Vec::new();
                if found.metadata.kind == silt_format::tree::EntryKind::File {
                    let file = source.open_file(&found).unwrap();
                    content.resize(usize::try_from(found.metadata.size).unwrap().min(1 << 24), 9);
                    let read = file.read_at(0, &mut content).unwrap();
                    assert_eq!(read, content.len());
                }
                all.push((path(&open, &found.name), found.metadata, content));
            }
            Step::Leave(_) => drop(open.pop()),
            other => panic!("{other:?}"),
        }
    }
    assert!(open.is_empty(), "every directory is left");
    // The names of each directory ascend, as the pages of a tree need.
    for pair in all.windows(2) {
        let key = |path: &str| path.trim_end_matches('/').replace('/', "\0");
        assert!(key(&pair[0].0) < key(&pair[1].0), "{} before {}", pair[0].0, pair[1].0);
    }
    all
}
