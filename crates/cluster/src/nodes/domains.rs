//! What the process of a node holds of each application, behind a lock of its own.
//!
//! As in AppDedupe's nodes, a representative of one application is not found for another, and a
//! look-up of one does not wait for those of others. Chunks whose container does not say of which
//! application they are belong to all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use silt_backup::{HELD_REPRESENTATIVES, print_of};
use silt_format::number::{to_u64, to_usize};
use silt_format::{ApplicationRun, ErrorKind, ObjectSet, Reference, Result};
use silt_repository::objects::is_damage;
use silt_routing::{Chunk, SuperChunks, handprint};
use silt_runs::shared_index::SharedIndex;

use super::similar::Similar;
use crate::index::messages::Wanted;

/// Containers whose directories are held: eight super-chunks may each name as many as they have
/// representatives, or twice as many. All applications share them, and each has enough for one.
const DIRECTORIES: usize = 64;
const DIRECTORIES_MIN: usize = 12;
/// Tables. Further applications are in that of chunks of which none is known: each table takes
/// 256 KiB when it is empty.
const TABLES_MAX: usize = 16;

/// The table, the caches and the locks of one application.
#[derive(Default)]
struct Domain {
    similar: RwLock<Similar>,
    index: Mutex<Option<SharedIndex>>,
}

impl Domain {
    fn similar(&self) -> RwLockReadGuard<'_, Similar> {
        self.similar.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Similar> {
        self.similar.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All of them.
pub(super) struct Domains {
    /// By application. Locked only to find one, or to add one.
    all: RwLock<BTreeMap<u16, Arc<Domain>>>,
    is_exact: bool,
}

impl Domains {
    pub fn new(is_exact: bool) -> Self {
        let unknown = (ApplicationRun::UNKNOWN, Arc::default());
        Self { all: RwLock::new(BTreeMap::from([unknown])), is_exact }
    }

    fn all(&self) -> Vec<(u16, Arc<Domain>)> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(application, domain)| (*application, Arc::clone(domain))).collect()
    }

    /// Those with chunks of an application, its own first; all of them if none is named.
    fn of(&self, application: Option<u16>) -> Vec<Arc<Domain>> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = ApplicationRun::UNKNOWN;
        let is_of = |key: u16| application.is_none_or(|it| key == it || key == unknown);
        let mut of: Vec<_> = all.iter().filter(|(key, _)| is_of(**key)).collect();
        // The application's own comes before that of chunks of no known one.
        of.sort_by_key(|(key, _)| (application.is_none(), **key) == (false, unknown));
        of.into_iter().map(|(_, domain)| Arc::clone(domain)).collect()
    }

    /// The domain whose table gets what is new of an application.
    fn filled(&self, application: u16) -> Arc<Domain> {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = all.len() >= TABLES_MAX && !all.contains_key(&application);
        let key = if is_full { ApplicationRun::UNKNOWN } else { application };
        Arc::clone(all.entry(key).or_default())
    }

    /// How many representatives of a handprint the application's table has.
    pub fn similar(&self, application: Option<u16>, handprints: &[Vec<u64>]) -> Vec<usize> {
        let domains = self.of(application);
        let tables: Vec<_> = domains.iter().map(|domain| domain.similar()).collect();
        let has = |print: &&u64| tables.iter().any(|table| table.find(**print).is_some());
        handprints.iter().map(|handprint| handprint.iter().filter(has).count()).collect()
    }

    /// Where chunks are, which come in the order of their volume.
    pub fn find(
        &self,
        application: Option<u16>,
        wanted: &[Wanted],
    ) -> Result<Vec<Option<Reference>>> {
        let domains = self.of(application);
        let mut index = domains[0].index.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = &mut *index else { return Ok(vec![None; wanted.len()]) };
        let mut found = Vec::with_capacity(wanted.len());
        for piece in super_chunks(wanted) {
            let prints = piece.iter().map(|(fingerprint, _)| print_of(fingerprint));
            for print in handprint(prints, HELD_REPRESENTATIVES) {
                let containers = domains.iter().find_map(|domain| domain.similar().find(print));
                for container in containers.into_iter().flatten() {
                    match index.fetch(container) {
                        // It may be gone by now.
                        Err(error) if is_damage(&error) || error.kind() == ErrorKind::NotFound => {}
                        fetched => fetched?,
                    }
                }
            }
            let near = index.find_near(piece);
            for ((fingerprint, length), near) in piece.iter().zip(near) {
                let length = to_usize(u64::from(*length));
                found.push(match near {
                    None if self.is_exact => index.get(fingerprint, length)?,
                    None => index.get_near(fingerprint, length),
                    near => near,
                });
            }
        }
        Ok(found)
    }

    /// Adds the representatives of containers, which have added none before, by application.
    pub fn add(&self, new: BTreeMap<u16, Vec<(u64, u32)>>) {
        for (application, prints) in new {
            self.filled(application).write().add(prints.into_iter());
        }
    }

    /// Drops the representatives of containers that are not there any more.
    pub fn retain(&self, containers: &ObjectSet) {
        for (_, domain) in self.all() {
            domain.write().retain(|number| containers.tag(number).is_some());
        }
    }

    /// Lets all look up in an index, with what they have read already. They share `memory_bytes`,
    /// half of it equally, and half by what they hold.
    pub fn use_index(&self, index: &SharedIndex, memory_bytes: usize) {
        let all = self.all();
        let whole = self.representatives().max(1);
        for (_, domain) in &all {
            let held = domain.similar().len();
            let share = |whole_of: usize| {
                let by_held = to_u64(whole_of / 2) * to_u64(held) / to_u64(whole);
                whole_of / 2 / all.len() + to_usize(by_held)
            };
            let directories = share(DIRECTORIES).max(DIRECTORIES_MIN);
            let mut own = index.another(share(memory_bytes)).holding(directories);
            let mut used = domain.index.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(before) = &mut *used {
                own.take_over(before);
            }
            *used = Some(own);
        }
    }

    /// Representatives in all tables.
    pub fn representatives(&self) -> usize {
        self.all().iter().map(|(_, domain)| domain.similar().len()).sum()
    }

    /// Bytes that the tables take.
    pub fn bytes(&self) -> usize {
        self.all().iter().map(|(_, domain)| domain.similar().bytes()).sum()
    }

    /// Applications that have a table.
    pub fn applications(&self) -> usize {
        self.all().iter().filter(|(key, _)| *key != ApplicationRun::UNKNOWN).count()
    }
}

/// Chunks in the order of their volume, cut as backups cut them.
pub(super) fn super_chunks(wanted: &[Wanted]) -> impl Iterator<Item = &[Wanted]> {
    let mut cutter = SuperChunks::default();
    wanted.chunk_by(move |(fingerprint, bytes), _| {
        !cutter.ends_with(Chunk { print: print_of(fingerprint), bytes: *bytes })
    })
}
