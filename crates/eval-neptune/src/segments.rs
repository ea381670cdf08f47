//! Reading a disk segment by segment.

use silt_chunking::is_zero;
use silt_format::SEGMENT_BYTES;
use silt_source::{ExtentKind, VolumeSource};

use crate::Result;

/// Passes on the segments that are not zeros, with their numbers.
pub fn for_each_segment(
    source: &dyn VolumeSource,
    into: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let bytes = source.info().size.unwrap_or(0);
    let segment_bytes = u64::try_from(SEGMENT_BYTES)?;
    let mut buffer = vec![0; SEGMENT_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let extent = source.extent_at(offset)?;
        let end = (extent.offset + extent.length).min(bytes);
        let place = offset / segment_bytes;
        if extent.kind != ExtentKind::Data && end >= (place + 1) * segment_bytes {
            offset = end / segment_bytes * segment_bytes;
            continue;
        }
        let start = place * segment_bytes;
        let length = usize::try_from((bytes - start).min(segment_bytes))?;
        source.read_at(start, &mut buffer[..length])?;
        if !is_zero(&buffer[..length]) {
            into(place, &buffer[..length])?;
        }
        offset = start + segment_bytes;
    }
    Ok(())
}
