//! One history: preparing the repository, and running the hosts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use silt_format::tree::{FileChunking, FileKind};
use silt_format::{Chunking, Config, Error, ErrorKind, Id, KdfCost, KeyLabel, Result};
use siltstone::{
    Administrator, BackupOptions, CheckOptions, DataCheck, DeleteMethod, HealOptions, KeyAccess,
    PlaceInfo, PopularOptions, Protection, ReclaimOptions, Repository, RoundMember, RoundOptions,
    SharePolicy, SharedSweepOptions, SweepOptions,
};

use crate::content::{self, Content, Data};
use crate::disk::Source;
use crate::live::add_to;
use crate::model::{Attempt, Model};
use crate::plan::{Action, Exact, Host, Keep, Plan, Role, Series, Work};
use crate::process::Process;
use crate::random::Random;
use crate::world::{World, minutes_ns};

/// The locations of places.
pub const LOCATIONS: [&str; 4] = ["a", "b", "c", "d"];
/// Size of a container in bytes: the minimum.
const CONTAINER_BYTES: u32 = 64 << 10;

/// The passwords of the full key, the write-only key, and the administrator's key.
const READS: &[u8] = b"reads";
const WRITES: &[u8] = b"writes";
const SIGNS: &[u8] = b"signs";
/// The lowest cost that the format allows.
const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };

/// The state that all hosts of a history share.
pub struct Stage {
    /// The plan.
    pub plan: Plan,
    /// Time and places.
    pub world: Arc<World>,
    pub(crate) model: Arc<Mutex<Model>>,
}

impl Stage {
    /// Locks the model.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event.
    pub fn note(&self, event: std::fmt::Arguments<'_>) {
        self.world.state().note(event);
    }

    /// Records a violation.
    pub fn violated(&self, what: String) {
        self.model().violations.push(what);
    }

    /// Starts a process of a host. The host after the last one is the auditor.
    pub fn process(&self, host: usize, skew_minutes: i64) -> Arc<Process> {
        Process::new(&self.world, host, skew_minutes, self.plan.folders, self.plan.seed)
    }

    /// What a series is backed up from changes now.
    fn change(&self, process: &Process, series: Series) -> Content {
        let now_ns = self.world.state().now_ns;
        // Files are stamped by the machine that is backed up, or by another one.
        let now_ns = if self.plan.tick_ms > 0 { now_ns + process.skew_ns } else { now_ns };
        self.model().change(series, now_ns)
    }

    fn spool() -> std::path::PathBuf {
        std::env::temp_dir()
    }
}

/// Opens the repository at one of its places.
pub fn open(stage: &Stage, process: &Arc<Process>, place: usize, role: Role) -> Result<Repository> {
    let password = || match role {
        _ if !stage.plan.guarded => Err(Error::invalid("nothing is encrypted here")),
        Role::WriteOnly => Ok(WRITES.to_vec()),
        Role::Administrator | Role::Host => Ok(READS.to_vec()),
    };
    let mut repository = Repository::open(process.place(place), process.context(), password)?;
    if stage.plan.guarded && role == Role::Administrator {
        repository.authorize(SIGNS)?;
    }
    repository.with_places(LOCATIONS[place], &opener(process))
}

/// Returns a function that opens a place by its location.
pub fn opener(process: &Arc<Process>) -> impl Fn(&str) -> Result<Arc<dyn silt_storage::Storage>> {
    let process = Arc::clone(process);
    move |location| {
        let found = LOCATIONS.iter().position(|known| *known == location);
        let place = found.filter(|place| *place < process.world.state().places.len());
        place.map(|place| process.place(place)).ok_or_else(|| Error::invalid("no such place"))
    }
}

/// Returns the message of a panic.
pub fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Creates the repository and runs the prelude.
pub fn begin(stage: &Stage) -> Result<()> {
    let auditor = stage.plan.hosts.len();
    let process = stage.process(auditor, 0);
    // The compression level has no influence on the faults, so use the fastest.
    let config = Config {
        container_bytes: CONTAINER_BYTES,
        frame_bytes: 8 << 10,
        zstd_level: -7,
        ..Config::default()
    };
    let (protection, administrator) = if stage.plan.guarded {
        let (password, label) = (READS.to_vec(), KeyLabel::default());
        let signs =
            Administrator { password: SIGNS.to_vec(), cost: COST, label: KeyLabel::default() };
        (Protection::Password { password, cost: COST, label }, Some(signs))
    } else {
        (Protection::None, None)
    };
    let (place, context) = (process.place(0), process.context());
    let mut repository =
        Repository::init(place, context, config, &protection, administrator.as_ref())?;
    if stage.plan.guarded {
        repository.authorize(SIGNS)?;
        repository.add_key(WRITES, COST, &KeyLabel::default(), &KeyAccess::write_only(&["*"]))?;
    }
    process.end();
    for action in &stage.plan.prelude {
        let process = stage.process(auditor, 0);
        let repository = open(stage, &process, 0, Role::Administrator)?;
        let done = act(stage, &process, repository, *action).1;
        match done {
            Err(error) if !is_refusal(error.kind()) => return Err(error),
            _ => {}
        }
        process.end();
        stage.world.pass(auditor, minutes_ns(30));
    }
    Ok(())
}

/// Returns whether an error means only that the operation had nothing to work on.
fn is_refusal(kind: ErrorKind) -> bool {
    use ErrorKind::{AlreadyExists, Denied, Invalid, NoRepository, NotFound};
    matches!(kind, AlreadyExists | Denied | Invalid | NoRepository | NotFound)
}

pub fn run_hosts(stage: &Stage) {
    std::thread::scope(|scope| {
        for (number, host) in stage.plan.hosts.iter().enumerate() {
            scope.spawn(move || {
                stage.world.begin(number);
                let ran = catch_unwind(AssertUnwindSafe(|| run_host(stage, number, host)));
                if let Err(panic) = ran {
                    stage.violated(format!("host {number} panicked: {}", text(&*panic)));
                }
                stage.world.end(number);
            });
        }
        stage.world.let_hosts_begin();
    });
}

fn run_host(stage: &Stage, number: usize, host: &Host) {
    let mut kept: Option<(Arc<Process>, Repository)> = None;
    for Work { after_minutes, action, faults } in &host.work {
        stage.world.pass(number, minutes_ns(*after_minutes));
        let alive = kept.take().filter(|(process, _)| !process.is_dead());
        let (process, repository) = if let Some((process, repository)) = alive {
            process.expect(faults);
            (process, Ok(repository))
        } else {
            let process = stage.process(number, host.skew_minutes);
            process.expect(faults);
            let opened = open_where_it_is(stage, &process, place_to_open(stage), host.role);
            (process, opened)
        };
        stage.note(format_args!("host {number} begins {action:?}"));
        let (repository, done) = match repository {
            Ok(repository) => act(stage, &process, repository, *action),
            Err(error) => (None, Err(error)),
        };
        match &done {
            Ok(()) => stage.note(format_args!("host {number} has done {action:?}")),
            Err(error) => {
                stage.note(format_args!("host {number} could not do {action:?}: {error}"));
            }
        }
        process.expect(&[]);
        if host.stays_open && !process.is_dead() {
            kept = repository.map(|repository| (process, repository));
        } else {
            process.end();
        }
    }
    if let Some((process, _)) = kept {
        process.end();
    }
}

/// Returns the place at which users open the repository: the first reachable one that contains it.
fn place_to_open(stage: &Stage) -> usize {
    let state = stage.world.state();
    let now_ns = state.now_ns;
    let mut places = state.places.iter();
    let found = places.position(|place| {
        place.away_until_ns <= now_ns && place.objects.keys().any(|key| key.as_str() == "config")
    });
    found.unwrap_or(0)
}

/// Opens the repository at a place. If that place was removed, opens it at one of the current
/// places instead: the removed one permits no changes.
pub fn open_where_it_is(
    stage: &Stage,
    process: &Arc<Process>,
    place: usize,
    role: Role,
) -> Result<Repository> {
    let repository = open(stage, process, place, role)?;
    match listed(&repository, place) {
        same if same == place => Ok(repository),
        other => open(stage, process, other, role),
    }
}

/// Returns `place` if the repository lists it, otherwise the first listed place that is reachable.
fn listed(repository: &Repository, place: usize) -> usize {
    let places = repository.places();
    if places.is_empty() || places.iter().any(|listed| listed.location == LOCATIONS[place]) {
        return place;
    }
    let known = |listed: &PlaceInfo| LOCATIONS.iter().position(|known| *known == listed.location);
    let mut reached = places.iter().filter(|listed| listed.failure.is_none());
    reached.find_map(known).unwrap_or(place)
}

/// Runs an action. Returns the repository, if it is still open, and the action's result.
fn act(
    stage: &Stage,
    process: &Arc<Process>,
    repository: Repository,
    action: Action,
) -> (Option<Repository>, Result<()>) {
    let here = LOCATIONS[listed(&repository, place_to_open(stage))];
    match action {
        Action::AddPlace(which) | Action::AddSharedPlace(which) => {
            let is_shared = matches!(action, Action::AddSharedPlace(_));
            let places = stage.plan.places.max(1);
            let location = LOCATIONS[one_of(which, places)];
            let added = if is_shared {
                repository.add_shared_place(here, location, &opener(process))
            } else {
                repository.add_place(here, location, &opener(process))
            };
            match added {
                Ok((repository, _)) => (Some(repository), Ok(())),
                Err(error) => (None, Err(error)),
            }
        }
        Action::RemovePlace(which) => {
            let places = repository.places();
            if places.is_empty() {
                return (Some(repository), Ok(()));
            }
            let location = places[one_of(which, places.len())].location.clone();
            // After a change of the places, the repository must be opened again.
            (None, repository.remove_place(&location, &opener(process)))
        }
        action => {
            let done = act_in_place(stage, process, &repository, action);
            (Some(repository), done)
        }
    }
}

/// Does something that leaves the places as they are.
fn act_in_place(
    stage: &Stage,
    process: &Arc<Process>,
    repository: &Repository,
    action: Action,
) -> Result<()> {
    match action {
        Action::Backup(series) => backup(stage, process, repository, series),
        Action::Round => round(stage, process, repository),
        Action::Tune(series, which) => {
            repository.set_file_chunking(series.name(), file_chunking(which))
        }
        Action::Delete(series, which, exact) => {
            let Some(id) = choose(repository, series, which, false)? else { return Ok(()) };
            let method = match exact {
                Exact::Yes => DeleteMethod::Exact,
                Exact::No => DeleteMethod::Approximate,
            };
            let (attempt, before) = stage.model().begin(series, id.0);
            let done = repository.delete(series.name(), &[id], method).map(drop);
            stage.model().end(series, id.0, attempt, certain(&done, Some(false), before));
            done
        }
        Action::Undelete(series, which) => {
            let Some(id) = choose(repository, series, which, true)? else { return Ok(()) };
            let (attempt, before) = stage.model().begin(series, id.0);
            let done = repository.undelete(series.name(), id);
            stage.model().end(series, id.0, attempt, certain(&done, Some(true), before));
            done
        }
        Action::Protect(series, times) => {
            let Some(id) = choose(repository, series, times, false)? else { return Ok(()) };
            for time in 0..times {
                let act = if time % 2 == 0 { Repository::protect } else { Repository::unprotect };
                act(repository, series.name(), id)?;
            }
            repository.unprotect(series.name(), id)
        }
        Action::SweepSeries(series) => {
            repository.sweep(series.name(), SweepOptions::default()).map(drop)
        }
        Action::Reclaim(series, keep) => reclaim(repository, series, keep),
        Action::Popular => popular(repository),
        Action::Repoint(series) => repository.repoint(series.name(), &Stage::spool()).map(drop),
        Action::Sweep => sweep(repository).map(drop),
        Action::Check => repository.check(&all_data()).map(drop),
        Action::Restore(series, which) => {
            let Some(id) = choose(repository, series, which, false)? else { return Ok(()) };
            restore(stage, repository, series, id, "a reader")
        }
        Action::Heal => {
            repository.heal_copies(HealOptions { read_data: true, dry_run: false }).map(drop)
        }
        Action::AddKey(is_write_only) => {
            let (password, access) = if is_write_only {
                (WRITES, KeyAccess::write_only(&["*"]))
            } else {
                (READS, KeyAccess::full())
            };
            repository.add_key(password, COST, &KeyLabel::default(), &access).map(drop)
        }
        Action::RemoveKey(which) => remove_key(repository, which),
        Action::Recover(series) => match repository.recover(series.name()) {
            Ok(true) => {
                stage.violated(format!("{} is taken for tampered with", series.name()));
                Ok(())
            }
            done => done.map(drop),
        },
        Action::AddPlace(_) | Action::AddSharedPlace(_) | Action::RemovePlace(_) => Ok(()),
    }
}

/// Removes one of the passwords.
fn remove_key(repository: &Repository, which: u64) -> Result<()> {
    let keys = repository.keys()?;
    if keys.is_empty() {
        return Ok(());
    }
    let id = keys[one_of(which, keys.len())].id.to_string();
    repository.remove_key(&id).map(drop)
}

/// What is known after something was tried: what it does if it was done, what was if it was
/// refused.
fn certain(done: &Result<()>, after: Option<bool>, before: Option<bool>) -> Option<bool> {
    match done {
        Ok(()) => after,
        Err(error) if is_refusal(error.kind()) => before,
        Err(_) => None,
    }
}

/// Maps `which` to a number below `count`, which is greater than 0.
fn one_of(which: u64, count: usize) -> usize {
    usize::try_from(which % silt_format::number::to_u64(count)).unwrap_or(0)
}

/// Chooses one of a series' snapshots, or one of its deleted snapshots; `None` if there is none.
fn choose(
    repository: &Repository,
    series: Series,
    which: u64,
    deleted: bool,
) -> Result<Option<Id>> {
    let Some(head) = repository.head(repository.series_id(series.name()))? else { return Ok(None) };
    let ids: Vec<Id> = if deleted {
        head.deleted.iter().map(|deleted| deleted.entry.id).collect()
    } else {
        head.snapshots.iter().map(|entry| entry.id).collect()
    };
    if ids.is_empty() {
        return Ok(None);
    }
    Ok(Some(ids[one_of(which, ids.len())]))
}

fn options() -> BackupOptions {
    BackupOptions { jobs: 1, ..BackupOptions::default() }
}

/// Ways to cut files into chunks; `None` for the usual one.
fn file_chunking(which: u64) -> Option<FileChunking> {
    let small = Chunking::FastCdc { min: 1024, avg: 4096, max: 16384 };
    let fixed = Chunking::Fixed { bytes: 4096 };
    let large = Chunking::Fixed { bytes: 65536 };
    let choices = [small, fixed, large];
    if which.is_multiple_of(4) {
        return None;
    }
    let mut random = Random(which);
    let mut chunking = FileChunking::default();
    for kind in FileKind::ALL {
        // All of these are within the bounds of the format.
        let _ = chunking.set(kind, random.of(&choices));
    }
    Some(chunking)
}

/// Changes what a series is backed up from, and backs it up.
pub fn backup(
    stage: &Stage,
    process: &Arc<Process>,
    repository: &Repository,
    series: Series,
) -> Result<()> {
    let content = stage.change(process, series);
    let attempt = stage.model().tries(series, &content);
    stage.model().begin_backup(series);
    let made = make(stage, process, repository, (content, attempt));
    stage.model().end_backup(series);
    stage.model().made(attempt, made?.0);
    Ok(())
}

/// Makes a snapshot.
fn make(
    stage: &Stage,
    process: &Arc<Process>,
    repository: &Repository,
    (content, attempt): (Content, Attempt),
) -> Result<Id> {
    let mut session = repository.backup(attempt.series.name(), options())?;
    add_to(&mut session, content, process, &stage.model, attempt)?;
    Ok(session.finish()?.snapshot.id)
}

fn round(stage: &Stage, process: &Process, repository: &Repository) -> Result<()> {
    let mut members = Vec::new();
    let mut attempts = Vec::new();
    for series in Series::ALL {
        let Some(content) = stage.change(process, series).only_disks() else { continue };
        attempts.push(stage.model().tries(series, &content));
        let volumes = content.volumes.into_iter().filter_map(|(name, data)| match data {
            Data::Disk(bytes) => Some((name.to_owned(), Box::new(Source(bytes)) as _)),
            Data::Tree(..) => None,
        });
        members.push(RoundMember {
            series: series.name().to_owned(),
            volumes: volumes.collect(),
            options: options(),
            on_released: None,
        });
    }
    let options = RoundOptions { folder: Stage::spool(), memory_bytes: 0, spool: false };
    let report = repository.backup_round(members, &options)?;
    for (attempt, backup) in attempts.iter().zip(report.backups) {
        if let Ok(backup) = backup {
            stage.model().made(*attempt, backup.snapshot.id.0);
        }
    }
    Ok(())
}

/// Reclaims a series.
pub fn reclaim(repository: &Repository, series: Series, keep: Keep) -> Result<()> {
    let options = match keep {
        Keep::Nothing => thorough(),
        Keep::Usual => {
            // Plan and execution as two operations, as for a user who reads the plan first.
            let plan = repository.plan_reclaim(series.name(), &ReclaimOptions::default())?;
            return repository.execute_reclaim(&plan).map(drop);
        }
        Keep::Deleted => ReclaimOptions { keep_deleted_s: Some(1 << 40), ..thorough() },
    };
    repository.reclaim(series.name(), &options).map(drop)
}

/// Returns options with which a reclaim removes everything dead.
pub fn thorough() -> ReclaimOptions {
    ReclaimOptions {
        dead_share_min: 0.0,
        leak_share_max: 0.0,
        grace_s: 0,
        keep_deleted_s: Some(0),
        ..ReclaimOptions::default()
    }
}

fn popular(repository: &Repository) -> Result<()> {
    let options = PopularOptions {
        policy: SharePolicy::Duplicates,
        spool: Stage::spool(),
        memory_bytes: 0,
        dry_run: false,
    };
    repository.build_popular(&options).map(drop)
}

/// Deletes dead chunks from the shared store. Returns the series that it has to wait for.
pub fn sweep(repository: &Repository) -> Result<Vec<String>> {
    let options = SharedSweepOptions {
        spool: Stage::spool(),
        memory_bytes: 0,
        reclaim: thorough(),
        dry_run: false,
    };
    Ok(repository.sweep_shared(&options)?.waiting_for)
}

/// Returns options for a check of every byte.
pub fn all_data() -> CheckOptions {
    CheckOptions { data: DataCheck::All, jobs: 1, ..CheckOptions::default() }
}

/// Restores a snapshot and compares it with the content that was backed up.
pub fn restore(
    stage: &Stage,
    repository: &Repository,
    series: Series,
    id: Id,
    by: &str,
) -> Result<()> {
    let found = repository.find(&siltstone::Selector::Id(id.to_string()))?;
    let restored = content::restored(repository, &found)?;
    stage.model().restored(series, id.0, &restored, by);
    Ok(())
}
