//! Joins requests with an index in one pass over both.

use silt_format::{Fingerprint, Record, Result};

use crate::merge::Stream;

/// Most records of one fingerprint that are held at once; what is above is passed over.
const EQUAL_RECORDS_MAX: usize = 1 << 16;

/// Receives a fingerprint, its requests, and the index's records of it.
pub type Answer<'a> = dyn FnMut(&Fingerprint, &[Record], &[Record]) -> Result<()> + 'a;

/// Calls `each` with every requested fingerprint, its requests, and the index's records of it.
///
/// Holds one batch of each stream and the records of one fingerprint in memory.
pub fn join(
    requests: &mut Stream<'_>,
    index: &mut Stream<'_>,
    each: &mut Answer<'_>,
) -> Result<()> {
    let (mut asked, mut known) = (Vec::new(), Vec::new());
    while let Some(first) = requests.next()? {
        asked.clear();
        asked.push(first);
        take_equal(requests, &first.fingerprint, &mut asked)?;
        index.skip_below(first.prefix())?;
        while index.peek()?.is_some_and(|record| record.fingerprint < first.fingerprint) {
            index.next()?;
        }
        known.clear();
        take_equal(index, &first.fingerprint, &mut known)?;
        each(&first.fingerprint, &asked, &known)?;
    }
    Ok(())
}

/// Moves the records of one fingerprint from a stream's beginning to `into`.
fn take_equal(
    stream: &mut Stream<'_>,
    fingerprint: &Fingerprint,
    into: &mut Vec<Record>,
) -> Result<()> {
    while stream.peek()?.is_some_and(|record| record.fingerprint == *fingerprint) {
        let record = stream.next()?;
        if into.len() < EQUAL_RECORDS_MAX {
            into.extend(record);
        }
    }
    Ok(())
}
