//! Keeps several places, and processes that know different lists of them, consistent.
//!
//! Three rules hold, even if a process sleeps between any two steps. A commit is reported as done
//! only if every place of the writer's list has it, and only if that list is still the newest
//! afterwards; a process that changes the list writes it first and then looks for earlier commits.
//! A process that builds upon a head first ensures that every place has the head and all objects
//! that it names. And no existing object is ever replaced by a different one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use silt_format::names::{self, Numbered};
use silt_format::{Advice, Error, ErrorKind, Id, ObjectKind, Places, Result, ResultExt, SeriesId};
use silt_storage::{ByteRange, Key, PutMode, Storage};

use crate::objects::{Address, Objects, is_damage, key};
use crate::sync::lock;

/// How long the last look at the lists of places and writers remains valid.
const LATELY_NS: u64 = 60 * 1_000_000_000;

/// Fails with `Busy` if the list of places has changed since the repository was opened; reads the
/// list of writers, if there is a newer one. A process that changes either list writes it before it
/// looks for earlier commits.
pub fn verify_unchanged(objects: &Objects) -> Result<()> {
    let now_ns = objects.context.env.now_ns();
    let (mut newest, mut writers) = (0, 0);
    // Keys, of which there may be many, come before.
    for item in objects.names(names::ROOT, Some(names::BEHIND_KEYS))? {
        let (name, _) = item?;
        newest = newest.max(Numbered::Places.number_of(SeriesId::NONE, &name).unwrap_or(0));
        writers = writers.max(names::writers_number(&name).unwrap_or(0));
    }
    if writers > objects.believed.writers().0 {
        objects.load_writers(None)?;
    }
    if newest <= objects.places {
        objects.looked_ns.store(now_ns, Ordering::SeqCst);
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Busy,
        "the list of the repository's copies has changed meanwhile; run this again (a backup \
         reuses its uploads)",
    ))
}

/// The same after other work, or some time, since the repository was opened.
pub fn verify_unchanged_since_opened(objects: &Objects) -> Result<()> {
    let is_used = objects.is_used.swap(true, Ordering::SeqCst);
    if is_used || !has_looked_lately(objects) { verify_unchanged(objects) } else { Ok(()) }
}

fn has_looked_lately(objects: &Objects) -> bool {
    let since = objects.context.env.now_ns() - objects.looked_ns.load(Ordering::SeqCst);
    since.unsigned_abs() <= LATELY_NS
}

/// The same before a commit with the key `signer`, if the last check is some time ago: it saves
/// writing objects in vain. Fails with `Denied` if the key was removed.
pub fn verify_unchanged_lately(objects: &Objects, signer: Id) -> Result<()> {
    if !has_looked_lately(objects) || objects.believed.writers().0 == 0 {
        verify_unchanged(objects)?;
    }
    objects.believed.verify_active(signer)
}

/// Brings the newest list of places to every place that was away when it was written, of the
/// repository or of the shared store: a head that this process commits may name a store that an
/// older list does not have.
///
/// `Conflict` if a place has got another list of that number meanwhile.
pub fn settle_places(objects: &Objects) -> Result<()> {
    let mut lacking = lock(&objects.lacking);
    if lacking.places.is_empty() {
        return Ok(());
    }
    // Each list is written twice; one of the two may be damaged.
    let mut has_whole = false;
    for number in objects.places.saturating_sub(1)..=objects.places {
        let whole = whole_list(objects, &lacking.holders, number)?;
        let Some((holder, bytes)) = whole else { continue };
        has_whole = true;
        let name = Numbered::Places.name(SeriesId::NONE, number);
        let key = key(&name)?;
        for place in &lacking.places {
            match bring(&**place, &key, &bytes) {
                Err(error)
                    if error.kind() == ErrorKind::Conflict
                        && is_same(objects, [place, &lacking.holders[holder]], number)? => {}
                brought => brought.context(|| format!("bring {name} to all copies"))?,
            }
        }
    }
    if !has_whole {
        let message = "the newest list of copies is damaged, and a copy that was away lacks it";
        return Err(Error::corrupt(message).with_advice(Advice::HealPlaces));
    }
    lacking.places.clear();
    Ok(())
}

/// Whether a place has the same list as another: somebody has made the same change there, and was
/// interrupted. A list that is damaged there waits to be healed.
fn is_same(objects: &Objects, places: [&Arc<dyn Storage>; 2], number: u64) -> Result<bool> {
    let name = Numbered::Places.name(SeriesId::NONE, number);
    let address = Address::new(ObjectKind::Places, SeriesId::NONE, number);
    let [there, here] = places.map(|place| {
        let plain = objects.with_storage(Arc::clone(place)).get(&name, address)?;
        Places::decode(&plain)
    });
    match there {
        Err(error) if is_damage(&error) => Ok(true),
        there => Ok(there? == here?),
    }
}

/// The first of `holders` that has a list of places whole, and its bytes. `None` if none has it.
/// Fails only if one of them cannot be read and no other has it.
fn whole_list(
    objects: &Objects,
    holders: &[Arc<dyn Storage>],
    number: u64,
) -> Result<Option<(usize, Vec<u8>)>> {
    let key = key(&Numbered::Places.name(SeriesId::NONE, number))?;
    let address = Address::new(ObjectKind::Places, SeriesId::NONE, number);
    let mut failed = None;
    for (place, holder) in holders.iter().enumerate() {
        let mut bytes = Vec::new();
        match holder.get(&key, ByteRange::Full, &mut bytes) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => failed = Some(error),
            Ok(()) if objects.is_whole(&bytes, address) => {
                return Ok(Some((place, bytes)));
            }
            Ok(()) => {}
        }
    }
    failed.map_or(Ok(None), Err)
}

/// Creates an object in a place; `Conflict` if another one has its name there.
fn bring(place: &dyn Storage, key: &Key, bytes: &[u8]) -> Result<()> {
    match place.put(key, &[bytes], PutMode::Create) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let mut there = Vec::new();
            place.get(key, ByteRange::Full, &mut there)?;
            if there == bytes {
                return place.settle(key);
            }
            let message = "each copy of the repository was used without the other";
            Err(Error::new(ErrorKind::Conflict, message).with_advice(Advice::ListPlaces))
        }
        put => put,
    }
}

/// Makes sure that every place has the head of this name, durable, and all that it names: its
/// writer may have died before a place had it, or before a folder was durable, and the power may
/// still fail.
///
/// `Conflict` if two places have different heads of one number.
pub fn settle_head(
    objects: &Objects,
    (series, generation): (SeriesId, u64),
    called: &str,
) -> Result<()> {
    let name = Numbered::Head.name(series, generation);
    let key = key(&name)?;
    let copies = objects.storage.copies(&key);
    let (mut first, mut is_missing): (Option<Vec<u8>>, bool) = (None, false);
    for copy in 0..if copies > 1 { copies } else { 0 } {
        let mut bytes = Vec::new();
        match objects.storage.get_from(copy, &key, ByteRange::Full, &mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                is_missing = true;
                continue;
            }
            // It is read around, and writing will tell what is wrong.
            Err(error) if is_damage(&error) || error.kind() == ErrorKind::Unavailable => continue,
            Err(error) => return Err(error),
        }
        let address = Address::new(ObjectKind::Head, series, generation);
        if first.as_ref() == Some(&bytes) || !objects.is_whole(&bytes, address) {
            continue;
        }
        if first.replace(bytes).is_some() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "series '{called}' has different heads {name} in different copies, because \
                     each was used without the other; go on with one of them"
                ),
            )
            .with_advice(Advice::ListPlaces));
        }
    }
    if is_missing {
        complete(objects, series)
            .context(|| format!("complete series '{called}' in all copies"))?;
    }
    objects.storage.settle(&key)
}

/// Makes sure that every place has the record of a series without heads, if any has one: a backup
/// that knew an older list of places may have written it, and was refused.
pub fn settle_record(objects: &Objects, series: SeriesId) -> Result<()> {
    match objects.storage.settle(&key(&names::series(series))?) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        settled => settled,
    }
}

/// Brings every object of a series but its state to each place that lacks it.
fn complete(objects: &Objects, series: SeriesId) -> Result<()> {
    for prefix in [names::series(series)].into_iter().chain(names::data(series)) {
        let copies = objects.storage.copies(&key(&names::series(series))?);
        let copies = copies.max(objects.storage.copies(&key(&format!("{prefix}x"))?));
        let listed: Vec<BTreeSet<Key>> =
            (0..copies).map(|copy| list(objects, copy, &prefix)).collect::<Result<_>>()?;
        let all: BTreeSet<&Key> = listed.iter().flatten().collect();
        for key in all {
            if listed.iter().any(|place| !place.contains(key)) {
                match objects.storage.settle(key) {
                    // Somebody has removed it meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    other => other?,
                }
            }
        }
    }
    Ok(())
}

fn list(objects: &Objects, copy: usize, prefix: &str) -> Result<BTreeSet<Key>> {
    let (mut keys, mut after): (BTreeSet<Key>, Option<Key>) = (BTreeSet::new(), None);
    loop {
        let page = objects.storage.list_from(copy, prefix, after.as_ref())?;
        after = page.objects.last().map(|(key, _)| key.clone());
        keys.extend(page.objects.into_iter().map(|(key, _)| key));
        if !page.truncated || after.is_none() {
            return Ok(keys);
        }
    }
}
