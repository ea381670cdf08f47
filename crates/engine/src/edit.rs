//! Changing a series without backing it up, where the change is an operation of this crate.

use std::ops::{Deref, DerefMut};

use silt_format::{Result, SeriesId};

use crate::repository::Repository;

/// A [`silt_repository::edit::Edit`] of a repository with all operations.
pub(crate) struct Edit<'r> {
    pub(crate) repository: &'r Repository,
    edit: silt_repository::edit::Edit<'r>,
}

impl<'r> Deref for Edit<'r> {
    type Target = silt_repository::edit::Edit<'r>;

    fn deref(&self) -> &Self::Target {
        &self.edit
    }
}

impl DerefMut for Edit<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.edit
    }
}

impl<'r> Edit<'r> {
    /// As [`silt_repository::edit::Edit::begin`].
    pub(crate) fn begin(repository: &'r Repository, series: SeriesId, name: &str) -> Result<Self> {
        let edit = silt_repository::edit::Edit::begin(repository, series, name)?;
        Ok(Self { repository, edit })
    }

    /// As [`silt_repository::edit::Edit::begin_brief`].
    pub(crate) fn begin_brief(
        repository: &'r Repository,
        series: SeriesId,
        name: &str,
    ) -> Result<Self> {
        let edit = silt_repository::edit::Edit::begin_brief(repository, series, name)?;
        Ok(Self { repository, edit })
    }

    /// As [`silt_repository::edit::Edit::begin_or_make`].
    pub(crate) fn begin_or_make(
        repository: &'r Repository,
        series: SeriesId,
        name: &str,
    ) -> Result<Self> {
        let edit = silt_repository::edit::Edit::begin_or_make(repository, series, name)?;
        Ok(Self { repository, edit })
    }

    /// As [`silt_repository::edit::Edit::begin_shared`].
    pub(crate) fn begin_shared(repository: &'r Repository, domain: u32) -> Result<Self> {
        let edit = silt_repository::edit::Edit::begin_shared(repository, domain)?;
        Ok(Self { repository, edit })
    }

    /// As [`silt_repository::edit::Edit::begin_store`].
    pub(crate) fn begin_store(repository: &'r Repository, number: u16) -> Result<Self> {
        let edit = silt_repository::edit::Edit::begin_store(repository, number)?;
        Ok(Self { repository, edit })
    }

    /// Gives the lease back.
    pub(crate) fn finish(self) -> Result<()> {
        self.edit.finish()
    }
}
