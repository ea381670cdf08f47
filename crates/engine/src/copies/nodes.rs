//! Adds storage nodes, and moves their stores to other places.

use silt_format::{Error, ErrorKind, FIRST_NODE, Head, NodePlaces, Places, RecipeChunk, Result};
use silt_repository::heads;
use silt_repository::places::OpenPlace;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_repository::settle::verify_unchanged;
use silt_repository::stores::store_name;
use silt_runs::marks::Marks;
use silt_sharing::references::each_reference_to;

use super::change::{Group, is_begun};
use super::heal::HealReport;
use crate::repository::Repository;

/// Number of nodes that a repository can have.
const NODES_MAX: usize = 1024;
/// More commits than anybody makes to a node that the heads of series do not tell of.
const UNSEEN: u64 = 1 << 20;

impl Repository {
    /// Adds a storage node: a store with a place of its own at `location`, to which backups write
    /// their new chunks from now on. `here` is the location by which the repository was opened.
    ///
    /// Processes that opened the repository before can't commit any more. After an interruption,
    /// the same call continues. Fails with `AlreadyExists` if another node has the name, or a place
    /// of the repository the location.
    pub fn add_node(
        self,
        here: &str,
        name: &str,
        location: &str,
        open: &OpenPlace<'_>,
    ) -> Result<Self> {
        self.require_changeable()?;
        if !silt_repository::series::is_name(name) {
            let message = format!("'{name}' is not allowed as the name of a node");
            return Err(Error::invalid(message));
        }
        verify_unchanged(&self.objects)?;
        let mut list = self.list_with(here);
        let own = |node: &&NodePlaces| node.name == name;
        let is_continued = list.nodes.iter().find(own).is_some_and(|it| it.locations == [location]);
        let taken = |what: String| Error::new(ErrorKind::AlreadyExists, what);
        let is_used = || taken(format!("{location} is a place of the repository already"));
        // Opening a folder makes it, so what is refused is refused before.
        if !is_continued {
            if list.nodes.iter().any(|node| node.name == name) {
                return Err(taken(format!("there is a node '{name}' already")));
            }
            if list.locations().iter().any(|known| *known == location) {
                return Err(is_used());
            }
            if list.nodes.len() >= NODES_MAX {
                return Err(Error::invalid(format!("a repository has at most {NODES_MAX} nodes")));
            }
            let last = list.nodes.iter().map(|node| node.number).max();
            let number = last.map_or(FIRST_NODE, |last| last + 1);
            let (name, locations) = (name.to_owned(), vec![location.to_owned()]);
            list.nodes.push(NodePlaces { number, name, locations, is_closed: false });
        }
        let new = open(location)?;
        if is_continued && is_begun(&*new)? && self.is_in_use(location) {
            return Err(is_used());
        }
        self.begin_place(here, location, &list, &*new, open)?;
        self.reopen(here, &list, open)
    }

    /// Whether a place in the list can be reached.
    fn is_in_use(&self, location: &str) -> bool {
        self.places().iter().any(|place| place.location == location && place.failure.is_none())
    }

    /// Lets backups write no new chunks to a node, or lets them again; what it has stays in use.
    pub fn close_node(
        self,
        here: &str,
        name: &str,
        is_closed: bool,
        open: &OpenPlace<'_>,
    ) -> Result<Self> {
        self.require_changeable()?;
        verify_unchanged(&self.objects)?;
        let mut list = self.list_with(here);
        let is_meant = |node: &&mut NodePlaces| node.name == name && !node.is_taken_out();
        let node = list.nodes.iter_mut().find(is_meant).ok_or_else(|| no_such_node(name))?;
        if node.is_closed == is_closed {
            return Ok(self);
        }
        node.is_closed = is_closed;
        self.put_places(here, &list, open)?;
        self.reopen(here, &list, open)
    }

    /// Takes a node out for good: backups and restores do not ask its places any more, and its name
    /// can be given to another node. What is there stays there, unused. After an interruption, the
    /// same call continues.
    ///
    /// Fails with `Denied` if the node has chunks, or a snapshot refers to some that it does not
    /// have any more; with `Corrupt` if it is an older copy. `is_lost` gives up those that can't be
    /// reached, or are lost because the node has an older state than series know: snapshots that
    /// need them are damaged from then on, and the next backups store again what they need. Without
    /// it, this fails also if the node can't be reached.
    pub fn remove_node(
        self,
        here: &str,
        name: &str,
        is_lost: bool,
        open: &OpenPlace<'_>,
    ) -> Result<Self> {
        self.require_changeable()?;
        verify_unchanged(&self.objects)?;
        let Ok(number) = self.node_to_change(name).map(|node| node.number) else {
            return self.complete_removal(name);
        };
        // A good node is not closed for this.
        self.verify_removable(number, is_lost)?;
        // Backups that write to it know an older list from here on. What they have registered is
        // seen now, and what they have not can't be committed.
        let repository = self.close_node(here, name, true, open)?;
        let generation = repository.verify_removable(number, is_lost)?;
        let mut list = repository.list_with(here);
        for node in list.nodes.iter_mut().filter(|node| node.number == number) {
            node.take_out(is_lost);
        }
        list.forget_left();
        repository.put_places(here, &list, open)?;
        let repository = repository.reopen(here, &list, open)?;
        repository.put_empty_head(number, generation)?;
        Ok(repository)
    }

    /// Writes the heads of nodes of this name that somebody took out who died.
    fn complete_removal(self, name: &str) -> Result<Self> {
        let (mut is_any, prefix) = (false, format!("{name}/"));
        for node in self.nodes().iter().filter(|node| node.is_taken_out()) {
            let is_meant = node.name == name || node.name.starts_with(&prefix);
            if is_meant && !matches!(self.head(self.store(node.number).id), Ok(Some(_))) {
                self.put_empty_head(node.number, 0)?;
                is_any = true;
            }
        }
        if is_any { Ok(self) } else { Err(no_such_node(name)) }
    }

    /// Fails with `Denied` unless a node can be taken out; the generation of its head.
    fn verify_removable(&self, number: u16, is_lost: bool) -> Result<u64> {
        let store = self.store(number);
        let denied = |why: String| Error::new(ErrorKind::Denied, format!("{} {why}", store.shown));
        let marks = Marks::list(self, number)?;
        let head = match self.head(store.id) {
            Err(error) if is_lost && error.kind() != ErrorKind::Interrupted => return Ok(0),
            head => {
                head.map_err(|error| error.context(format!("look what {} has", store.shown)))?
            }
        };
        if !is_lost {
            marks.require(head.as_ref())?;
        }
        let generation = head.as_ref().map_or(0, |head| head.generation);
        let heads = self.heads(&[])?;
        let is_behind = heads.iter().any(|head| head.seen(number) > generation)
            || marks.lost(head.as_ref())? > 0;
        let containers = head.map_or(0, |head| head.containers.len());
        if containers > 0 && !(is_lost && is_behind) {
            return Err(denied(format!("has {containers} containers; move it instead")));
        }
        let mut refuse = |_: &RecipeChunk| {
            Err(denied("has lost chunks that snapshots, or deleted ones, refer to".to_owned()))
        };
        if !is_lost {
            let mut all = heads.iter();
            all.try_for_each(|head| each_reference_to(self, number, head, &mut refuse))?;
        }
        Ok(generation)
    }

    /// Gives the store of a node that was taken out a head in the places of the repository, so that
    /// whoever has seen an earlier one does not take it for hidden.
    fn put_empty_head(&self, number: u16, generation: u64) -> Result<()> {
        let seen = self.heads(&[])?.iter().map(|head| head.seen(number)).max().unwrap_or(0);
        let empty = Head::empty(self.store(number).id, DEFAULT_DOMAIN, &store_name(number));
        // A host may have written any number into its head.
        let marked = Marks::list(self, number)?.newest();
        let newest = seen.max(generation).max(marked).saturating_add(UNSEEN);
        let mut head = Head { generation: newest.min(heads::GENERATION_MAX - 2), ..empty };
        let (objects, authority) = (&self.objects, self.required_authority()?);
        let session = objects.context.random();
        heads::commit(objects, &mut head, session, authority.as_deref()).map(drop)
    }

    /// Copies the store of a node to another place, and then uses that place alone. References
    /// stay, and so does the node's name. What was at the places before stays there, unused.
    ///
    /// After an interruption, the same call continues. Fails as
    /// [`add_place`](Repository::add_place) does.
    pub fn move_node(
        self,
        here: &str,
        name: &str,
        location: &str,
        open: &OpenPlace<'_>,
    ) -> Result<(Self, HealReport)> {
        let number = self.node_to_change(name)?.number;
        if self.node(name)?.locations == [location] {
            let message = format!("node '{name}' is at {location} already");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        let is_filled = self.node(name)?.locations.iter().any(|known| known == location)
            && self
                .places
                .as_ref()
                .is_some_and(|it| !it.list.filling.iter().any(|l| l == location));
        let (repository, report) = if is_filled {
            (self, HealReport::default())
        } else {
            self.add(here, location, Group::Node(number), open)?
        };
        let mut list = repository.list_with(here);
        for node in list.nodes.iter_mut().filter(|node| node.number == number) {
            node.locations = vec![location.to_owned()];
        }
        list.forget_left();
        repository.put_places(here, &list, open)?;
        Ok((repository.reopen(here, &list, open)?, report))
    }

    /// Adds a copy of a node's store at `location`, as [`add_place`](Repository::add_place) does
    /// for the whole repository.
    pub fn add_node_place(
        self,
        here: &str,
        name: &str,
        location: &str,
        open: &OpenPlace<'_>,
    ) -> Result<(Self, HealReport)> {
        let number = self.node_to_change(name)?.number;
        self.add(here, location, Group::Node(number), open)
    }

    /// The node of this name; `NotFound` if there is none.
    pub fn node(&self, name: &str) -> Result<&NodePlaces> {
        let node = self.nodes().iter().find(|node| node.name == name);
        node.ok_or_else(|| no_such_node(name))
    }

    /// The same; `NotFound` also if it was taken out.
    fn node_to_change(&self, name: &str) -> Result<&NodePlaces> {
        Some(self.node(name)?).filter(|it| !it.is_taken_out()).ok_or_else(|| no_such_node(name))
    }

    /// The list of places, or that of a repository at one place.
    fn list_with(&self, here: &str) -> Places {
        let mut list = self.places.as_ref().map(|places| places.list.clone()).unwrap_or_default();
        if list.copies.is_empty() {
            list.copies.push(here.to_owned());
        }
        list.forget_left();
        list
    }
}

fn no_such_node(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the repository has no node '{name}'"))
}
