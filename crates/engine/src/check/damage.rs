//! Collects damage by object, with the snapshots and ranges that it affects.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use silt_format::{Advice, ByteSpan, Error, Id, Result, SeriesId, names};
use silt_repository::objects::is_damage;

use super::VolumePath;

/// Maximum number of ranges listed per volume; further ones are only counted.
const SPANS_MAX: usize = 1000;
/// Maximum number of paths listed per volume; further ones are only counted.
const PATHS_MAX: usize = 1000;

/// A damaged object.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// # let container = storage.list("containers/", None)?.objects.remove(0).0;
/// storage.damage(&container, |bytes| bytes[100] ^= 1)?;
/// let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
/// let damage = &repository.check(&options)?.damage[0];
/// assert_eq!(damage.object, container.as_str());
/// assert!(!damage.is_harmless);
/// assert_eq!(damage.affected[0].series, "web1");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Damage {
    /// The object's name. A run of missing objects is one entry whose name ends in `FIRST..LAST`.
    pub object: String,
    /// The first error that the check met.
    pub error: String,
    /// Advice for the user, if there is any.
    pub advice: Option<Advice>,
    /// The volumes that need the object; empty if no living snapshot does.
    pub affected: Vec<Affected>,
    /// Whether every snapshot that may refer to the object was read and none refers to the damaged
    /// chunks, so that nothing is lost.
    pub is_harmless: bool,
    /// Whether it is a storage node that can't be reached, and may be whole.
    pub is_away: bool,
}

/// A volume, snapshot or series that can't be restored completely.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// # let container = storage.list("containers/", None)?.objects.remove(0).0;
/// # storage.damage(&container, |bytes| bytes[100] ^= 1)?;
/// let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
/// for damage in repository.check(&options)?.damage {
///     for affected in &damage.affected {
///         println!("{}: {} bytes can't be restored", affected.series, affected.bytes);
///         assert_eq!(affected.snapshot, Some(snapshot.id));
///         assert_eq!(affected.volume.as_deref(), Some("root"));
///     }
/// }
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affected {
    /// The series' name.
    pub series: String,
    /// The snapshot; `None` for the whole series.
    pub snapshot: Option<Id>,
    /// The volume; `None` for the whole snapshot.
    pub volume: Option<String>,
    /// The first thousand ranges that can't be restored, in offset order.
    pub spans: Vec<ByteSpan>,
    /// Bytes in all ranges, including those beyond the first thousand.
    pub bytes: u64,
    /// Of a file tree: the paths of the first thousand files that can't be restored completely,
    /// and of directories with entries that are lost, which end in `/`.
    pub paths: Vec<Vec<u8>>,
    /// Number of all such files and directories.
    pub path_count: u64,
}

impl Affected {
    fn of(series: &str, snapshot: Option<Id>, volume: Option<&str>) -> Self {
        Self {
            series: series.to_owned(),
            snapshot,
            volume: volume.map(str::to_owned),
            spans: Vec::new(),
            bytes: 0,
            paths: Vec::new(),
            path_count: 0,
        }
    }
}

/// All damage met so far.
#[derive(Clone, Default)]
pub(crate) struct Findings {
    found: BTreeMap<String, Damage>,
    /// Whether something was found before that all series need.
    is_any_before: bool,
}

impl Findings {
    /// None yet of a series; `is_any_before` says whether there are some of what all series need.
    pub(crate) fn after(is_any_before: bool) -> Self {
        Self { found: BTreeMap::new(), is_any_before }
    }

    /// Adds what was found in another series.
    pub(crate) fn merge(&mut self, other: Self) {
        for (object, damage) in other.found {
            match self.found.entry(object) {
                Entry::Vacant(place) => drop(place.insert(damage)),
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.advice = known.advice.take().or(damage.advice);
                    known.affected.extend(damage.affected);
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty() && !self.is_any_before
    }

    /// Number of damaged objects.
    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    fn entry(&mut self, object: &str, error: &str) -> &mut Damage {
        self.found.entry(object.to_owned()).or_insert_with(|| Damage {
            object: object.to_owned(),
            error: error.to_owned(),
            advice: None,
            affected: Vec::new(),
            is_harmless: false,
            is_away: false,
        })
    }

    /// Notes that a storage node can't be reached.
    pub(crate) fn away(&mut self, node: &str, error: &Error) {
        self.entry(node, &error.to_string()).is_away = true;
    }

    /// Notes that an object is damaged, without saying whom that hurts.
    pub(crate) fn object(&mut self, object: &str, error: &str) {
        self.entry(object, error);
    }

    /// Notes that an object is damaged in the way that an error says.
    pub(crate) fn error(&mut self, object: &str, error: &Error) {
        let advice = error.advice().cloned();
        let damage = self.entry(object, &error.to_string());
        damage.advice = damage.advice.take().or(advice);
    }

    /// Notes damage if that is what an error means; passes other errors on.
    pub(crate) fn note_if_damaged(&mut self, result: Result<()>, object: &str) -> Result<()> {
        match result {
            Err(error) if is_damage(&error) => {
                self.error(object, &error);
                Ok(())
            }
            other => other,
        }
    }

    /// Notes damage that hides a whole series.
    pub(crate) fn whole_series(&mut self, object: &str, error: &Error, series: &str) {
        let affected = Affected::of(series, None, None);
        self.entry(object, &error.to_string()).affected.push(affected);
    }

    /// Notes damage that hides a whole snapshot.
    pub(crate) fn whole_snapshot(&mut self, object: &str, error: &str, series: &str, id: Id) {
        let affected = Affected::of(series, Some(id), None);
        self.entry(object, error).affected.push(affected);
    }

    /// Notes damage that hides a range of a volume.
    pub(crate) fn span(
        &mut self,
        object: &str,
        error: &str,
        place: VolumePath<'_>,
        span: ByteSpan,
    ) {
        let affected = self.affected(object, error, place);
        affected.bytes += span.length;
        let room = affected.spans.len() < SPANS_MAX;
        match affected.spans.last_mut() {
            Some(last) if last.offset + last.length == span.offset => last.length += span.length,
            _ if room => affected.spans.push(span),
            _ => {}
        }
    }

    /// Notes damage of a file of a tree, or of a directory of which entries are lost.
    pub(crate) fn path(&mut self, object: &str, error: &str, place: VolumePath<'_>, path: &[u8]) {
        let affected = self.affected(object, error, place);
        affected.path_count += 1;
        if affected.paths.len() < PATHS_MAX {
            affected.paths.push(path.to_vec());
        }
    }

    /// How an object hurts a volume; those of one volume are noted one after the other.
    fn affected(&mut self, object: &str, error: &str, place: VolumePath<'_>) -> &mut Affected {
        let all = &mut self.entry(object, error).affected;
        let is_last = all.last().is_some_and(|last| {
            last.snapshot == Some(place.snapshot)
                && last.series == place.series
                && last.volume.as_deref() == Some(place.volume)
        });
        if !is_last {
            all.push(Affected::of(place.series, Some(place.snapshot), Some(place.volume)));
        }
        let newest = all.len() - 1;
        &mut all[newest]
    }

    /// All of it; `sees_all` says of a series' id whether everybody who may refer to its chunks was
    /// looked at.
    pub(crate) fn into_damage(self, sees_all: impl Fn(SeriesId) -> bool) -> Vec<Damage> {
        let all = self.found.into_values().map(|damage| {
            let is_unneeded =
                damage.affected.is_empty() && damage.object.starts_with("containers/");
            let is_harmless =
                is_unneeded && names::series_of(&damage.object).is_some_and(&sees_all);
            Damage { is_harmless, ..damage }
        });
        all.collect()
    }
}
