//! An open repository and its operations.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use silt_backup::{BackupOptions, BackupSession};
use silt_format::{Config, Result};
use silt_repository::authority::Administrator;
use silt_repository::beside::{Beside, each_beside};
use silt_repository::env::Context;
use silt_repository::objects::Objects;
use silt_repository::open::Protection;
use silt_repository::places::OpenPlace;
use silt_sharing::round::{RoundMember, RoundOptions, RoundReport, backup_round};
use silt_storage::Storage;

/// An open repository, and every operation on it.
///
/// Reading, listing and finding are methods of [`silt_repository::Repository`], to which this type
/// dereferences.
///
/// ```
/// use std::sync::Arc;
///
/// use siltstone::storage::MemoryStorage;
/// use siltstone::{CheckOptions, Config, Protection, Repository, SystemEnv};
///
/// let storage = Arc::new(MemoryStorage::new());
/// let (context, config) = (SystemEnv::context(), Config::default());
/// let made = Repository::init(storage.clone(), context, config, &Protection::None, None)?;
///
/// let opened = Repository::open(storage, SystemEnv::context(), || Ok(Vec::new()))?;
/// assert_eq!(opened.id(), made.id());
/// assert!(opened.check(&CheckOptions::default())?.damage.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub struct Repository(silt_repository::Repository);

impl Deref for Repository {
    type Target = silt_repository::Repository;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Repository {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Beside for Repository {
    fn objects(&self) -> &Arc<Objects> {
        &self.0.objects
    }

    fn beside(&self, context: Context) -> Self {
        Self(self.0.beside(context))
    }
}

impl Repository {
    /// Creates a repository; see [`silt_repository::Repository::init`].
    pub fn init(
        storage: Arc<dyn Storage>,
        context: Context,
        config: Config,
        protection: &Protection,
        administrator: Option<&Administrator>,
    ) -> Result<Self> {
        silt_repository::Repository::init(storage, context, config, protection, administrator)
            .map(Self)
    }

    /// Creates a replica of this repository; see [`silt_repository::Repository::init_replica`].
    pub fn init_replica(
        &self,
        storage: Arc<dyn Storage>,
        context: Context,
        protection: &Protection,
        administrator: Option<&Administrator>,
    ) -> Result<Self> {
        self.0.init_replica(storage, context, protection, administrator).map(Self)
    }

    /// Opens the repository in `storage`; see [`silt_repository::Repository::open`].
    pub fn open(
        storage: Arc<dyn Storage>,
        context: Context,
        password: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Self> {
        silt_repository::Repository::open(storage, context, password).map(Self)
    }

    /// The same repository in another storage; see [`silt_repository::Repository::within`].
    pub(crate) fn within(&self, storage: Arc<dyn Storage>) -> Self {
        Self(self.0.within(storage))
    }

    /// Returns the same repository for one of several concurrent operations; see
    /// [`silt_repository::Repository::for_operation`].
    #[must_use]
    pub fn for_operation(&self, context: Context) -> Self {
        Self(self.0.for_operation(context))
    }

    /// Calls `task` with each item, several at once where storage is far away, and `take` with what
    /// each came to, in the order of the items. A task must only use the repository that it gets.
    ///
    /// Ends with the first error of `take`; then tasks that are under way are interrupted.
    ///
    /// ```
    /// # use {std::sync::Arc, siltstone::{*, storage::*}};
    /// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
    /// # let (config, none) = (Config::default(), Protection::None);
    /// # let repository = Repository::init(storage, context, config, &none, None)?;
    /// let mut heads = Vec::new();
    /// let read = |repository: &Repository, name| repository.head(repository.series_id(name));
    /// repository.each_beside(vec!["web1", "web2"], read, |head| {
    ///     heads.push(head?);
    ///     Ok::<_, Error>(())
    /// })?;
    /// assert_eq!(heads, [None, None]);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn each_beside<I: Send, T: Send, E>(
        &self,
        items: Vec<I>,
        task: impl Fn(&Self, I) -> T + Sync,
        take: impl FnMut(T) -> Result<(), E>,
    ) -> Result<(), E> {
        each_beside(self, items, task, take)
    }

    /// Opens all other places of the repository; see [`silt_repository::Repository::with_places`].
    pub fn with_places(self, here: &str, open: &OpenPlace<'_>) -> Result<Self> {
        self.0.with_places(here, open).map(Self)
    }

    /// The same for a location that has several names; see
    /// [`silt_repository::Repository::with_places_by`].
    pub fn with_places_by(self, names: &[String], open: &OpenPlace<'_>) -> Result<Self> {
        self.0.with_places_by(names, open).map(Self)
    }

    /// Begins a backup of the series called `series`; creates the series if necessary; see
    /// [`BackupSession::begin`].
    pub fn backup(&self, series: &str, options: BackupOptions) -> Result<BackupSession<'_>> {
        BackupSession::begin(&self.0, series, options)
    }

    /// Backs up many series together. Chunks of two or more of them, or of one of them and any
    /// other series of the repository, are stored once; see [`silt_sharing::round::backup_round`].
    pub fn backup_round(
        &self,
        members: Vec<RoundMember<'_>>,
        options: &RoundOptions,
    ) -> Result<RoundReport> {
        backup_round(&self.0, members, options)
    }
}
