//! Leases: one backup of a series at a time.
//!
//! A lease saves work but does not protect data: of two backups of one series, the creation of the
//! next head alone decides which one commits.

use crate::event::Warning;
use std::sync::{Arc, Mutex};

use silt_format::names::Numbered;
use silt_format::{Advice, Error, ErrorKind, Lease, ObjectKind, Result, ResultExt, SeriesId};

use crate::objects::{Address, Objects, is_damage, key};
use crate::sync::lock;

/// How long a lease lasts unless it is renewed.
const LEASE_NS: i64 = 300 * 1_000_000_000;
/// How long before its end a lease is renewed.
const RENEW_NS: i64 = 200 * 1_000_000_000;
/// Tolerated difference between clocks.
const SKEW_NS: i64 = 60 * 1_000_000_000;
/// Interval between checks whether a series is free.
const LOOK_AGAIN_NS: u64 = 2 * 1_000_000_000;

/// A held lease. If it is dropped without [`release`](Self::release), it is released if storage
/// allows, and otherwise expires.
pub struct HeldLease {
    objects: Arc<Objects>,
    series: SeriesId,
    /// The number that was tried last, and the one that is held.
    number: u64,
    held: u64,
    lease: Lease,
    released: bool,
}

impl HeldLease {
    /// Takes the lease of a series, for which somebody has [waited](wait_while_held); `newest` is
    /// the name of the lease that was there last. Fails with `Busy` if another process was faster.
    pub fn acquire(
        objects: &Arc<Objects>,
        series: SeriesId,
        name: &str,
        newest: Option<String>,
        session: [u8; 16],
    ) -> Result<Self> {
        let number = newest.as_deref().and_then(Numbered::number).unwrap_or(0);
        let process = objects.context.env.process();
        let mut held = Self {
            objects: Arc::clone(objects),
            series,
            number,
            held: number,
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
        let expires_ns = self.objects.context.env.now_ns().saturating_add(LEASE_NS);
        let next = Lease { expires_ns, ..self.lease.clone() };
        let name = Numbered::Lease.name(self.series, self.number);
        let address = Address::new(ObjectKind::Lease, self.series, self.number);
        match self.objects.put_transient(&name, address, &next.encode()) {
            Ok(()) => {
                (self.lease, self.held, self.released) = (next, self.number, false);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // The lease of this number is the other one's.
                self.released = true;
                Err(taken_over())
            }
            Err(error) => Err(error),
        }
    }

    /// Renews the lease when its end comes near; fails with `Busy` if somebody took it over.
    pub fn keep(&mut self) -> Result<()> {
        if self.released {
            return Err(taken_over());
        }
        if self.lease.expires_ns - self.objects.context.env.now_ns() > RENEW_NS {
            return Ok(());
        }
        let old = Numbered::Lease.name(self.series, self.held);
        self.advance().context(|| "renew the lease")?;
        delete_if_allowed(&self.objects, old)
    }

    /// Releases the lease.
    pub fn release(mut self) -> Result<()> {
        self.give_back()
    }

    /// The same lease for several threads.
    pub fn shared(self) -> SharedLease {
        SharedLease(Arc::new(Mutex::new(self)))
    }

    fn give_back(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        delete_if_allowed(&self.objects, Numbered::Lease.name(self.series, self.held))
    }
}

fn taken_over() -> Error {
    let message = "another backup of this series has just begun; wait for it, or try again";
    Error::new(ErrorKind::Busy, message)
}

/// A held lease that several threads of an operation keep.
#[derive(Clone)]
pub struct SharedLease(Arc<Mutex<HeldLease>>);

impl SharedLease {
    /// See [`HeldLease::keep`].
    pub fn keep(&self) -> Result<()> {
        lock(&self.0).keep()
    }

    /// Releases the lease, for all.
    pub fn release(&self) -> Result<()> {
        lock(&self.0).give_back()
    }
}

/// Deletes an unused lease; one that cannot be deleted expires.
fn delete_if_allowed(objects: &Objects, lease: String) -> Result<()> {
    match objects.delete(&[lease]) {
        Err(error) if error.kind() == ErrorKind::Denied => {
            objects.context.warn(Warning::after(&error, "the lease will expire"));
            Ok(())
        }
        other => other,
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            let error = error.context("the lease could not be removed and will expire");
            self.objects.context.warn(&error);
        }
    }
}

/// Waits while another process holds the lease of a series, `newest`, at most for the environment's
/// `patience_ns`; then fails with `Busy`. Returns whether it has waited: data that was read about
/// the series before may be outdated.
///
/// Operations that take so little time that a lease would cost more than it could save only call
/// this.
pub fn wait_while_held(
    objects: &Objects,
    series: SeriesId,
    mut newest: Option<String>,
    name: &str,
) -> Result<bool> {
    let env = &objects.context.env;
    let (mut left_ns, mut has_waited) = (env.patience_ns(), false);
    while let Some(lease) = &newest {
        match refuse_if_held(objects, series, lease, name) {
            Err(error) if error.kind() == ErrorKind::Busy && left_ns > 0 => {
                if !has_waited {
                    objects.context.warn(Warning::after(&error, "waiting"));
                }
                objects.context.check_interrupted()?;
                let pause_ns = left_ns.min(LOOK_AGAIN_NS);
                env.sleep_ns(pause_ns);
                left_ns -= pause_ns;
                has_waited = true;
                newest = objects.newest_name(Numbered::Lease, series)?;
            }
            other => return other.map(|()| has_waited),
        }
    }
    Ok(has_waited)
}

/// For how much longer a lease counts. A clock that is far ahead is ignored: then the time counts
/// at which storage received the lease.
fn left_ns(objects: &Objects, name: &str, held: &Lease) -> Result<i64> {
    let now_ns = objects.context.env.now_ns();
    let left_ns = held.expires_ns.saturating_sub(now_ns);
    if left_ns <= LEASE_NS + SKEW_NS {
        return Ok(left_ns);
    }
    let modified_ms = objects.storage.head(&key(name)?)?.modified_ms;
    let written_ns = modified_ms.and_then(|ms| i64::try_from(ms).ok()?.checked_mul(1_000_000));
    let left_ns = written_ns
        .map_or(0, |written_ns| written_ns.saturating_add(LEASE_NS).saturating_sub(now_ns));
    // If storage's clock is ahead, too, nothing says when it was; a lease only saves work.
    Ok(if left_ns > LEASE_NS + SKEW_NS { 0 } else { left_ns })
}

/// Whether a session holds the lease of a series, so that its backup may still run.
pub fn is_held_by(objects: &Objects, series: SeriesId, session: [u8; 16]) -> Result<bool> {
    let Some(newest) = objects.newest_name(Numbered::Lease, series)? else { return Ok(false) };
    let number = Numbered::number(&newest).unwrap_or(0);
    let address = Address::new(ObjectKind::Lease, series, number);
    match objects.get(&newest, address).and_then(|plain| Lease::decode(&plain)) {
        Ok(held) if held.session != session => Ok(false),
        Ok(held) => Ok(objects.context.env.may_be_running(&held)
            && match left_ns(objects, &newest, &held) {
                Err(error) if error.kind() == ErrorKind::NotFound => false,
                left_ns => left_ns? > 0,
            }),
        Err(error) if is_damage(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Fails with `Busy` while another process holds the lease of a series, without waiting for it.
pub fn require_free(objects: &Objects, series: SeriesId, name: &str) -> Result<()> {
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
    if !objects.context.env.may_be_running(&held) {
        return Ok(());
    }
    let left_ns = match left_ns(objects, newest, &held) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if left_ns <= 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "series '{name}' is being backed up or changed by process {} on {} (its lease expires \
             in {} s unless renewed)",
            held.process,
            held.host,
            left_ns / 1_000_000_000
        ),
    )
    .with_advice(Advice::WaitForSeries))
}
