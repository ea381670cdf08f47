//! What is measured.

/// What is measured, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    First,
    Next,
    Map,
    Unchanged,
    Restore,
    InPlace,
    Ranges,
    Check,
}

impl Workload {
    pub const ALL: [Self; 8] = [
        Self::First,
        Self::Next,
        Self::Map,
        Self::Unchanged,
        Self::Restore,
        Self::InPlace,
        Self::Ranges,
        Self::Check,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Next => "next",
            Self::Map => "map",
            Self::Unchanged => "unchanged",
            Self::Restore => "restore",
            Self::InPlace => "in-place",
            Self::Ranges => "ranges",
            Self::Check => "check",
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::First => "first backup",
            Self::Next => "next day, all read",
            Self::Map => "next day, changed map",
            Self::Unchanged => "unchanged, all read",
            Self::Restore => "restore",
            Self::InPlace => "restore in place over the day before",
            Self::Ranges => "restore 1 MiB at 16 places a disk",
            Self::Check => "check --read-data",
        }
    }

    /// Whether later workloads build on it.
    pub fn is_needed(self) -> bool {
        matches!(self, Self::First | Self::Next | Self::Map)
    }
}
