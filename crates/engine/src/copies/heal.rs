//! Repairs differences between the places of a repository.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_format::names::{self, Numbered};
use silt_format::number::to_u64;
use silt_format::{Error, ErrorKind, Result, SHARED_STORE};
use silt_repository::event::{Activity, Progress};
use silt_repository::settle::verify_unchanged;
use silt_storage::{ByteRange, DryRunStorage, Key, PutMode, Replicated, Storage, list_all};

use crate::check::CheckOptions;
use crate::repository::Repository;

/// How the places of a repository are compared.
///
/// ```
/// # use {std::{collections::HashMap, sync::Arc}, siltstone::{*, storage::*}};
/// # let (config, none) = (Config::default(), Protection::None);
/// # let disk = || Arc::new(MemoryStorage::new());
/// # let disks = HashMap::from([("/mnt/a", disk()), ("/mnt/b", disk())]);
/// # let open = |location: &str| -> Result<Arc<dyn Storage>> { Ok(disks[location].clone()) };
/// # let context = SystemEnv::context();
/// # let repository = Repository::init(open("/mnt/a")?, context, config, &none, None)?;
/// # let (repository, _) = repository.add_place("/mnt/a", "/mnt/b", &open)?;
/// disks["/mnt/b"].damage(&Key::new("config")?, |bytes| bytes[70] ^= 1)?;
/// let options = HealOptions { read_data: true, dry_run: true };
/// assert_eq!(repository.heal_copies(options)?.replaced_objects, 1, "it would be replaced");
///
/// let options = HealOptions { read_data: true, dry_run: false };
/// assert_eq!(repository.heal_copies(options)?.replaced_objects, 1);
/// assert_eq!(repository.heal_copies(options)?.replaced_objects, 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HealOptions {
    /// Compares every byte, not only the names and sizes of objects.
    pub read_data: bool,
    /// Reports the changes, and makes none.
    pub dry_run: bool,
}

/// The result of comparing and healing places.
///
/// ```
/// # use {std::{collections::HashMap, sync::Arc}, siltstone::{*, storage::*}};
/// # let (config, none) = (Config::default(), Protection::None);
/// # let disk = || Arc::new(MemoryStorage::new());
/// # let disks = HashMap::from([("/mnt/a", disk()), ("/mnt/b", disk())]);
/// # let open = |location: &str| -> Result<Arc<dyn Storage>> { Ok(disks[location].clone()) };
/// # let context = SystemEnv::context();
/// # let repository = Repository::init(open("/mnt/a")?, context, config, &none, None)?;
/// # let (repository, _) = repository.add_place("/mnt/a", "/mnt/b", &open)?;
/// disks["/mnt/b"].delete(&[Key::new("config")?])?;
/// let report = repository.heal_copies(HealOptions::default())?;
/// println!("{} objects compared", report.checked_objects);
/// assert_eq!(report.copied_objects, 1);
/// assert!(report.lost.is_empty() && report.conflicts.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct HealReport {
    /// Objects that were compared.
    pub checked_objects: u64,
    /// Objects that were missing in a place and were copied there.
    pub copied_objects: u64,
    /// Objects that were damaged in a place and were replaced.
    pub replaced_objects: u64,
    /// Bytes written.
    pub copied_bytes: u64,
    /// Objects that are damaged or missing in every place.
    pub lost: Vec<String>,
    /// Objects that differ between places although both copies are intact, because each place was
    /// used without the other. No reference says which copy is right, so both stay.
    pub conflicts: Vec<String>,
}

/// Where an object was read, and its bytes.
type Copy = (usize, Vec<u8>);
/// A name, and how large its object is in each place that can be reached.
type Listed = BTreeMap<Key, Vec<Option<u64>>>;

/// What a place has under a name.
enum Held {
    Nothing,
    /// An object that cannot be read, though the place answers: a bad sector, for example.
    Unreadable,
    Object(Vec<u8>),
}

/// Reads an object in one place. Fails if the place does not answer or refuses: that says nothing
/// about what it holds, so nothing may be deleted there.
fn held(place: &dyn Storage, key: &Key) -> Result<Held> {
    for is_last in [false, true] {
        let mut bytes = Vec::new();
        match place.get(key, ByteRange::Full, &mut bytes) {
            Ok(()) => return Ok(Held::Object(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Held::Nothing),
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Held::Unreadable),
            Err(error) if error.kind() == ErrorKind::Unavailable => match place.head(key) {
                Ok(_) if is_last => return Ok(Held::Unreadable),
                // It was away for a moment, perhaps.
                Ok(_) => {}
                Err(other) if other.kind() == ErrorKind::NotFound => return Ok(Held::Nothing),
                Err(_) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(Held::Unreadable)
}

/// The objects of all places below `prefix`.
fn list_in(
    places: &[&dyn Storage],
    prefix: &str,
    is_kept: &dyn Fn(&Key) -> bool,
) -> Result<Listed> {
    let mut listed = Listed::new();
    for (number, place) in places.iter().enumerate() {
        for item in list_all(*place, prefix, None) {
            let (key, bytes) = item?;
            // Leases come and go, and nothing is lost with them.
            if !Numbered::Lease.is(key.as_str()) && is_kept(&key) {
                listed.entry(key).or_insert_with(|| vec![None; places.len()])[number] = Some(bytes);
            }
        }
    }
    Ok(listed)
}

impl Repository {
    /// Compares the places of the repository, and replaces missing and damaged objects by whole
    /// copies from other places. Every object is verified before it is copied. Series that were
    /// known to be damaged are checked again afterwards, so that their status is up to date.
    pub fn heal_copies(&self, options: HealOptions) -> Result<HealReport> {
        if !options.dry_run {
            self.require_changeable()?;
        }
        let mut report = HealReport::default();
        let Some(places) = &self.places else { return Ok(report) };
        if !self.objects.keys.opens_all() {
            let message = "this key opens only some series and cannot compare the others";
            return Err(Error::new(ErrorKind::Denied, message));
        }
        // The stores that have places of their own.
        let mut groups = Vec::new();
        groups.extend(places.shared.as_ref().map(|shared| (SHARED_STORE, shared)));
        groups.extend(places.nodes.iter().map(|node| (node.number, &node.places)));
        let named: Vec<_> = groups
            .into_iter()
            .map(|(number, places)| (self.store(number).id.to_string(), places))
            .collect();
        let second = |key: &Key| key.as_str().split('/').nth(1).map(str::to_owned);
        let is_apart = |key: &Key| {
            second(key).is_some_and(|second| named.iter().any(|(store, _)| *store == second))
        };
        self.heal_group(&places.main, &|key| !is_apart(key), options, &mut report)?;
        for (store, places) in &named {
            let is_root = |key: &Key| {
                let name = key.as_str();
                names::series_of(name).is_none() && !Numbered::Places.is(name)
            };
            let is_kept = |key: &Key| second(key).as_ref() == Some(store) || is_root(key);
            self.heal_group(places, &is_kept, options, &mut report)?;
        }
        if !options.dry_run {
            self.check_damaged_again()?;
        }
        Ok(report)
    }

    fn heal_group(
        &self,
        group: &Replicated,
        is_kept: &dyn Fn(&Key) -> bool,
        options: HealOptions,
        report: &mut HealReport,
    ) -> Result<()> {
        let places = group.replicas().iter().filter_map(|replica| replica.storage.as_ref().ok());
        let places: Vec<&dyn Storage> = places.map(|storage| &**storage).collect();
        if places.len() < 2 {
            return Ok(());
        }
        // Heads are looked for first and copied last: what they name was there before them, and is
        // in a place before it has them.
        let heads = list_in(&places, names::STATE, is_kept)?;
        let mut rest = list_in(&places, "", is_kept)?;
        rest.retain(|key, _| {
            !key.as_str().starts_with(names::STATE) && !self.is_of_removed_key(key)
        });
        let total = to_u64(rest.len() + heads.len());
        for (done, (key, sizes)) in (0..).zip(rest.iter().chain(&heads)) {
            self.objects.context.check_interrupted()?;
            self.heal_object(&places, key, sizes, options, report)?;
            self.objects.context.report(Progress::objects(Activity::Heal, done, Some(total)));
        }
        Ok(())
    }

    /// Whether an object is a wrapped key that was removed: one place may have it still, to which
    /// somebody copied it who slept.
    pub(super) fn is_of_removed_key(&self, key: &Key) -> bool {
        names::key_id(key.as_str()).is_some_and(|id| self.objects.believed.is_removed(id))
    }

    fn heal_object(
        &self,
        places: &[&dyn Storage],
        key: &Key,
        sizes: &[Option<u64>],
        options: HealOptions,
        report: &mut HealReport,
    ) -> Result<()> {
        report.checked_objects += 1;
        let alike = sizes.windows(2).all(|pair| pair[0] == pair[1]);
        if alike && !(options.read_data && self.differs(places, key)) {
            return Ok(());
        }
        let mut whole = self.whole_copies(places, key)?;
        if whole.len() > 1 {
            whole = self.wanted(places, key, whole)?;
        }
        if whole.len() > 1 {
            report.conflicts.push(key.as_str().to_owned());
            return Ok(());
        }
        let Some((good, bytes)) = whole.pop() else {
            for place in places {
                match place.head(key) {
                    Ok(_) => {
                        report.lost.push(key.as_str().to_owned());
                        return Ok(());
                    }
                    // It was deleted since it was listed.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    // A place that has just gone away says nothing of what it holds.
                    Err(error) => return Err(error),
                }
            }
            return Ok(());
        };
        if !options.dry_run {
            // A head that a power failure takes away here would stay in the other places only, and
            // the next writer would commit another one under its name.
            match places[good].settle(key) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                settled => settled?,
            }
        }
        for (number, place) in places.iter().enumerate().filter(|(number, _)| *number != good) {
            let is_damaged = match held(*place, key)? {
                Held::Object(there) if there == bytes => continue,
                Held::Nothing if sizes[number].is_none() => false,
                // It existed a moment ago: another process is deleting it.
                Held::Nothing => continue,
                Held::Object(_) | Held::Unreadable => true,
            };
            let changed =
                if is_damaged { &mut report.replaced_objects } else { &mut report.copied_objects };
            *changed += 1;
            if options.dry_run {
                continue;
            }
            if is_damaged {
                // Where the list has changed meanwhile, this may be the only copy that counts.
                verify_unchanged(&self.objects)?;
                place.delete(std::slice::from_ref(key))?;
            }
            match place.put(key, &[&bytes], PutMode::Create) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                other => other?,
            }
            report.copied_bytes += to_u64(bytes.len());
        }
        Ok(())
    }

    /// Whether the bytes of an object are not the same in all places, or not whole in any.
    fn differs(&self, places: &[&dyn Storage], key: &Key) -> bool {
        let mut first: Option<Vec<u8>> = None;
        for place in places {
            let mut bytes = Vec::new();
            match place.get(key, ByteRange::Full, &mut bytes) {
                Ok(()) => match &first {
                    Some(first) if *first != bytes => return true,
                    Some(_) => {}
                    None => first = Some(bytes),
                },
                Err(error) if error.kind() == ErrorKind::NotFound => return false,
                Err(_) => return true,
            }
        }
        first.is_some_and(|bytes| self.verify_object(key, &bytes).is_err())
    }

    /// The whole copies of an object that are not the same, each with the first place that has it.
    fn whole_copies(&self, places: &[&dyn Storage], key: &Key) -> Result<Vec<Copy>> {
        let mut found: Vec<Copy> = Vec::new();
        for (number, place) in places.iter().enumerate() {
            match held(*place, key)? {
                Held::Object(bytes) if found.iter().any(|(_, other)| *other == bytes) => {}
                Held::Object(bytes) if self.verify_object(key, &bytes).is_ok() => {
                    found.push((number, bytes));
                }
                Held::Object(_) | Held::Unreadable | Held::Nothing => {}
            }
        }
        Ok(found)
    }

    /// Of intact copies that differ, returns the one that matches the references of other objects:
    /// content hashes of blocks and snapshots, fingerprints of chunks. Of keys, which cannot be
    /// verified without their passwords, returns the one that equals the duplicate beside it.
    /// Returns all copies if that does not decide.
    fn wanted(&self, places: &[&dyn Storage], key: &Key, copies: Vec<Copy>) -> Result<Vec<Copy>> {
        if let Some(twin) = names::twin(key.as_str()) {
            let twins = self.whole_copies(places, &Key::new(twin)?)?;
            let is_confirmed = |(_, bytes): &&Copy| twins.iter().any(|(_, twin)| twin == bytes);
            let confirmed: Vec<Copy> = copies.iter().filter(is_confirmed).cloned().collect();
            return Ok(if confirmed.len() == 1 { confirmed } else { copies });
        }
        let Some(series) = names::series_of(key.as_str()) else { return Ok(copies) };
        // All series may refer to what such a store has.
        let is_shared = self.is_store(series);
        let options = match self.head(series) {
            Ok(Some(head)) if !is_shared => {
                CheckOptions { series: vec![head.name], ..CheckOptions::default() }
            }
            _ => CheckOptions::default(),
        };
        let mut fitting = Vec::new();
        for (place, bytes) in &copies {
            let below = Arc::clone(&self.objects.storage);
            let storage = DryRunStorage::with(below, key, bytes.clone());
            let seen_so = self.within(Arc::new(storage));
            let checked = seen_so.check(&options)?;
            if !checked.damage.iter().any(|damage| damage.object == key.as_str()) {
                fitting.push((*place, bytes.clone()));
            }
        }
        Ok(if fitting.len() == 1 { fitting } else { copies })
    }

    /// Copies an object that must be whole; its bytes.
    pub(super) fn copy_object(
        &self,
        from: &dyn Storage,
        to: &dyn Storage,
        key: &Key,
    ) -> Result<u64> {
        let mut bytes = Vec::new();
        from.get(key, ByteRange::Full, &mut bytes)?;
        self.verify_object(key, &bytes)
            .map_err(|error| error.context(format!("{key} is not copied")))?;
        match to.put(key, &[&bytes], PutMode::Create) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let mut there = Vec::new();
                to.get(key, ByteRange::Full, &mut there)?;
                if there != bytes {
                    let message = format!("{} holds another {key}", to.describe());
                    return Err(Error::new(ErrorKind::AlreadyExists, message));
                }
            }
            other => other?,
        }
        Ok(to_u64(bytes.len()))
    }
}
