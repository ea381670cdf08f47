//! The names that a repository and a configuration file have, found without asking for anything.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, FromArgMatches};
use clap_complete::engine::{PathCompleter, ValueCompleter};
use silt_format::Head;
use silt_location::{Opener, StorageKind};
use siltstone::{Context, Repository, Silent};

use super::Candidate;
use crate::cli::{Cli, Global};
use crate::commands::config::{self, Chosen};
use crate::commands::{Session, Traffic, short};
use crate::noted;
use crate::progress::Reporter;
use crate::{output, secrets, snapshot_name};

/// Maximum number of snapshots of a series that are offered, the newest.
const SNAPSHOTS_MAX: usize = 200;

/// What names are looked for with: a command line that is not complete.
pub struct Names {
    /// The words before the one to complete.
    pub words: Vec<OsString>,
    pub kinds: &'static [StorageKind],
}

impl Candidate {
    fn plain(value: String) -> Self {
        Self { value, help: None }
    }
}

impl Names {
    /// The settings of the command line, of the environment, and of the profile.
    fn settings(&self) -> Option<(Global, Chosen)> {
        let command = Cli::command().ignore_errors(true);
        let matches = command.try_get_matches_from(&self.words).ok()?;
        let mut global = Global::from_arg_matches(&matches).ok()?;
        let chosen = config::apply(&mut global, &matches).ok()?;
        Some((global, chosen))
    }

    /// Opens the repository if its password is in a file or a variable.
    fn repository(&self, global: &Global, chosen: Chosen) -> Option<Repository> {
        let noted = Arc::new(noted::environment(global, Arc::new(AtomicBool::new(false))));
        noted.note_nothing();
        let context = Context::new(Arc::clone(&noted) as _, Arc::new(Silent));
        let reporter = Arc::new(Reporter::new(false, true, false));
        let opener = Opener::new(global.connections, self.kinds);
        let session = Session { global, reporter, context: context.clone(), noted, opener, chosen };
        let storage = session.storage(session.location().ok()?, Traffic::Backup, true).ok()?;
        let password = || {
            let file = global.password_file.as_deref();
            let has_command = global.password_command.is_some();
            secrets::at_hand(&secrets::CURRENT, file.filter(|_| !has_command))
        };
        Repository::open(storage, context, password).ok()
    }

    /// The series of the profile and of the repository.
    pub fn series(&self, _: &str) -> Vec<Candidate> {
        let Some((global, chosen)) = self.settings() else { return Vec::new() };
        let mut names: BTreeSet<String> = chosen.profile.series.keys().cloned().collect();
        let heads = self.repository(&global, chosen).map(|it| heads(&it, &[])).unwrap_or_default();
        names.extend(heads.iter().map(|head| head.shown().to_owned()));
        names.into_iter().map(Candidate::plain).collect()
    }

    /// Snapshots, and behind a colon their volumes.
    pub fn snapshots(&self, current: &str) -> Vec<Candidate> {
        let open = || {
            let (global, chosen) = self.settings()?;
            self.repository(&global, chosen)
        };
        let Some(repository) = open() else { return Vec::new() };
        let mut found = volumes(&repository, current);
        if let Some((series, _)) = current.rsplit_once('@') {
            let heads = heads(&repository, &[series.to_owned()]);
            found.extend(heads.iter().flat_map(|head| times(series, head)));
            return found;
        }
        let heads = heads(&repository, &[]);
        found.extend((!heads.is_empty()).then(|| Candidate::plain("latest".to_owned())));
        let shown = heads.iter().map(Head::shown);
        found.extend(shown.map(|series| Candidate::plain(format!("{series}@"))));
        if !current.is_empty() {
            found.extend(heads.iter().flat_map(ids));
        }
        found
    }

    /// The replicas of the profile, and folders.
    pub fn replicas(&self, current: &str) -> Vec<Candidate> {
        let chosen = self.settings().map(|(_, chosen)| chosen);
        let replicas = chosen.map(|it| it.profile.replicas).unwrap_or_default().into_iter();
        let named = replicas.map(|(value, it)| Candidate { value, help: Some(it.to) });
        let folders = PathCompleter::dir().complete(OsStr::new(current)).into_iter();
        let folders = folders.filter_map(|it| it.get_value().to_str().map(str::to_owned));
        named.chain(folders.map(Candidate::plain)).collect()
    }

    /// The profiles of the configuration file.
    pub fn profiles(&self, _: &str) -> Vec<Candidate> {
        let matches = Cli::command().ignore_errors(true).try_get_matches_from(&self.words);
        let global = matches.ok().and_then(|matches| Global::from_arg_matches(&matches).ok());
        let names = global.and_then(|global| config::profiles(&global).ok()).unwrap_or_default();
        names.into_iter().map(Candidate::plain).collect()
    }
}

/// The heads that can be read.
fn heads(repository: &Repository, series: &[String]) -> Vec<Head> {
    repository.all_heads(series).map(|all| all.heads).unwrap_or_default()
}

/// `SERIES@latest`; the newest snapshot of each day by its day, and the others by their time.
fn times(series: &str, head: &Head) -> Vec<Candidate> {
    let newest_first = head.snapshots.iter().rev().take(SNAPSHOTS_MAX);
    let (mut days, mut found) = (BTreeSet::new(), Vec::new());
    for entry in newest_first {
        let time = output::time(entry.time_ns);
        if found.is_empty() {
            let value = format!("{series}@latest");
            found.push(Candidate { value, help: Some(time.clone()) });
        }
        let day = time.split(' ').next().unwrap_or_default().to_owned();
        let name = if days.insert(day.clone()) { day } else { time.replace(' ', "T") };
        let help = Some(format!("{time}  {}", short(entry.id)));
        found.push(Candidate { value: format!("{series}@{name}"), help });
    }
    found
}

fn ids(head: &Head) -> Vec<Candidate> {
    let newest_first = head.snapshots.iter().rev().take(SNAPSHOTS_MAX);
    let candidate = |entry: &silt_format::SnapshotEntry| {
        let help = format!("{} {}", head.shown(), output::time(entry.time_ns));
        Candidate { value: short(entry.id), help: Some(help) }
    };
    newest_first.map(candidate).collect()
}

/// `SNAPSHOT:VOLUME`, if the text begins with a snapshot and a colon.
fn volumes(repository: &Repository, current: &str) -> Vec<Candidate> {
    let Some((snapshot, _)) = current.rsplit_once(':') else { return Vec::new() };
    let Ok(selector) = snapshot_name::parse(snapshot) else { return Vec::new() };
    let Ok(found) = repository.find(&selector) else { return Vec::new() };
    let names = found.volumes().map(|it| format!("{snapshot}:{}", it.volume().name));
    names.map(Candidate::plain).collect()
}
