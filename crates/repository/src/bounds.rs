//! How many objects a head may list, by what is there.
//!
//! A head lists ranges of numbers, so that a few damaged or forged bytes can name 2^32 of them.
//! Whoever is about to follow them one by one first looks whether storage holds about as many.

use silt_format::{Advice, Error, Head, ObjectSet, Result, names};

use crate::objects::Objects;

/// How many objects that a head lists may be lost before nothing is done with it.
const MISSING_MAX: u64 = 4096;

/// Fails as `Corrupt` if a head lists many more containers or packs than are listed in storage.
///
/// Costs nothing for few of them, else a listing that ends where there are enough.
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
        "head {generation} of series '{name}' lists {named} {what}, but {listed} are there: it is \
         damaged, or most of the series is gone"
    ))
    .with_advice(Advice::Check))
}
