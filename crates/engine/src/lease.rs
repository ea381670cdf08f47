//! Leases: one backup of a series at a time.
//!
//! A lease saves work, it does not guard data: what two backups of one series commit is decided by
//! the creation of the next head alone.

use std::sync::Arc;

use silt_format::names::Numbered;
use silt_format::{Error, ErrorKind, Lease, ObjectKind, Result, ResultExt, SeriesId};

use crate::objects::{Address, Objects, is_damage};

/// How long a lease lasts unless it is renewed.
const LEASE_NS: i64 = 300 * 1_000_000_000;
/// How long before its end a lease is renewed.
const RENEW_NS: i64 = 200 * 1_000_000_000;

/// A held lease; dropped without [`release`](Self::release) it is given back if storage allows, and
/// else left to expire.
pub(crate) struct HeldLease {
    objects: Arc<Objects>,
    series: SeriesId,
    number: u64,
    lease: Lease,
    released: bool,
}

impl HeldLease {
    /// Takes the lease of a series, or fails as `Busy` while another process holds it; `newest` is the name
    /// of the lease that was there last.
    pub(crate) fn acquire(
        objects: &Arc<Objects>,
        series: SeriesId,
        name: &str,
        newest: Option<String>,
        session: [u8; 16],
    ) -> Result<Self> {
        if let Some(newest) = &newest {
            refuse_if_held(objects, series, newest, name)?;
        }
        let number = newest.as_deref().and_then(Numbered::number).unwrap_or(0);
        let process = objects.context.env.process();
        let mut held = Self {
            objects: Arc::clone(objects),
            series,
            number,
            lease: Lease {
                session,
                host: process.host,
                boot: process.boot,
                process: process.id,
                process_start: process.start,
                expires_ns: 0,
            },
            released: true,
        };
        held.advance().context(|| format!("take the lease of series '{name}'"))?;
        if let Some(newest) = newest {
            delete_if_allowed(objects, newest)?;
        }
        Ok(held)
    }

    /// Writes the lease's next object.
    fn advance(&mut self) -> Result<()> {
        self.number += 1;
        self.lease.expires_ns = self.objects.context.env.now_ns().saturating_add(LEASE_NS);
        let name = Numbered::Lease.name(self.series, self.number);
        let address = Address::new(ObjectKind::Lease, self.series, self.number);
        match self.objects.put_transient(&name, address, &self.lease.encode()) {
            Ok(()) => {
                self.released = false;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::new(
                ErrorKind::Busy,
                "another backup of this series has just begun; wait for it or try again",
            )),
            Err(error) => Err(error),
        }
    }

    /// Renews the lease when its end comes near; fails as `Busy` if somebody took it over.
    pub(crate) fn keep(&mut self) -> Result<()> {
        if self.lease.expires_ns - self.objects.context.env.now_ns() > RENEW_NS {
            return Ok(());
        }
        let old = Numbered::Lease.name(self.series, self.number);
        self.advance().context(|| "renew the lease")?;
        delete_if_allowed(&self.objects, old)
    }

    /// Gives the lease back.
    pub(crate) fn release(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        delete_if_allowed(&self.objects, Numbered::Lease.name(self.series, self.number))
    }
}

/// Deletes a lease that nobody needs; one that may not be deleted is left to expire.
fn delete_if_allowed(objects: &Objects, lease: String) -> Result<()> {
    match objects.delete(&[lease]) {
        Err(error) if error.kind() == ErrorKind::Denied => {
            let message = format!("{error}; the lease is left to expire");
            objects.context.observer.warning(&message);
            Ok(())
        }
        other => other,
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            let message =
                format!("the lease could not be given back and is left to expire: {error}");
            self.objects.context.observer.warning(&message);
        }
    }
}

/// Fails as `Busy` while another process holds the lease of a series; for what takes so little time
/// that a lease of its own would cost more than the work that it might save.
pub(crate) fn refuse_while_held(objects: &Objects, series: SeriesId, name: &str) -> Result<()> {
    let newest = objects.newest_name(Numbered::Lease, series)?;
    newest.map_or(Ok(()), |newest| refuse_if_held(objects, series, &newest, name))
}

fn refuse_if_held(objects: &Objects, series: SeriesId, newest: &str, name: &str) -> Result<()> {
    let number = Numbered::number(newest).unwrap_or(0);
    let address = Address::new(ObjectKind::Lease, series, number);
    let held = match objects.get(newest, address).and_then(|plain| Lease::decode(&plain)) {
        Ok(held) => held,
        // Released between the listing and the reading, or damaged: not held.
        Err(error) if is_damage(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    let env = &objects.context.env;
    let left_ns = held.expires_ns.saturating_sub(env.now_ns());
    if left_ns <= 0 || !env.may_be_running(&held) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "series '{name}' is being backed up by process {} on {}; wait for it \
             (its lease ends in {} s unless it is renewed)",
            held.process,
            held.host,
            left_ns / 1_000_000_000
        ),
    ))
}
