//! Advice: what a user can do about an error, for a program to say in the words of its commands.

use crate::Id;

/// What a user can do about an [`Error`](crate::Error) or a warning.
///
/// The libraries know no commands and no flags; a program words each of these for its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Make a repository there.
    InitRepository,
    /// List the snapshots.
    ListSnapshots,
    /// List the deleted snapshots that can still be brought back.
    ListDeletedSnapshots,
    /// List the keys.
    ListKeys,
    /// List the places of the repository.
    ListPlaces,
    /// Look into a snapshot for the time since when its volumes are in doubt.
    ShowSnapshot,
    /// Check the repository to see which objects are missing.
    Check,
    /// Go on with an earlier head of the series, and bring back what later ones dropped.
    RecoverSeries {
        /// The series' name, or its id with a prefix.
        series: String,
    },
    /// Take the protection of the snapshot away first.
    UnprotectSnapshot {
        /// The snapshot.
        snapshot: Id,
    },
    /// Give at least one rule that keeps snapshots.
    KeepSomething,
    /// Compare the places, and replace damaged objects by good copies.
    HealPlaces,
    /// Add a place to the repository, or bring one up to date.
    AddPlace,
    /// Bring the place back, remove it from the list, or say where it is now.
    ReachPlace,
    /// End the removal of this key with another key.
    FinishKeyRemoval {
        /// The key.
        key: Id,
    },
    /// Make a key for this series.
    AddKeyForSeries,
    /// Use a key that reads data.
    UseReadingKey,
    /// Wait until the series is free.
    WaitForSeries,
    /// Say that an older state is right because the repository was rolled back on purpose.
    AcceptOlderState,
    /// Say that the series was removed on purpose.
    AcceptRemovedSeries,
    /// Replace the target, or overwrite it in place where it differs.
    ReplaceTarget,
    /// Overwrite the device.
    OverwriteDevice,
    /// Restore to a new file instead of in place.
    CreateTarget,
    /// Restore in place: other targets can't be read meanwhile.
    RestoreInPlace,
    /// Stop the program that uses the target, or restore elsewhere.
    FreeTarget,
    /// Take a snapshot of the disk first, or read it although it is in use.
    ReadInUse,
    /// Convert the image, or store its file as it is.
    ConvertImage,
    /// Read the bytes of the file as they are.
    ReadRaw,
    /// Say which format the image has.
    NameFormat,
    /// Allow backing files in that folder, if the file belongs to the disk.
    AllowBackingFolder,
    /// Name the program that wrote the map of changes.
    NameMapForm,
}
