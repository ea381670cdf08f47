//! Who is believed: objects that others rely on are signed, and the list of writers says by whom they may be.
//!
//! A host can seal whatever it likes with the keys that it holds. What it cannot do is sign in another's name:
//! each key has a signing key of its own, and the list of writers, which the administrator alone signs, says what
//! each may write. The administrator's public key comes with the password, not from storage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use silt_format::{
    BlockReader, Error, ErrorKind, HEADER_BYTES, Id, ObjectKind, Result, ResultExt, Role, SeriesId,
    Signed, Signer, Writer, WriterState, Writers, names,
};
use silt_storage::{ByteRange, Key};

use crate::map::lock;
use crate::objects::{Address, Objects, is_damage, key};
use crate::places::verify_unchanged;

/// How often a list that others change at the same time is changed.
const TRIES_MAX: usize = 5;

/// Whom a process believes.
pub(crate) struct Believed {
    administrator: [u8; 32],
    append_only: bool,
    /// The newest list of writers that was read, and its number.
    list: Mutex<(u64, Arc<Writers>)>,
    /// The number of the list that is known to be durable.
    settled: AtomicU64,
}

/// Who has signed an object.
#[derive(Clone, Debug)]
pub(crate) struct SignedBy {
    /// The key, or [`Signer::ADMINISTRATOR`].
    pub(crate) id: Id,
    /// What the list of writers says of it; the administrator is not in it.
    writer: Option<Writer>,
    /// Whether it may take something away.
    pub(crate) may_remove: bool,
}

impl SignedBy {
    /// Fails as `Corrupt` unless the key may write the series called `name`.
    pub(crate) fn may_write(&self, name: &str) -> Result<()> {
        match &self.writer {
            Some(writer) if !writer.covers(name) => Err(Error::corrupt(format!(
                "key {} has signed it, which may write {} and not series '{name}'",
                self.id,
                writer.series.join(", ")
            ))),
            _ => Ok(()),
        }
    }

    /// Whether the key may write no series of this id, whatever that is called; `id_of` is that of a name.
    pub(crate) fn is_stranger(&self, series: SeriesId, id_of: impl Fn(&str) -> SeriesId) -> bool {
        self.writer.as_ref().is_some_and(|writer| {
            let mut patterns = writer.series.iter();
            patterns.all(|pattern| !pattern.ends_with('*') && id_of(pattern) != series)
        })
    }

    /// Fails as `Corrupt` unless a head of this generation came before the key was removed, if it was.
    pub(crate) fn reaches(&self, series: SeriesId, generation: u64) -> Result<()> {
        match &self.writer {
            Some(writer) if !writer.reaches(series, generation) => {
                let message = format!("key {} has signed it, which was removed before", self.id);
                Err(Error::corrupt(message))
            }
            _ => Ok(()),
        }
    }

    /// Whether it is a key that reads data and was not removed: what it has verified counts as verified.
    pub(crate) fn is_full(&self) -> bool {
        self.writer
            .as_ref()
            .is_none_or(|writer| writer.role == Role::Full && writer.state == WriterState::Active)
    }
}

impl Believed {
    pub(crate) fn new(administrator: [u8; 32], append_only: bool) -> Self {
        let (list, settled) = (Mutex::default(), AtomicU64::default());
        Self { administrator, append_only, list, settled }
    }

    /// Who has signed what is in `signed`, by the list as it was last read; `None` if nobody in it has.
    fn signer(&self, signed: &Signed<'_>) -> Option<SignedBy> {
        let id = signed.signer;
        if id == Signer::ADMINISTRATOR {
            let is_signed = signed.is_by(&self.administrator);
            return is_signed.then_some(SignedBy { id, writer: None, may_remove: true });
        }
        let writers = Arc::clone(&lock(&self.list).1);
        let writer = writers.get(id).filter(|writer| signed.is_by(&writer.public))?.clone();
        let may_remove = writer.role == Role::Full && !self.append_only;
        Some(SignedBy { id, writer: Some(writer), may_remove })
    }

    /// Fails as `Denied` if the key called `id` is being removed or was.
    pub(crate) fn verify_active(&self, id: Id) -> Result<()> {
        let (_, writers) = self.writers();
        match writers.get(id).map(|writer| &writer.state) {
            _ if id == Signer::ADMINISTRATOR => Ok(()),
            Some(WriterState::Active) => Ok(()),
            Some(WriterState::Closing) => Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "key {id}, which this process signs with, is being removed; if that was interrupted, \
                     `silt key remove {id}` with another key ends it"
                ),
            )),
            _ => Err(Error::new(
                ErrorKind::Denied,
                format!("key {id}, which this process signs with, was removed"),
            )),
        }
    }

    /// Whether the key called `id` was removed: its object may be there again, copied by somebody who slept.
    pub(crate) fn is_removed(&self, id: Id) -> bool {
        let (_, writers) = self.writers();
        writers.get(id).is_some_and(|writer| matches!(writer.state, WriterState::Removed(_)))
    }

    /// Fails as `Denied` if the key called `id` may not write the series called `name`.
    pub(crate) fn require_may_write(&self, id: Id, name: &str) -> Result<()> {
        let (_, writers) = self.writers();
        match writers.get(id) {
            Some(writer) if !writer.covers(name) => Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "this key may write {} and not series '{name}'; `silt key add --series` makes another",
                    writer.series.join(", ")
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The newest list that was read.
    pub(crate) fn writers(&self) -> (u64, Arc<Writers>) {
        let list = lock(&self.list);
        (list.0, Arc::clone(&list.1))
    }
}

impl Objects {
    /// Reads an object of a kind that is signed, and says who has signed it.
    ///
    /// `Corrupt` if nobody has whom the list of writers knows.
    pub(crate) fn get_signed(&self, name: &str, address: Address) -> Result<(Vec<u8>, SignedBy)> {
        let mut signer = None;
        let plain = self.read(name, ByteRange::Full, &mut Vec::new(), |bytes| {
            let (header, sealer) = self.check_header(bytes, address)?;
            let mut raw = Vec::new();
            BlockReader::default().read(&sealer, 0, &mut bytes[HEADER_BYTES..], &mut raw)?;
            let signed = Signed::split(&header, &raw)?;
            let length = signed.plain.len();
            signer = Some(self.verify_signer(address.kind, &signed)?);
            raw.truncate(length);
            Ok(raw)
        })?;
        let unsigned = || Error::corrupt("it is not signed");
        Ok((plain, signer.ok_or_else(unsigned)?))
    }

    fn verify_signer(&self, kind: ObjectKind, signed: &Signed<'_>) -> Result<SignedBy> {
        let mut found = self.believed.signer(signed);
        // Whoever has signed it may have been added since the list was read.
        if found.is_none()
            && kind != ObjectKind::Writers
            && (self.load_writers(None)? || self.read_writers_again()?)
        {
            found = self.believed.signer(signed);
        }
        let by = found.ok_or_else(|| {
            Error::corrupt(format!(
                "no key that the list of writers knows has signed it (it names key {})",
                signed.signer
            ))
        })?;
        let is_believed = match kind {
            ObjectKind::Writers | ObjectKind::Places => by.id == Signer::ADMINISTRATOR,
            _ => true,
        };
        if is_believed {
            return Ok(by);
        }
        Err(Error::corrupt(format!("key {} has signed it, which may not make a {kind}", by.id)))
    }

    /// Reads the newest list of writers, unless it is known; the answer is whether it was not. `root` are the
    /// names of the root, if they have just been listed.
    ///
    /// `Corrupt` if neither the list nor its copy is whole: an older one would believe keys that were removed.
    pub(crate) fn load_writers(&self, root: Option<&[Key]>) -> Result<bool> {
        let newest = match root {
            Some(root) => root.iter().filter_map(|key| names::writers_number(key.as_str())).max(),
            None => self.newest_writers()?,
        };
        let Some(number) = newest else {
            return Err(Error::corrupt(format!(
                "{} has no list of writers below {}",
                self.storage.describe(),
                names::WRITERS
            )));
        };
        self.seen.compare(SeriesId::NONE, number)?;
        if number <= self.believed.writers().0 {
            return Ok(false);
        }
        let writers = match self.read_writers(&names::writers(number), number) {
            Err(error) if is_damage(&error) => {
                let copy = self.read_writers(&names::writers_copy(number), number);
                let copy = copy.map_err(|_| {
                    error.context("nobody can be believed without the list of writers")
                })?;
                self.context.observer.warning("the list of writers is damaged; its copy is used");
                copy
            }
            other => other?,
        };
        self.seen.met(SeriesId::NONE, number);
        let mut list = lock(&self.believed.list);
        if number > list.0 {
            *list = (number, Arc::new(writers));
        }
        Ok(true)
    }

    /// What is wrong with the newest list of writers or its copy. Where only one of the two is there, since somebody
    /// died between them, the other is made.
    pub(crate) fn writers_damage(&self) -> Result<Vec<(String, Error)>> {
        self.load_writers(None)?;
        let (number, _) = self.believed.writers();
        let (mut found, mut missing, mut whole) = (Vec::new(), None, None);
        for name in [names::writers(number), names::writers_copy(number)] {
            match self.read_writers(&name, number) {
                Ok(_) => whole = Some(name),
                Err(error) if error.kind() == ErrorKind::NotFound => missing = Some((name, error)),
                Err(error) if is_damage(&error) => found.push((name, error)),
                Err(error) => return Err(error),
            }
        }
        let Some((name, error)) = missing else { return Ok(found) };
        let Some(whole) = whole else {
            found.push((name, error));
            return Ok(found);
        };
        let mut object = Vec::new();
        self.storage.get(&key(&whole)?, ByteRange::Full, &mut object)?;
        match self.put_pieces(&name, ObjectKind::Writers, &[object.into()]) {
            Ok(_) => {}
            // Somebody else has, or a place is away and nothing can be written.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::AlreadyExists | ErrorKind::Unavailable | ErrorKind::Denied
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(found)
    }

    /// Makes the list of writers durable that this process knows, before something says that it was there: whoever
    /// wrote it may have died before it was, and the power may still fail.
    pub(crate) fn settle_writers(&self) -> Result<()> {
        let (number, _) = self.believed.writers();
        if number == 0 || self.believed.settled.swap(number, Ordering::SeqCst) == number {
            return Ok(());
        }
        let settled = match self.storage.settle(&key(&names::writers(number))?) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.storage.settle(&key(&names::writers_copy(number))?)
            }
            settled => settled,
        };
        settled.inspect_err(|_| self.believed.settled.store(0, Ordering::SeqCst))?;
        self.seen.note(SeriesId::NONE, number);
        Ok(())
    }

    /// Reads the list from storage if it was kept nearby, since a rollback may have made it another one; the answer
    /// is whether it was.
    fn read_writers_again(&self) -> Result<bool> {
        let (number, _) = self.believed.writers();
        let name = names::writers(number);
        if number == 0 || !self.storage.forget(&key(&name)?) {
            return Ok(false);
        }
        let writers = self.read_writers(&name, number)?;
        *lock(&self.believed.list) = (number, Arc::new(writers));
        Ok(true)
    }

    fn newest_writers(&self) -> Result<Option<u64>> {
        let mut newest = None;
        for item in self.names(names::WRITERS, None)? {
            newest = newest.max(names::writers_number(&item?.0));
        }
        Ok(newest)
    }

    pub(crate) fn read_writers(&self, name: &str, number: u64) -> Result<Writers> {
        let address = Address::new(ObjectKind::Writers, SeriesId::NONE, number);
        let (plain, _) = self.get_signed(name, address).context(|| format!("read {name}"))?;
        Writers::decode(&plain).context(|| format!("read {name}"))
    }

    /// Changes the list of writers; durable, and known to this process, on return.
    pub(crate) fn change_writers(
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
            // A place that was added meanwhile may not have it: then a key that was removed would count there.
            return verify_unchanged(self);
        }
        Err(Error::new(ErrorKind::Busy, "others change the keys at the same time; try again"))
    }
}
