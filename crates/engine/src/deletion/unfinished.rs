//! Giving back what an interrupted first backup of a series has left.

use silt_format::Result;
use silt_repository::objects::key;

use super::reclaim::{ReclaimOptions, ReclaimReport};
use crate::edit::Edit;
use crate::repository::Repository;

impl Repository {
    /// Removes what an interrupted first backup of a series has left. A head that names nothing
    /// goes before: a backup that still runs can't commit any more then.
    pub(super) fn reclaim_unfinished(
        &self,
        series: &str,
        options: &ReclaimOptions,
    ) -> Result<ReclaimReport> {
        let domain = self.series_record(self.series_id(series))?.domain;
        let mut edit = Edit::begin_or_make(self, self.series_id(series), series)?;
        edit.head.domain = domain;
        let mut report = ReclaimReport::default();
        let now_ms = self.objects.context.env.now_ns() / 1_000_000;
        let grace_ms = i64::try_from(options.grace_s).unwrap_or(i64::MAX).saturating_mul(1000);
        for listed in edit.listing()? {
            let modified_ms = self.objects.storage.head(&key(&listed.name)?)?.modified_ms;
            let modified_ms = modified_ms.and_then(|ms| i64::try_from(ms).ok());
            let is_young = modified_ms.is_none_or(|ms| now_ms.saturating_sub(ms) < grace_ms);
            if is_young && options.grace_s > 0 {
                // The next backup may use all of it.
                edit.finish()?;
                return Ok(ReclaimReport::default());
            }
            report.removed_objects += 1;
            report.removed_bytes += listed.bytes;
        }
        if report.removed_objects > 0 && !options.dry_run {
            edit.reclaim(options, &mut report)?;
        }
        edit.finish()?;
        Ok(report)
    }
}
