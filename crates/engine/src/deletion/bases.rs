//! The slots that deltas are applied to. They stay, whether a snapshot refers to them or not.

use std::collections::HashMap;

use silt_format::{DeadRange, DeletedEntry, Result, SnapshotEntry};
use silt_repository::chunks::open_container;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::edit::read_snapshots;
use silt_repository::event::Warning;
use silt_repository::objects::is_damage;

use super::undelete::known_slots;
use super::vectors::Vectors;
use crate::edit::Edit;

impl Edit<'_> {
    /// The slots that the head lists as bases of deltas.
    pub(crate) fn bases(&self) -> Result<DeadSlots> {
        dead::read(&self.repository.objects, self.head.series, &self.head.delta_bases)
    }

    /// Of dead slots, those that none of these deleted snapshots needs.
    pub(crate) fn unneeded(&self, dead: DeadSlots, kept: &[&DeletedEntry]) -> Result<DeadSlots> {
        if kept.is_empty() {
            return Ok(dead);
        }
        let (objects, series) = (&self.repository.objects, self.head.series);
        let kept: Vec<SnapshotEntry> = kept.iter().map(|deleted| deleted.entry.clone()).collect();
        let kept = read_snapshots(self.repository, series, &kept)?;
        let mut references = known_slots(self, &dead)?;
        Vectors::of(&kept).retain_absent(objects, series, &mut references)?;
        Ok(DeadSlots::of_references(&references))
    }

    /// The bases of all deltas that a living snapshot refers to, or a deleted one that can be
    /// brought back; `dead` are the slots that no living snapshot refers to.
    ///
    /// If anything can't be read that would say what is needed, more stays.
    pub(crate) fn needed_bases(&mut self, dead: &DeadSlots) -> Result<DeadSlots> {
        if self.head.delta_bases.is_empty() {
            return Ok(DeadSlots::default());
        }
        let deleted: Vec<&DeletedEntry> = self.head.deleted.iter().collect();
        let unneeded = match self.unneeded(dead.clone(), &deleted) {
            Err(error) if is_damage(&error) => {
                self.repository.warn(Warning::after(&error, "bases of dead deltas stay"));
                DeadSlots::default()
            }
            other => other?,
        };
        let unneeded: HashMap<u32, &[DeadRange]> = unneeded.by_container().collect();
        let (mut bases, mut is_blind) = (Vec::new(), false);
        let containers: Vec<_> = self.head.containers.iter().collect();
        for (number, tag) in containers.into_iter().filter(|(_, tag)| tag.is_rewritten()) {
            self.keep()?;
            let opened = open_container(&self.repository.objects, self.head.series, number, tag);
            let container = match opened {
                Err(error) if is_damage(&error) => {
                    self.repository.warn(Warning::after(&error, "all bases of deltas stay"));
                    is_blind = true;
                    continue;
                }
                other => other?,
            };
            let gone = unneeded.get(&number).copied().unwrap_or_default();
            let deltas = container.directory.deltas.iter();
            let needed = deltas.filter(|delta| !dead::holds(gone, delta.slot));
            bases.extend(needed.map(|delta| delta.base.bits()));
        }
        bases.sort_unstable();
        bases.dedup();
        let bases = DeadSlots::of_references(&bases);
        Ok(if is_blind { bases.union(self.bases()?) } else { bases })
    }

    /// Lists these slots as bases in the head that is committed next.
    pub(crate) fn set_bases(&mut self, bases: &DeadSlots) -> Result<()> {
        let list = dead::write(&self.repository.objects, self.head.series, bases)?;
        self.head.delta_bases = list.into_iter().collect();
        Ok(())
    }
}
