//! The stores of several series as a backup finds them.

use std::sync::Arc;

use silt_format::{ALONE, Head, Result, SHARED_STORE};
use silt_repository::Repository;
use silt_repository::budget::Budget;
use silt_repository::repository::OpenPlaces;
use silt_repository::settle::verify_unchanged;
use silt_runs::avoided::{Avoided, is_older};
use silt_runs::shared_index::{SharedIndex, SharedLookup};

use crate::nodes::{self, Nodes};
use crate::places::{Asked, StoreLookup};

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
        asked: Asked<'_>,
        budget: Budget,
    ) -> Result<Self> {
        let (objects, domain) = (&repository.objects, head.domain);
        let shared = SharedIndex::open(objects, (domain, SHARED_STORE), budget.lookup_bytes())?;
        let (shared, shared_check) = shared.unzip();
        let generation = shared.as_ref().map_or(0, SharedIndex::generation);
        let is_lost = domain != ALONE
            && objects.keys.has_domain(domain)
            && is_older(repository, head.seen(SHARED_STORE), SHARED_STORE, generation);
        let shared = shared.filter(|_| !is_lost);
        let (shown, mut lost) = nodes::read(repository, head)?;
        lost.extend(is_lost.then_some(SHARED_STORE));
        if let Some(shared) = &shared {
            shared.name_in(head);
        }
        let shared = shared.filter(|index| uses_shared && !index.is_empty());
        let (_, checked) = objects.read_check_record(head.series, check)?;
        let store = objects.keys.shared_store_id(domain);
        let (_, shared_checked) = objects.read_check_record(store, shared_check.flatten())?;
        let mut stores_checked = vec![(SHARED_STORE, shared_checked)];
        stores_checked.extend(shown.iter().map(|node| (node.number(), node.checked.clone())));
        // Where a store was before it was moved, its head is old: a sweep where it is now does not
        // wait for a backup that begins with that head.
        if repository.places.as_ref().is_some_and(OpenPlaces::has_stores_elsewhere) {
            verify_unchanged(objects)?;
        }
        // Snapshots that referred to it would be reported as made, and could not be restored.
        let avoided = Arc::new(Avoided::new(&checked, &stores_checked).and_stores(lost));
        let nodes = if uses_nodes {
            Nodes::open(repository, head, shown, (&avoided, asked.nodes), budget.lookup_bytes())?
        } else {
            Nodes::default()
        };
        let lookup =
            |index| StoreLookup::new(SharedLookup::new(index, &avoided), asked.places.cloned());
        let shared = shared.map(lookup);
        Ok(Self { shared, nodes, avoided })
    }
}
