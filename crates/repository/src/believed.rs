//! The keys that a process trusts, and the signers of objects.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use silt_format::{
    Advice, Error, ErrorKind, Id, Result, Role, SeriesId, Signed, Signer, Writer, WriterState,
    Writers,
};

use crate::sync::lock;

/// The keys that a process trusts.
pub struct Believed {
    administrator: [u8; 32],
    append_only: bool,
    /// The newest list of writers that was read, and its number.
    pub(crate) list: Mutex<(u64, Arc<Writers>)>,
    /// The number of the list that is known to be durable.
    pub(crate) settled: AtomicU64,
}

/// The signer of an object.
#[derive(Clone, Debug)]
pub struct SignedBy {
    /// The key, or [`Signer::ADMINISTRATOR`].
    pub id: Id,
    /// Its entry in the list of writers; the administrator is not in it.
    writer: Option<Writer>,
    /// Whether it may remove something.
    pub may_remove: bool,
}

impl SignedBy {
    /// Fails with `Corrupt` unless the key may write the series called `name`.
    pub fn may_write(&self, name: &str) -> Result<()> {
        match &self.writer {
            Some(writer) if !writer.covers(name) => Err(Error::corrupt(format!(
                "it is signed by key {}, which may write {} but not series '{name}'",
                self.id,
                writer.series.join(", ")
            ))),
            _ => Ok(()),
        }
    }

    /// Whether the key may write no series of this id, whatever that is called; `id_of` is that of
    /// a name.
    pub fn is_stranger(&self, series: SeriesId, id_of: impl Fn(&str) -> SeriesId) -> bool {
        self.writer.as_ref().is_some_and(|writer| {
            let mut patterns = writer.series.iter();
            patterns.all(|pattern| !pattern.ends_with('*') && id_of(pattern) != series)
        })
    }

    /// Fails with `Corrupt` unless a head of this generation came before the key was removed, if it
    /// was.
    pub fn reaches(&self, series: SeriesId, generation: u64) -> Result<()> {
        match &self.writer {
            Some(writer) if !writer.reaches(series, generation) => {
                let message = format!("it is signed by key {}, which was removed before", self.id);
                Err(Error::corrupt(message))
            }
            _ => Ok(()),
        }
    }

    /// Whether the key reads data and was not removed: its verifications count.
    pub fn is_full(&self) -> bool {
        self.writer
            .as_ref()
            .is_none_or(|writer| writer.role == Role::Full && writer.state == WriterState::Active)
    }
}

impl Believed {
    /// The keys trusted before a list of writers is read: only the administrator's.
    pub fn new(administrator: [u8; 32], append_only: bool) -> Self {
        let (list, settled) = (Mutex::default(), AtomicU64::default());
        Self { administrator, append_only, list, settled }
    }

    /// The signer of `signed`, by the list as last read; `None` if it is not in the list.
    pub(crate) fn signer(&self, signed: &Signed<'_>) -> Option<SignedBy> {
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

    /// Fails with `Denied` if the key called `id` is being removed or was.
    pub fn verify_active(&self, id: Id) -> Result<()> {
        let (_, writers) = self.writers();
        match writers.get(id).map(|writer| &writer.state) {
            _ if id == Signer::ADMINISTRATOR => Ok(()),
            Some(WriterState::Active) => Ok(()),
            Some(WriterState::Closing) => Err(Error::new(
                ErrorKind::Denied,
                format!("this process's key {id} is being removed"),
            )
            .with_advice(Advice::FinishKeyRemoval { key: id })),
            _ => Err(Error::new(ErrorKind::Denied, format!("this process's key {id} was removed"))),
        }
    }

    /// Whether the key `id` was removed. Its object may have reappeared, copied by a process that
    /// slept.
    pub fn is_removed(&self, id: Id) -> bool {
        let (_, writers) = self.writers();
        writers.get(id).is_some_and(|writer| matches!(writer.state, WriterState::Removed(_)))
    }

    /// Fails with `Denied` if the key called `id` may not write the series called `name`.
    pub fn require_may_write(&self, id: Id, name: &str) -> Result<()> {
        let (_, writers) = self.writers();
        match writers.get(id) {
            Some(writer) if !writer.covers(name) => Err(Error::new(
                ErrorKind::Denied,
                format!("this key may write {}, but not series '{name}'", writer.series.join(", ")),
            )
            .with_advice(Advice::AddKeyForSeries)),
            _ => Ok(()),
        }
    }

    /// The newest list that was read.
    pub fn writers(&self) -> (u64, Arc<Writers>) {
        let list = lock(&self.list);
        (list.0, Arc::clone(&list.1))
    }
}
