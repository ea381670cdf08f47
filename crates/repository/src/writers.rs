//! Signatures: objects that others rely on are signed, and the list of writers says which keys may
//! sign them.
//!
//! A host can seal anything with the keys that it holds, but it cannot sign in another's name: each
//! key has its own signing key, and the list of writers, which only the administrator signs, says
//! what each may write. The administrator's public key comes with the password, not from storage.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::event::Warning;
use silt_format::{
    BlockReader, Error, ErrorKind, HEADER_BYTES, ObjectKind, Result, ResultExt, SeriesId, Signed,
    Signer, Writers, names,
};
use silt_storage::{ByteRange, Key};

use crate::believed::SignedBy;
use crate::objects::{Address, Objects, is_damage, key};
use crate::sync::lock;

impl Objects {
    /// Reads an object of a signed kind, and returns its signer.
    ///
    /// Fails with `Corrupt` if its signer is not in the list of writers.
    pub fn get_signed(&self, name: &str, address: Address) -> Result<(Vec<u8>, SignedBy)> {
        self.read(name, ByteRange::Full, &mut Vec::new(), |bytes| self.open_signed(bytes, address))
    }

    /// Opens the bytes of an object of a signed kind, and returns its signer.
    ///
    /// Fails with `Corrupt` if its signer is not in the list of writers.
    pub fn open_signed(&self, bytes: &mut [u8], address: Address) -> Result<(Vec<u8>, SignedBy)> {
        let (header, sealer) = self.check_header(bytes, address)?;
        let mut raw = Vec::new();
        BlockReader::default().read(&sealer, 0, &mut bytes[HEADER_BYTES..], &mut raw)?;
        let signed = Signed::split(&header, &raw)?;
        let length = signed.plain.len();
        let signer = self.verify_signer(address.kind, &signed)?;
        raw.truncate(length);
        Ok((raw, signer))
    }

    fn verify_signer(&self, kind: ObjectKind, signed: &Signed<'_>) -> Result<SignedBy> {
        let mut found = self.believed.signer(signed);
        // Its signer may have been added after the list was read.
        if found.is_none()
            && kind != ObjectKind::Writers
            && (self.load_writers(None)? || self.read_writers_again()?)
        {
            found = self.believed.signer(signed);
        }
        let by = found.ok_or_else(|| {
            Error::corrupt(format!(
                "it is signed by key {}, which is not in the list of writers",
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
        Err(Error::corrupt(format!("it is signed by key {}, which may not create a {kind}", by.id)))
    }

    /// Reads the newest list of writers unless it is known; returns whether it was read. `root`
    /// holds the names of the root, if just listed.
    ///
    /// Fails with `Corrupt` if neither the list nor its copy is intact: an older list would trust
    /// keys that were removed.
    pub fn load_writers(&self, root: Option<&[Key]>) -> Result<bool> {
        let known = self.seen.newest(SeriesId::NONE);
        let of_root =
            root.into_iter().flatten().filter_map(|it| names::writers_number(it.as_str()));
        let newest = match of_root.max().filter(|number| *number >= known) {
            Some(number) => Some(number),
            None => self.newest_writers()?,
        };
        let Some(number) = newest else {
            return Err(Error::corrupt(format!(
                "{} has no list of writers below {}",
                self.storage.describe(),
                names::WRITERS
            )));
        };
        self.seen.compare(SeriesId::NONE, known, number)?;
        if number <= self.believed.writers().0 {
            return Ok(false);
        }
        let writers = match self.read_writers(&names::writers(number), number) {
            Err(error) if is_damage(&error) => {
                let copy = self.read_writers(&names::writers_copy(number), number);
                let copy = copy.map_err(|_| {
                    error.context("without the list of writers no signature can be verified")
                })?;
                let message = "the list of writers is damaged; its copy is used";
                self.context.warn(Warning::new(ErrorKind::Corrupt, message));
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

    /// Returns the damage of the newest list of writers and its copy. If only one of the two
    /// exists, because a process died between writing them, creates the other.
    pub fn writers_damage(&self) -> Result<Vec<(String, Error)>> {
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
            // Another process has done so, or a place is unreachable and nothing can be written.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::AlreadyExists | ErrorKind::Unavailable | ErrorKind::Denied
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(found)
    }

    /// Makes the list of writers that this process knows durable before a head refers to it: its
    /// writer may have died before it was durable.
    pub fn settle_writers(&self) -> Result<()> {
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

    /// Reads the list from storage if it came from the cache, because a rollback may have replaced
    /// it; returns whether it was cached.
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

    /// Reads a list of writers by its name and number.
    pub fn read_writers(&self, name: &str, number: u64) -> Result<Writers> {
        let address = Address::new(ObjectKind::Writers, SeriesId::NONE, number);
        let (plain, _) = self.get_signed(name, address).context(|| format!("read {name}"))?;
        Writers::decode(&plain).context(|| format!("read {name}"))
    }
}
