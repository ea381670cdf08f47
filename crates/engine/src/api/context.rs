//! Contexts, events and errors, which all operations use.

pub use silt_repository::budget::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};

/// Advice for the user about an [`Error`] or a [`Warning`]; the program words it for its own
/// commands.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, storage::MemoryStorage}};
/// let storage = Arc::new(MemoryStorage::new());
/// let error = Repository::open(storage, SystemEnv::context(), || Ok(Vec::new())).err().unwrap();
/// let hint = match error.advice() {
///     Some(Advice::InitRepository) => "make one with `backup-tool init`",
///     Some(Advice::Check) => "see what is damaged with `backup-tool check`",
///     _ => "",
/// };
/// assert_eq!(hint, "make one with `backup-tool init`");
/// ```
pub use silt_format::Advice;

/// The error of every operation: its kind, its message, and advice for the user.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, storage::MemoryStorage}};
/// let storage = Arc::new(MemoryStorage::new());
/// let error = Repository::open(storage, SystemEnv::context(), || Ok(Vec::new())).err().unwrap();
/// assert_eq!(error.kind(), ErrorKind::NoRepository);
/// assert_eq!(error.advice(), Some(&Advice::InitRepository));
///
/// let error = error.context("open the nightly repository");
/// assert!(error.to_string().starts_with("open the nightly repository"));
/// ```
pub use silt_format::Error;

/// Tells a program how to go on after an [`Error`].
///
/// ```
/// use siltstone::{Error, ErrorKind};
///
/// fn is_worth_a_retry(error: &Error) -> bool {
///     matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Conflict)
/// }
///
/// assert!(is_worth_a_retry(&Error::new(ErrorKind::Busy, "series 'web1' is being backed up")));
/// assert!(!is_worth_a_retry(&Error::corrupt("containers/1 is damaged")));
/// ```
pub use silt_format::ErrorKind;

/// The record of a process that is changing a series; [`Env::may_be_running`] judges it.
///
/// ```
/// use siltstone::{Env, Lease, SystemEnv};
///
/// let env = SystemEnv::context().env;
/// let me = env.process();
/// let lease = Lease {
///     session: [0; 16],
///     host: me.host,
///     boot: me.boot,
///     process: me.id,
///     process_start: me.start,
///     expires_ns: env.now_ns() + 60_000_000_000,
/// };
/// assert!(env.may_be_running(&lease));
/// ```
pub use silt_format::Lease;

/// The result of every fallible function of this library.
///
/// ```
/// use siltstone::{Error, Result};
///
/// fn size_in_bytes(mebibytes: u64) -> Result<u64> {
///     mebibytes.checked_mul(1 << 20).ok_or_else(|| Error::invalid("the volume is too large"))
/// }
///
/// assert_eq!(size_in_bytes(3)?, 3_145_728);
/// assert!(size_in_bytes(u64::MAX).is_err());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::Result;

/// The context of an operation: clock and entropy, observer, memory limit, cancellation.
///
/// A process that runs several operations at once gives each its own context.
///
/// ```
/// use siltstone::SystemEnv;
///
/// let process = SystemEnv::context();
/// let mut nightly = process.operation();
/// nightly.memory_bytes = 32 << 20;
/// let stop = nightly.cancel.clone();
/// // `repository.for_operation(nightly.clone())` runs in it; `stop.cancel()` ends it alone.
/// stop.cancel();
/// assert!(nightly.is_interrupted());
/// assert!(!process.is_interrupted());
/// ```
pub use silt_repository::env::Context;

/// The clock, the random numbers and the process that operations see.
///
/// [`SystemEnv`] is the real one. A simulation has its own:
///
/// ```
/// use siltstone::{Env, Lease, Process, SystemEnv};
///
/// /// The system's environment at a fixed time.
/// struct Frozen(SystemEnv, i64);
///
/// impl Env for Frozen {
///     fn now_ns(&self) -> i64 { self.1 }
///     fn entropy(&self, bytes: &mut [u8]) { self.0.entropy(bytes) }
///     fn process(&self) -> Process { self.0.process() }
///     fn may_be_running(&self, lease: &Lease) -> bool { self.0.may_be_running(lease) }
///     fn is_interrupted(&self) -> bool { false }
/// }
///
/// let env = Frozen(SystemEnv::new(Default::default()), 1_700_000_000_000_000_000);
/// assert_eq!(env.now_ns() / 1_000_000_000, 1_700_000_000);
/// ```
pub use silt_repository::env::Env;

/// The identity of a process, so that others can tell whether it still runs.
///
/// ```
/// use siltstone::SystemEnv;
///
/// let process = SystemEnv::context().env.process();
/// assert_eq!(process.id, std::process::id());
/// println!("{} runs on {}", process.id, process.host);
/// ```
pub use silt_repository::env::Process;

/// The kind of work that a [`Progress`] is about.
///
/// ```
/// use siltstone::{Activity, Progress};
///
/// let progress = Progress::bytes(Activity::Restore, 512, Some(1024));
/// let verb = match progress.activity {
///     Activity::Backup => "backing up",
///     Activity::Restore => "restoring",
///     other => other.name(),
/// };
/// assert_eq!(verb, "restoring");
/// ```
pub use silt_repository::event::Activity;

/// Progress or a warning, as an [`Observer`] receives it.
///
/// ```
/// use siltstone::{Activity, Event, Progress, Unit};
///
/// fn line(event: &Event<'_>) -> Option<String> {
///     match event {
///         Event::Progress(p) => Some(format!("{}: {}", p.activity.name(), p.done)),
///         Event::Warning(warning) => Some(format!("warning: {warning}")),
///         _ => None,
///     }
/// }
///
/// let event = Event::Progress(Progress::bytes(Activity::Check, 42, None));
/// assert_eq!(line(&event).unwrap(), "check: 42");
/// ```
pub use silt_repository::event::Event;

/// An entry of a file tree that a backup leaves out. Paths are bytes.
///
/// ```
/// use siltstone::{Event, LeftOut, Omission};
///
/// fn line(event: &Event<'_>) -> Option<String> {
///     let Event::LeftOut(entry) = event else { return None };
///     let content = if entry.is_content { "/*" } else { "" };
///     Some(format!("{}{content} ({})", entry.path.escape_ascii(), entry.why.name()))
/// }
///
/// let entry = LeftOut { path: b"/home/cache", is_content: true, why: Omission::Cache };
/// assert_eq!(line(&Event::LeftOut(&entry)).unwrap(), "/home/cache/* (cache)");
/// ```
pub use silt_tree::LeftOut;

/// The rule that leaves an entry of a file tree out.
///
/// ```
/// use siltstone::Omission;
///
/// assert_eq!(Omission::Pattern(b"*.tmp").name(), "pattern");
/// assert_eq!(Omission::OtherFileSystem.name(), "file_system");
/// ```
pub use silt_tree::Omission;

/// A file system on which a backup compares files without their inode numbers or change times.
///
/// ```
/// use siltstone::{Event, Unreliable};
///
/// let share = Unreliable {
///     path: b"/mnt/share",
///     file_system: "NFS",
///     ignores_inode: false,
///     ignores_changed: true,
/// };
/// let Event::Unreliable(told) = Event::Unreliable(&share) else { unreachable!() };
/// assert!(told.ignores_changed && told.file_system == "NFS");
/// ```
pub use silt_tree::Unreliable;

/// Receives the events of operations.
///
/// ```
/// # use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// # use siltstone::{source::StreamSource, storage::MemoryStorage, *};
/// #[derive(Default)]
/// struct Done(AtomicU64);
///
/// impl Observer for Done {
///     fn event(&self, _: OperationId, event: &Event<'_>) {
///         if let Event::Progress(progress) = event {
///             self.0.store(progress.done, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let done = Arc::new(Done::default());
/// let context = Context::new(SystemEnv::context().env, done.clone());
/// # let (storage, config) = (Arc::new(MemoryStorage::new()), Config::default());
/// # let repository = Repository::init(storage, context, config, &Protection::None, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # let source = StreamSource::new(Box::new(&[7; 100_000][..]));
/// backup.add_volume("root", &source, None)?;
/// assert_eq!(done.0.load(Ordering::Relaxed), 100_000);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::event::Observer;

/// How much of an activity is done.
///
/// ```
/// use siltstone::{Activity, Progress};
///
/// fn percent(progress: &Progress) -> Option<u64> {
///     progress.total.filter(|total| *total > 0).map(|total| progress.done * 100 / total)
/// }
///
/// assert_eq!(percent(&Progress::bytes(Activity::Backup, 250, Some(1000))), Some(25));
/// assert_eq!(percent(&Progress::bytes(Activity::Backup, 250, None)), None);
/// ```
pub use silt_repository::event::Progress;

/// The observer for a program that wants no events.
///
/// ```
/// use std::sync::Arc;
///
/// use siltstone::{Context, Silent, SystemEnv};
///
/// let env = SystemEnv::context().env;
/// let context = Context::new(env, Arc::new(Silent));
/// context.warn(&siltstone::Error::invalid("nobody hears this"));
/// assert!(!context.is_interrupted());
/// ```
pub use silt_repository::event::Silent;

/// The unit of a [`Progress`].
///
/// ```
/// use siltstone::{Activity, Progress, Unit};
///
/// fn shown(progress: &Progress) -> String {
///     match progress.unit {
///         Unit::Bytes => format!("{} MiB", progress.done >> 20),
///         Unit::Objects => format!("{} objects", progress.done),
///     }
/// }
///
/// assert_eq!(shown(&Progress::bytes(Activity::Backup, 5 << 20, None)), "5 MiB");
/// assert_eq!(shown(&Progress::objects(Activity::Heal, 7, None)), "7 objects");
/// ```
pub use silt_repository::event::Unit;

/// A problem that did not stop the operation; an [`Observer`] receives it.
///
/// ```
/// use siltstone::{Advice, ErrorKind, Warning};
///
/// let warning = Warning::new(ErrorKind::Unavailable, "the copy in /mnt/b can't be reached");
/// let warning = warning.with_advice(Advice::ReachPlace);
/// assert_eq!(warning.kind(), ErrorKind::Unavailable);
/// assert_eq!(warning.advice(), Some(&Advice::ReachPlace));
/// assert_eq!(warning.to_string(), "the copy in /mnt/b can't be reached");
/// ```
pub use silt_repository::event::Warning;

/// Stops one operation from another thread.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let context = SystemEnv::context();
/// let stop = context.cancel.clone();
/// let repository = repository.for_operation(context);
/// let mut backup = repository.backup("web1", BackupOptions::default())?;
///
/// stop.cancel();
/// let source = StreamSource::new(Box::new(&[7; 100_000][..]));
/// let error = backup.add_volume("root", &source, None).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Interrupted);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::operation::CancelToken;

/// The number of an operation in the events of its process.
///
/// ```
/// use siltstone::SystemEnv;
///
/// let process = SystemEnv::context();
/// let (nightly, restore) = (process.operation(), process.operation());
/// assert_ne!(nightly.id, restore.id);
/// println!("operation {} restores web1", restore.id);
/// ```
pub use silt_repository::operation::OperationId;

/// The clock, random numbers and processes of the operating system.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use siltstone::{Context, Silent, SystemEnv};
///
/// let interrupted = Arc::new(AtomicBool::new(false));
/// let env = SystemEnv::new(Arc::clone(&interrupted));
/// let context = Context::new(Arc::new(env), Arc::new(Silent));
///
/// // A signal handler would do this:
/// interrupted.store(true, Ordering::Relaxed);
/// assert!(context.is_interrupted());
/// ```
pub use silt_repository::system::SystemEnv;

/// A limit of bytes per second, shared by everything that takes bytes from it.
///
/// ```
/// use std::sync::Arc;
///
/// use siltstone::{SystemEnv, Throttle};
///
/// let env = SystemEnv::context().env;
/// let started_ns = env.now_ns();
/// let throttle = Throttle::new(Arc::clone(&env), 1_000_000);
/// throttle.take(20_000); // passes at once
/// throttle.take(1); // waits until the first bytes have had their time
/// assert!(env.now_ns() - started_ns >= 20_000_000);
/// ```
pub use silt_throttle::Throttle;

/// A source, target or storage of which bytes are read and written no faster than limits allow.
///
/// ```
/// # use std::sync::Arc;
/// use siltstone::source::{SourceOptions, VolumeSource, open_source};
/// use siltstone::{SystemEnv, Throttle, Throttled};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.raw");
/// # std::fs::write(&path, [7; 8192]).unwrap();
/// let limit = Arc::new(Throttle::new(SystemEnv::context().env, 50_000_000));
/// let source = open_source(&path, &SourceOptions::default())?;
/// let source = Throttled::new(source).reads(Some(limit));
/// let mut bytes = [0; 8192];
/// assert_eq!(source.read_at(0, &mut bytes)?, 8192);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_throttle::Throttled;
