//! How the files of a series are cut into chunks.

use silt_format::Result;
use silt_format::tree::FileChunking;

use crate::edit::Edit;
use crate::repository::Repository;

impl Repository {
    /// Stores how the files of a series are cut from the next backup on, or removes that, so that
    /// the default counts.
    ///
    /// A file that is read again and cut otherwise than before is stored again.
    pub fn set_file_chunking(&self, series: &str, chunking: Option<FileChunking>) -> Result<()> {
        let mut edit = Edit::begin_brief(self, self.series_id(series), series)?;
        if edit.head.file_chunking != chunking {
            edit.head.file_chunking = chunking;
            edit.commit()?;
        }
        edit.finish()
    }

    /// How the files of a series are cut.
    pub fn file_chunking(&self, series: &str) -> Result<FileChunking> {
        let heads = self.heads(&[series.to_owned()])?;
        Ok(heads.first().and_then(|head| head.file_chunking).unwrap_or_default())
    }
}
