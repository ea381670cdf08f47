//! The sorted-run engine: sort under a budget, write, merge, join, look up.
//!
//! Chunks that many series have in common are found by sorting, not by look-ups. Requests and index
//! are both sorted by fingerprint, so one pass over both answers all requests, whatever their
//! sizes, with a few hundred KiB in memory. Counting, exact detection and sweeping of the shared
//! store use this pass.
//!
//! A [`Sorter`] sorts records in bounded memory. A [`RunWriter`] stores sorted records as a run
//! under a [`RunRef`](silt_format::RunRef), a [`RunReader`] reads it back as a [`Stream`], and
//! [`merge`] makes one stream of several, and [`gather`] of any number of them. [`join`] answers a
//! stream of requests from a stream of known records; [`RunLookup`] answers single requests.
//!
//! ```
//! use std::sync::Arc;
//!
//! use silt_format::{Config, Fingerprint, Record, RunUse, SeriesId};
//! use silt_repository::Repository;
//! use silt_repository::open::Protection;
//! use silt_runs::{RunReader, RunWriter, Sorter, Stream, join};
//! use silt_repository::system::SystemEnv;
//! use silt_storage::MemoryStorage;
//!
//! # fn main() -> silt_format::Result<()> {
//! let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
//! let made = Repository::init(storage, context, Config::default(), &Protection::None, None)?;
//! let (objects, store) = (&made.objects, SeriesId([1; 12]));
//! let record = |number| Record { fingerprint: Fingerprint([number; 20]), payload: [0; 12] };
//!
//! let mut index = RunWriter::new(objects, store, RunUse::Shared, 2)?;
//! index.push(record(1))?;
//! index.push(record(3))?;
//! let run = index.finish()?.run;
//!
//! let mut requests = Sorter::new(objects, &std::env::temp_dir(), 1 << 20);
//! [3, 2, 3].into_iter().try_for_each(|number| requests.push(record(number)))?;
//! let requests = requests.finish()?;
//!
//! let mut answers = Vec::new();
//! let mut known = Stream::new(RunReader::new(objects, store, run));
//! join(&mut requests.stream(), &mut known, &mut |fingerprint, asked, found| {
//!     answers.push((fingerprint.0[0], asked.len(), found.len()));
//!     Ok(())
//! })?;
//! assert_eq!(answers, [(2, 1, 0), (3, 2, 1)]);
//! # Ok(())
//! # }
//! ```

pub mod asked;
pub mod avoided;
mod join;
mod lookup;
pub mod marks;
mod merge;
pub mod neighbourhoods;
mod read;
pub mod shared_index;
pub mod shared_record;
mod sort;
mod write;

pub use join::join;
pub use lookup::RunLookup;
pub use merge::{Records, Stream, merge};
pub use read::RunReader;
pub use sort::{Sorted, Sorter, gather};
pub use write::{DurableRun, RunWriter};

#[cfg(test)]
mod tests;
