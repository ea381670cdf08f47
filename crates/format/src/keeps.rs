//! The changes that a head may make if its signer may not delete.

use std::collections::HashSet;

use crate::PRIVATE_STORE;
use crate::head::{Head, SnapshotEntry, StoreEntry};

impl Head {
    /// Returns whether this head differs from `before`, its predecessor, only by what a backup
    /// adds: unprotected snapshots, containers and packs with higher numbers, and a newer view of
    /// the stores of several series.
    pub fn keeps_all_of(&self, before: &Self) -> bool {
        // Every field must be listed here: decide for each new one whether backups may change it.
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
            file_chunking,
            store_writers,
            applications,
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
            && *file_chunking == before.file_chunking
            && (store_writers, applications) == (&before.store_writers, &before.applications)
            && (runs, delta_bases) == (&before.runs, &before.delta_bases)
            && (condemned, condemned_in) == (&before.condemned, &before.condemned_in)
    }
}

/// Returns whether the list is the same except for new snapshots that can be deleted.
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

/// Returns whether the stores are the same, except that those of several series may have newer
/// generations, and may be new.
fn keeps_stores(stores: &[StoreEntry], before: &[StoreEntry]) -> bool {
    let (Some(kept), Some(added)) = (stores.get(..before.len()), stores.get(before.len()..)) else {
        return false;
    };
    let is_new = |(place, store): (usize, &StoreEntry)| {
        let before = &stores[..before.len() + place];
        store.number != PRIVATE_STORE
            && store.kind == StoreEntry::kind_of(store.number)
            && store.places.is_empty()
            && before.iter().all(|before| before.number != store.number)
    };
    added.iter().enumerate().all(is_new)
        && kept.iter().zip(before).all(|(store, before)| follows(store, before))
}

/// Returns whether a later head may have `store` in place of `before`.
fn follows(store: &StoreEntry, before: &StoreEntry) -> bool {
    let StoreEntry { number, kind, id, seen, places } = store;
    let may_grow = (*number, *kind) != (PRIVATE_STORE, 0);
    (number, kind, id, places) == (&before.number, &before.kind, &before.id, &before.places)
        && (*seen == before.seen || may_grow && *seen > before.seen)
}
