//! Reads a series' newest head. Only this module writes the next one.

use crate::event::Warning;
use silt_format::names::Numbered;
use silt_format::{
    ALONE, Advice, Error, ErrorKind, FIRST_NODE, Head, ObjectKind, PRIVATE_STORE, Result,
    ResultExt, SHARED_STORE, SeriesId, Signer, StoreEntry, names,
};

use crate::believed::SignedBy;
use crate::objects::{Address, Objects, is_damage};
use crate::series::DEFAULT_DOMAIN;
use crate::settle;

/// Number of a series' newest heads that are never removed, so that a writer that wakes up late
/// detects newer commits.
pub const HEADS_KEPT: u64 = 16;

/// The highest generation that can have a successor. A higher one is a forgery.
pub const GENERATION_MAX: u64 = 1 << 63;

/// The names of a series' newest head, check record and lease.
#[derive(Debug, Default)]
pub struct NewestNames {
    /// The newest head.
    pub head: Option<String>,
    /// The newest check record.
    pub check: Option<String>,
    /// The newest lease.
    pub lease: Option<String>,
}

/// The parts of a series' state that a backup needs, mostly from one listing.
pub fn state(objects: &Objects, series: SeriesId) -> Result<NewestNames> {
    let known = objects.seen.newest(series);
    let page = silt_storage::list_page(&*objects.storage, &names::state(series), None)?;
    if page.truncated {
        let first = |kind: Numbered| objects.newest_name(kind, series);
        let head = all(objects, series).next().transpose()?.map(usable).transpose()?;
        objects.seen.compare(
            series,
            known,
            head.as_ref().map_or(0, |(generation, _)| *generation),
        )?;
        let (head, check) = (head.map(|(_, name)| name), first(Numbered::Check)?);
        return Ok(NewestNames { head, check, lease: first(Numbered::Lease)? });
    }
    let names = || page.objects.iter().map(|(name, _)| name.as_str());
    let first = |kind: Numbered| {
        names().find(|name| kind.number_of(series, name).is_some()).map(str::to_owned)
    };
    let head =
        names().find_map(|name| Some((Numbered::Head.number_of(series, name)?, name.to_owned())));
    let head = head.map(usable).transpose()?;
    objects.seen.compare(series, known, head.as_ref().map_or(0, |(generation, _)| *generation))?;
    let head = head.map(|(_, name)| name);
    let check = first(Numbered::Check);
    Ok(NewestNames { head, check, lease: first(Numbered::Lease) })
}

/// The generations and names of all heads of a series, the newest first.
pub fn all(
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

/// Returns the generation and name of a newest head; fails if it can have no successor.
pub fn usable((generation, name): (u64, String)) -> Result<(u64, String)> {
    if generation <= GENERATION_MAX {
        return Ok((generation, name));
    }
    Err(Error::corrupt(format!("{name} was not made by a commit; remove it")))
}

/// The newest head of a series, or `None` before its first commit.
///
/// Refused heads above it are skipped with a warning. The next head gets a number after them, so
/// the result has the generation of the newest existing one.
pub fn newest(objects: &Objects, series: SeriesId) -> Result<Option<Head>> {
    newest_below(objects, series, None).map(|(head, _)| head)
}

/// The same if the newest may have been read already; also returns the generation of the newest
/// existing head.
fn newest_below(
    objects: &Objects,
    series: SeriesId,
    mut first: Option<Reading>,
) -> Result<(Option<Head>, u64)> {
    let (known, mut newest) = (objects.seen.newest(series), 0);
    for item in all(objects, series) {
        let (generation, name) = usable(item?)?;
        if newest == 0 {
            newest = generation;
            objects.seen.compare(series, known, newest)?;
        }
        match first.take().map_or_else(|| judge(objects, series, &name), Ok)? {
            Reading::Good(head, _) => {
                objects.seen.met(series, head.generation);
                return Ok((Some(Head { generation: newest, ..*head }), newest));
            }
            Reading::Refused(error) => objects.context.warn(passed_over(&error)),
        }
    }
    if newest == 0 {
        objects.seen.compare(series, known, 0)?;
    }
    Ok((None, newest))
}

/// The newest readable head of a series, whatever is above it: an earlier state of the series.
pub fn newest_readable(objects: &Objects, series: SeriesId) -> Result<Option<Head>> {
    for item in all(objects, series) {
        match judge(objects, series, &item?.1) {
            Ok(Reading::Good(head, _)) => return Ok(Some(*head)),
            Ok(Reading::Refused(_)) => {}
            Err(error) if is_damage(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Advises to recover the series called `name` if the error says that its newest head is damaged.
pub fn with_recovery(error: Error, name: &str) -> Error {
    if error.kind() == ErrorKind::Corrupt && error.advice().is_none() {
        return error.with_advice(Advice::RecoverSeries { series: name.to_owned() });
    }
    error
}

fn passed_over(error: &Error) -> Warning {
    Warning::after(error, "it is skipped")
}

/// The newest head, as the base of a change: it and all objects that it names are the same in every
/// place. `empty` creates it if there is none.
///
/// A head is created in one place after the other. If it is not in all of them yet, another head
/// with its number may be committed by a process that uses the repository without the first place.
/// A change based on it must then not copy it there.
pub fn base(
    objects: &Objects,
    series: SeriesId,
    name: &str,
    empty: impl FnOnce() -> Head,
) -> Result<Head> {
    match judge(objects, series, name)? {
        Reading::Good(head, _) => {
            settle::settle_head(objects, (series, head.generation), &head.name)?;
            objects.seen.note(series, head.generation);
            Ok(*head)
        }
        refused @ Reading::Refused(_) => {
            let (head, generation) = newest_below(objects, series, Some(refused))?;
            let head = head.unwrap_or_else(|| Head { generation, ..empty() });
            settle(objects, &head)?;
            Ok(head)
        }
    }
}

/// Ensures that every place has a head that was just read, and the refused ones above it, durably.
pub fn settle(objects: &Objects, head: &Head) -> Result<()> {
    for item in all(objects, head.series) {
        let (generation, name) = item?;
        if generation > head.generation {
            // Another process has just committed it, and the next commit here will fail.
            continue;
        }
        settle::settle_head(objects, (head.series, generation), &head.name)?;
        match judge(objects, head.series, &name) {
            Ok(Reading::Refused(_)) => {}
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => break,
        }
    }
    Ok(())
}

/// The validity of a readable head whose signer is in the list of writers.
pub enum Reading {
    /// It is valid.
    Good(Box<Head>, SignedBy),
    /// Its signer was not allowed to write it. It is ignored.
    Refused(Error),
}

/// The head of this name.
pub fn read(objects: &Objects, series: SeriesId, name: &str) -> Result<Head> {
    read_signed(objects, series, name).map(|(head, _)| head)
}

/// The head with this name, and its signer.
pub fn read_signed(objects: &Objects, series: SeriesId, name: &str) -> Result<(Head, SignedBy)> {
    match judge(objects, series, name)? {
        Reading::Good(head, by) => Ok((*head, by)),
        Reading::Refused(error) => Err(error),
    }
}

/// Reads the head with this name, and returns whether it is valid.
pub fn judge(objects: &Objects, series: SeriesId, name: &str) -> Result<Reading> {
    let context = || format!("read head {name}");
    let strange = || Error::corrupt(format!("{name} is not the name of a head"));
    let generation = Numbered::Head.number_of(series, name).ok_or_else(strange)?;
    let address = Address::new(ObjectKind::Head, series, generation);
    let (plain, by) = objects.get_signed(name, address).context(context)?;
    // The signature is valid, so the head was not damaged: its signer wrote it like this.
    if let Err(error) = verify_key(objects, (series, generation), &by) {
        return Ok(Reading::Refused(error.context(context())));
    }
    let head = Head::decode(&plain).context(context)?;
    verify(objects, &head, (series, generation)).context(context)?;
    if !by.may_remove && silt_format::is_node_store_name(&head.name) {
        let message = format!("it is signed by key {}, which may not write a storage node", by.id);
        return Ok(Reading::Refused(Error::corrupt(message).context(context())));
    }
    if !by.may_remove
        && let Err(error) = by.may_write(&head.name)
    {
        return Ok(Reading::Refused(error.context(context())));
    }
    verify_writers(objects, &head).context(context)?;
    Ok(Reading::Good(Box::new(head), by))
}

/// Fails unless a key may write a series. Succeeds if this depends on its name, which is not known
/// yet.
fn verify_key(
    objects: &Objects,
    (series, generation): (SeriesId, u64),
    by: &SignedBy,
) -> Result<()> {
    by.reaches(series, generation)?;
    let keys = &objects.keys;
    let refused = |what: &str| {
        Err(Error::corrupt(format!("it is signed by key {}, which may not write {what}", by.id)))
    };
    if by.may_remove {
        Ok(())
    } else if series == keys.shared_store_id(DEFAULT_DOMAIN) {
        refused("the shared store")
    } else if by.is_stranger(series, |name| keys.series_id(DEFAULT_DOMAIN, name)) {
        refused("this series")
    } else {
        Ok(())
    }
}

/// Fails unless a head matches its name and this program can read it.
fn verify(objects: &Objects, head: &Head, place: (SeriesId, u64)) -> Result<()> {
    if (head.series, head.generation) != place {
        return Err(Error::corrupt("its content does not match its name"));
    }
    if ![DEFAULT_DOMAIN, ALONE].contains(&head.domain) {
        return Err(Error::new(ErrorKind::Unsupported, format!("it is of domain {}", head.domain)));
    }
    if !objects.keys.has_domain(head.domain) {
        let message = "this key must not share, but the series shares chunks with others";
        return Err(Error::new(ErrorKind::Denied, message));
    }
    if !has_name(objects, head.series, &head.name) {
        let message = format!("its name '{}' belongs to another series", head.name);
        return Err(Error::corrupt(message));
    }
    if head.containers.end() > head.next_container || head.packs.end() > head.next_pack {
        return Err(Error::corrupt("it lists object numbers that were not assigned yet"));
    }
    let shared = objects.keys.shared_store_id(head.domain);
    let is_known = |store: &&StoreEntry| match (store.number, store.kind) {
        (PRIVATE_STORE, 0) => true,
        (SHARED_STORE, 1) => store.id == shared,
        // A key for named series does not know the ids of nodes, and opens nothing of theirs.
        (FIRST_NODE.., 2) => {
            let id = objects.keys.store_id(head.domain, store.number);
            store.id == id || !objects.keys.opens_all()
        }
        _ => false,
    };
    match head.stores.iter().find(|store| !is_known(store)) {
        Some(store) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("it uses store {} of kind {}", store.number, store.kind),
        )),
        None => Ok(()),
    }
}

/// Fails with `Corrupt` if a head refers to a list of writers that does not exist.
fn verify_writers(objects: &Objects, head: &Head) -> Result<()> {
    if head.writers <= objects.believed.writers().0 {
        return Ok(());
    }
    objects.load_writers(None)?;
    let newest = objects.believed.writers().0;
    if head.writers <= newest {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "it was written under list of writers {}, but the newest one found is {newest}",
        head.writers
    )))
}

/// Whether a series' id is that of `name`; the shared store may have any name.
pub fn has_name(objects: &Objects, series: SeriesId, name: &str) -> bool {
    let keys = &objects.keys;
    series == keys.series_id(DEFAULT_DOMAIN, name) || series == keys.shared_store_id(DEFAULT_DOMAIN)
}

/// Writes `head` as its generation's successor; returns its bytes.
///
/// Fails with `Busy` if another process has committed since the head was read. All objects that it
/// names must be durable (I-5). In an append-only repository, `authority` signs heads that remove
/// something; this host's own key signs all others.
pub fn commit(
    objects: &Objects,
    head: &mut Head,
    writer: [u8; 16],
    authority: Option<&Signer>,
) -> Result<u64> {
    let signer = authority.unwrap_or(&objects.signer);
    settle::verify_unchanged_lately(objects, signer.id())?;
    head.generation += 1;
    usable((head.generation, Numbered::Head.name(head.series, head.generation)))?;
    head.writer = writer;
    settle::settle_places(objects)?;
    objects.settle_writers()?;
    head.writers = objects.believed.writers().0.max(head.writers);
    let overtaken = || {
        Error::new(
            ErrorKind::Busy,
            format!(
                "another process has changed series '{}' meanwhile; run this again (a backup \
                 reuses its uploads)",
                head.name
            ),
        )
    };
    let name = Numbered::Head.name(head.series, head.generation);
    let address = Address::new(ObjectKind::Head, head.series, head.generation);
    let is_shared = head.series == objects.keys.shared_store_id(head.domain);
    if !is_shared && !silt_format::is_node_store_name(&head.name) {
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
    // The newest heads are never removed. While fewer than that are newer than this one, its number
    // was not free because an old head had been removed: no process has slept through that many
    // commits.
    let newest = all(objects, head.series).next().transpose()?;
    let newest = newest.map_or(u64::MAX, |(generation, _)| generation);
    if newest >= head.generation.saturating_add(HEADS_KEPT) {
        // It is too old to be read, and is removed with others of its age.
        return Err(overtaken());
    }
    settle::verify_unchanged(objects)?;
    // Whether the head is valid is uncertain, so nobody may rely on it.
    let is_active = objects.believed.verify_active(signer.id());
    is_active.map_err(|error| error.with_kind(ErrorKind::Busy))?;
    objects.seen.note(head.series, head.generation);
    Ok(bytes)
}
