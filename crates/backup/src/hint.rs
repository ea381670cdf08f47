//! Hints about the segments that must be read.

use silt_format::{Advice, Chunking, Error, ErrorKind, Id, MapProof, Result, Volume, VolumeKind};
use silt_repository::event::Warning;
use silt_source::{ChangedMap, VolumeSource};

use super::clean::{CleanSegments, MapCheck};
use super::memo::Memo;
use super::recorded::{RecordedScan, RecordedSegments};
use super::scan::Scanner;
use super::session::BackupSession;
use super::survey::Survey;

/// A hint about the segments of a volume that must be read.
#[derive(Clone, Copy)]
pub enum Hint<'a> {
    /// Everything is read.
    None,
    /// A changed-blocks map of a hypervisor or a storage system. Samples of it are compared.
    Map(&'a ChangedMap),
    /// A survey, which is valid as long as the series has the same parent.
    Survey(&'a Survey),
}

impl BackupSession<'_> {
    pub(super) fn parent_volume(&self, name: &str) -> Option<&Volume> {
        let is_it = |volume: &&Volume| volume.name == name && volume.kind == VolumeKind::Disk;
        self.parent.as_ref()?.volumes.iter().find(is_it)
    }

    /// Returns the scanner of a disk of which all is read or what `hint` leaves.
    pub(super) fn scanner_of_disk(
        &self,
        name: &str,
        chunking: Chunking,
        hint: Hint<'_>,
    ) -> Result<Scanner> {
        let mut scanner = self.scanner(name, chunking)?;
        if matches!(hint, Hint::None) && scanner.chunker.cuts_blocks() {
            let series = (self.head().domain, self.head().series);
            scanner.memo = Memo::open(self.repository, series, name, &self.context);
        }
        Ok(scanner)
    }

    /// Returns the segments that need not be read; `None` if all must be read.
    pub(super) fn clean_segments<'m>(
        &mut self,
        hint: Hint<'m>,
        source: &dyn VolumeSource,
        name: &str,
        scanner: &Scanner,
    ) -> Result<Option<(CleanSegments<'m>, Option<MapProof>)>> {
        match hint {
            Hint::None => Ok(None),
            Hint::Map(map) => self.check_map(map, source, name, scanner),
            Hint::Survey(survey) => {
                Ok(self.check_survey(survey, name, scanner)?.map(|clean| (clean, None)))
            }
        }
    }

    fn check_map<'m>(
        &mut self,
        map: &'m ChangedMap,
        source: &dyn VolumeSource,
        name: &str,
        scanner: &Scanner,
    ) -> Result<Option<(CleanSegments<'m>, Option<MapProof>)>> {
        let unusable = |why: &str| {
            let message = format!("volume '{name}': the changed-blocks map is not used: {why}");
            self.context.warn(Warning::new(ErrorKind::Invalid, message));
            Ok(None)
        };
        let (Some(_), Some(volume)) = (&scanner.parent, self.parent_volume(name)) else {
            return unusable("there is no snapshot of this volume to compare with");
        };
        if source.info().size != Some(volume.bytes) {
            return unusable("the volume's size has changed");
        }
        if !self.avoided.is_empty() {
            return unusable(
                "some stored chunks are damaged; the whole volume is read to store them again",
            );
        }
        let parent_ns = self.parent().map_or(0, |parent| parent.time_ns);
        let (volume, context, now_ns) = ((volume, parent_ns), &self.context, self.started_ns);
        match CleanSegments::check(map, source, volume, scanner, context, now_ns)? {
            MapCheck::Trusted(clean, proof) => Ok(Some((clean, Some(proof)))),
            MapCheck::Unusable(why) => unusable(&why),
            MapCheck::Wrong(bytes, since_ns) => {
                let mut message = format!(
                    "volume '{name}': the changed-blocks map is wrong: bytes {}..{} have changed, \
                     but the map says that they have not; the whole volume is read",
                    bytes.start, bytes.end
                );
                if since_ns.is_some() {
                    message.push_str("; earlier snapshots made with such maps may hold old data");
                }
                let mut warning = Warning::new(ErrorKind::Invalid, message);
                if since_ns.is_some() {
                    warning = warning.with_advice(Advice::ShowSnapshot);
                }
                self.context.warn(warning);
                self.map_distrusted = true;
                Ok(None)
            }
        }
    }

    /// Returns the records of a survey, if it is still valid.
    pub(super) fn recorded<'m>(&self, hint: Hint<'m>) -> Option<RecordedSegments<'m>> {
        let Hint::Survey(survey) = hint else { return None };
        let recorded = survey.recorded.as_ref().filter(|_| self.still_holds(survey.parent));
        recorded.map(RecordedScan::segments)
    }

    /// Returns whether what a survey has found holds that compared with this snapshot.
    pub(super) fn still_holds(&self, compared_with: Option<Id>) -> bool {
        let parent = self.parent().map(|parent| parent.id);
        parent == compared_with && self.avoided.is_empty()
    }

    /// Checks a survey. It is valid only for the parent that it was compared with, and not while
    /// stored chunks are known to be damaged.
    fn check_survey<'m>(
        &self,
        survey: &'m Survey,
        name: &str,
        scanner: &Scanner,
    ) -> Result<Option<CleanSegments<'m>>> {
        let Some(changed) = &survey.changed else { return Ok(None) };
        if self.still_holds(survey.parent)
            && let (Some(parent), Some(volume)) = (&scanner.parent, self.parent_volume(name))
            && let Some(clean) = CleanSegments::scanned(changed, volume.bytes, parent)?
        {
            return Ok(Some(clean));
        }
        if survey.is_spooled {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "volume '{name}' was scanned before another backup of its series, or before a \
                     check found damage; back it up again"
                ),
            ));
        }
        Ok(None)
    }
}
