//! Passwords: each has its own wrapped key, whose rights are in the list of writers.

use std::sync::Arc;

use silt_format::names::{self, Numbered};
use silt_format::{
    Advice, Error, ErrorKind, Header, HostKeys, Id, KdfCost, KeyLabel, ObjectKind, Result, Role,
    SeriesId, Signer, SigningSeed, WrappedKey, Writer, WriterState, Writers,
};
use silt_storage::PutMode;

use crate::heads;
use crate::objects::{Address, Objects, is_damage, key};
use crate::repository::Repository;
use crate::root::key_objects;
use crate::series::{EVERY_SERIES, is_name};
use crate::settle::verify_unchanged;
use crate::sync::lock;

/// A wrapped key of a repository.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    /// Its id.
    pub id: Id,
    /// The creator, and the time of creation.
    pub label: KeyLabel,
    /// Whether it only backs up, and reads no data.
    pub is_write_only: bool,
    /// The series that it may write: names, or beginnings of names and `*`.
    pub series: Vec<String>,
    /// Whether its removal has begun but not ended: it still opens the repository, but its writes
    /// are refused.
    pub is_being_removed: bool,
}

/// The rights of a new key.
#[derive(Clone, Debug)]
pub struct KeyAccess {
    /// Whether it only backs up, and reads no data.
    pub is_write_only: bool,
    /// The series that it may write: names, or beginnings of names and `*`.
    pub series: Vec<String>,
    /// Whether its series share nothing, and the key cannot test guesses of other series' chunks.
    pub is_alone: bool,
}

impl KeyAccess {
    /// Everything.
    pub fn full() -> Self {
        Self { is_write_only: false, series: vec![EVERY_SERIES.to_owned()], is_alone: false }
    }

    /// Backing up these series, given by names or beginnings of names and `*`.
    pub fn write_only(series: &[&str]) -> Self {
        let series = series.iter().map(|&name| name.to_owned()).collect();
        Self { is_write_only: true, series, is_alone: false }
    }
}

/// Whether a key object holds the keys of a host that only writes.
fn is_write_key(object: &[u8]) -> bool {
    Header::decode(object).is_ok_and(|header| header.kind == ObjectKind::WriteKey)
}

/// Whether a key that reads and is in use, other than `id`, has both its objects.
fn reads_without(keys: &[(Id, String, Vec<u8>)], writers: &Writers, id: Id) -> bool {
    let is_active =
        |id: Id| writers.get(id).is_some_and(|writer| writer.state == WriterState::Active);
    let mut others = keys
        .iter()
        .filter(|(other, _, object)| *other != id && !is_write_key(object) && is_active(*other));
    others.any(|(other, name, _)| {
        *name == names::key(*other)
            && keys.iter().any(|(_, name, _)| *name == names::key_copy(*other))
    })
}

/// Refuses what can name no series, nor the beginning of one.
fn check_pattern(pattern: &str) -> Result<()> {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    if pattern == EVERY_SERIES || !name.contains('*') && is_name(name) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "'{pattern}' is not a series: give a name, or a prefix followed by '*'"
    )))
}

/// How often a list that others change at the same time is changed.
const TRIES_MAX: usize = 5;

impl Objects {
    /// Changes the list of writers; durable, and known to this process, on return.
    pub fn change_writers(
        &self,
        administrator: &Signer,
        change: impl Fn(&mut Writers),
    ) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let (number, writers) = self.believed.writers();
            let (mut writers, number) = ((*writers).clone(), number + 1);
            change(&mut writers);
            let address = Address::new(ObjectKind::Writers, SeriesId::NONE, number);
            let object = self.sealed_by(administrator, address, &writers.encode())?;
            let put =
                |name: &str| self.put_pieces(name, ObjectKind::Writers, &[object.clone().into()]);
            match put(&names::writers(number)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    self.load_writers(None)?;
                    continue;
                }
                other => other?,
            };
            put(&names::writers_copy(number))?;
            *lock(&self.believed.list) = (number, Arc::new(writers));
            // A place that was added meanwhile may not have it: then a key that was removed would
            // count there.
            return verify_unchanged(self);
        }
        Err(Error::new(ErrorKind::Busy, "another process is changing the keys; try again"))
    }
}

impl Repository {
    /// Adds a password; returns the new key's id.
    ///
    /// `Denied` with a write-only key, and in an append-only repository without the administrator's
    /// password.
    pub fn add_key(
        &self,
        password: &[u8],
        cost: KdfCost,
        label: &KeyLabel,
        access: &KeyAccess,
    ) -> Result<Id> {
        if !self.is_encrypted() {
            return Err(Error::invalid("the repository is not encrypted, so it has no keys"));
        }
        access.series.iter().try_for_each(|pattern| check_pattern(pattern))?;
        if access.series.is_empty() {
            return Err(Error::invalid("a key must be allowed to write at least one series"));
        }
        if !access.is_write_only && !self.is_append_only() && access.series != [EVERY_SERIES] {
            let message = "a key that reads can be limited to some series only in an append-only \
                           repository; elsewhere it may delete everything";
            return Err(Error::invalid(message));
        }
        if access.is_alone && !access.is_write_only {
            return Err(Error::invalid("only a write-only key can be one that shares nothing"));
        }
        let administrator = self.administrator()?;
        let (kind, role) = if access.is_write_only {
            (ObjectKind::WriteKey, Role::WriteOnly)
        } else {
            (ObjectKind::Key, Role::Full)
        };
        let id = Id(self.objects.context.random_id());
        let host = HostKeys {
            keys: self.objects.keys.clone(),
            seed: SigningSeed::new(self.objects.context.random()),
            administrator: self.config.administrator,
        };
        // The rights of the key are written first: a key without rights is never used.
        let secret = host.expose(kind, &access.series, access.is_alone)?;
        self.put_writer(&administrator, id, &host, role, &access.series)?;
        self.put_key((kind, id), &secret, password, (cost, label))?;
        Ok(id)
    }

    /// Puts a key into the list of writers.
    pub fn put_writer(
        &self,
        administrator: &Signer,
        id: Id,
        host: &HostKeys,
        role: Role,
        series: &[String],
    ) -> Result<()> {
        let (public, series) = (host.signer(id).public()?, series.to_vec());
        let writer = Writer { id, role, public, series, state: WriterState::Active };
        self.objects.change_writers(administrator, |writers| writers.all.push(writer.clone()))
    }

    /// Writes a wrapped key and its copy.
    pub fn put_key(
        &self,
        (kind, id): (ObjectKind, Id),
        secret: &[u8],
        password: &[u8],
        (cost, label): (KdfCost, &KeyLabel),
    ) -> Result<()> {
        let header = self.objects.new_header(Address::new(kind, SeriesId::NONE, id.0));
        let labelled = (&self.objects.keys, label);
        let object = WrappedKey::wrap(&header, password, cost, secret, labelled)?;
        for name in [names::key_copy(id), names::key(id)] {
            self.objects.storage.put(&key(&name)?, &[&object], PutMode::Create)?;
        }
        Ok(())
    }

    /// Every key with its label, in the order of ids; unreadable ones are reported as warnings.
    pub fn keys(&self) -> Result<Vec<KeyInfo>> {
        let mut keys: Vec<KeyInfo> = Vec::new();
        let (_, writers) = self.objects.believed.writers();
        for (id, name, object) in key_objects(&*self.objects.storage)? {
            match WrappedKey::label(&object, &self.objects.keys) {
                Ok(_) if keys.iter().any(|key| key.id == id) => {}
                Ok(label) => {
                    let writer = writers.get(id);
                    let is_being_removed =
                        writer.is_some_and(|writer| writer.state != WriterState::Active);
                    let writer = writer.filter(|_| !is_being_removed);
                    let series = writer.map(|writer| writer.series.clone()).unwrap_or_default();
                    let is_write_only = is_write_key(&object);
                    keys.push(KeyInfo { id, label, is_write_only, series, is_being_removed });
                }
                Err(error) => self.warn(&error.context(format!("{name} is damaged"))),
            }
        }
        Ok(keys)
    }

    /// Fails with `Denied` with a key that only writes.
    pub fn require_all_keys(&self) -> Result<()> {
        if self.is_write_only() {
            let message = "access denied: this key is write-only";
            let error = Error::new(ErrorKind::Denied, message);
            return Err(error.with_advice(Advice::UseReadingKey));
        }
        Ok(())
    }

    /// Removes the key whose id begins with `prefix`; objects that it signs from now on are
    /// refused.
    ///
    /// The last key that can read is never removed, even if several processes remove different keys
    /// at once. Each process first removes the key's copy and then checks the other keys; a key
    /// without its copy does not count.
    pub fn remove_key(&self, prefix: &str) -> Result<Id> {
        let administrator = self.administrator()?;
        let keys = key_objects(&*self.objects.storage)?;
        let mut all: Vec<Id> = keys.iter().map(|(id, ..)| *id).collect();
        all.dedup();
        let mut matching = all.iter().filter(|id| id.to_string().starts_with(prefix));
        let (found, more) = (matching.next(), matching.next());
        let Some(id) = found.filter(|_| more.is_none() && !prefix.is_empty()) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("'{prefix}' does not identify exactly one key"),
            )
            .with_advice(Advice::ListKeys));
        };
        let of_key = |name: &str| keys.iter().find(|(_, known, _)| known == name);
        let object = of_key(&names::key(*id)).or_else(|| of_key(&names::key_copy(*id)));
        if let Some((_, _, object)) = object.filter(|(_, _, object)| !is_write_key(object)) {
            let last = || Error::invalid("this is the last intact key that reads data");
            self.objects.load_writers(None)?;
            let (_, writers) = self.objects.believed.writers();
            if !reads_without(&keys, &writers, *id) {
                return Err(last());
            }
            let copy = names::key_copy(*id);
            self.objects.delete(std::slice::from_ref(&copy))?;
            if !reads_without(&key_objects(&*self.objects.storage)?, &writers, *id) {
                self.objects.storage.put(&key(&copy)?, &[object], PutMode::Create)?;
                return Err(last().context("another key is being removed at the same time"));
            }
        }
        self.refuse_from_now_on(&administrator, *id)?;
        self.objects.delete(&[names::key(*id), names::key_copy(*id)])?;
        Ok(*id)
    }

    /// Records which heads a removed key can have signed: those up to the newest of each series.
    /// The key is first marked as being removed: later commits with it fail, and commits that were
    /// reported as done came before and are included.
    fn refuse_from_now_on(&self, administrator: &Signer, id: Id) -> Result<()> {
        self.set_state(administrator, id, &WriterState::Closing)?;
        let (_, writers) = self.objects.believed.writers();
        let Some(writer) = writers.get(id) else { return Ok(()) };
        let series = if writer.series.iter().any(|pattern| pattern.ends_with('*')) {
            self.series_with_heads()?
        } else {
            writer.series.iter().map(|name| self.series_id(name)).collect()
        };
        let mut newest = Vec::new();
        for series in series {
            // A head that is not trusted does not count.
            for item in heads::all(&self.objects, series) {
                let (generation, name) = item?;
                match heads::read(&self.objects, series, &name) {
                    Ok(_) => {
                        newest.push((series, generation));
                        break;
                    }
                    Err(error) if is_damage(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.set_state(administrator, id, &WriterState::Removed(newest))
    }

    /// Changes the state of a key that was not removed before.
    fn set_state(&self, administrator: &Signer, id: Id, state: &WriterState) -> Result<()> {
        self.objects.change_writers(administrator, |writers| {
            let writers = writers.all.iter_mut().filter(|writer| writer.id == id);
            writers
                .filter(|writer| !matches!(writer.state, WriterState::Removed(_)))
                .for_each(|writer| writer.state = state.clone());
        })
    }

    /// Every series that has a head, whether or not it has a record.
    fn series_with_heads(&self) -> Result<Vec<SeriesId>> {
        let mut found: Vec<SeriesId> = Vec::new();
        for item in self.objects.names(names::STATE, None)? {
            let (name, _) = item?;
            let Some(series) = names::series_of(&name) else { continue };
            if found.last() != Some(&series) && Numbered::Head.number_of(series, &name).is_some() {
                found.push(series);
            }
        }
        // Those of nodes are in places of their own.
        let nodes = self.nodes().iter().filter(|node| !node.is_taken_out());
        found.extend(nodes.map(|node| self.store(node.number).id));
        Ok(found)
    }
}
