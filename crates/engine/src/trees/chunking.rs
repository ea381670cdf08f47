//! The chunking of a series' files.

use silt_format::Result;
use silt_format::tree::FileChunking;

use crate::edit::Edit;
use crate::repository::Repository;

impl Repository {
    /// Sets the chunking of a series' files from the next backup on; `None` sets the default.
    ///
    /// If the chunking of a kind changes, a file of that kind is stored again when it is next read.
    pub fn set_file_chunking(&self, series: &str, chunking: Option<FileChunking>) -> Result<()> {
        let mut edit = Edit::begin_brief(self, self.series_id(series), series)?;
        if edit.head.file_chunking != chunking {
            edit.head.file_chunking = chunking;
            edit.commit()?;
        }
        edit.finish()
    }

    /// Returns the chunking of a series' files.
    pub fn file_chunking(&self, series: &str) -> Result<FileChunking> {
        let heads = self.heads(&[series.to_owned()])?;
        Ok(heads.first().and_then(|head| head.file_chunking).unwrap_or_default())
    }
}
