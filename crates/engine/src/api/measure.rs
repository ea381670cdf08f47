//! What only the benchmark calls.

/// Finds every duplicate among fingerprints, by sorting and merging; the benchmark compares
/// with it.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// let mut index = ExactIndex::new(&repository, folder.path(), 1 << 20);
/// let prints = |range: std::ops::Range<u8>| range.map(|n| silt_format::Fingerprint([n; 20]));
/// assert_eq!(index.round(&mut prints(0..10))?, 10);
/// assert_eq!(index.round(&mut prints(5..15))?, 5);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::runs::ExactIndex;

/// Joins sorted requests with an index of any size, for the benchmark.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// let measure = JoinMeasure::new(&repository);
/// let (run, bytes) = measure.write(1000)?;
/// let requests = measure.sort(run, 400, folder.path(), 1 << 20)?;
/// let (asked, found) = measure.join(run, &requests)?;
/// assert!(bytes > 0 && 0 < found && found < asked);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::runs::JoinMeasure;

/// The requests of a [`JoinMeasure`], sorted; they can be joined again and again.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// let measure = JoinMeasure::new(&repository);
/// let (run, _) = measure.write(1000)?;
/// let requests: SortedRequests = measure.sort(run, 400, folder.path(), 1 << 20)?;
/// assert_eq!(measure.join(run, &requests)?, measure.join(run, &requests)?);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::runs::SortedRequests;
