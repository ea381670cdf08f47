//! Kinds of files, and how each is cut into chunks.

use crate::codec::{Decoder, Encoder};
use crate::recipe::{decode_chunking, encode_chunking};
use crate::{Chunking, Result};

/// What a file is used for. Files of one kind are likely to share content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FileKind {
    /// The image of a disk or of a memory.
    DiskImage = 1,
    /// A database, or its log.
    Database = 2,
    /// Text: source code, configuration, logs, markup.
    Text = 3,
    /// A document of an office suite, a PDF, a book.
    Document = 4,
    /// Mail.
    Mail = 5,
    /// A photograph or another picture.
    Photo = 6,
    /// Sound.
    Audio = 7,
    /// Moving pictures.
    Video = 8,
    /// An archive, a package, or other compressed data.
    Archive = 9,
    /// A program, library or object file.
    Executable = 10,
    /// Anything else.
    #[default]
    Other = 0,
}

impl FileKind {
    /// All kinds; the place of each is its [`index`](Self::index).
    pub const ALL: [Self; 11] = [
        Self::Other,
        Self::DiskImage,
        Self::Database,
        Self::Text,
        Self::Document,
        Self::Mail,
        Self::Photo,
        Self::Audio,
        Self::Video,
        Self::Archive,
        Self::Executable,
    ];

    /// The number of the kind, below the length of [`ALL`](Self::ALL).
    pub fn index(self) -> usize {
        usize::from(self as u8)
    }

    /// The name in messages and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::DiskImage => "disk-image",
            Self::Database => "database",
            Self::Text => "text",
            Self::Document => "document",
            Self::Mail => "mail",
            Self::Photo => "photo",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::Archive => "archive",
            Self::Executable => "executable",
            Self::Other => "other",
        }
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let number = from.u8()?;
        let kind = Self::ALL.get(usize::from(number)).copied();
        kind.ok_or_else(|| from.corrupt(format!("a file of unknown use {number}")))
    }
}

/// How the content of files is cut into chunks, by kind. Cut points depend on the content and on
/// this alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileChunking {
    chunkings: [Chunking; FileKind::ALL.len()],
}

/// Where nothing else is stored: disk images and databases, which are changed in place, at
/// multiples of 4 KiB, all others where their content says.
impl Default for FileChunking {
    fn default() -> Self {
        let content = Chunking::FastCdc { min: 2048, avg: 8192, max: 65_536 };
        let mut chunkings = [content; FileKind::ALL.len()];
        for kind in [FileKind::DiskImage, FileKind::Database] {
            chunkings[kind.index()] = Chunking::Fixed { bytes: 4096 };
        }
        Self { chunkings }
    }
}

impl FileChunking {
    /// How files of a kind are cut.
    pub fn of(&self, kind: FileKind) -> Chunking {
        self.chunkings[kind.index()]
    }

    /// Sets how files of a kind are cut. Fails with `Invalid` if that is out of the format's
    /// bounds.
    pub fn set(&mut self, kind: FileKind, chunking: Chunking) -> Result<()> {
        self.chunkings[kind.index()] = chunking.validate()?;
        Ok(())
    }

    pub(crate) fn encode(&self, to: &mut Encoder) {
        to.count(FileKind::ALL.len());
        for kind in FileKind::ALL {
            to.u8(kind as u8);
            encode_chunking(self.of(kind), to);
        }
    }

    /// All kinds are there, each once and in the order of their numbers: defaults of another
    /// version must not change what is cut how.
    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let mut found = Self::default();
        let items = from.list(14, |item| Ok((FileKind::decode(item)?, decode_chunking(item)?)))?;
        if !items.iter().map(|(kind, _)| *kind).eq(FileKind::ALL) {
            return Err(from.corrupt("the kinds of files are not those of this version"));
        }
        for (kind, chunking) in items {
            found.chunkings[kind.index()] = chunking;
        }
        Ok(found)
    }
}

/// Number and size of the files of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Regular files; one with several names counts for each.
    pub files: u64,
    /// Their sizes in bytes.
    pub bytes: u64,
}
