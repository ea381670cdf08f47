//! The stores that several series refer to: the shared store, and the storage nodes.

use silt_format::{
    Error, ErrorKind, FIRST_NODE, NodePlaces, Result, SHARED_STORE, SeriesId, node_store_name,
};

use crate::heads;
use crate::repository::Repository;
use crate::series::{DEFAULT_DOMAIN, SHARED_NAME};

/// A store that several series refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommonStore {
    /// Its number in references.
    pub number: u16,
    /// The id under which its heads and objects are.
    pub id: SeriesId,
    /// What messages call it.
    pub shown: String,
}

/// The name that heads of a store have.
pub fn store_name(number: u16) -> String {
    if number == SHARED_STORE { SHARED_NAME.to_owned() } else { node_store_name(number) }
}

impl Repository {
    /// The storage nodes, by number.
    pub fn nodes(&self) -> &[NodePlaces] {
        self.places.as_ref().map_or(&[], |places| &places.list.nodes)
    }

    /// The store with this number.
    pub fn store(&self, number: u16) -> CommonStore {
        let node = self.nodes().iter().find(|node| node.number == number);
        let shown = match node {
            Some(node) => format!("node '{}'", node.name),
            None if number == SHARED_STORE => SHARED_NAME.to_owned(),
            None => format!("node {number}"),
        };
        let id = self.objects.keys.store_id(DEFAULT_DOMAIN, number);
        CommonStore { number, id, shown }
    }

    /// The stores of several series: the shared store, and then the nodes by number. Nothing may be
    /// in them yet.
    pub fn stores(&self) -> Vec<CommonStore> {
        let nodes = self.nodes().iter().map(|node| node.number);
        std::iter::once(SHARED_STORE).chain(nodes).map(|number| self.store(number)).collect()
    }

    /// What messages call a series: a node by its name, another series by `name`.
    pub fn shown_name(&self, series: SeriesId, name: &str) -> String {
        let node = self.stores().into_iter().find(|it| it.id == series && it.number > SHARED_STORE);
        node.map_or_else(|| name.to_owned(), |node| node.shown)
    }

    /// Whether an id is that of a store of several series, and not of a series.
    pub fn is_store(&self, id: SeriesId) -> bool {
        self.stores().iter().any(|store| store.id == id)
    }

    /// Returns the generation of a store's newest head. Call it only after reading the heads that
    /// may know it.
    pub fn store_generation(&self, number: u16) -> Result<u64> {
        let id = self.objects.keys.store_id(DEFAULT_DOMAIN, number);
        let newest = heads::all(&self.objects, id).next().transpose()?;
        Ok(newest.map_or(0, |(generation, _)| generation))
    }
}

/// Whether an error says that the store with this number is a node that can't be reached.
pub fn is_away(error: &Error, number: u16) -> bool {
    error.kind() == ErrorKind::Unavailable && number >= FIRST_NODE
}
