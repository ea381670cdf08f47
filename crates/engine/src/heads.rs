//! Reading a series' newest head, and the one place where the next one is written.

use silt_format::names::Numbered;
use silt_format::{
    Authority, Error, ErrorKind, Head, ObjectKind, PRIVATE_STORE, Result, ResultExt, SHARED_STORE,
    SeriesId, StoreEntry, names,
};

use crate::objects::{Address, Objects};
use crate::places;

/// How many of a series' newest heads are never removed: what a writer that wakes up late goes by.
pub(crate) const HEADS_KEPT: u64 = 16;

/// The names of a series' newest head, check record and lease.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) head: Option<String>,
    pub(crate) check: Option<String>,
    pub(crate) lease: Option<String>,
}

/// All that a backup asks of a series' state, mostly in one listing.
pub(crate) fn state(objects: &Objects, series: SeriesId) -> Result<State> {
    let page = objects.storage.list(&names::state(series), None)?;
    if page.truncated {
        let first = |kind: Numbered| objects.first_name(&kind.prefix(series));
        let (head, check) = (first(Numbered::Head)?, first(Numbered::Check)?);
        return Ok(State { head, check, lease: first(Numbered::Lease)? });
    }
    let first = |kind: Numbered| {
        let prefix = kind.prefix(series);
        let mut names = page.objects.iter().map(|(name, _)| name.as_str());
        names.find(|name| name.starts_with(&prefix)).map(str::to_owned)
    };
    let (head, check) = (first(Numbered::Head), first(Numbered::Check));
    Ok(State { head, check, lease: first(Numbered::Lease) })
}

/// The newest head of a series, or `None` before its first commit.
pub(crate) fn newest(objects: &Objects, series: SeriesId) -> Result<Option<Head>> {
    let name = objects.first_name(&Numbered::Head.prefix(series))?;
    name.map(|name| read(objects, series, &name)).transpose()
}

/// The newest head, to be built upon: it is the same in every place, and so is all that it names.
///
/// A head is created in one place after the other. One that is not in all of them yet may be overtaken by
/// another of its number where the repository is used without the first place; who builds upon it must not
/// carry it there.
pub(crate) fn base(objects: &Objects, series: SeriesId, name: &str) -> Result<Head> {
    let head = read(objects, series, name)?;
    places::settle_head(objects, &head, name)?;
    Ok(head)
}

/// The head of this name.
pub(crate) fn read(objects: &Objects, series: SeriesId, name: &str) -> Result<Head> {
    let strange = || Error::corrupt(format!("{name} is not the name of a head"));
    let generation = Numbered::number(name).ok_or_else(strange)?;
    let address = Address::new(ObjectKind::Head, series, generation);
    let plain = objects.get(name, address)?;
    let head = Head::decode(&plain).context(|| format!("read head {name}"))?;
    if (head.generation, head.series) != (generation, series) {
        return Err(Error::corrupt(format!("head {name} is not what its name says")));
    }
    let shared = objects.keys.shared_store_id(head.domain);
    let is_known = |store: &&StoreEntry| match (store.number, store.kind) {
        (PRIVATE_STORE, 0) => true,
        (SHARED_STORE, 1) => store.id == shared,
        _ => false,
    };
    if let Some(store) = head.stores.iter().find(|store| !is_known(store)) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("head {name} uses store {} of kind {}", store.number, store.kind),
        ));
    }
    Ok(head)
}

/// Writes `head` as its generation's successor; the answer is its bytes.
///
/// Fails as `Busy` if somebody else has committed since the head was read. All that it names must be
/// durable (I-5). In an append-only repository `authority` signs what takes something away.
pub(crate) fn commit(
    objects: &Objects,
    head: &mut Head,
    writer: [u8; 16],
    authority: Option<&Authority>,
) -> Result<u64> {
    head.generation += 1;
    head.writer = writer;
    head.signature = None;
    if let Some(authority) = authority {
        authority.sign(head);
    }
    let overtaken = || {
        Error::new(
            ErrorKind::Busy,
            format!(
                "another process has changed series '{}' meanwhile; run this again, what a backup \
                 has uploaded is used",
                head.name
            ),
        )
    };
    let name = Numbered::Head.name(head.series, head.generation);
    let address = Address::new(ObjectKind::Head, head.series, head.generation);
    let bytes = objects
        .put(&name, address, &head.encode())
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => overtaken(),
            _ => error,
        })
        .context(|| "commit")?;
    // The newest heads are never removed. As long as fewer are newer than this one, its number was not free
    // because it had been removed: nobody has slept through the commits of so many others.
    let newest = objects.first_name(&Numbered::Head.prefix(head.series))?;
    let newest = newest.as_deref().and_then(Numbered::number).unwrap_or(u64::MAX);
    if newest >= head.generation.saturating_add(HEADS_KEPT) {
        // It is too old to be read, and removed with others of its age.
        return Err(overtaken());
    }
    places::verify_unchanged(objects)?;
    Ok(bytes)
}
