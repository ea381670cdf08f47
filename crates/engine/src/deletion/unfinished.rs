//! Frees the space of an interrupted first backup of a series.

use silt_format::Result;
use silt_repository::objects::key;

use super::plan::{ReclaimOptions, ReclaimReport};
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
        let mut edit = self.begin_unfinished(series)?;
        let mut report = self.left_over(&edit, options.grace_s)?;
        if report.removed_objects > 0 {
            let steps = edit.plan(options)?;
            report = steps.forecast();
            edit.execute(&steps, &mut report)?;
        }
        edit.finish()?;
        Ok(report)
    }

    /// The expected result.
    pub(super) fn unfinished(&self, series: &str, grace_s: u64) -> Result<ReclaimReport> {
        let edit = self.begin_unfinished(series)?;
        let report = self.left_over(&edit, grace_s)?;
        edit.finish()?;
        Ok(report)
    }

    fn begin_unfinished(&self, series: &str) -> Result<Edit<'_>> {
        let domain = self.series_record(self.series_id(series))?.domain;
        let mut edit = Edit::begin_or_make(self, self.series_id(series), series)?;
        edit.head.domain = domain;
        Ok(edit)
    }

    /// The objects that are left; none where the next backup may use all of them.
    fn left_over(&self, edit: &Edit<'_>, grace_s: u64) -> Result<ReclaimReport> {
        let mut report = ReclaimReport::default();
        let now_ms = self.objects.context.env.now_ns() / 1_000_000;
        let grace_ms = i64::try_from(grace_s).unwrap_or(i64::MAX).saturating_mul(1000);
        for listed in edit.listing()? {
            let modified_ms = self.objects.storage.head(&key(&listed.name)?)?.modified_ms;
            let modified_ms = modified_ms.and_then(|ms| i64::try_from(ms).ok());
            let is_young = modified_ms.is_none_or(|ms| now_ms.saturating_sub(ms) < grace_ms);
            if is_young && grace_s > 0 {
                return Ok(ReclaimReport::default());
            }
            report.removed_objects += 1;
            report.removed_bytes += listed.bytes;
        }
        Ok(report)
    }
}
