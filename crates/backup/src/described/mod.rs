//! Volumes that another repository describes: one with the same secret, or one that translates what
//! it describes.
//!
//! Segments come as digests. Of those that the parent lacks, the chunks come as fingerprints; of
//! these, the ones that no level finds come as bytes, which are compared with their fingerprints
//! before they are stored. Everything else is as in a backup.

mod arrivals;
mod coverage;
mod deltas;
mod received;
mod recognition;
mod segments;
mod steps;

use silt_format::replica::{Origin, ReplicaMessage, SourceMessage};
use silt_format::{
    ALONE, Error, ErrorKind, Id, LevelBytes, MapRoot, Result, SeriesId, Volume, VolumeKind,
};

use crate::session::{BackupSession, check_name};

pub use self::received::ReceivedBases;
pub use self::recognition::Recognition;

/// Maximum size of all volumes of a snapshot that is replicated, in bytes: bounds the time that a
/// peer's claims cost.
const VOLUMES_BYTES_MAX: u64 = 1 << 52;

/// The end of a connection that describes volumes.
pub trait ReplicaPeer {
    /// Sends a message, at the latest before the next message is received.
    fn send(&mut self, message: ReplicaMessage) -> Result<()>;
    /// Waits for the next message.
    fn receive(&mut self) -> Result<SourceMessage>;

    /// Tells a peer whose repository has another secret how the session recognises data; it
    /// describes the snapshot in these terms.
    ///
    /// By default fails with `Unsupported`: these keys stay in the process.
    fn translate(&mut self, _to: Recognition) -> Result<()> {
        let message = "a snapshot is translated only where both repositories are open";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// The circumstances of a snapshot that was taken elsewhere or earlier. `None` stands for those of
/// a backup now.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// When the backup began, in nanoseconds since 1970.
    pub time_ns: Option<i64>,
    /// How long it took, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The host that made it.
    pub host: Option<String>,
    /// The program that made it.
    pub program: Option<String>,
    /// The snapshot that it is a copy of.
    pub origin: Option<Origin>,
}

/// The error of a message that must not come now.
pub(crate) fn unexpected(message: &SourceMessage) -> Error {
    let name = match message {
        SourceMessage::Ask { .. } => "a question",
        SourceMessage::Begin(_) => "a snapshot",
        SourceMessage::Segments(_) => "segments",
        SourceMessage::Chunks { .. } => "chunks",
        SourceMessage::Data(_) | SourceMessage::Frame(_) | SourceMessage::Delta(_) => "data",
        SourceMessage::Steps(_) => "entries",
        SourceMessage::End => "the end of a volume",
        SourceMessage::Commit => "a commit",
        SourceMessage::Abort => return aborted(),
        SourceMessage::Bye => "the end of the connection",
    };
    Error::invalid(format!("the source sent {name} at the wrong time"))
}

/// The error of a snapshot that the source has given up.
fn aborted() -> Error {
    Error::new(ErrorKind::Interrupted, "the source gave the snapshot up")
}

impl BackupSession<'_> {
    /// The snapshot that this session compares with, as the source knows it.
    ///
    /// `None` if another key signed it that may not remove: the segments that the source then calls
    /// unchanged would be adopted unproven. Without an origin, the source describes each of them.
    pub fn parent_origin(&self) -> Option<Origin> {
        let repository = self.repository.id();
        self.parent
            .as_ref()
            .filter(|_| self.parent_is_trusted)
            .map(|parent| parent.origin.unwrap_or(Origin { repository, snapshot: parent.id }))
    }

    /// The bases of this session's deltas, of which there are none yet.
    pub fn received_bases(&self) -> ReceivedBases {
        let parent = self.parent.as_ref().map(|parent| parent.id);
        ReceivedBases::new(self.head(), parent)
    }

    /// Fails with `Invalid` unless the series has this id and domain: otherwise its keys differ
    /// from the source's, and nothing could be recognised.
    pub fn require_series(&self, id: SeriesId, domain: u32) -> Result<()> {
        let head = self.head();
        if head.domain != domain {
            return Err(Error::invalid(
                "the series shares chunks with others in one of the repositories and not in the \
                 other",
            ));
        }
        if domain == ALONE && head.series != id {
            return Err(Error::invalid(
                "a series that shares nothing has keys of its own, which depend on its name; \
                 replicate it under the same name",
            ));
        }
        Ok(())
    }

    /// Fails with `Busy` unless `is_known` for every snapshot of the series, deleted ones, too: the
    /// source has decided what to send before it could know of them.
    pub fn require_known(&self, is_known: impl Fn(Id) -> bool) -> Result<()> {
        let head = self.head();
        let deleted = head.deleted.iter().map(|deleted| &deleted.entry);
        if head.snapshots.iter().chain(deleted).all(|entry| is_known(entry.id)) {
            return Ok(());
        }
        let message = format!(
            "series '{}' has got a snapshot by another backup or replication meanwhile; replicate \
             it once more",
            head.shown()
        );
        Err(Error::new(ErrorKind::Busy, message))
    }

    /// Adds a copy of `volume` that `peer` describes: first its segments up to
    /// [`End`](SourceMessage::End); of a file tree, then its entries up to the next one.
    ///
    /// Fails with `Corrupt` if bytes or chunks are not what they were announced to be, with
    /// `Invalid` if the peer breaks the protocol, and with `Interrupted` if it gives the snapshot
    /// up.
    pub fn add_described(&mut self, volume: &Volume, peer: &mut dyn ReplicaPeer) -> Result<()> {
        check_name("volume", &volume.name)?;
        self.require_new_volume(&volume.name)?;
        let before = self.volumes.iter().map(|volume| volume.bytes).sum::<u64>();
        if volume.bytes > VOLUMES_BYTES_MAX - before {
            let (name, bytes) = (&volume.name, volume.bytes);
            return Err(Error::invalid(format!("volume '{name}' of {bytes} bytes is too large")));
        }
        let before = self.stored_bytes();
        let mut copy = Volume {
            kind: VolumeKind::Disk,
            root: MapRoot { level: 0, page: None },
            levels: LevelBytes::default(),
            stored_bytes: 0,
            ..volume.clone()
        };
        let loses_data;
        (copy.root, loses_data) = self.take_segments(volume, &mut copy, peer)?;
        if let VolumeKind::Tree(tree) = &volume.kind {
            let tree = self.take_steps((volume, tree), (copy.root, loses_data), peer)?;
            copy.kind = VolumeKind::Tree(Box::new(tree));
        }
        copy.stored_bytes = self.stored_bytes() - before;
        self.volumes.push(copy);
        Ok(())
    }
}
