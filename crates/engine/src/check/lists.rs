//! Checks the objects that a head names besides snapshots and containers: dead lists, and the runs
//! of a shared store's index.

use std::sync::Arc;

use silt_format::{Head, Result, names};
use silt_repository::dead;
use silt_repository::objects::Objects;
use silt_runs::{RunReader, Stream};

use super::damage::Findings;
use super::{CheckOptions, DataCheck};

/// Reads all dead lists, and the directories of all runs; their records, too, if all data is
/// checked.
pub(crate) fn verify(
    objects: &Arc<Objects>,
    head: &Head,
    options: &CheckOptions,
    findings: &mut Findings,
) -> Result<()> {
    for list in head.dead.iter().chain(&head.condemned).chain(&head.delta_bases) {
        let read = dead::read(objects, head.series, std::slice::from_ref(list)).map(drop);
        findings.note_if_damaged(read, &names::dead_list(head.series, list.id, 0))?;
    }
    for run in &head.runs {
        objects.context.check_interrupted()?;
        let reader = || RunReader::new(objects, head.series, *run);
        let read = reader().open_all().and_then(|()| match options.data {
            DataCheck::All => read_all(Stream::new(reader())),
            _ => Ok(()),
        });
        findings.note_if_damaged(read, &names::run(head.series, run.id, 0))?;
    }
    Ok(())
}

fn read_all(mut records: Stream<'_>) -> Result<()> {
    while records.next()?.is_some() {}
    Ok(())
}
