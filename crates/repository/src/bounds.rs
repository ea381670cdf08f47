//! Bounds the number of objects that a head may list by the number that exist.
//!
//! A head lists ranges of numbers, so a few damaged or forged bytes can name 2^32 of them. Before a
//! process follows them one by one, it checks that storage holds about as many objects.

use silt_format::{Advice, Error, Head, ObjectSet, Result, names};

use crate::objects::Objects;

/// Number of listed objects that may be missing before the head is refused.
const MISSING_MAX: u64 = 4096;

/// Fails with `Corrupt` if a head lists many more containers or packs than are listed in storage.
///
/// Free for a few objects; otherwise costs a listing that stops as soon as there are enough.
pub fn require_listed(objects: &Objects, head: &Head) -> Result<()> {
    let series = head.series;
    require(objects, head, "containers", &head.containers, &names::containers(series))?;
    require(objects, head, "recipe packs", &head.packs, &names::recipes(series))
}

fn require(
    objects: &Objects,
    head: &Head,
    what: &str,
    set: &ObjectSet,
    prefix: &str,
) -> Result<()> {
    let named = set.len();
    if named <= MISSING_MAX {
        return Ok(());
    }
    let mut listed = 0;
    for item in objects.names(prefix, None)? {
        item?;
        listed += 1;
        if named <= listed + MISSING_MAX {
            return Ok(());
        }
    }
    let (name, generation) = (&head.name, head.generation);
    Err(Error::corrupt(format!(
        "head {generation} of series '{name}' lists {named} {what}, but only {listed} exist: it is \
         damaged, or most of the series is gone"
    ))
    .with_advice(Advice::Check))
}
