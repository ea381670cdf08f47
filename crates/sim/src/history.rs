//! One history: preparing the repository, and running the hosts.

pub mod nodes;
mod prelude;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Scope;

use silt_format::tree::{FileChunking, FileKind};
use silt_format::{Chunking, Error, Id, KeyLabel, Result};
use siltstone::storage::{CACHE_POLICY, READER_CACHE_POLICY};
use siltstone::{
    BackupOptions, BackupReport, CheckOptions, DataCheck, DeleteMethod, HealOptions, KeyAccess,
    PopularOptions, ReclaimOptions, Repository, RoundMember, RoundOptions, SharePolicy,
    SweepOptions,
};

pub use self::prelude::begin;
use self::prelude::{COST, is_refusal};

use crate::caches;
use crate::called::Called;
use crate::content::{self, Content};
use crate::drawn_deltas::delta_options;
use crate::link::{End, Link};
use crate::live::{add_to, volumes};
use crate::model::Attempt;

use crate::plan::{Action, Exact, Fault, Host, Keep, Role, Series, Work};
use crate::process::Process;
use crate::random::Random;
use crate::site::Replication;
pub use crate::stage::{LOCATIONS, Stage, open, open_where_it_is, place_to_open};
use crate::stage::{READS, WRITES, listed, opener};
use crate::world::minutes_ns;

/// Returns the message of a panic.
pub fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Runs all hosts, and the threads that `more` starts, until they have ended.
pub fn run_hosts<'s>(stage: &'s Stage, more: impl for<'scope> FnOnce(&'scope Scope<'scope, 's>)) {
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
        more(scope);
        stage.world.let_hosts_begin();
    });
}

fn run_host(stage: &Stage, number: usize, host: &Host) {
    let mut kept: Option<(Arc<Process>, Repository)> = None;
    for Work { after_minutes, action, faults, faults_there } in &host.work {
        stage.world.pass(number, minutes_ns(*after_minutes));
        let alive = kept.take().filter(|(process, _)| !process.is_dead());
        let (process, repository) = if let Some((process, repository)) = alive {
            process.expect(faults);
            (process, Ok(repository))
        } else {
            let process = stage.process(number, host.skew_minutes);
            let policy = caches::policy(*action);
            let policy = if host.stays_open { Some(CACHE_POLICY) } else { policy };
            stage.lend_caches(&process, policy);
            process.expect(faults);
            let opened =
                open_where_it_is(stage, &process, place_to_open(stage, host.site), host.role);
            (process, opened)
        };
        stage.note(format_args!("host {number} begins {action:?}"));
        if stage.plan.restores_nodes() {
            stage.world.state().copy_places(stage.places_of_nodes());
        }
        let (repository, done) = match repository {
            Ok(repository) => {
                let (site, process, there) = (host.site, &process, faults_there);
                let here = Here { stage, host: number, site, process, there };
                stage.model().busy += 1;
                let done = act(&here, repository, *action);
                stage.model().busy -= 1;
                done
            }
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

/// A process of a host at work.
pub struct Here<'a> {
    pub stage: &'a Stage,
    pub host: usize,
    pub site: usize,
    pub process: &'a Arc<Process>,
    /// The faults of the process at the other site.
    there: &'a [Fault],
}

/// Runs an action. Returns the repository, if it is still open, and the action's result.
fn act(at: &Here<'_>, repository: Repository, action: Action) -> (Option<Repository>, Result<()>) {
    let Here { stage, process, site, .. } = *at;
    let here = LOCATIONS[listed(&repository, place_to_open(stage, site))];
    match action {
        Action::AddPlace(_) | Action::AddSharedPlace(_) | Action::RemovePlace(_) if site > 0 => {
            (Some(repository), Ok(()))
        }
        Action::AddPlace(which) | Action::AddSharedPlace(which) => {
            let is_shared = matches!(action, Action::AddSharedPlace(_));
            let places = stage.plan.places.max(1);
            let location = LOCATIONS[one_of(which, places)];
            let added = if is_shared {
                repository.add_shared_place(here, location, &opener(stage, process))
            } else {
                repository.add_place(here, location, &opener(stage, process))
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
            (None, repository.remove_place(&location, &opener(stage, process)))
        }
        Action::AddNode(_) | Action::CloseNode(_) | Action::MoveNode(_) | Action::RemoveNode(_) => {
            nodes::change(at, repository, here, action)
        }
        action => {
            let done = act_in_place(at, &repository, action);
            (Some(repository), done)
        }
    }
}

/// Does something that leaves the places as they are.
fn act_in_place(at: &Here<'_>, repository: &Repository, action: Action) -> Result<()> {
    let Here { stage, process, site, .. } = *at;
    // Of a replica's series, one of those that have a base name.
    let of = |series, which| stage.model().some_called(site, series, which);
    match action {
        Action::Backup(series) => backup(stage, process, repository, (site, series)).map(drop),
        Action::Round => round(stage, process, repository, site),
        Action::Tune(series, which) => {
            repository.set_file_chunking(of(series, which).name(), file_chunking(which))
        }
        Action::Delete(series, which, exact) => {
            delete(stage, repository, of(series, which), which, exact)
        }
        Action::Undelete(series, which) => undelete(stage, repository, of(series, which), which),
        Action::Protect(series, times) => protect(repository, of(series, times), times),
        Action::SweepSeries(series) => {
            repository.sweep(of(series, 0).name(), SweepOptions::default()).map(drop)
        }
        Action::Reclaim(series, keep) => {
            let all = stage.model().all_called(site, series);
            all.into_iter().try_for_each(|called| reclaim(repository, called, keep))
        }
        Action::Optimize(series) => optimize(stage, repository, of(series, 0)),
        Action::Popular => popular(repository),
        Action::Repoint(series) => {
            repository.repoint(of(series, 0).name(), &Stage::spool()).map(drop)
        }
        Action::Sweep => sweep(repository).map(drop),
        Action::Check => repository.check(&all_data()).map(drop),
        Action::Restore(series, which) => {
            let called = of(series, which);
            let Some(id) = choose(repository, called, which, false)? else { return Ok(()) };
            restore(stage, repository, called, id, "a reader")
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
        Action::Rename(series, which) => {
            let own = of(series, which).name();
            let shown = if which.is_multiple_of(2) { own.to_owned() } else { format!("{own}.1") };
            repository.rename(own, &shown).map(drop)
        }
        Action::Replicate(replication) => replicate(at, repository, replication),
        Action::SweepNodes => nodes::sweep(repository).map(drop),
        Action::CutNode(which) => {
            nodes::cut(stage, which);
            Ok(())
        }
        Action::RestoreNode(which) => {
            nodes::restore(at, which);
            Ok(())
        }
        // The others change the places, or are no work of hosts.
        _ => Ok(()),
    }
}

/// Replicates between the site of a host and another one.
fn replicate(at: &Here<'_>, repository: &Repository, replication: Replication) -> Result<()> {
    let Here { stage, process, site, host, there } = *at;
    let (from, to) = replication.ends(site);
    if from == to || from.max(to) > stage.plan.replicas {
        return Ok(());
    }
    let faults = there;
    let there = stage.process_there(host, replication.skew_minutes);
    let policy = if replication.pulls { READER_CACHE_POLICY } else { CACHE_POLICY };
    stage.lend_caches(&there, Some(policy));
    there.expect(faults);
    let place = place_to_open(stage, replication.other);
    let done = open(stage, &there, place, Role::Administrator).and_then(|other| {
        let near = End { repository, process };
        let far = End { repository: &other, process: &there };
        let (source, replica) = if replication.pulls { (far, near) } else { (near, far) };
        let link = Link::new(&stage.model, (source, from), (replica, to), replication);
        link.with_deltas(stage.plan.has_deltas()).replicate(options())
    });
    there.end();
    done.map(drop)
}

/// Brings one of a series' deleted snapshots back.
fn undelete(stage: &Stage, repository: &Repository, called: Called, which: u64) -> Result<()> {
    let Some(id) = choose(repository, called, which, true)? else { return Ok(()) };
    let (attempt, before) = stage.model().begin(called, id.0);
    let done = repository.undelete(called.name(), id);
    stage.model().end(called, id.0, attempt, certain(&done, Some(true), before));
    done
}

/// Protects and unprotects a snapshot in turns.
fn protect(repository: &Repository, called: Called, times: u64) -> Result<()> {
    let Some(id) = choose(repository, called, times, false)? else { return Ok(()) };
    for time in 0..times {
        let act = if time % 2 == 0 { Repository::protect } else { Repository::unprotect };
        act(repository, called.name(), id)?;
    }
    repository.unprotect(called.name(), id)
}

/// Whether a series has no newer snapshot that was backed up at the same site.
fn is_newest_of_its_site(
    stage: &Stage,
    repository: &Repository,
    called: Called,
    id: Id,
) -> Result<bool> {
    let series = repository.series_id(called.name());
    let Some(head) = repository.head(series)? else { return Ok(true) };
    for entry in head.snapshots.iter().rev() {
        let site = |id: Id| {
            let found = head.snapshots.iter().find(|entry| entry.id == id);
            let snapshot = found.map(|entry| repository.snapshot(series, entry)).transpose()?;
            let origin = snapshot.and_then(|snapshot| stage.model().origin_of(&snapshot));
            Ok::<_, Error>(origin.map_or(called.site, |(site, _)| site))
        };
        if site(entry.id)? == site(id)? {
            return Ok(entry.id == id);
        }
    }
    Ok(true)
}

/// Deletes one of a series' snapshots. A replica forgets snapshots, but never the newest one of a
/// site: then it would not know which ones it had.
fn delete(
    stage: &Stage,
    repository: &Repository,
    called: Called,
    which: u64,
    exact: Exact,
) -> Result<()> {
    let Some(id) = choose(repository, called, which, false)? else { return Ok(()) };
    if called.site > 0 && is_newest_of_its_site(stage, repository, called, id)? {
        return Ok(());
    }
    let method = match exact {
        Exact::Yes => DeleteMethod::Exact,
        Exact::No => DeleteMethod::Approximate,
    };
    let (attempt, before) = stage.model().begin(called, id.0);
    let done = repository.delete(called.name(), &[id], method).map(drop);
    stage.model().end(called, id.0, attempt, certain(&done, Some(false), before));
    done
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
pub fn one_of(which: u64, count: usize) -> usize {
    usize::try_from(which % silt_format::number::to_u64(count)).unwrap_or(0)
}

/// Chooses one of a series' snapshots, or one of its deleted snapshots; `None` if there is none.
fn choose(
    repository: &Repository,
    called: Called,
    which: u64,
    deleted: bool,
) -> Result<Option<Id>> {
    let Some(head) = repository.head(repository.series_id(called.name()))? else { return Ok(None) };
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

pub fn options() -> BackupOptions {
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

/// Changes what a series of a site is backed up from, and backs it up. Returns the snapshot's id.
pub fn backup(
    stage: &Stage,
    process: &Arc<Process>,
    repository: &Repository,
    of: (usize, Series),
) -> Result<Id> {
    let content = stage.change(process, of);
    let attempt = stage.model().tries(of.0, of.1, &content);
    stage.model().begin_backup(attempt);
    let made = make(stage, process, repository, (content, attempt));
    stage.model().end_backup(attempt);
    let warned = process.take_warned();
    let made = made?;
    stage.model().made(attempt, &made.snapshot, &made.tags);
    if warned {
        stage.model().needs_away(attempt, made.snapshot.id.0);
    }
    Ok(made.snapshot.id)
}

/// Makes a snapshot. Where there are replicas, it has a label.
fn make(
    stage: &Stage,
    process: &Arc<Process>,
    repository: &Repository,
    (content, attempt): (Content, Attempt),
) -> Result<BackupReport> {
    let mut options = options();
    if stage.plan.replicas > 0 {
        options.tags.push(format!("label{}", attempt.number % 3));
    }
    let mut session = repository.backup(attempt.series.name(), options)?;
    add_to(&mut session, content, process, &stage.model, attempt)?;
    session.finish()
}

fn round(
    stage: &Stage,
    process: &Arc<Process>,
    repository: &Repository,
    site: usize,
) -> Result<()> {
    let mut members = Vec::new();
    let mut attempts = Vec::new();
    for series in Series::ALL {
        let content = stage.change(process, (site, series));
        let attempt = stage.model().tries(site, series, &content);
        stage.model().begin_backup(attempt);
        attempts.push(attempt);
        let volumes = volumes(content, process, &stage.model, attempt);
        members.push(RoundMember {
            series: series.name().to_owned(),
            volumes: volumes.into_iter().map(|(name, volume)| (name.to_owned(), volume)).collect(),
            options: options(),
            on_released: None,
        });
    }
    let options = RoundOptions { folder: Stage::spool(), memory_bytes: 0, spool: false };
    let report = repository.backup_round(members, &options);
    attempts.iter().for_each(|attempt| stage.model().end_backup(*attempt));
    for (attempt, backup) in attempts.iter().zip(report?.backups) {
        if let Ok(backup) = backup {
            stage.model().made(*attempt, &backup.snapshot, &backup.tags);
        }
    }
    Ok(())
}

/// Reclaims a series.
pub fn reclaim(repository: &Repository, called: Called, keep: Keep) -> Result<()> {
    let options = match keep {
        Keep::Nothing => thorough(),
        Keep::Usual => {
            // Plan and execution as two operations, as for a user who reads the plan first.
            let plan = repository.plan_reclaim(called.name(), &ReclaimOptions::default())?;
            return repository.execute_reclaim(&plan).map(drop);
        }
        Keep::Deleted => ReclaimOptions { keep_deleted_s: Some(1 << 40), ..thorough() },
    };
    repository.reclaim(called.name(), &options).map(drop)
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

/// Stores similar chunks of a series as deltas; its containers are small.
pub fn optimize(stage: &Stage, repository: &Repository, called: Called) -> Result<()> {
    let report = repository.optimize(called.name(), &delta_options())?;
    stage.note(format_args!("made deltas of {} chunks", report.deltas));
    Ok(())
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
    Ok(repository.sweep_shared(&nodes::sweeping())?.waiting_for)
}

/// Returns options for a check of every byte.
pub fn all_data() -> CheckOptions {
    CheckOptions { data: DataCheck::All, jobs: 1, ..CheckOptions::default() }
}

/// Restores a snapshot and compares it with the content that was backed up.
pub fn restore(
    stage: &Stage,
    repository: &Repository,
    called: Called,
    id: Id,
    by: &str,
) -> Result<()> {
    let found = repository.find(&siltstone::Selector::Id(id.to_string()))?;
    let restored = content::restored(repository, &found)?;
    let facts = (&found.snapshot, &found.entry.labels[..]);
    stage.model().restored(called, facts, &restored, by);
    Ok(())
}
