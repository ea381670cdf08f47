//! Adds and removes places.
//!
//! The list is written first, to the place that has decided so far; then all objects are copied to
//! the new places. The next deciding place is always one of the previous list, so it has everything
//! that was reported as committed under that list. A new place counts as incomplete until it is
//! filled.

use std::sync::Arc;

use silt_format::names::{self, Numbered};
use silt_format::{Advice, Error, ErrorKind, Header, ObjectKind, Places, Result, SeriesId};
use silt_repository::event::Warning;
use silt_repository::heads;
use silt_repository::objects::Address;
use silt_repository::places::{HOLDS_NOTHING, OpenPlace, is_empty, newest, open_place};
use silt_repository::series::DEFAULT_DOMAIN;
use silt_repository::settle::verify_unchanged;
use silt_storage::{ByteRange, Key, PutMode, Storage, list_all};

use super::heal::{HealOptions, HealReport};
use crate::repository::Repository;

/// How complete a place of a repository counts as.
///
/// ```
/// # use {std::{collections::HashMap, sync::Arc}, siltstone::{*, storage::*}};
/// # let (config, none) = (Config::default(), Protection::None);
/// # let disk = Arc::new(MemoryStorage::new());
/// # let mut disks = HashMap::from([("/mnt/a", disk.clone())]);
/// # let open = |location: &str| -> Result<Arc<dyn Storage>> { Ok(disk.clone()) };
/// # let repository = Repository::init(disk.clone(), SystemEnv::context(), config, &none, None)?;
/// # disks.insert("/mnt/b", Arc::new(MemoryStorage::new()));
/// let open = |location: &str| -> Result<Arc<dyn Storage>> {
///     disks.get(location).map(|disk| disk.clone() as Arc<dyn Storage>).ok_or_else(|| {
///         Error::new(ErrorKind::Unavailable, format!("nothing is mounted at {location}"))
///     })
/// };
/// let (repository, _) = repository.add_place("/mnt/a", "/mnt/b", &open)?;
/// // The disk of /mnt/a is mounted elsewhere from now on.
/// let moved = disks["/mnt/a"].clone();
/// let open = |location: &str| -> Result<Arc<dyn Storage>> {
///     match location {
///         "/mnt/new" => Ok(moved.clone()),
///         "/mnt/b" => open(location),
///         _ => Err(Error::new(ErrorKind::Unavailable, "nothing is mounted there")),
///     }
/// };
/// let completeness = repository.move_place("/mnt/a", "/mnt/new", &open)?;
/// assert_eq!(completeness, Completeness::Incomplete, "/mnt/b may have more");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// It has everything that was reported as committed.
    Complete,
    /// It may lack objects until [`add_place`](Repository::add_place) has compared it.
    Incomplete,
}

/// Which objects a place holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// All, except stores that have their own places.
    All,
    /// The shared store.
    Shared,
    /// The store of the node with this number.
    Node(u16),
}

impl Group {
    /// The locations of the places that hold these objects.
    fn locations(self, list: &mut Places) -> Result<&mut Vec<String>> {
        match self {
            Self::All => Ok(&mut list.copies),
            Self::Shared => Ok(&mut list.shared),
            Self::Node(number) => {
                let node = list.nodes.iter_mut().find(|node| node.number == number);
                let missing = || Error::invalid(format!("no node has the number {number}"));
                node.map(|node| &mut node.locations).ok_or_else(missing)
            }
        }
    }
}

impl Repository {
    /// Adds a copy of the repository at `location` and fills it; `here` is the location by which
    /// the repository was opened.
    ///
    /// Processes that opened the repository before can't commit any more. After an interruption the
    /// place counts as incomplete; the same call continues. Fails with `Conflict` if the place
    /// holds another history, and with `Unavailable` if a place can't be reached.
    pub fn add_place(
        self,
        here: &str,
        location: &str,
        open: &OpenPlace<'_>,
    ) -> Result<(Self, HealReport)> {
        self.add(here, location, Group::All, open)
    }

    /// Adds a place for the shared store alone, as [`add_place`](Self::add_place) does for the
    /// whole repository. The first such place takes the shared store out of the other places.
    pub fn add_shared_place(
        self,
        here: &str,
        location: &str,
        open: &OpenPlace<'_>,
    ) -> Result<(Self, HealReport)> {
        self.add(here, location, Group::Shared, open)
    }

    pub(super) fn add(
        self,
        here: &str,
        location: &str,
        group: Group,
        open: &OpenPlace<'_>,
    ) -> Result<(Self, HealReport)> {
        self.require_changeable()?;
        let mut list = self.places.as_ref().map(|places| places.list.clone()).unwrap_or_default();
        if list.copies.is_empty() {
            list.copies.push(here.to_owned());
        }
        let is_shared = group == Group::Shared;
        let is_moving = |list: &Places| list.shared.iter().any(|place| list.copies.contains(place));
        let is_own = |place: &str| !list.copies.iter().any(|copy| copy == place);
        let is_known = list.locations().iter().any(|known| *known == location);
        // It may be filled for others: a node's place lacks what another one needs.
        let is_of_group = group.locations(&mut list.clone())?.iter().any(|known| known == location);
        let is_continued = (is_of_group && list.filling.iter().any(|filling| filling == location))
            || (is_shared
                && is_moving(&list)
                && is_own(location)
                && list.shared.iter().any(|known| known == location));
        if (is_known || location == here) && !is_continued {
            let message = format!("{location} is a place of the repository already");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        let mut repository = self;
        // Who has been open for long may know an old list.
        verify_unchanged(&repository.objects)?;
        if !is_continued {
            if is_shared && list.shared.is_empty() {
                // Where it was it stays, until the new place has all of it.
                list.shared.clone_from(&list.copies);
            }
            group.locations(&mut list)?.push(location.to_owned());
            list.filling.push(location.to_owned());
        }
        let new = open(location)?;
        repository.require_places(None)?;
        if !is_continued || !is_begun(&*new)? {
            repository.begin_place(here, location, &list, &*new, open)?;
            repository = repository.reopen(here, &list, open)?;
        }
        repository.require_places(Some(location))?;
        let report = repository.fill(location, &*new)?;
        list.filling.retain(|filling| filling != location);
        repository.put_places(here, &list, open)?;
        repository = repository.reopen(here, &list, open)?;
        if is_shared && is_moving(&list) {
            let before = list.copies.clone();
            list.shared.retain(|place| !before.contains(place));
            // The place that decides must have everything that was reported as done.
            list.shared.sort_by_key(|place| list.filling.contains(place));
            if list.shared.first().is_none_or(|place| list.filling.contains(place)) {
                let message = "no copy of the shared store is complete; add the first copy again";
                return Err(Error::new(ErrorKind::Denied, message));
            }
            repository.put_places(here, &list, open)?;
            repository = repository.reopen(here, &list, open)?;
            repository.leave_shared()?;
        }
        Ok((repository, report))
    }

    /// Brings all that there is to a new place, durable.
    fn fill(&self, location: &str, new: &dyn Storage) -> Result<HealReport> {
        let (mut all, mut is_first) = (HealReport::default(), true);
        loop {
            let report = self.heal_copies(HealOptions::default())?;
            if let Some(name) = report.lost.iter().chain(&report.conflicts).next() {
                let message = format!("{location} is not complete: {name} is damaged or differs");
                let error = Error::new(ErrorKind::Conflict, message);
                return Err(error.with_advice(Advice::HealPlaces));
            }
            let is_same = report.copied_objects + report.replaced_objects == 0;
            all.checked_objects = report.checked_objects;
            all.copied_objects += report.copied_objects;
            all.replaced_objects += report.replaced_objects;
            all.copied_bytes += report.copied_bytes;
            if is_same && !is_first {
                return Ok(all);
            }
            // What somebody had brought there who died may have gone with the power before it was
            // durable: it is looked for once more.
            settle_all(new)?;
            is_first = false;
        }
    }

    /// Writes a list with a new place to the others, and then what the new one is known by. Only
    /// who has written the list may: what a place shows that another is adding would lead others
    /// astray.
    pub(super) fn begin_place(
        &self,
        here: &str,
        location: &str,
        list: &Places,
        new: &dyn Storage,
        open: &OpenPlace<'_>,
    ) -> Result<()> {
        self.verify_no_other(new)?;
        self.verify_no_fork(new)?;
        let highest = highest_list(new)?;
        let lists = self.seal_lists(list, highest)?;
        self.put_lists(&self.deciding(here), Some(location), list, &lists, open)?;
        self.copy_root(new, &[names::KEYS, names::WRITERS, names::AUTHORITY])?;
        // A process that opens the repository by the new place must not take it for the whole
        // repository.
        lists.iter().filter(|list| list.number > highest).try_for_each(|list| list.put(new))?;
        self.copy_root(new, &[names::CONFIG])
    }

    /// Fails with `Unavailable` if a place can't be reached, or the new one was left out when the
    /// repository was opened, as its disk was not mounted: healing passes both over.
    fn require_places(&self, new: Option<&str>) -> Result<()> {
        let places = self.places();
        let left_out = new
            .filter(|new| !places.iter().any(|place| place.location == *new))
            .map(|new| (new.to_owned(), "it held no repository when it was opened".to_owned()));
        let away = places.into_iter().find_map(|place| Some((place.location, place.failure?)));
        let away = away.map_or_else(|| self.emptied(), |away| Ok(Some(away)))?.or(left_out);
        away.map_or(Ok(()), |(location, why)| {
            let message = format!(
                "the copy in {location} cannot be reached: {why}; add it again once it can"
            );
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    /// A place of which only a cache has a configuration, though it counts as complete; and why it
    /// can't be used.
    fn emptied(&self) -> Result<Option<(String, String)>> {
        let Some(places) = &self.places else { return Ok(None) };
        let nodes = places.nodes.iter().map(|node| &node.places);
        let groups = [&places.main].into_iter().chain(&places.shared).chain(nodes);
        for replica in groups.flat_map(|group| group.replicas()).filter(|it| !it.is_filling) {
            if let Ok(storage) = &replica.storage
                && is_empty(&**storage)?
            {
                return Ok(Some((replica.location.clone(), HOLDS_NOTHING.to_owned())));
            }
        }
        Ok(None)
    }

    /// Opens a place whose configuration is read from it, and not from a cache, which may be older
    /// than the place.
    fn open_anew(&self, location: &str, open: &OpenPlace<'_>) -> Result<Arc<dyn Storage>> {
        let open = |location: &str| {
            let storage = open(location)?;
            for name in [names::CONFIG, names::CONFIG_COPY] {
                storage.forget(&Key::new(name)?);
            }
            Ok(storage)
        };
        open_place(self.id(), location, &open)
    }

    /// Continues with the list that was just written. Fails with `Busy` if another process has
    /// written another one since.
    pub(super) fn reopen(self, here: &str, list: &Places, open: &OpenPlace<'_>) -> Result<Self> {
        let repository = self.with_places(here, open)?;
        if repository.places.as_ref().is_some_and(|places| places.list == *list) {
            return Ok(repository);
        }
        Err(Error::new(ErrorKind::Busy, "another process has just changed the list of copies"))
    }

    /// Fails with `AlreadyExists` if a new place holds another repository.
    fn verify_no_other(&self, new: &dyn Storage) -> Result<()> {
        for name in [names::CONFIG, names::CONFIG_COPY] {
            let mut config = Vec::new();
            match new.get(&Key::new(name)?, ByteRange::Full, &mut config) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other?,
            }
            if Header::decode(&config).is_ok_and(|header| header.repository != self.id()) {
                let message = format!("{} holds another repository", new.describe());
                return Err(Error::new(ErrorKind::AlreadyExists, message));
            }
        }
        Ok(())
    }

    /// Fails with `Conflict` if a returning place holds heads that this repository does not have:
    /// it was used separately, and its commits would replace those made here.
    fn verify_no_fork(&self, new: &dyn Storage) -> Result<()> {
        for item in list_all(new, names::STATE, None) {
            let (key, _) = item?;
            let Some(series) = names::series_of(key.as_str()) else { continue };
            if !Numbered::Head.is(key.as_str()) {
                continue;
            }
            let (mut there, mut here) = (Vec::new(), Vec::new());
            new.get(&key, ByteRange::Full, &mut there)?;
            match self.objects.storage.get(&key, ByteRange::Full, &mut here) {
                Ok(()) if here == there => continue,
                // One of the two is damaged: healing replaces it.
                Ok(()) if self.verify_object(&key, &there).is_err() => continue,
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let newest = self.objects.newest_of(Numbered::Head, series)?;
                    let newest = newest.map_or(0, |(generation, _)| generation);
                    if Numbered::number(key.as_str()).is_some_and(|number| number < newest) {
                        // An old one, removed here since.
                        continue;
                    }
                }
                Err(error) => return Err(error),
            }
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{} was used without this repository: its {key} differs; keep it as a separate \
                     repository, or empty it first",
                    new.describe()
                ),
            ));
        }
        Ok(())
    }

    /// Copies what a place is known by: the keys, and the configuration.
    fn copy_root(&self, to: &dyn Storage, prefixes: &[&str]) -> Result<()> {
        let storage = &self.objects.storage;
        for prefix in prefixes.iter().copied() {
            for item in list_all(&**storage, prefix, None) {
                let (key, _) = item?;
                if !self.is_of_removed_key(&key) {
                    self.copy_object(&**storage, to, &key)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the shared store from the places that have all the rest: no list names it there any
    /// more.
    fn leave_shared(&self) -> Result<()> {
        let Some(places) = &self.places else { return Ok(()) };
        let store = self.objects.keys.shared_store_id(DEFAULT_DOMAIN).to_string();
        let main: &dyn Storage = &*places.main;
        let mut left = Vec::new();
        for item in list_all(main, "", None) {
            let (key, _) = item?;
            if key.as_str().split('/').nth(1) == Some(&store) {
                left.push(key);
            }
        }
        main.delete(&left)
    }

    /// Goes on without a place; its objects stay where they are.
    ///
    /// `Denied` if no complete place would be left.
    pub fn remove_place(&self, location: &str, open: &OpenPlace<'_>) -> Result<()> {
        self.go_on_without(location, false, open)
    }

    /// Goes on without a place, even if no complete one is left: objects that the others lack are
    /// lost.
    pub fn give_up_place(&self, location: &str, open: &OpenPlace<'_>) -> Result<()> {
        self.go_on_without(location, true, open)
    }

    fn go_on_without(
        &self,
        location: &str,
        allow_incomplete: bool,
        open: &OpenPlace<'_>,
    ) -> Result<()> {
        self.require_changeable()?;
        let Some(places) = &self.places else {
            return Err(no_such_place(location));
        };
        let mut list = places.list.clone();
        if !list.locations().iter().any(|known| *known == location) {
            return Err(no_such_place(location));
        }
        list.filling.retain(|known| known != location);
        let nodes = list.nodes.iter_mut().map(|node| &mut node.locations);
        for left in [&mut list.copies, &mut list.shared].into_iter().chain(nodes) {
            let before = left.len();
            left.retain(|known| known != location);
            // The place that decides must have everything that was reported as done.
            left.sort_by_key(|place| list.filling.contains(place));
            let is_complete = left.first().is_some_and(|place| !list.filling.contains(place));
            if before > 0 && left.is_empty() {
                let message = format!("{location} is the only copy left");
                return Err(Error::new(ErrorKind::Denied, message));
            }
            if before > 0 && !is_complete && !allow_incomplete {
                let message = format!("{location} is the only complete copy");
                return Err(Error::new(ErrorKind::Denied, message).with_advice(Advice::AddPlace));
            }
            // Objects that the others lack are given up, so the first of them is complete by
            // definition.
            if let Some(first) = left.first().filter(|_| before > 0 && !is_complete) {
                list.filling.retain(|filling| filling != first);
            }
        }
        self.put_places(location, &list, open)
    }

    /// Records that the place at `old` is now at `new`: its disk is mounted elsewhere, or its
    /// bucket has another name. Returns how complete the place counts as.
    ///
    /// Fails with `AlreadyExists` while the repository is still found at `old`; with `Conflict` if
    /// the repository at `new` has an older list of places, because then it cannot be the one from
    /// `old`. If the list has another complete copy, the place counts as incomplete until
    /// [`add_place`](Self::add_place) has compared the two, because `new` may be an old copy.
    pub fn move_place(&self, old: &str, new: &str, open: &OpenPlace<'_>) -> Result<Completeness> {
        self.require_changeable()?;
        let mut list = self.places.as_ref().map(|places| places.list.clone()).unwrap_or_default();
        let names = |location: &str| list.locations().iter().any(|known| *known == location);
        if !names(old) {
            return Err(no_such_place(old));
        }
        if names(new) {
            let message = format!("{new} is already a copy of the repository");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        if self.open_anew(old, open).is_ok() {
            let message = format!("the repository is still in {old}; nothing was moved");
            let error = Error::new(ErrorKind::AlreadyExists, message);
            return Err(error.with_advice(Advice::AddPlace));
        }
        let place = self.open_anew(new, open)?;
        let (number, known) = newest(&self.objects, &place, None)?;
        if (number, &known) != (self.objects.places, &list) {
            let message = format!(
                "{new} lacks the newest list of copies, so it is not the copy that was at {old}"
            );
            return Err(Error::new(ErrorKind::Conflict, message).with_advice(Advice::AddPlace));
        }
        // What is at `new` may be an old copy: any other complete place, even one that is away now,
        // may have commits that it lacks.
        let nodes = list.nodes.iter().map(|node| &node.locations);
        let groups = [&list.copies, &list.shared].into_iter().chain(nodes);
        let alike: Vec<&String> =
            groups.filter(|group| group.iter().any(|known| known == old)).flatten().collect();
        let has_others = alike.iter().any(|known| *known != old && !list.filling.contains(known));
        let nodes = list.nodes.iter_mut().map(|node| &mut node.locations);
        let all = [&mut list.copies, &mut list.shared, &mut list.filling].into_iter().chain(nodes);
        for known in all.flatten().filter(|known| *known == old) {
            new.clone_into(known);
        }
        if has_others && !list.filling.iter().any(|known| known == new) {
            list.filling.push(new.to_owned());
            // The place that decides must have everything that was reported as done.
            list.copies.sort_by_key(|place| list.filling.contains(place));
            list.shared.sort_by_key(|place| list.filling.contains(place));
            for node in &mut list.nodes {
                node.locations.sort_by_key(|place| list.filling.contains(place));
            }
        }
        let mut before = self.deciding(new);
        for known in before.iter_mut().filter(|known| *known == old) {
            new.clone_into(known);
        }
        self.put_lists(&before, None, &list, &self.seal_lists(&list, 0)?, open)?;
        let is_incomplete = list.filling.iter().any(|known| known == new);
        Ok(if is_incomplete { Completeness::Incomplete } else { Completeness::Complete })
    }

    /// Makes a list of places the newest, in every place that it or the one before names and that
    /// can be reached.
    pub(super) fn put_places(&self, here: &str, list: &Places, open: &OpenPlace<'_>) -> Result<()> {
        self.put_lists(&self.deciding(here), None, list, &self.seal_lists(list, 0)?, open)
    }

    /// The places that decide which change of the list is the first: those of the list before.
    pub(super) fn deciding(&self, here: &str) -> Vec<String> {
        let places = self.places.as_ref();
        places.map_or_else(|| vec![here.to_owned()], |places| places.list.copies.clone())
    }

    /// Fails with `Denied` if the repository was opened by a removed place.
    pub(super) fn require_changeable(&self) -> Result<()> {
        self.places.as_ref().map_or(Ok(()), |places| places.main.require_changeable())
    }

    /// A list of places as objects. The first has the number behind the list that it follows, so
    /// that of several who change that one only the first succeeds; the last two have numbers above
    /// `highest`, which a new place may have from before. There are two of them: whoever can't read
    /// the list would not know where the other places are.
    fn seal_lists(&self, list: &Places, highest: u64) -> Result<Vec<SealedList>> {
        let administrator = self.administrator()?;
        let last = self.objects.places;
        let highest = highest.max(last);
        let seal = |number| {
            let address = Address::new(ObjectKind::Places, SeriesId::NONE, number);
            let key = Key::new(Numbered::Places.name(SeriesId::NONE, number))?;
            let object = self.objects.sealed_by(&administrator, address, &list.encode())?;
            Ok(SealedList { number, key, object })
        };
        if highest >= heads::GENERATION_MAX {
            return Err(Error::corrupt("another object has the name of the next list of copies"));
        }
        let first = (last < highest).then_some(last + 1);
        first.into_iter().chain(highest + 1..=highest + 2).map(seal).collect()
    }

    /// Writes the objects of a list to all places but one. The first place of `before`, the list
    /// before, that can be reached decides who of several that change it at once is the first.
    fn put_lists(
        &self,
        before: &[String],
        but: Option<&str>,
        list: &Places,
        sealed: &[SealedList],
        open: &OpenPlace<'_>,
    ) -> Result<()> {
        let mut locations: Vec<&String> = Vec::new();
        for location in before.iter().chain(list.locations()) {
            if !locations.contains(&location) && but != Some(location.as_str()) {
                locations.push(location);
            }
        }
        let (mut places, mut knows) = (Vec::new(), false);
        for location in locations {
            match self.open_anew(location, open) {
                Ok(storage) => {
                    knows |= before.contains(location);
                    places.push(storage);
                }
                Err(error) => {
                    let consequence = format!("{location} has not recorded the change");
                    self.warn(Warning::after(&error, &consequence));
                }
            }
        }
        if !knows {
            // Whoever opens the repository by one of them when it is back would go on as before.
            let message = format!(
                "no copy of the repository can be reached: {}; the list of copies cannot be \
                 changed",
                before.join(", ")
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        sealed.iter().try_for_each(|list| places.iter().try_for_each(|place| list.put(&**place)))
    }
}

/// A list of places on its way.
struct SealedList {
    number: u64,
    key: Key,
    object: Vec<u8>,
}

impl SealedList {
    /// Writes it to a place; `Busy` if that has another of its number.
    fn put(&self, to: &dyn Storage) -> Result<()> {
        match to.put(&self.key, &[&self.object], PutMode::Create) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let mut there = Vec::new();
                to.get(&self.key, ByteRange::Full, &mut there)?;
                if there == self.object {
                    return Ok(());
                }
                let message = "another process has just changed the list of copies";
                Err(Error::new(ErrorKind::Busy, message).with_source(error))
            }
            other => other,
        }
    }
}

/// Whether a place has been given all that it is known by.
pub(super) fn is_begun(place: &dyn Storage) -> Result<bool> {
    match place.head(&Key::new(names::CONFIG)?) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes all that a place shows durable: who filled it before may have died before a folder was
/// synced.
fn settle_all(place: &dyn Storage) -> Result<()> {
    list_all(place, "", None).try_for_each(|item| place.settle(&item?.0))
}

/// The highest number of the lists of places that a storage has; 0 for none.
fn highest_list(storage: &dyn Storage) -> Result<u64> {
    let mut highest = 0;
    for item in list_all(storage, Numbered::Places.prefix(SeriesId::NONE), None) {
        let number = Numbered::Places.number_of(SeriesId::NONE, item?.0.as_str());
        highest = highest.max(number.unwrap_or(0));
    }
    Ok(highest)
}

fn no_such_place(location: &str) -> Error {
    let message = format!("{location} is not a copy of the repository");
    Error::new(ErrorKind::NotFound, message).with_advice(Advice::ListPlaces)
}
