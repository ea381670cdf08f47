//! Notes of the newest commits that a machine has seen, to detect a storage that serves an old
//! state.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use silt_format::{Lease, RepositoryId, SeriesId};
use silt_repository::env::{Env, Process};
use silt_repository::system::SystemEnv;
use silt_storage::durable;

/// The system's environment, with notes of the newest commits of each repository that this machine
/// has seen.
///
/// ```
/// # use {std::sync::Arc, std::sync::atomic::AtomicBool, siltstone::{*, storage::*}};
/// # let (config, none) = (Config::default(), Protection::None);
/// # let folder = tempfile::tempdir().unwrap();
/// # let storage = Arc::new(MemoryStorage::new());
/// let system = SystemEnv::new(Arc::new(AtomicBool::new(false)));
/// let env = NotedEnv::new(system, Some(folder.path().to_owned()));
/// let context = Context { env: Arc::new(env), ..SystemEnv::context() };
/// Repository::init(storage, context, config, &none, None)?;
/// assert!(folder.path().read_dir().unwrap().count() <= 1, "one folder for each repository");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub struct NotedEnv {
    system: SystemEnv,
    /// The folder of the notes; none without a home folder.
    folder: Option<PathBuf>,
    /// Whether to accept the state of the storage even if it is older than the notes.
    accepts_older: bool,
    /// How long to wait for other processes.
    patience_ns: u64,
    /// Whether to note nothing: a dry run commits nothing.
    is_dry: AtomicBool,
}

impl NotedEnv {
    /// An environment that keeps its notes in a folder, for all repositories; `None` keeps none.
    pub fn new(system: SystemEnv, folder: Option<PathBuf>) -> Self {
        let is_dry = AtomicBool::new(false);
        Self { system, folder, accepts_older: false, patience_ns: 0, is_dry }
    }

    /// Accepts the state of a storage even if it is older than the notes, which then follow it.
    #[must_use]
    pub fn accepting_older(self, accepts_older: bool) -> Self {
        Self { accepts_older, ..self }
    }

    /// Waits so many nanoseconds for other processes.
    #[must_use]
    pub fn waiting_ns(self, patience_ns: u64) -> Self {
        Self { patience_ns, ..self }
    }

    /// Stops taking notes.
    pub fn note_nothing(&self) {
        self.is_dry.store(true, Ordering::SeqCst);
    }

    fn notes(&self, repository: RepositoryId) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(repository.to_string()).join("seen"))
    }

    /// Forgets the notes of a repository that was rolled back.
    pub fn forget(&self, repository: RepositoryId) {
        if let Some(notes) = self.notes(repository) {
            // If a note remains, the next command asks for --accept-older.
            let _ = std::fs::remove_dir_all(notes);
        }
    }
}

/// A note that cannot be read counts as absent; one that cannot be written detects nothing later.
fn write(file: &Path, newest: u64) -> Option<()> {
    std::fs::create_dir_all(file.parent()?).ok()?;
    let new = file.with_extension(std::process::id().to_string());
    std::fs::write(&new, newest.to_string()).ok()?;
    durable::publish_replacing(&new, file).ok()
}

fn read(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl Env for NotedEnv {
    fn now_ns(&self) -> i64 {
        self.system.now_ns()
    }

    fn entropy(&self, bytes: &mut [u8]) {
        self.system.entropy(bytes);
    }

    fn process(&self) -> Process {
        self.system.process()
    }

    fn may_be_running(&self, lease: &Lease) -> bool {
        self.system.may_be_running(lease)
    }

    fn is_interrupted(&self) -> bool {
        self.system.is_interrupted()
    }

    fn patience_ns(&self) -> u64 {
        self.patience_ns
    }

    fn sleep_ns(&self, nanoseconds: u64) {
        self.system.sleep_ns(nanoseconds);
    }

    fn accepts_older(&self) -> bool {
        self.accepts_older
    }

    fn segment_notes(&self, repository: RepositoryId) -> Option<PathBuf> {
        let folder = self.folder.as_ref().filter(|_| !self.is_dry.load(Ordering::SeqCst))?;
        Some(folder.join(repository.to_string()).join("segments"))
    }

    fn newest_seen(&self, repository: RepositoryId, series: SeriesId) -> u64 {
        let notes = self.notes(repository).filter(|_| !self.accepts_older);
        notes.and_then(|notes| read(&notes.join(series.to_string()))).unwrap_or(0)
    }

    fn note_newest(&self, repository: RepositoryId, series: SeriesId, newest: u64) {
        let Some(notes) = self.notes(repository) else { return };
        let file = notes.join(series.to_string());
        let known = read(&file);
        let is_news = known.is_none_or(|known| newest > known || self.accepts_older);
        if !self.is_dry.load(Ordering::SeqCst) && is_news && known != Some(newest) {
            let _ = write(&file, newest);
        }
    }
}
