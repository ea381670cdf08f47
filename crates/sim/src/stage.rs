//! What all hosts of a history share, and opening the repositories of its sites.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use silt_format::{Error, Result};
use siltstone::{PlaceInfo, Repository};
use tempfile::TempDir;

use crate::content::Content;
use crate::model::Model;
use crate::plan::{Plan, Role, Series};
use crate::process::Process;
use crate::world::World;

/// The locations of places.
pub const LOCATIONS: [&str; 4] = ["a", "b", "c", "d"];
/// The locations of places for storage nodes.
pub const NODE_LOCATIONS: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// The passwords of the full key, the write-only key, and the administrator's key.
pub const READS: &[u8] = b"reads";
pub const WRITES: &[u8] = b"writes";
pub const SIGNS: &[u8] = b"signs";
/// The state that all hosts of a history share.
pub struct Stage {
    /// The plan.
    pub plan: Plan,
    /// Time and places.
    pub world: Arc<World>,
    /// The caches of all machines, if they have some.
    pub caches: Option<TempDir>,
    pub model: Arc<Mutex<Model>>,
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
        self.process_on((host, format!("host{host}")), skew_minutes)
    }

    /// Starts a process that a host has started on another machine.
    pub fn process_there(&self, host: usize, skew_minutes: i64) -> Arc<Process> {
        self.process_on((host, format!("there{host}")), skew_minutes)
    }

    pub fn process_on(&self, machine: (usize, String), skew_minutes: i64) -> Arc<Process> {
        Process::new(&self.world, machine, skew_minutes, self.plan.folders, self.plan.seed)
    }

    /// The places of a site.
    pub fn places_of(&self, site: usize) -> Range<usize> {
        let first = self.plan.places.max(1);
        if site == 0 { 0..first } else { first + site - 1..first + site }
    }

    /// The places for storage nodes.
    pub fn places_of_nodes(&self) -> Range<usize> {
        let first = self.plan.places.max(1) + self.plan.replicas;
        first..first + self.plan.nodes
    }

    /// The place at a location; `None` if there is none.
    pub fn place_at(&self, location: &str) -> Option<usize> {
        let of = |all: &[&str], places: Range<usize>| {
            places.zip(all).find_map(|(place, known)| (*known == location).then_some(place))
        };
        of(&LOCATIONS, self.places_of(0)).or_else(|| of(&NODE_LOCATIONS, self.places_of_nodes()))
    }

    /// What a series is backed up from changes now.
    pub fn change(&self, process: &Process, (site, series): (usize, Series)) -> Content {
        let now_ns = self.world.state().now_ns;
        // Files are stamped by the machine that is backed up, or by another one.
        let now_ns = if self.plan.tick_ms > 0 { now_ns + process.skew_ns } else { now_ns };
        self.model().change(site, series, now_ns)
    }

    /// The folder for temporary files.
    pub fn spool() -> std::path::PathBuf {
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
    if !stage.places_of(0).contains(&place) {
        return Ok(repository);
    }
    repository.with_places(LOCATIONS[place], &opener(stage, process))
}

/// Returns a function that opens a place by its location.
pub fn opener<'s>(
    stage: &'s Stage,
    process: &Arc<Process>,
) -> impl Fn(&str) -> Result<Arc<dyn silt_storage::Storage>> + 's {
    let process = Arc::clone(process);
    move |location| {
        let place = stage.place_at(location);
        place.map(|place| process.place(place)).ok_or_else(|| Error::invalid("no such place"))
    }
}

/// Returns the place at which users open a site's repository: the first reachable one that contains
/// it.
pub fn place_to_open(stage: &Stage, site: usize) -> usize {
    let state = stage.world.state();
    let now_ns = state.now_ns;
    let places = stage.places_of(site);
    let found = places.clone().find(|place| {
        let place = &state.places[*place];
        place.away_until_ns <= now_ns && place.objects.keys().any(|key| key.as_str() == "config")
    });
    found.unwrap_or(places.start)
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
pub fn listed(repository: &Repository, place: usize) -> usize {
    let places = repository.places();
    if places.is_empty() || places.iter().any(|listed| listed.location == LOCATIONS[place]) {
        return place;
    }
    let known = |listed: &PlaceInfo| LOCATIONS.iter().position(|known| *known == listed.location);
    let mut reached = places.iter().filter(|listed| listed.failure.is_none());
    reached.find_map(known).unwrap_or(place)
}
