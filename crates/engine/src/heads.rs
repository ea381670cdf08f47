//! Reading a series' newest head, and the one place where the next one is written.

use silt_format::names::Numbered;
use silt_format::{
    Error, ErrorKind, Head, ObjectKind, PRIVATE_STORE, Result, ResultExt, SHARED_STORE, SeriesId,
    Signer, StoreEntry, names,
};

use crate::objects::{Address, Objects};
use crate::places;
use crate::repository::DEFAULT_DOMAIN;
use crate::writers::SignedBy;

/// How many of a series' newest heads are never removed: what a writer that wakes up late goes by.
pub(crate) const HEADS_KEPT: u64 = 16;

/// The highest generation that gets a successor. One above it was not counted but made up.
pub(crate) const GENERATION_MAX: u64 = 1 << 63;

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
        let first = |kind: Numbered| objects.newest_name(kind, series);
        let (head, check) = (newest_name(objects, series)?, first(Numbered::Check)?);
        return Ok(State { head, check, lease: first(Numbered::Lease)? });
    }
    let names = || page.objects.iter().map(|(name, _)| name.as_str());
    let first = |kind: Numbered| {
        names().find(|name| kind.number_of(series, name).is_some()).map(str::to_owned)
    };
    let head =
        names().find_map(|name| Some((Numbered::Head.number_of(series, name)?, name.to_owned())));
    let (head, check) = (usable(head)?, first(Numbered::Check));
    Ok(State { head, check, lease: first(Numbered::Lease) })
}

/// The generations and names of all heads of a series, the newest first.
pub(crate) fn all(
    objects: &Objects,
    series: SeriesId,
) -> impl Iterator<Item = Result<(u64, String)>> + '_ {
    let prefix = Numbered::Head.prefix(series);
    silt_storage::list_all(&*objects.storage, prefix, None).filter_map(move |item| match item {
        Ok((name, _)) => {
            let name = name.as_str();
            Some(Ok((Numbered::Head.number_of(series, name)?, name.to_owned())))
        }
        Err(error) => Some(Err(error)),
    })
}

/// The name of a series' newest head.
fn newest_name(objects: &Objects, series: SeriesId) -> Result<Option<String>> {
    usable(all(objects, series).next().transpose()?)
}

/// The name of a newest head, unless nothing can come after it.
fn usable(newest: Option<(u64, String)>) -> Result<Option<String>> {
    match newest {
        Some((generation, name)) if generation > GENERATION_MAX => {
            Err(Error::corrupt(format!("{name} is no head that any commit has made; remove it")))
        }
        newest => Ok(newest.map(|(_, name)| name)),
    }
}

/// The newest head of a series, or `None` before its first commit.
pub(crate) fn newest(objects: &Objects, series: SeriesId) -> Result<Option<Head>> {
    let name = newest_name(objects, series)?;
    name.map(|name| read(objects, series, &name)).transpose()
}

/// The newest head, to be built upon: it is the same in every place, and so is all that it names.
///
/// A head is created in one place after the other. One that is not in all of them yet may be overtaken by
/// another of its number where the repository is used without the first place; who builds upon it must not
/// carry it there.
pub(crate) fn base(objects: &Objects, series: SeriesId, name: &str) -> Result<Head> {
    let head = read(objects, series, name)?;
    places::settle_head(objects, &head)?;
    Ok(head)
}

/// The head of this name.
pub(crate) fn read(objects: &Objects, series: SeriesId, name: &str) -> Result<Head> {
    read_signed(objects, series, name).map(|(head, _)| head)
}

/// The head of this name, and who has signed it.
pub(crate) fn read_signed(
    objects: &Objects,
    series: SeriesId,
    name: &str,
) -> Result<(Head, SignedBy)> {
    let strange = || Error::corrupt(format!("{name} is not the name of a head"));
    let generation = Numbered::Head.number_of(series, name).ok_or_else(strange)?;
    let address = Address::new(ObjectKind::Head, series, generation);
    let (plain, by) = objects.get_signed(name, address).context(|| format!("read head {name}"))?;
    let head = Head::decode(&plain).context(|| format!("read head {name}"))?;
    if (head.generation, head.series) != (generation, series) {
        return Err(Error::corrupt(format!("head {name} is not what its name says")));
    }
    if head.domain != DEFAULT_DOMAIN {
        let message = format!("head {name} is of domain {}", head.domain);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if !has_name(objects, series, &head.name) {
        let message = format!("head {name} is of another series by its name '{}'", head.name);
        return Err(Error::corrupt(message));
    }
    if head.containers.end() > head.next_container || head.packs.end() > head.next_pack {
        return Err(Error::corrupt(format!("head {name} lists numbers that it has not given yet")));
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
    verify_writer(objects, &head, &by).context(|| format!("read head {name}"))?;
    Ok((head, by))
}

/// Fails as `Corrupt` if a head was signed by somebody who may not write its series, or knows a list of writers
/// that is not there.
fn verify_writer(objects: &Objects, head: &Head, by: &SignedBy) -> Result<()> {
    if head.writers > objects.believed.writers().0 {
        objects.load_writers(None)?;
        let newest = objects.believed.writers().0;
        if head.writers > newest {
            return Err(Error::corrupt(format!(
                "it was written when there was list of writers {}, and the newest there is {newest}",
                head.writers
            )));
        }
    }
    if head.series == objects.keys.shared_store_id(head.domain) {
        if by.may_remove {
            return Ok(());
        }
        let message =
            format!("key {} has signed it, which may not change what series share", by.id);
        return Err(Error::corrupt(message));
    }
    by.may_write(&head.name)?;
    by.reaches(head.series, head.generation)
}

/// Whether a series' id is the one that `name` has; the shared store is called anything.
pub(crate) fn has_name(objects: &Objects, series: SeriesId, name: &str) -> bool {
    let keys = &objects.keys;
    series == keys.series_id(DEFAULT_DOMAIN, name) || series == keys.shared_store_id(DEFAULT_DOMAIN)
}

/// Writes `head` as its generation's successor; the answer is its bytes.
///
/// Fails as `Busy` if somebody else has committed since the head was read. All that it names must be
/// durable (I-5). In an append-only repository `authority` signs what takes something away, else this
/// host's own key.
pub(crate) fn commit(
    objects: &Objects,
    head: &mut Head,
    writer: [u8; 16],
    authority: Option<&Signer>,
) -> Result<u64> {
    places::verify_unchanged_lately(objects)?;
    head.generation += 1;
    head.writer = writer;
    objects.settle_writers()?;
    head.writers = objects.believed.writers().0.max(head.writers);
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
    let signer = authority.unwrap_or(&objects.signer);
    if head.series != objects.keys.shared_store_id(head.domain) {
        objects.believed.require_may_write(signer.id(), &head.name)?;
    }
    let object = objects.sealed_by(signer, address, &head.encode())?;
    let bytes = objects
        .put_pieces(&name, address.kind, &[object.into()])
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => overtaken(),
            _ => error,
        })
        .context(|| "commit")?;
    // The newest heads are never removed. As long as fewer are newer than this one, its number was not free
    // because it had been removed: nobody has slept through the commits of so many others.
    let newest = all(objects, head.series).next().transpose()?;
    let newest = newest.map_or(u64::MAX, |(generation, _)| generation);
    if newest >= head.generation.saturating_add(HEADS_KEPT) {
        // It is too old to be read, and removed with others of its age.
        return Err(overtaken());
    }
    places::verify_unchanged(objects)?;
    Ok(bytes)
}
