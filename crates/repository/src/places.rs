//! A repository in several places: copies of the repository, and optionally separate copies of the
//! shared store.
//!
//! A list of places is an object, numbered like heads, in every place that it names. Opening the
//! repository by any of them finds the others, and uses the newest list that any of them has.

use std::sync::{Arc, Mutex};

use crate::event::Warning;
use silt_format::names::Numbered;
use silt_format::{
    Error, ErrorKind, Header, ObjectKind, Places, RepositoryId, Result, SHARED_STORE, SeriesId,
    names,
};
use silt_storage::{
    ByteRange, Key, Named, PutMode, Replica, Replicated, Routed, Storage, list_all,
};

use crate::objects::{Address, Lacking, Objects, is_damage};
use crate::repository::{OpenNode, OpenPlaces, Repository};
use crate::series::DEFAULT_DOMAIN;
use crate::storage_rules::place_of;

/// Why a place can't be used that has no configuration.
pub const HOLDS_NOTHING: &str = "it holds no repository; is its disk mounted?";

/// Opens the storage at a location.
pub type OpenPlace<'a> = dyn Fn(&str) -> Result<Arc<dyn Storage>> + 'a;

/// A place of the repository.
#[derive(Clone, Debug)]
pub struct PlaceInfo {
    /// Its location.
    pub location: String,
    /// Whether it holds the shared store alone.
    pub is_shared: bool,
    /// The name of the storage node whose store it holds alone.
    pub node: Option<String>,
    /// Whether it may lack objects that are older than itself; healing copies them.
    pub is_filling: bool,
    /// The reason why it can't be reached; `None` if it can.
    pub failure: Option<String>,
}

/// The newest whole list of places that a storage has, and its number; 0 for none. `root` are the
/// names of its root, if they have just been listed.
pub fn newest(
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
    let numbers =
        || root.iter().filter_map(|key| Numbered::Places.number_of(SeriesId::NONE, key.as_str()));
    let Some(newest) = numbers().max() else { return Ok((0, Places::default())) };
    let mut damage = None;
    for number in numbers() {
        match read_list(&objects, number) {
            // Each is written twice. If both are damaged or forged, an older list may lack places
            // that hold newer objects.
            Ok(_) if newest > number + 1 => break,
            Ok(list) => {
                if let Some(error) = damage {
                    objects.context.warn(Warning::after(&error, "its copy is used"));
                }
                // Its writer may have died before it was durable, and later steps rely on it.
                let name = Numbered::Places.name(SeriesId::NONE, number);
                objects.storage.settle(&Key::new(name)?)?;
                // A newer list that cannot be read also has a number.
                return Ok((newest, list));
            }
            Err(error) if is_damage(&error) => drop(damage.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    let error = damage.unwrap_or_else(|| Error::corrupt("its copy is missing"));
    Err(error.context(format!(
        "the newest list of copies in {}; open the repository by another copy, or remove the list \
         if you did not create it",
        objects.storage.describe()
    )))
}

fn read_list(objects: &Objects, number: u64) -> Result<Places> {
    let name = Numbered::Places.name(SeriesId::NONE, number);
    let address = Address::new(ObjectKind::Places, SeriesId::NONE, number);
    objects.get(&name, address).and_then(|plain| Places::decode(&plain))
}

/// The newest list that a place has.
struct Seen {
    location: String,
    storage: Arc<dyn Storage>,
    number: u64,
    list: Places,
}

impl Seen {
    /// Whether the list was in force: one that came only to a place that was being added never was.
    fn counts(&self) -> bool {
        self.number > 0 && !self.list.filling.contains(&self.location)
    }
}

/// Fails with `Conflict` if a list that was the newest in one place differs in another: each place
/// was used without the other, and may hold commits that the other lacks.
fn verify_one_line(objects: &Objects, list: &Places, all: &[Seen]) -> Result<()> {
    for old in all.iter().filter(|seen| seen.counts() && seen.list != *list) {
        for other in all.iter().filter(|seen| seen.counts()) {
            match read_list(&objects.with_storage(Arc::clone(&other.storage)), old.number) {
                Ok(there) if there != old.list => {
                    return Err(Error::new(
                        ErrorKind::Conflict,
                        "the copies of the repository list different copies, because each was used \
                         without the other; go on with only one of them",
                    ));
                }
                Err(error) if !is_damage(&error) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The places of the newest list, number `newest`, that have an older one.
fn lacking(all: Vec<Seen>, newest: u64, list: &Places) -> Lacking {
    let is_listed = |seen: &Seen| list.locations().contains(&&seen.location);
    let (older, newest): (Vec<Seen>, Vec<Seen>) =
        all.into_iter().partition(|seen| seen.number < newest);
    let places = older.into_iter().filter(is_listed).map(|seen| seen.storage).collect();
    Lacking { places, holders: newest.into_iter().map(|seen| seen.storage).collect() }
}

/// Opens a place, which must hold this repository: the folder of a disk that is not mounted does
/// not.
pub fn open_place(
    repository: RepositoryId,
    location: &str,
    open: &OpenPlace<'_>,
) -> Result<Arc<dyn Storage>> {
    let storage = open(location)?;
    let mut found = repository_at(&*storage)?;
    // Cached objects may belong to an earlier repository at this location.
    if found.is_some_and(|found| found != repository) {
        let had =
            [names::CONFIG, names::CONFIG_COPY].map(|name| Ok(storage.forget(&Key::new(name)?)));
        if had.into_iter().collect::<Result<Vec<bool>>>()?.contains(&true) {
            found = repository_at(&*storage)?;
        }
    }
    match found {
        Some(other) if other != repository => {
            Err(Error::new(ErrorKind::Invalid, "it holds another repository"))
        }
        // Readers report the damage.
        _ => Ok(storage),
    }
}

/// Whether a place has no configuration, whatever a cache has, which may be older than the place.
pub fn is_empty(place: &dyn Storage) -> Result<bool> {
    for name in [names::CONFIG, names::CONFIG_COPY] {
        match place.head(&Key::new(name)?) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            there => return there.map(|_| false),
        }
    }
    Ok(true)
}

/// Which repository a storage holds; `None` if its configuration is damaged.
fn repository_at(storage: &dyn Storage) -> Result<Option<RepositoryId>> {
    let mut config = Vec::new();
    match storage.get(&Key::new(names::CONFIG)?, ByteRange::Full, &mut config) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let copy = storage.get(&Key::new(names::CONFIG_COPY)?, ByteRange::Full, &mut config);
            copy.map_err(|_| Error::new(ErrorKind::NoRepository, HOLDS_NOTHING))?;
        }
        other => other?,
    }
    Ok(Header::decode(&config).ok().map(|header| header.repository))
}

/// Some of the places of a list. A place that is being added and is still empty is skipped: the
/// process that adds it fills it and then changes the list.
fn replicas(
    repository: RepositoryId,
    list: &Places,
    locations: &[String],
    open: &OpenPlace<'_>,
) -> Vec<Replica> {
    let replica = |location: &String| {
        let opened = open_place(repository, location, open);
        let is_nothing = |error: &Error| error.kind() == ErrorKind::NoRepository;
        let is_filling = list.filling.contains(location);
        // A node has no other places than these.
        let is_added = is_filling && (locations.len() > 1 || list.shared == *locations);
        if opened.as_ref().is_err_and(is_nothing) && is_added {
            return None;
        }
        let storage = opened.map_err(|error| error.to_string());
        Some(Replica { node: None, location: location.clone(), is_filling, storage })
    };
    locations.iter().filter_map(replica).collect()
}

/// The place that a repository was opened by.
fn itself(here: &str, storage: Arc<dyn Storage>) -> Replica {
    Replica { node: None, location: here.to_owned(), is_filling: false, storage: Ok(storage) }
}

impl Repository {
    /// Finds the other places of a repository that was opened by `here`, if it has any, and goes on
    /// with all of them.
    ///
    /// Unreachable places give a warning; reading goes on, writing is refused. The same holds if
    /// the list does not name `here`, because a removed place must not be mistaken for the
    /// repository.
    pub fn with_places(self, here: &str, open: &OpenPlace<'_>) -> Result<Self> {
        self.with_places_by(&[here.to_owned()], open)
    }

    /// The same of a location that has several names, as a folder has that is reached by a symbolic
    /// link: any of them may be in the list.
    pub fn with_places_by(mut self, names: &[String], open: &OpenPlace<'_>) -> Result<Self> {
        let called = |list: &Places| -> String {
            let is_listed = |name: &&String| list.locations().contains(name);
            names.iter().find(is_listed).or(names.first()).cloned().unwrap_or_default()
        };
        let own = Arc::clone(&self.objects.storage);
        let (number, list) = newest(&self.objects, &own, self.root.take())?;
        if number == 0 {
            return Ok(self);
        }
        let storage = Arc::clone(&own);
        let mut seen = vec![Seen { location: called(&list), storage, number, list: list.clone() }];
        let newest = self.follow_lists((number, list), names, &mut seen, open)?;
        let (number, list, mut main, shared) = newest;
        verify_one_line(&self.objects, &list, &seen)?;
        let here = called(&list);
        if list.copies.is_empty() {
            main.push(itself(&here, own));
        } else if main.iter().all(|replica| replica.storage.is_err()) {
            // The folders have moved; what is here can be read.
            main.push(itself(&here, own));
        }
        let is_named = list.copies.iter().chain(&list.shared).any(|location| *location == here);
        let is_read_elsewhere = main.iter().all(|replica| replica.location != here);
        let refusal = (!is_named && is_read_elsewhere).then(|| {
            format!(
                "{here} is not a copy of the repository, which is in {}",
                list.copies.join(", ")
            )
        });
        if let Some(why) = &refusal {
            let message = format!("{why}: it is read from there and not changed");
            self.warn(Warning::new(ErrorKind::Denied, message));
        }
        let nodes = self.replicas_of_nodes(&list, open);
        let of_nodes = nodes.iter().flat_map(|(_, replicas)| replicas);
        self.warn_of_unreachable(main.iter().chain(&shared).chain(of_nodes));
        let replicated = |replicas| {
            let all = Replicated::new(replicas);
            let refusal = refusal.as_ref();
            Arc::new(match refusal {
                Some(why) => all.refusing(format!("{why}; open it by one of these to change it")),
                None => all,
            })
        };
        let shared = (!shared.is_empty()).then(|| replicated(shared));
        let main = replicated(main);
        let nodes: Vec<OpenNode> = nodes
            .into_iter()
            .map(|(number, replicas)| OpenNode { number, places: replicated(replicas) })
            .collect();
        let all = self.routed(&main, shared.as_ref(), &nodes);
        let mut objects = self.objects.with_storage(all);
        objects.places = number;
        objects.lacking = Arc::new(Mutex::new(lacking(seen, number, &list)));
        // Another place may have a newer list than the one that the repository was opened by.
        if main.replicas().iter().any(|replica| !names.contains(&replica.location)) {
            objects.load_writers(None)?;
        }
        self.objects = Arc::new(objects);
        self.places = Some(OpenPlaces { list, main, shared, nodes });
        Ok(self)
    }

    /// Follows lists of places to the newest that any place has. Returns it, its number, and the
    /// places of the repository and of the shared store.
    fn follow_lists(
        &self,
        (mut number, mut list): (u64, Places),
        names: &[String],
        seen: &mut Vec<Seen>,
        open: &OpenPlace<'_>,
    ) -> Result<(u64, Places, Vec<Replica>, Vec<Replica>)> {
        // A place that was left out for a while knows an older list.
        loop {
            let mut main = replicas(self.id(), &list, &list.copies, open);
            let mut shared = replicas(self.id(), &list, &list.shared, open);
            for Replica { location, storage, .. } in main.iter_mut().chain(&mut shared) {
                // What the place says that the repository was opened by has been read.
                let Some(there) = storage.as_ref().ok().filter(|_| !names.contains(location))
                else {
                    continue;
                };
                let (number, list) = newest(&self.objects, there, None)?;
                if number == 0 && is_empty(&**there)? {
                    *storage = Err(HOLDS_NOTHING.to_owned());
                    continue;
                }
                let (location, storage) = (location.clone(), Arc::clone(there));
                seen.push(Seen { location, storage, number, list });
            }
            let is_begun =
                |it: &Replica| it.storage.is_ok() || !list.filling.contains(&it.location);
            main.retain(is_begun);
            shared.retain(is_begun);
            match seen.iter().filter(|seen| seen.number > number).max_by_key(|seen| seen.number) {
                Some(newer) => (number, list) = (newer.number, newer.list.clone()),
                None => return Ok((number, list, main, shared)),
            }
        }
    }

    /// The places of nodes that have their own, by the nodes' numbers. Nodes decide nothing about
    /// the list of places, so theirs is not read.
    fn replicas_of_nodes(&self, list: &Places, open: &OpenPlace<'_>) -> Vec<(u16, Vec<Replica>)> {
        let own = list.nodes.iter().filter(|node| !node.locations.is_empty());
        own.map(|node| {
            let replicas = replicas(self.id(), list, &node.locations, open);
            let of_node = |replica| Replica { node: Some(node.name.clone()), ..replica };
            (node.number, replicas.into_iter().map(of_node).collect())
        })
        .collect()
    }

    /// All places as one storage.
    fn routed(
        &self,
        main: &Arc<Replicated>,
        shared: Option<&Arc<Replicated>>,
        nodes: &[OpenNode],
    ) -> Arc<dyn Storage> {
        let mut all: Arc<dyn Storage> = Arc::clone(main) as _;
        let shared = shared.map(|shared| (SHARED_STORE, shared));
        let nodes = nodes.iter().map(|node| (node.number, &node.places));
        for (number, places) in shared.into_iter().chain(nodes) {
            let store = self.objects.keys.store_id(DEFAULT_DOMAIN, number).to_string();
            let place_of = move |named: Named<'_>| place_of(&store, named);
            let routed = Routed::new(all, Arc::clone(places) as _, place_of);
            // A node that cannot be reached must not hide the series.
            let is_node = number != SHARED_STORE;
            all = Arc::new(if is_node { routed.listing_main() } else { routed });
        }
        all
    }

    /// Makes sure that the places of a storage node durably say whose they are, before its store
    /// gets its first head: whoever added the node may have died before that. Does nothing if
    /// `store` is not the store of a node with places of its own.
    pub fn settle_node(&self, store: SeriesId) -> Result<()> {
        let mut nodes = self.places.iter().flat_map(|places| &places.nodes);
        let Some(node) = nodes.find(|node| self.store(node.number).id == store) else {
            return Ok(());
        };
        // The folder of a disk that is not mounted has neither; the copy is written last.
        node.places.settle(&Key::new(names::CONFIG)?)?;
        let (copy, mut bytes) = (Key::new(names::CONFIG_COPY)?, Vec::new());
        match node.places.settle(&copy) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.objects.storage.get(&copy, ByteRange::Full, &mut bytes)?;
                match node.places.put(&copy, &[&bytes], PutMode::Create) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                    put => put,
                }
            }
            settled => settled,
        }
    }

    fn warn_of_unreachable<'r>(&self, replicas: impl Iterator<Item = &'r Replica>) {
        for replica in replicas {
            if let Err(why) = &replica.storage {
                let content = replica.node.as_ref().map(|node| format!("node '{node}'"));
                let content = content.as_deref().unwrap_or("the copy");
                let message = format!("{content} in {} cannot be reached: {why}", replica.location);
                self.warn(Warning::new(ErrorKind::Unavailable, message));
            }
        }
    }

    /// Returns the places of the repository; none if it is only at the location by which it was
    /// opened.
    pub fn places(&self) -> Vec<PlaceInfo> {
        let Some(places) = &self.places else { return Vec::new() };
        let info = |replica: &Replica, is_shared, node: Option<&str>| PlaceInfo {
            location: replica.location.clone(),
            is_shared,
            node: node.map(str::to_owned),
            is_filling: places.list.filling.contains(&replica.location),
            failure: replica.storage.as_ref().err().cloned(),
        };
        let main = places.main.replicas().iter().map(|replica| info(replica, false, None));
        let shared = places.shared.iter().flat_map(|shared| shared.replicas());
        let shared = shared.map(|replica| info(replica, true, None));
        let of_node = |node: &'_ OpenNode| {
            let name = places.list.nodes.iter().find(|listed| listed.number == node.number);
            let name = name.map(|listed| listed.name.as_str());
            let infos: Vec<_> =
                node.places.replicas().iter().map(|replica| info(replica, false, name)).collect();
            infos
        };
        main.chain(shared).chain(places.nodes.iter().flat_map(of_node)).collect()
    }
}
