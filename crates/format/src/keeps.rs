//! What a head may change that a host has signed which may not remove anything.

use std::collections::HashSet;

use crate::head::{Head, SnapshotEntry, StoreEntry};
use crate::{PRIVATE_STORE, SHARED_STORE};

impl Head {
    /// Whether this head differs from `before`, the one right before it, only by what a backup
    /// adds: snapshots that nothing protects, containers and packs behind all there were, a newer
    /// view of the shared store.
    pub fn keeps_all_of(&self, before: &Self) -> bool {
        // No field may be left out here: whoever adds one decides whether backups change it.
        let Self {
            generation,
            series,
            domain,
            name,
            writer: _,
            writers,
            next_container,
            next_pack,
            stores,
            containers,
            packs,
            snapshots,
            summary: _,
            deleted,
            dead,
            leak,
            policy,
            runs,
            condemned,
            condemned_in,
            delta_bases,
            alias,
            users,
        } = self;
        before.generation.checked_add(1) == Some(*generation)
            && (series, domain, name) == (&before.series, &before.domain, &before.name)
            && *writers >= before.writers
            && *next_container >= before.next_container
            && *next_pack >= before.next_pack
            && keeps_stores(stores, &before.stores)
            && containers.extends(&before.containers, before.next_container, *next_container)
            && packs.extends(&before.packs, before.next_pack, *next_pack)
            && keeps_snapshots(snapshots, before)
            && (deleted, dead, leak) == (&before.deleted, &before.dead, &before.leak)
            && (policy, alias, users) == (&before.policy, &before.alias, &before.users)
            && (runs, delta_bases) == (&before.runs, &before.delta_bases)
            && (condemned, condemned_in) == (&before.condemned, &before.condemned_in)
    }
}

/// Whether the list is the same but for snapshots that are new and can be deleted.
fn keeps_snapshots(snapshots: &[SnapshotEntry], before: &Head) -> bool {
    let mut ids = HashSet::new();
    let known: HashSet<_> = before.snapshots.iter().map(|entry| entry.id).collect();
    let deleted: HashSet<_> = before.deleted.iter().map(|deleted| deleted.entry.id).collect();
    let kept = snapshots.iter().filter(|entry| known.contains(&entry.id));
    let is_fresh = |entry: &SnapshotEntry| entry.flags == 0 && !deleted.contains(&entry.id);
    let mut added = snapshots.iter().filter(|entry| !known.contains(&entry.id));
    kept.eq(&before.snapshots)
        && snapshots.iter().all(|entry| ids.insert(entry.id))
        && added.all(is_fresh)
}

/// Whether the stores are the same, but for the shared one, of which more may be known.
fn keeps_stores(stores: &[StoreEntry], before: &[StoreEntry]) -> bool {
    let (Some(kept), Some(added)) = (stores.get(..before.len()), stores.get(before.len()..)) else {
        return false;
    };
    let is_shared = |store: &StoreEntry| (store.number, store.kind) == (SHARED_STORE, 1);
    let is_first = match added {
        [] => true,
        [store] => {
            let is_new = before.iter().all(|before| before.number != SHARED_STORE);
            is_shared(store) && is_new && store.places.is_empty()
        }
        _ => false,
    };
    is_first && kept.iter().zip(before).all(|(store, before)| follows(store, before))
}

/// Whether a later head may have `store` where `before` was.
fn follows(store: &StoreEntry, before: &StoreEntry) -> bool {
    let StoreEntry { number, kind, id, seen, places } = store;
    let may_grow = (*number, *kind) != (PRIVATE_STORE, 0);
    (number, kind, id, places) == (&before.number, &before.kind, &before.id, &before.places)
        && (*seen == before.seen || may_grow && *seen > before.seen)
}
