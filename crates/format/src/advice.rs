//! Advice on errors, which a program words in terms of its own commands.

use crate::Id;

/// Advice to the user on an [`Error`](crate::Error) or a warning.
///
/// The libraries know neither commands nor options; a program translates each variant.
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
    /// Show a snapshot to see since when its volumes are verified.
    ShowSnapshot,
    /// Check the repository to see which objects are missing.
    Check,
    /// Check all data where the results can be recorded.
    CheckData,
    /// Go on with an earlier head of the series, and bring back snapshots that later ones removed.
    RecoverSeries {
        /// The series' name, or its id with a prefix.
        series: String,
    },
    /// Remove the snapshot's protection first.
    UnprotectSnapshot {
        /// The snapshot.
        snapshot: Id,
    },
    /// Give at least one rule that keeps snapshots.
    KeepSomething,
    /// Compare the places, and replace damaged objects with good copies.
    HealPlaces,
    /// Add a place to the repository, or bring one up to date.
    AddPlace,
    /// Make the place reachable, remove it from the list, or record its new location.
    ReachPlace,
    /// Bring the newer state of the node back, or give it up.
    ReplaceNode,
    /// Finish the removal of this key with another key.
    FinishKeyRemoval {
        /// The key.
        key: Id,
    },
    /// Make a key for this series.
    AddKeyForSeries,
    /// Use a key that reads data.
    UseReadingKey,
    /// Make a replica where there is nothing yet.
    InitReplica,
    /// Let the other end make a missing replica.
    ServeInit,
    /// Allow that the destination of a replication has another secret.
    ReplicateForeign,
    /// Wait until the series is free.
    WaitForSeries,
    /// Accept the older state if the repository was rolled back on purpose.
    AcceptOlderState,
    /// Confirm that the series was removed on purpose.
    AcceptRemovedSeries,
    /// Replace the target, or overwrite it in place where it differs.
    ReplaceTarget,
    /// Overwrite the device.
    OverwriteDevice,
    /// Restore to a new file instead of in place.
    CreateTarget,
    /// Restore in place: other targets cannot be read.
    RestoreInPlace,
    /// Stop the program that uses the target, or restore elsewhere.
    FreeTarget,
    /// Take a snapshot of the disk first, or read it although it is in use.
    ReadInUse,
    /// Convert the image, or store the file's bytes unchanged.
    ConvertImage,
    /// Read the file's bytes unchanged.
    ReadRaw,
    /// Name the format of the image.
    NameFormat,
    /// Allow backing files in that folder, if the file is part of the disk.
    AllowBackingFolder,
    /// Name the program that wrote the changed-blocks map.
    NameMapForm,
    /// Unmount the folder.
    Unmount {
        /// The folder, as the user has named it.
        folder: String,
    },
    /// Use a bucket that has Object Lock, or do not lock objects.
    UseBucketWithLocks,
    /// Provide credentials for an S3 server.
    GiveS3Credentials,
    /// Provide credentials for Azure Blob Storage.
    GiveAzureCredentials,
    /// Provide credentials for Google Cloud Storage.
    GiveGoogleCredentials,
}
