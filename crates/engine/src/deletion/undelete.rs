//! Bringing deleted snapshots back.

use silt_format::{DeletedEntry, Error, ErrorKind, Id, Result};
use silt_repository::check_record::RecordState;
use silt_repository::dead::{self, DeadSlots};

use super::vectors::Vectors;
use crate::edit::Edit;
use crate::repository::Repository;

impl Repository {
    /// Brings a deleted snapshot back, if its space was not reclaimed yet.
    ///
    /// `NotFound` if the series has no such deleted snapshot.
    pub fn undelete(&self, series: &str, id: Id) -> Result<()> {
        let mut edit = Edit::begin(self, self.series_id(series), series)?;
        let place = edit.head.deleted.iter().position(|deleted| deleted.entry.id == id);
        let Some(place) = place else {
            let message =
                format!("series '{series}' has no deleted snapshot {id}, or it was reclaimed");
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        let DeletedEntry { entry, .. } = edit.head.deleted.remove(place);
        let snapshot = self.snapshot(edit.head.series, &entry)?;
        // Whatever its vector may hold is not known to be dead any more; a sweep finds out.
        let dead = dead::read(&self.objects, edit.head.series, &edit.head.dead)?;
        let mut references: Vec<u64> = known_slots(&edit, &dead)?;
        Vectors::of([&snapshot]).retain_absent(&self.objects, edit.head.series, &mut references)?;
        let still_dead = DeadSlots::of_references(&references);
        let list = dead::write(&self.objects, edit.head.series, &still_dead)?;
        edit.head.dead = list.into_iter().collect();
        edit.head.snapshots.push(entry);
        edit.head.snapshots.sort_by_key(|entry| entry.time_ns);
        RecordState::is_needed_again(&self.objects, edit.head.series)?;
        edit.commit()?;
        edit.finish()
    }
}

/// The references of a set of dead slots; whole containers are given by the slots that they have.
pub(super) fn known_slots(edit: &Edit<'_>, dead: &DeadSlots) -> Result<Vec<u64>> {
    let objects = &edit.repository.objects;
    let mut references = Vec::new();
    for (number, ranges) in dead.by_container() {
        let Some(tag) = edit.head.containers.tag(number) else { continue };
        if ranges.iter().any(|range| range.slots() > u64::from(u16::MAX)) {
            let opened =
                silt_repository::chunks::open_container(objects, edit.head.series, number, tag)?;
            references.extend(opened.directory.slot_numbers().map(|slot| {
                silt_format::Reference::new(silt_format::PRIVATE_STORE, number, slot).bits()
            }));
        } else {
            references.extend(DeadSlots::of(ranges.to_vec()).references());
        }
    }
    Ok(references)
}
