//! How new objects are locked, and until when.

use jiff::{SignedDuration, Timestamp, Unit};

/// Who can remove a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockMode {
    /// Users with the permission `s3:BypassGovernanceRetention`.
    #[default]
    Governance,
    /// Nobody, not even the owner of the account.
    Compliance,
}

impl LockMode {
    /// The store's name of the mode.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Governance => "GOVERNANCE",
            Self::Compliance => "COMPLIANCE",
        }
    }
}

/// How new objects are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Who can remove the lock.
    pub mode: LockMode,
    /// Duration of the lock.
    pub days: u32,
}

impl Lock {
    /// The end of a lock that is created now, in seconds since 1970.
    pub(crate) fn until(self) -> Timestamp {
        after_days(now(), self.days)
    }
}

/// The wall clock: dates of locks are the store's, and it compares them with its own.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

pub(crate) fn after_days(time: Timestamp, days: u32) -> Timestamp {
    let later = time.saturating_add(SignedDuration::from_hours(24 * i64::from(days)));
    let later = later.unwrap_or(Timestamp::MAX);
    later.round(Unit::Second).unwrap_or(later)
}
