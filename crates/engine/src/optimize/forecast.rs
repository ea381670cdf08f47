//! How much deltas would save in stores that several series refer to, which hold none.

use silt_format::Result;
use silt_repository::series::DEFAULT_DOMAIN;

use super::{OptimizeOptions, OptimizeReport};
use crate::edit::Edit;
use crate::repository::Repository;

impl Repository {
    /// Finds out how much [`optimize`](Self::optimize) would save in the store with this number:
    /// the shared store, or that of a node. Changes nothing, whatever the options say, since these
    /// stores hold no deltas. The store's lease is held meanwhile.
    ///
    /// Fails with `Busy` while another process changes the store; otherwise as `optimize` does.
    pub fn forecast_optimize_store(
        &self,
        number: u16,
        options: &OptimizeOptions,
    ) -> Result<OptimizeReport> {
        if self.verified_head(self.objects.keys.store_id(DEFAULT_DOMAIN, number))?.is_none() {
            return Ok(OptimizeReport::default());
        }
        let mut edit = Edit::begin_store(self, number)?;
        let options = OptimizeOptions { dry_run: true, compression: None, ..*options }.bounded();
        let _place = self.objects.room.place(options.memory_bytes);
        let report = edit.optimize(&options, None)?;
        edit.finish()?;
        Ok(report)
    }
}
