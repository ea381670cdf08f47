//! A repository in several places: copies of all of it, and the shared store elsewhere with copies of
//! its own.
//!
//! A list of places is an object of its own, numbered like heads, in every place that it names. Whoever
//! opens the repository by any of them finds the others, and takes the newest list that any has.

mod heal;
mod verify;

use std::sync::Arc;

use silt_format::names::Numbered;
use silt_format::{
    Error, ErrorKind, Header, ObjectKind, Places, RepositoryId, Result, SeriesId, names,
};
use silt_storage::{ByteRange, Key, PutMode, Replica, Replicated, Routed, Storage, list_all};

pub use heal::{HealOptions, HealReport};

use crate::deletion::Edit;
use crate::objects::{Address, Objects, is_damage};
use crate::repository::{DEFAULT_DOMAIN, Repository};

/// Opens the storage at a location.
pub type OpenPlace<'a> = dyn Fn(&str) -> Result<Arc<dyn Storage>> + 'a;

/// The places that a repository was opened with.
#[derive(Clone)]
pub(crate) struct OpenPlaces {
    pub(crate) number: u64,
    pub(crate) list: Places,
    pub(crate) main: Arc<Replicated>,
    pub(crate) shared: Option<Arc<Replicated>>,
}

/// One place, for those who want to know.
#[derive(Clone, Debug)]
pub struct PlaceInfo {
    /// Its location.
    pub location: String,
    /// Whether it holds the shared store alone.
    pub is_shared: bool,
    /// Why it can't be reached, if it can't.
    pub failure: Option<String>,
}

/// The newest whole list of places that a storage has, and its number; 0 for none. `root` are the names of
/// its root, if they have just been listed.
fn newest(
    objects: &Objects,
    storage: &Arc<dyn Storage>,
    root: Option<Vec<Key>>,
) -> Result<(u64, Places)> {
    let objects = objects.with_storage(Arc::clone(storage));
    let root = match root {
        Some(root) => root,
        None => list_all(&**storage, Numbered::Places.prefix(SeriesId::NONE), None)
            .map(|item| Ok(item?.0))
            .collect::<Result<_>>()?,
    };
    let mut damage = None;
    for name in root.iter().map(Key::as_str).filter(|name| Numbered::Places.is(name)) {
        let strange = || Error::corrupt(format!("{name} is not the name of a list of places"));
        let number = Numbered::number(name).ok_or_else(strange)?;
        let address = Address::new(ObjectKind::Places, SeriesId::NONE, number);
        match objects.get(name, address).and_then(|plain| Places::decode(&plain)) {
            Ok(list) => {
                if let Some(error) = damage {
                    let message = format!("{error}; its copy is used");
                    objects.context.observer.warning(&message);
                }
                return Ok((number, list));
            }
            Err(error) if is_damage(&error) => drop(damage.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    damage.map_or_else(|| Ok((0, Places::default())), Err)
}

/// Opens a place, which must hold this repository: the folder of a disk that is not mounted does not.
fn open_place(
    repository: RepositoryId,
    location: &str,
    open: &OpenPlace<'_>,
) -> Result<Arc<dyn Storage>> {
    let storage = open(location)?;
    let mut config = Vec::new();
    match storage.get(&Key::new(names::CONFIG)?, ByteRange::Full, &mut config) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let copy = storage.get(&Key::new(names::CONFIG_COPY)?, ByteRange::Full, &mut config);
            copy.map_err(|_| {
                let message = "it holds no repository; is its disk mounted?";
                Error::new(ErrorKind::NoRepository, message)
            })?;
        }
        other => other?,
    }
    match Header::decode(&config) {
        Ok(header) if header.repository != repository => {
            Err(Error::new(ErrorKind::Invalid, "it holds another repository"))
        }
        // Damage is for those to name who read it.
        _ => Ok(storage),
    }
}

fn replicas(repository: RepositoryId, locations: &[String], open: &OpenPlace<'_>) -> Vec<Replica> {
    let replica = |location: &String| Replica {
        location: location.clone(),
        storage: open_place(repository, location, open).map_err(|error| error.to_string()),
    };
    locations.iter().map(replica).collect()
}

impl Repository {
    /// Finds the other places of a repository that was opened by `here`, if it has any, and goes on with
    /// all of them.
    ///
    /// Places that can't be reached are a warning: reading goes on, writing is refused.
    pub fn with_places(mut self, here: &str, open: &OpenPlace<'_>) -> Result<Self> {
        let own = Arc::clone(&self.objects.storage);
        let (mut number, mut list) = newest(&self.objects, &own, self.root.take())?;
        if number == 0 {
            return Ok(self);
        }
        // A place that was left out for a while knows an older list.
        let mut main = loop {
            let main = replicas(self.id(), &list.copies, open);
            let reached = main.iter().filter_map(|replica| replica.storage.as_ref().ok());
            let lists = reached.map(|storage| newest(&self.objects, storage, None));
            let newer = lists.collect::<Result<Vec<_>>>()?.into_iter().max_by_key(|list| list.0);
            match newer.filter(|newer| newer.0 > number) {
                Some(newer) => (number, list) = newer,
                None => break main,
            }
        };
        if list.copies.is_empty() {
            main.push(Replica { location: here.to_owned(), storage: Ok(own) });
        } else if main.iter().all(|replica| replica.storage.is_err()) {
            // The folders have moved; what is here can be read.
            main.push(Replica { location: here.to_owned(), storage: Ok(own) });
        } else if !list.copies.iter().any(|location| location == here) {
            let copies = list.copies.join(", ");
            self.warn(&format!(
                "{here} is no longer a copy of the repository, which is in {copies}"
            ));
        }
        let shared = replicas(self.id(), &list.shared, open);
        for replica in main.iter().chain(&shared) {
            if let Err(why) = &replica.storage {
                self.warn(&format!("the copy in {} can't be reached: {why}", replica.location));
            }
        }
        let main = Arc::new(Replicated::new(main));
        let shared = (!shared.is_empty()).then(|| Arc::new(Replicated::new(shared)));
        let all: Arc<dyn Storage> = match &shared {
            Some(shared) => {
                let store = self.objects.keys.shared_store_id(DEFAULT_DOMAIN).to_string();
                Arc::new(Routed::new(Arc::clone(&main) as _, store, Arc::clone(shared) as _))
            }
            None => Arc::clone(&main) as _,
        };
        self.objects = Arc::new(self.objects.with_storage(all));
        self.places = Some(OpenPlaces { number, list, main, shared });
        Ok(self)
    }

    /// The places of the repository; none if it is where it was opened and nowhere else.
    pub fn places(&self) -> Vec<PlaceInfo> {
        let Some(places) = &self.places else { return Vec::new() };
        let info = |replica: &Replica, is_shared| PlaceInfo {
            location: replica.location.clone(),
            is_shared,
            failure: replica.storage.as_ref().err().cloned(),
        };
        let main = places.main.replicas().iter().map(|replica| info(replica, false));
        let shared = places.shared.iter().flat_map(|shared| shared.replicas());
        main.chain(shared.map(|replica| info(replica, true))).collect()
    }

    /// Whether a place can't be reached, so that nothing can be written.
    pub(crate) fn lacks_places(&self) -> bool {
        self.places().iter().any(|place| place.failure.is_some())
    }

    /// Adds a copy of the repository, or of the shared store, at `location`, and fills it; `here` is
    /// where the repository was opened.
    ///
    /// What processes write that opened it before is copied by the next [`heal`](Self::heal_copies). The
    /// first place of the shared store takes it out of the others: nothing else may run meanwhile, and a
    /// process that holds the shared store makes it fail as `Busy`.
    pub fn add_place(
        self,
        here: &str,
        location: &str,
        is_shared: bool,
        open: &OpenPlace<'_>,
    ) -> Result<(Self, HealReport)> {
        let mut list = self.places.as_ref().map(|places| places.list.clone()).unwrap_or_default();
        if list.copies.is_empty() && !is_shared {
            list.copies.push(here.to_owned());
        }
        let known = list.copies.iter().chain(&list.shared);
        if known.into_iter().any(|known| known == location) || location == here {
            let message = format!("{location} is a place of the repository already");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        let moving = is_shared && list.shared.is_empty();
        if is_shared { &mut list.shared } else { &mut list.copies }.push(location.to_owned());
        self.copy_root(&*open(location)?)?;
        if moving {
            return self.move_shared(here, location, &list, open);
        }
        self.put_places(&list, open)?;
        let repository = self.with_places(here, open)?;
        let report = repository.heal_copies(HealOptions::default())?;
        Ok((repository, report))
    }

    /// Copies what a place is known by: the configuration and the keys.
    fn copy_root(&self, to: &dyn Storage) -> Result<()> {
        let storage = &self.objects.storage;
        for prefix in [names::KEYS, names::AUTHORITY, names::CONFIG] {
            for item in list_all(&**storage, prefix, None) {
                self.copy_object(&**storage, to, &item?.0)?;
            }
        }
        Ok(())
    }

    /// Takes the shared store to a place of its own: copied, listed, and only then deleted here.
    fn move_shared(
        self,
        here: &str,
        location: &str,
        list: &Places,
        open: &OpenPlace<'_>,
    ) -> Result<(Self, HealReport)> {
        let edit = Edit::begin_shared(&self, DEFAULT_DOMAIN)?;
        let target = open(location)?;
        let store = self.objects.keys.shared_store_id(DEFAULT_DOMAIN).to_string();
        let (mut report, mut moved) = (HealReport::default(), Vec::new());
        let storage = &self.objects.storage;
        for item in list_all(&**storage, "", None) {
            let (key, _) = item?;
            if key.as_str().split('/').nth(1) != Some(&store) || Numbered::Lease.is(key.as_str()) {
                continue;
            }
            self.objects.context.check_interrupted()?;
            report.checked_objects += 1;
            report.copied_bytes += self.copy_object(&**storage, &*target, &key)?;
            report.copied_objects += 1;
            moved.push(key);
        }
        self.put_places(list, open)?;
        storage.delete(&moved)?;
        edit.finish()?;
        Ok((self.with_places(here, open)?, report))
    }

    /// Goes on without a place; its objects stay where they are.
    pub fn remove_place(&self, location: &str, open: &OpenPlace<'_>) -> Result<()> {
        let Some(places) = &self.places else {
            return Err(no_such_place(location));
        };
        let mut list = places.list.clone();
        let (copies, shared) = (list.copies.len(), list.shared.len());
        list.copies.retain(|known| known != location);
        list.shared.retain(|known| known != location);
        if (list.copies.len(), list.shared.len()) == (copies, shared) {
            return Err(no_such_place(location));
        }
        if (copies > 0 && list.copies.is_empty()) || (shared > 0 && list.shared.is_empty()) {
            let message = format!("{location} is the only place left; nothing would be left of it");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        self.put_places(&list, open)
    }

    /// Makes a list of places the newest, in every place that it names and that can be reached. It is
    /// written twice: whoever can't read it would not know where the other places are.
    fn put_places(&self, list: &Places, open: &OpenPlace<'_>) -> Result<()> {
        self.required_authority()?;
        let last = self.places.as_ref().map_or(0, |places| places.number);
        (last + 1..=last + 2).try_for_each(|number| self.put_list(number, list, open))
    }

    fn put_list(&self, number: u64, list: &Places, open: &OpenPlace<'_>) -> Result<()> {
        let address = Address::new(ObjectKind::Places, SeriesId::NONE, number);
        let object = self.objects.sealed(address, &list.encode())?;
        let key = Key::new(Numbered::Places.name(SeriesId::NONE, number))?;
        let mut written = 0;
        let mut put = |storage: &dyn Storage| match storage.put(&key, &[&object], PutMode::Create) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && written == 0 => {
                Err(Error::new(ErrorKind::Busy, "another process has just changed the places"))
            }
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => {
                written += 1;
                Ok(())
            }
        };
        if list.copies.is_empty() {
            return put(&*self.main_storage());
        }
        for location in &list.copies {
            match open_place(self.id(), location, open) {
                Ok(storage) => put(&*storage)?,
                Err(error) => {
                    self.warn(&format!("{error}; {location} does not know of the change"));
                }
            }
        }
        if written == 0 {
            let message = "no place of the repository can be written to".to_owned();
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Where all is kept but the shared store.
    fn main_storage(&self) -> Arc<dyn Storage> {
        match &self.places {
            Some(places) => Arc::clone(&places.main) as _,
            None => Arc::clone(&self.objects.storage),
        }
    }
}

fn no_such_place(location: &str) -> Error {
    let message = format!("{location} is no place of the repository; `silt copies` lists them");
    Error::new(ErrorKind::NotFound, message)
}
