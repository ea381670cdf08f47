//! Rounds across hosts: who does what, and when.
//!
//! A coordinator asks each host again and again how it gets on, and each question repeats all that
//! the host is to do. An order has a name, and a host carries it out once, so that questions may be
//! lost, repeated and come late. The data, such as requests and answers, is in the storage; the
//! messages name it.
//!
//! Hosts that take part also count references for a sweep of the shared store ([`HostCounters`]).
//!
//! Nothing that is committed rests on them: the shared store's head and each series' head are
//! created if absent, like everywhere else.

mod coordinator;
mod counters;
mod host;
mod orders;
mod peers;
mod planning;
mod rates;

pub use coordinator::{Coordinator, CoordinatorOptions, HostReport, PartReport};
pub use counters::{CountersOptions, HostCounters};
pub use host::{HostSeries, RoundHost, RoundHostOptions};
pub use orders::{BackedUp, PlannedSeries};
pub use planning::Parts;
pub use rates::HostRates;
pub use silt_sharing::exchange::Workspace;

use silt_format::Result;

use crate::Name;

/// The service of a host in a round. It takes part in one at a time; questions of another cannot
/// be opened.
fn service_of(host: &Name) -> Result<Name> {
    Name::new(format!("round-{host}"))
}
