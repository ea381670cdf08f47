//! The heads of a series since the last one signed by a key that may remove things.
//!
//! A host can write any head to its own series. A process that can remove objects does not trust
//! heads that drop a snapshot: it first checks all heads since the last one signed by a key that
//! may remove. All of them must exist, and each must keep everything in its predecessor.

use crate::event::Warning;
use std::collections::{BTreeMap, HashSet};

use silt_format::{
    Advice, Error, ErrorKind, Head, ObjectSet, ObjectTag, PRIVATE_STORE, Result, SeriesId,
    StoreEntry, names,
};

use crate::check_record::RecordState;
use crate::chunks::open_container;
use crate::heads::{self, Reading};
use crate::objects::is_damage;
use crate::repository::Repository;
use crate::series::{DEFAULT_DOMAIN, ID_PREFIX, SHARED_NAME};
use crate::stores::is_away;

/// Maximum number of attempts if the series changes meanwhile.
const TRIES_MAX: usize = 5;
/// A violation: heads whose signers were not allowed to write them.
struct Tampering {
    /// The last head before.
    good: Head,
    /// The first head that is not as it must be.
    name: String,
    why: String,
    /// The readable ones from that one on, oldest first.
    later: Vec<Head>,
    /// The newest of all, readable or not.
    newest: (u64, String),
}

/// A head since the last one that vouches for all its predecessors.
struct Link {
    generation: u64,
    name: String,
    /// `None` if it is refused and ignored.
    head: Option<Result<Head>>,
}

impl Repository {
    /// Returns the newest head of a series after verifying that no head removes something that it
    /// may not.
    ///
    /// Fails with `Denied`, naming the first one that does, or that is missing or unreadable.
    pub fn verified_head(&self, series: SeriesId) -> Result<Option<Head>> {
        let found = match self.history(series)? {
            Ok(head) => return Ok(head),
            Err(found) => found,
        };
        let name = &found.good.name;
        let called = self.called(series, name);
        let message = format!(
            "{}: {}: the series was tampered with; nothing is deleted",
            found.name, found.why
        );
        let advice = Advice::RecoverSeries { series: called };
        Err(Error::new(ErrorKind::Denied, message).with_advice(advice))
    }

    /// The name by which `recover` finds a series: that of the shared store is its id.
    pub fn called(&self, series: SeriesId, name: &str) -> String {
        let is_named = series == self.series_id(name);
        if is_named { name.to_owned() } else { format!("{ID_PREFIX}{series}") }
    }

    /// Fails as [`verified_head`](Self::verified_head) does.
    pub fn verify_history(&self, series: SeriesId) -> Result<()> {
        self.verified_head(series).map(drop)
    }

    /// The newest head, or the violation.
    fn history(&self, series: SeriesId) -> Result<Result<Option<Head>, Box<Tampering>>> {
        let mut last = None;
        for _ in 0..TRIES_MAX {
            let found = self.follow(series)?;
            // Heads may go while they are read, but not without a newer one.
            match found {
                Err(found) if last.as_ref() != Some(&found.newest) => {
                    last = Some(found.newest.clone());
                }
                found => return Ok(found),
            }
        }
        self.follow(series)
    }

    fn follow(&self, series: SeriesId) -> Result<Result<Option<Head>, Box<Tampering>>> {
        // Newest first, back to the last one signed by a key that may remove: it vouches for all
        // its predecessors.
        let (mut links, mut signed) = (Vec::new(), None);
        let known = self.objects.seen.newest(series);
        for item in heads::all(&self.objects, series) {
            let (generation, name) = heads::usable(item?)?;
            let head = match heads::judge(&self.objects, series, &name) {
                Ok(Reading::Good(head, by)) if by.may_remove => {
                    self.objects.seen.met(series, head.generation);
                    signed = Some(*head);
                    break;
                }
                Err(error) if !is_damage(&error) => return Err(error),
                Ok(Reading::Good(head, _)) => Some(Ok(*head)),
                Ok(Reading::Refused(_)) => None,
                Err(error) => Some(Err(error)),
            };
            links.push(Link { generation, name, head });
        }
        let shown = links.first().map(|link| link.generation);
        let shown = shown.or(signed.as_ref().map(|head| head.generation));
        self.objects.seen.compare(series, known, shown.unwrap_or(0))?;
        let Some(newest) = links.first().map(|link| (link.generation, link.name.clone())) else {
            return Ok(Ok(signed));
        };
        links.reverse();
        let mut before = signed.unwrap_or_else(|| self.before_all(series, &links));
        // Read after the heads that may know them.
        let mut generations = BTreeMap::new();
        let mut rest = links.into_iter();
        while let Some(link) = rest.next() {
            let why = match why_not(&link, &before) {
                None => self.why_ahead(&link, &mut generations)?,
                why => why,
            };
            match (why, link.head) {
                (None, Some(Ok(head))) => before = head,
                (None, None) => before.generation = link.generation,
                (why, head) => {
                    let why = why.unwrap_or_default();
                    let heads = std::iter::once(head).chain(rest.map(|link| link.head));
                    let later = heads.flatten().filter_map(Result::ok).collect();
                    let name = link.name;
                    return Ok(Err(Box::new(Tampering { good: before, name, why, later, newest })));
                }
            }
        }
        // Where all heads are refused, nothing may say what the series is called.
        let is_named = heads::has_name(&self.objects, series, &before.name);
        Ok(Ok(Some(before).filter(|_| is_named)))
    }

    /// The violation in a head that claims to know a head of a store which does not exist.
    fn why_ahead(
        &self,
        link: &Link,
        generations: &mut BTreeMap<u16, u64>,
    ) -> Result<Option<String>> {
        let Some(Ok(head)) = &link.head else { return Ok(None) };
        let is_out =
            |number| self.nodes().iter().any(|it| it.number == number && it.is_taken_out());
        for store in head.stores.iter().filter(|store| store.number != PRIVATE_STORE) {
            if is_out(store.number) {
                continue;
            }
            let newest = match generations.get(&store.number) {
                Some(newest) => *newest,
                None => match self.store_generation(store.number) {
                    // Nothing is deleted there before it is back.
                    Err(error) if is_away(&error, store.number) => continue,
                    newest => newest?,
                },
            };
            generations.insert(store.number, newest);
            if store.seen > newest {
                let (shown, seen) = (self.store(store.number).shown, store.seen);
                return Ok(Some(format!("it refers to {shown} {seen}, which does not exist")));
            }
        }
        Ok(None)
    }

    /// What a series is before its first head; its name is that of its heads or of its record.
    fn before_all(&self, series: SeriesId, links: &[Link]) -> Head {
        let mut heads = links.iter().filter_map(|link| link.head.as_ref()?.as_ref().ok());
        let first = heads.next();
        // What a series shares is decided with its first head.
        let domain = first.map_or(DEFAULT_DOMAIN, |head| head.domain);
        let named = first.map(|head| head.name.clone());
        let named = named.filter(|_| series != self.objects.keys.shared_store_id(DEFAULT_DOMAIN));
        let recorded = || self.series_record(series).ok().map(|record| record.name);
        let name = named.or_else(recorded).unwrap_or_else(|| SHARED_NAME.to_owned());
        Head::empty(series, domain, &name)
    }

    /// Undoes the removals of heads that lack the administrator's signature. The series, given by
    /// its name or as `id:` and its id, becomes as it was before them, plus everything readable
    /// added since. Returns whether there was such a head.
    pub fn recover(&self, series: &str) -> Result<bool> {
        let id = match series.strip_prefix(ID_PREFIX) {
            Some(id) => SeriesId::from_hex(id)
                .ok_or_else(|| Error::invalid(format!("{series} is not the id of a series")))?,
            None => self.series_id(series),
        };
        let authority = self.required_authority()?;
        let Err(found) = self.history(id)? else { return Ok(false) };
        let Tampering { mut good, later, newest: (generation, newest), .. } = *found;
        if heads::has_name(&self.objects, id, series) {
            // Where nothing that can be believed says it, it was said here.
            series.clone_into(&mut good.name);
        }
        if generation >= heads::GENERATION_MAX {
            let message =
                format!("{newest} has the highest possible number; remove it and try again");
            return Err(Error::corrupt(message));
        }
        if !heads::has_name(&self.objects, id, &good.name) {
            let message =
                format!("the name of series {id} is unknown; recover it by its name instead");
            return Err(Error::corrupt(message));
        }
        let mut head = self.united(good, &later)?;
        head.generation = generation;
        RecordState::is_needed_again(&self.objects, id)?;
        let session = self.objects.context.random();
        heads::commit(&self.objects, &mut head, session, authority.as_deref())?;
        Ok(true)
    }

    /// A head with all that `good` has as it is there, and with what later ones have added.
    fn united(&self, good: Head, later: &[Head]) -> Result<Head> {
        let mut head = good;
        for more in later {
            head.next_container = head.next_container.max(more.next_container);
            head.next_pack = head.next_pack.max(more.next_pack);
        }
        head.containers = self.objects_of(&head, later, true)?;
        head.packs = self.objects_of(&head, later, false)?;
        let deleted = head.deleted.iter().map(|deleted| deleted.entry.id);
        let mut known: HashSet<_> =
            head.snapshots.iter().map(|entry| entry.id).chain(deleted).collect();
        for entry in later.iter().flat_map(|more| &more.snapshots) {
            if known.contains(&entry.id) {
                continue;
            }
            match self.snapshot(head.series, entry) {
                Ok(_) => {
                    known.insert(entry.id);
                    let mut entry = entry.clone();
                    entry.flags = 0;
                    head.snapshots.push(entry);
                }
                Err(error) if is_damage(&error) => {
                    self.warn(Warning::after(&error, "it is skipped"));
                }
                Err(error) => return Err(error),
            }
        }
        head.snapshots.sort_by_key(|entry| entry.time_ns);
        // What all of them know of a store.
        let mut seen: BTreeMap<u16, StoreEntry> = BTreeMap::new();
        for entry in later.iter().chain([&head]).flat_map(|head| &head.stores) {
            let known = seen.entry(entry.number).or_insert_with(|| entry.clone());
            known.seen = known.seen.min(entry.seen);
        }
        for entry in &mut head.stores {
            entry.seen = seen.remove(&entry.number).map_or(entry.seen, |known| known.seen);
        }
        let is_known = |store: &StoreEntry| store.number != PRIVATE_STORE;
        head.stores.extend(seen.into_values().filter(is_known));
        Ok(head)
    }

    /// The containers or else the packs of `head`, and under other numbers those of later heads
    /// that are there.
    fn objects_of(&self, head: &Head, later: &[Head], containers: bool) -> Result<ObjectSet> {
        let series = head.series;
        let (prefix, of): (_, fn(&Head) -> &ObjectSet) = if containers {
            (names::containers(series), |head| &head.containers)
        } else {
            (names::recipes(series), |head| &head.packs)
        };
        let mut there: HashSet<(u32, ObjectTag)> = HashSet::new();
        for item in self.objects.names(&prefix, None)? {
            there.extend(names::number_and_tag(&item?.0));
        }
        let mut found: Vec<(u32, ObjectTag)> = of(head).iter().collect();
        let mut numbers: Vec<u32> = there.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers.into_iter().filter(|number| of(head).tag(*number).is_none()) {
            let mut tags = later.iter().filter_map(|more| of(more).tag(number));
            let Some(tag) = tags.find(|tag| there.contains(&(number, *tag))) else { continue };
            // These are opened by whoever sweeps a store that they are in, or refer to.
            let must_open = containers && (self.is_store(series) || tag.is_rewritten());
            if must_open {
                match open_container(&self.objects, series, number, tag) {
                    Ok(_) => {}
                    Err(error) if is_damage(&error) => {
                        self.warn(Warning::after(&error, "it is skipped"));
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            found.push((number, tag));
        }
        found.sort_unstable_by_key(|(number, _)| *number);
        let mut set = ObjectSet::default();
        found.into_iter().for_each(|(number, tag)| set.push(number, tag));
        Ok(set)
    }
}

/// Returns the violation in a head signed by a key that may not remove anything, if there is one.
fn why_not(link: &Link, before: &Head) -> Option<String> {
    let head = link.head.as_ref()?;
    if before.generation.checked_add(1) != Some(link.generation) {
        return Some(format!("the head after generation {} is missing", before.generation));
    }
    match head {
        Err(error) => Some(error.to_string()),
        Ok(head) if head.keeps_all_of(before) => None,
        Ok(_) => Some("it removes something that its signer may not remove".to_owned()),
    }
}
