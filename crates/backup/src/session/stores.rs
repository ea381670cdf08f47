//! The stores of several series as a backup finds them.

use std::sync::Arc;

use silt_format::{ALONE, CheckRecord, ErrorKind, Head, NodePlaces, Result, SHARED_STORE};
use silt_repository::Repository;
use silt_repository::budget::Budget;
use silt_repository::check_record::Avoided;
use silt_runs::shared_index::{SharedIndex, SharedLookup};

use crate::nodes::Nodes;
use crate::places::{NodeAnswers, SharedPlaces, StoreLookup, is_older};

/// What a backup knows of the stores of several series, and which chunks it must not refer to.
pub(super) struct Stores {
    /// The shared store's index; `None` if it is empty or not used.
    pub(super) shared: Option<StoreLookup>,
    pub(super) nodes: Nodes,
    pub(super) avoided: Arc<Avoided>,
}

impl Stores {
    /// Opens the stores, and names them in the series' head. `check` is the name of the series'
    /// newest check record; then, whether the shared store and nodes are used, and who is asked
    /// about them.
    pub(super) fn open(
        repository: &Repository,
        head: &mut Head,
        check: Option<String>,
        (uses_shared, uses_nodes): (bool, bool),
        (places, answers): (Option<&Arc<dyn SharedPlaces>>, Option<&Arc<dyn NodeAnswers>>),
        budget: Budget,
    ) -> Result<Self> {
        let (objects, domain) = (&repository.objects, head.domain);
        let shared = SharedIndex::open(objects, (domain, SHARED_STORE), budget.lookup_bytes())?;
        let (shared, shared_check) = shared.unzip();
        let shared =
            shared.filter(|index| !is_older(repository, head, SHARED_STORE, index.generation()));
        if let Some(shared) = &shared {
            shared.name_in(head);
        }
        let shared = shared.filter(|index| uses_shared && !index.is_empty());
        let (_, checked) = objects.read_check_record(head.series, check)?;
        let store = objects.keys.shared_store_id(domain);
        let (_, shared_checked) = objects.read_check_record(store, shared_check.flatten())?;
        let mut stores_checked = vec![(SHARED_STORE, shared_checked)];
        stores_checked.extend(nodes_checked(repository, domain)?);
        let avoided = Arc::new(Avoided::new(&checked, &stores_checked));
        let nodes = if uses_nodes {
            Nodes::open(repository, head, (&avoided, answers), budget.lookup_bytes())?
        } else {
            Nodes::default()
        };
        let lookup = |index| StoreLookup::new(SharedLookup::new(index, &avoided), places.cloned());
        let shared = shared.map(lookup);
        Ok(Self { shared, nodes, avoided })
    }
}

/// The check records of storage nodes that can be read, by number.
fn nodes_checked(repository: &Repository, domain: u32) -> Result<Vec<(u16, CheckRecord)>> {
    let objects = &repository.objects;
    if domain == ALONE || !objects.keys.opens_all() {
        return Ok(Vec::new());
    }
    let read = |node: &NodePlaces| match objects.check_record(repository.store(node.number).id) {
        Ok((_, record)) => Some(Ok((node.number, record))),
        // Opening the node says that it can't be reached.
        Err(error) if error.kind() != ErrorKind::Interrupted => None,
        Err(error) => Some(Err(error)),
    };
    repository.nodes().iter().filter_map(read).collect()
}
