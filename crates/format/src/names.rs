//! The names of a repository's objects.

use crate::envelope::{Header, Id, ObjectKind, SeriesId};
use crate::ids::{ObjectTag, is_hex};

/// The configuration's name.
pub const CONFIG: &str = "config";

/// The name of the configuration's copy: everything depends on this object, so it exists twice.
pub const CONFIG_COPY: &str = "config.copy";

/// The name of an append-only repository's wrapped private key.
pub const AUTHORITY: &str = "authority";

/// The name of its copy.
pub const AUTHORITY_COPY: &str = "authority.copy";

/// The prefix of keys, lists of writers and lists of places, so that one request lists all.
pub const ROOT: &str = "root/";
/// The prefix of key objects.
pub const KEYS: &str = "root/keys/";
/// A name that sorts after all keys, and before the lists of places and writers.
pub const BEHIND_KEYS: &str = "root/l";
/// The prefix of lists of writers.
pub const WRITERS: &str = "root/writers/";
/// The prefix of series records.
pub const SERIES: &str = "series/";

/// The name of a wrapped key.
pub fn key(id: Id) -> String {
    format!("{KEYS}{id}")
}

/// The name of a wrapped key's copy.
pub fn key_copy(id: Id) -> String {
    format!("{KEYS}{id}.copy")
}

/// The name of the object's duplicate in the same location: wrapped keys and the administrator's
/// key exist twice.
pub fn twin(name: &str) -> Option<String> {
    if name != AUTHORITY && name != AUTHORITY_COPY && key_id(name).is_none() {
        return None;
    }
    Some(name.strip_suffix(".copy").map_or_else(|| format!("{name}.copy"), str::to_owned))
}

/// The id of the key, or copy of a key, with this object name.
pub fn key_id(name: &str) -> Option<Id> {
    let name = name.strip_prefix(KEYS)?;
    Id::from_hex(name.strip_suffix(".copy").unwrap_or(name))
}

/// The name of list of writers `number`.
pub fn writers(number: u64) -> String {
    Numbered::Writers.name(SeriesId::NONE, number)
}

/// The name of its copy: without the list no signature can be verified.
pub fn writers_copy(number: u64) -> String {
    format!("{}.copy", writers(number))
}

/// The number of the list of writers, or copy of one, with this name.
pub fn writers_number(name: &str) -> Option<u64> {
    Numbered::Writers.number_of(SeriesId::NONE, name.strip_suffix(".copy").unwrap_or(name))
}

/// The name of a series record.
pub fn series(series: SeriesId) -> String {
    format!("{SERIES}{series}")
}

/// A kind of objects that a series numbers so that the newest one is listed first: the name holds
/// the number's complement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbered {
    /// Heads, by generation.
    Head,
    /// Check records.
    Check,
    /// Leases.
    Lease,
    /// Lists of places, of no series.
    Places,
    /// Lists of writers, of no series.
    Writers,
    /// Marks of a storage node, by the generation of its head. They are not in the node's places.
    Mark,
}

impl Numbered {
    /// The prefix of all of a series' objects of this kind.
    pub fn prefix(self, series: SeriesId) -> String {
        match self.folder() {
            (ROOT, folder) => format!("{ROOT}{folder}/"),
            (MARKS, folder) => format!("{MARKS}{folder}/{series}/"),
            (_, folder) => format!("{}{folder}/", state(series)),
        }
    }
    /// The location of objects of this kind, and the name of their folder.
    fn folder(self) -> (&'static str, &'static str) {
        match self {
            Self::Head => (STATE, "heads"),
            Self::Check => (STATE, "checks"),
            Self::Lease => (STATE, "leases"),
            Self::Places => (ROOT, "places"),
            Self::Writers => (ROOT, "writers"),
            Self::Mark => (MARKS, "nodes"),
        }
    }
    /// The series of an object of this kind, and the part of its name after the folder.
    fn split(self, name: &str) -> Option<(SeriesId, &str)> {
        let (top, folder) = self.folder();
        let rest = name.strip_prefix(top)?;
        if top == MARKS {
            let (series, number) = rest.strip_prefix(folder)?.strip_prefix('/')?.split_once('/')?;
            return Some((SeriesId::from_hex(series)?, number));
        }
        let (series, rest) = if top == ROOT {
            (SeriesId::NONE, rest)
        } else {
            let (series, rest) = rest.split_once('/')?;
            (SeriesId::from_hex(series)?, rest)
        };
        Some((series, rest.strip_prefix(folder)?.strip_prefix('/')?))
    }
    /// Whether an object's name is of this kind.
    pub fn is(self, name: &str) -> bool {
        self.split(name).is_some()
    }
    /// The name of object `number`.
    pub fn name(self, series: SeriesId, number: u64) -> String {
        format!("{}{}", self.prefix(series), Id(!number))
    }
    /// The number of the series' object of this kind with exactly this name; the first is 1.
    pub fn number_of(self, series: SeriesId, name: &str) -> Option<u64> {
        let (found, number) = self.split(name)?;
        let number = Id::from_hex(number)?;
        (found == series && number.0 < u64::MAX).then_some(!number.0)
    }
    /// The number that a name ends in.
    pub fn number(name: &str) -> Option<u64> {
        Id::from_hex(name.rsplit('/').next()?).map(|id| !id.0)
    }
}

/// The prefix of marks.
pub const MARKS: &str = "marks/";

/// The prefix of the heads, check records and leases of every series.
pub const STATE: &str = "state/";

/// The prefix of a series' heads, check records and leases, so that one request lists the newest of
/// each.
pub fn state(series: SeriesId) -> String {
    format!("{STATE}{series}/")
}

/// The series of the object with this name, if it belongs to one.
pub fn series_of(name: &str) -> Option<SeriesId> {
    name.split('/').nth(1).and_then(SeriesId::from_hex)
}

/// The folders of objects that heads name directly or through a snapshot. Objects that name others
/// come after those.
pub const DATA: [&str; 6] =
    ["containers/", "recipes/", "summaries/", "dead/", "runs/", "snapshots/"];

/// The prefixes of a series' objects that its heads name directly or through a snapshot.
pub fn data(series: SeriesId) -> [String; 6] {
    DATA.map(|folder| format!("{folder}{series}/"))
}

/// The prefix of a series' snapshots.
pub fn snapshots(series: SeriesId) -> String {
    format!("snapshots/{series}/")
}

/// The name of a snapshot.
pub fn snapshot(series: SeriesId, id: Id) -> String {
    format!("{}{id}", snapshots(series))
}

/// The name of part `part` of a summary vector.
pub fn summary(series: SeriesId, id: Id, part: u32) -> String {
    format!("summaries/{series}/{id}.{part:04x}")
}

/// The prefix of a series' summary vectors.
pub fn summaries(series: SeriesId) -> String {
    format!("summaries/{series}/")
}

/// The prefix of a series' dead lists.
pub fn dead_lists(series: SeriesId) -> String {
    format!("dead/{series}/")
}

/// The name of part `part` of a dead list.
pub fn dead_list(series: SeriesId, id: Id, part: u32) -> String {
    format!("{}{id}.{part:04x}", dead_lists(series))
}

/// The prefix of a store's runs.
pub fn runs(store: SeriesId) -> String {
    format!("runs/{store}/")
}

/// The name of partition `partition` of a run.
pub fn run(store: SeriesId, id: Id, partition: u32) -> String {
    format!("{}{id}.{partition:04x}", runs(store))
}

/// The id and part that the name of a summary vector or dead list ends in.
pub fn id_and_part(name: &str) -> Option<(Id, u32)> {
    let (id, part) = name.rsplit('/').next()?.split_once('.')?;
    Some((Id::from_hex(id)?, u32::from_str_radix(part, 16).ok()?))
}

/// The prefix of a series' recipe packs.
pub fn recipes(series: SeriesId) -> String {
    format!("recipes/{series}/")
}

/// The prefix of a series' containers.
pub fn containers(series: SeriesId) -> String {
    format!("containers/{series}/")
}

/// The name of recipe pack `number` that a session with this tag wrote.
pub fn pack(series: SeriesId, number: u32, tag: ObjectTag) -> String {
    format!("{}{number:08x}.{tag}", recipes(series))
}

/// The name of container `number` that a session with this tag wrote.
pub fn container(series: SeriesId, number: u32, tag: ObjectTag) -> String {
    format!("{}{number:08x}.{tag}", containers(series))
}

/// The number and tag that the name of a pack or container ends in.
pub fn number_and_tag(name: &str) -> Option<(u32, ObjectTag)> {
    let (number, tag) = name.rsplit('/').next()?.split_once('.')?;
    if !is_hex(number, 8) || !is_hex(tag, 16) {
        return None;
    }
    let tag = u64::from_str_radix(tag, 16).ok().map(ObjectTag::from_bits)?;
    Some((u32::from_str_radix(number, 16).ok()?, tag))
}

/// The name that an object with this header must have, if the header determines it.
pub fn of_header(header: &Header) -> Option<String> {
    let Header { series, part, tag, .. } = *header;
    let id = Id(header.number);
    let number = u32::try_from(header.number).ok();
    Some(match header.kind {
        ObjectKind::Config | ObjectKind::Key | ObjectKind::WriteKey | ObjectKind::Authority => {
            return None;
        }
        ObjectKind::Series => self::series(series),
        ObjectKind::Head => Numbered::Head.name(series, header.number),
        ObjectKind::Snapshot => snapshot(series, id),
        ObjectKind::Recipes => pack(series, number?, tag),
        ObjectKind::Container => container(series, number?, tag),
        ObjectKind::Summary => summary(series, id, part),
        ObjectKind::Check => Numbered::Check.name(series, header.number),
        ObjectKind::Lease => Numbered::Lease.name(series, header.number),
        ObjectKind::DeadList => dead_list(series, id, part),
        ObjectKind::Run => run(series, id, part),
        ObjectKind::Places => Numbered::Places.name(series, header.number),
        ObjectKind::Mark => Numbered::Mark.name(series, header.number),
        ObjectKind::Writers | ObjectKind::Message => return None,
    })
}
