//! Retention policies, as stored in heads.

use crate::Result;
use crate::codec::{Decoder, Encoder};

/// A length of calendar time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// Calendar years.
    pub years: u32,
    /// Calendar months.
    pub months: u32,
    /// Calendar days.
    pub days: u32,
    /// Hours.
    pub hours: u32,
}

impl Period {
    /// Whether it has no length.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    fn encode(self, to: &mut Encoder) {
        [self.years, self.months, self.days, self.hours].into_iter().for_each(|part| to.u32(part));
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (years, months) = (from.u32()?, from.u32()?);
        Ok(Self { years, months, days: from.u32()?, hours: from.u32()? })
    }
}

/// The rules that decide which snapshots of a series are kept. A rule of 0 keeps none, one of
/// [`u32::MAX`] keeps all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Number of newest snapshots to keep.
    pub last: u32,
    /// Number of hours that have a snapshot; the newest snapshot of each is kept. The next fields
    /// do the same for days, weeks, months and years.
    pub hourly: u32,
    /// See `hourly`.
    pub daily: u32,
    /// See `hourly`; weeks are those of ISO 8601.
    pub weekly: u32,
    /// See `hourly`.
    pub monthly: u32,
    /// See `hourly`.
    pub yearly: u32,
    /// Keeps all snapshots that are at most this much older than the newest one that is not dated
    /// in the future.
    pub within: Period,
    /// Keeps all snapshots that have one of these labels.
    pub tags: Vec<String>,
    /// Deletes nothing that storage has held for less than this many seconds, whatever time it
    /// claims.
    pub age_min_s: u64,
    /// How long deleted snapshots can be brought back, in seconds.
    pub keep_deleted_s: u64,
}

impl RetentionPolicy {
    /// Whether no rule keeps anything.
    pub fn is_empty(&self) -> bool {
        let counts = [self.last, self.hourly, self.daily, self.weekly, self.monthly, self.yearly];
        counts.iter().all(|count| *count == 0) && self.within.is_zero() && self.tags.is_empty()
    }

    pub(crate) fn encode(&self, to: &mut Encoder) {
        let counts = [self.last, self.hourly, self.daily, self.weekly, self.monthly, self.yearly];
        counts.into_iter().for_each(|count| to.u32(count));
        self.within.encode(to);
        to.u64(self.age_min_s);
        to.u64(self.keep_deleted_s);
        to.strings(&self.tags);
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self {
            last: from.u32()?,
            hourly: from.u32()?,
            daily: from.u32()?,
            weekly: from.u32()?,
            monthly: from.u32()?,
            yearly: from.u32()?,
            within: Period::decode(from)?,
            age_min_s: from.u64()?,
            keep_deleted_s: from.u64()?,
            tags: from.strings()?,
        })
    }
}
