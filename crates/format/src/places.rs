//! The locations of a repository's objects.

use crate::Result;
use crate::codec::{Decoder, Encoder, REQUIRED, unsupported};

const CORE: u16 = 1;
const FILLING: u16 = 2;
const NODES: u16 = 3;

/// A storage node: a store with a place of its own, to which backups of many series write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePlaces {
    /// The number of its store in references; never given to another node.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// The locations that each hold the whole store. There are none if the node was taken out: its
    /// store is then in the places of the repository, and has no chunks.
    pub locations: Vec<String>,
    /// Whether backups write no new data to it.
    pub is_closed: bool,
}

/// The places of a repository that has more than one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Locations that each hold every object, except those of the shared store if it has its own
    /// locations. The first one decides whether an object can be created.
    pub copies: Vec<String>,
    /// Locations that each hold the shared store, if it has its own.
    pub shared: Vec<String>,
    /// Locations of either list that may lack objects older than their addition.
    pub filling: Vec<String>,
    /// The storage nodes, by number.
    pub nodes: Vec<NodePlaces>,
}

/// What stands between the name of a node that was taken out and its number. Names of other nodes
/// have no slash.
const REMOVED: &str = "/removed-";
const LOST: &str = "/lost-";

impl NodePlaces {
    /// Takes the node out for good: its number stays, as references name it, and its name becomes
    /// free. `is_lost` if there may be references to chunks that it had.
    pub fn take_out(&mut self, is_lost: bool) {
        let how = if is_lost { LOST } else { REMOVED };
        self.name = format!("{}{how}{}", self.name, self.number);
        self.locations.clear();
        self.is_closed = true;
    }

    /// Whether it was taken out.
    pub fn is_taken_out(&self) -> bool {
        self.locations.is_empty()
    }

    /// Whether it was taken out although there may be references to its chunks.
    pub fn is_lost(&self) -> bool {
        self.is_taken_out() && self.name.contains(LOST)
    }

    fn encode(&self, to: &mut Encoder) {
        to.u16(self.number);
        to.u8(u8::from(self.is_closed));
        to.string(&self.name);
        to.strings(&self.locations);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (number, is_closed) = (from.u16()?, from.u8()? != 0);
        Ok(Self { number, is_closed, name: from.string()?, locations: from.strings()? })
    }
}

impl Places {
    /// Forgets that places are filling that are none any more: they may become others.
    pub fn forget_left(&mut self) {
        let left: Vec<String> = self.locations().into_iter().cloned().collect();
        self.filling.retain(|filling| left.contains(filling));
    }

    /// All locations, each once.
    pub fn locations(&self) -> Vec<&String> {
        let nodes = self.nodes.iter().flat_map(|node| &node.locations);
        let mut all: Vec<&String> = Vec::new();
        for location in self.copies.iter().chain(&self.shared).chain(nodes) {
            if !all.contains(&location) {
                all.push(location);
            }
        }
        all
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| {
            for locations in [&self.copies, &self.shared] {
                to.strings(locations);
            }
        });
        if !self.filling.is_empty() {
            to.section(FILLING, 0, |to| to.strings(&self.filling));
        }
        if !self.nodes.is_empty() {
            to.section(NODES, REQUIRED, |to| {
                to.count(self.nodes.len());
                self.nodes.iter().for_each(|node| node.encode(to));
            });
        }
        to.bytes
    }

    /// Reads a list of places.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (mut found, mut filling, mut nodes) = (None, Vec::new(), Vec::new());
        Decoder::new(bytes, "list of places").sections(|tag, body| {
            match tag {
                CORE => found = Some((body.strings()?, body.strings()?)),
                FILLING => filling = body.strings()?,
                NODES => nodes = body.list(11, NodePlaces::decode)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let found = found.map(|(copies, shared)| Self { copies, shared, filling, nodes });
        found.ok_or_else(|| unsupported("list of places", "an object without its first section"))
    }
}
