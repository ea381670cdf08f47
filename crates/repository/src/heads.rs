//! Reading a series' newest head, and the one place where the next one is written.

use crate::event::Warning;
use silt_format::names::Numbered;
use silt_format::{
    ALONE, Error, ErrorKind, Head, ObjectKind, PRIVATE_STORE, Result, ResultExt, SHARED_STORE,
    SeriesId, Signer, StoreEntry, names,
};

use crate::believed::SignedBy;
use crate::objects::{Address, Objects, is_damage};
use crate::series::DEFAULT_DOMAIN;
use crate::settle;

/// How many of a series' newest heads are never removed: what a writer that wakes up late goes by.
pub const HEADS_KEPT: u64 = 16;

/// The highest generation that gets a successor. One above it was not counted but made up.
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

/// All that a backup asks of a series' state, mostly in one listing.
pub fn state(objects: &Objects, series: SeriesId) -> Result<NewestNames> {
    let page = silt_storage::list_page(&*objects.storage, &names::state(series), None)?;
    if page.truncated {
        let first = |kind: Numbered| objects.newest_name(kind, series);
        let head = all(objects, series).next().transpose()?.map(usable).transpose()?;
        objects.seen.compare(series, head.as_ref().map_or(0, |(generation, _)| *generation))?;
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
    objects.seen.compare(series, head.as_ref().map_or(0, |(generation, _)| *generation))?;
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

/// The generation and name of a newest head, unless nothing can come after it.
pub fn usable((generation, name): (u64, String)) -> Result<(u64, String)> {
    if generation <= GENERATION_MAX {
        return Ok((generation, name));
    }
    Err(Error::corrupt(format!("{name} is no head that any commit has made; remove it")))
}

/// The newest head of a series, or `None` before its first commit.
///
/// Heads that are refused above it are passed over with a warning. What comes next is built behind
/// them, so the answer has the generation of the newest there is.
pub fn newest(objects: &Objects, series: SeriesId) -> Result<Option<Head>> {
    newest_below(objects, series, None).map(|(head, _)| head)
}

/// The same, where the newest may have been read already; and the generation of the newest there
/// is.
fn newest_below(
    objects: &Objects,
    series: SeriesId,
    mut first: Option<Reading>,
) -> Result<(Option<Head>, u64)> {
    let mut newest = 0;
    for item in all(objects, series) {
        let (generation, name) = usable(item?)?;
        if newest == 0 {
            newest = generation;
            objects.seen.compare(series, newest)?;
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
        objects.seen.compare(series, 0)?;
    }
    Ok((None, newest))
}

/// The newest head of a series that can be read, whatever is above it: what the series was made of
/// once.
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

fn passed_over(error: &Error) -> Warning {
    Warning::after(error, "it is passed over")
}

/// The newest head, to be built upon: it is the same in every place, and so is all that it names.
/// `empty` makes it where there is none.
///
/// A head is created in one place after the other. One that is not in all of them yet may be
/// overtaken by another of its number where the repository is used without the first place; who
/// builds upon it must not carry it there.
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

/// Makes sure that every place has a head that was just read, and those above it that are refused,
/// durable.
pub fn settle(objects: &Objects, head: &Head) -> Result<()> {
    for item in all(objects, head.series) {
        let (generation, name) = item?;
        if generation > head.generation {
            // Somebody has just committed it, and the next commit here will fail.
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

/// What a head is worth that can be read, and that somebody has signed whom the list of writers
/// knows.
pub enum Reading {
    /// It counts.
    Good(Box<Head>, SignedBy),
    /// Whoever has signed it might not. It counts as little as no head.
    Refused(Error),
}

/// The head of this name.
pub fn read(objects: &Objects, series: SeriesId, name: &str) -> Result<Head> {
    read_signed(objects, series, name).map(|(head, _)| head)
}

/// The head of this name, and who has signed it.
pub fn read_signed(objects: &Objects, series: SeriesId, name: &str) -> Result<(Head, SignedBy)> {
    match judge(objects, series, name)? {
        Reading::Good(head, by) => Ok((*head, by)),
        Reading::Refused(error) => Err(error),
    }
}

/// Reads the head of this name, and says whether it counts.
pub fn judge(objects: &Objects, series: SeriesId, name: &str) -> Result<Reading> {
    let context = || format!("read head {name}");
    let strange = || Error::corrupt(format!("{name} is not the name of a head"));
    let generation = Numbered::Head.number_of(series, name).ok_or_else(strange)?;
    let address = Address::new(ObjectKind::Head, series, generation);
    let (plain, by) = objects.get_signed(name, address).context(context)?;
    // The signature is whole, so nothing has happened to it since: what is wrong with its writer
    // was meant so.
    if let Err(error) = verify_key(objects, (series, generation), &by) {
        return Ok(Reading::Refused(error.context(context())));
    }
    let head = Head::decode(&plain).context(context)?;
    verify(objects, &head, (series, generation)).context(context)?;
    if !by.may_remove
        && let Err(error) = by.may_write(&head.name)
    {
        return Ok(Reading::Refused(error.context(context())));
    }
    verify_writers(objects, &head).context(context)?;
    Ok(Reading::Good(Box::new(head), by))
}

/// Fails unless a key may write a series, or that can't be said before its name is known.
fn verify_key(
    objects: &Objects,
    (series, generation): (SeriesId, u64),
    by: &SignedBy,
) -> Result<()> {
    by.reaches(series, generation)?;
    let keys = &objects.keys;
    let refused = |what: &str| {
        Err(Error::corrupt(format!("key {} has signed it, which may not write {what}", by.id)))
    };
    if by.may_remove {
        Ok(())
    } else if series == keys.shared_store_id(DEFAULT_DOMAIN) {
        refused("what series share")
    } else if by.is_stranger(series, |name| keys.series_id(DEFAULT_DOMAIN, name)) {
        refused("this series")
    } else {
        Ok(())
    }
}

/// Fails unless a head is what its name says, and what this program can read.
fn verify(objects: &Objects, head: &Head, place: (SeriesId, u64)) -> Result<()> {
    if (head.series, head.generation) != place {
        return Err(Error::corrupt("it is not what its name says"));
    }
    if ![DEFAULT_DOMAIN, ALONE].contains(&head.domain) {
        return Err(Error::new(ErrorKind::Unsupported, format!("it is of domain {}", head.domain)));
    }
    if !objects.keys.has_domain(head.domain) {
        let message = "this key was made to share nothing, and the series shares with others";
        return Err(Error::new(ErrorKind::Denied, message));
    }
    if !has_name(objects, head.series, &head.name) {
        let message = format!("it is of another series by its name '{}'", head.name);
        return Err(Error::corrupt(message));
    }
    if head.containers.end() > head.next_container || head.packs.end() > head.next_pack {
        return Err(Error::corrupt("it lists numbers that it has not given yet"));
    }
    let shared = objects.keys.shared_store_id(head.domain);
    let is_known = |store: &&StoreEntry| match (store.number, store.kind) {
        (PRIVATE_STORE, 0) => true,
        (SHARED_STORE, 1) => store.id == shared,
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

/// Fails as `Corrupt` if a head knows a list of writers that is not there.
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
        "it was written when there was list of writers {}, and the newest there is {newest}",
        head.writers
    )))
}

/// Whether a series' id is the one that `name` has; the shared store is called anything.
pub fn has_name(objects: &Objects, series: SeriesId, name: &str) -> bool {
    let keys = &objects.keys;
    series == keys.series_id(DEFAULT_DOMAIN, name) || series == keys.shared_store_id(DEFAULT_DOMAIN)
}

/// Writes `head` as its generation's successor; the answer is its bytes.
///
/// Fails as `Busy` if somebody else has committed since the head was read. All that it names must
/// be durable (I-5). In an append-only repository `authority` signs what takes something away, else
/// this host's own key.
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
    // The newest heads are never removed. As long as fewer are newer than this one, its number was
    // not free because it had been removed: nobody has slept through the commits of so many others.
    let newest = all(objects, head.series).next().transpose()?;
    let newest = newest.map_or(u64::MAX, |(generation, _)| generation);
    if newest >= head.generation.saturating_add(HEADS_KEPT) {
        // It is too old to be read, and removed with others of its age.
        return Err(overtaken());
    }
    settle::verify_unchanged(objects)?;
    // Whether the head counts has been decided by now, or will be: nobody may rely on it.
    let is_active = objects.believed.verify_active(signer.id());
    is_active.map_err(|error| error.with_kind(ErrorKind::Busy))?;
    objects.seen.note(head.series, head.generation);
    Ok(bytes)
}
