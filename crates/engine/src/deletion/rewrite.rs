//! Rewriting a container under the same references, without its dead slots.

use silt_chunking::Fingerprinter;
use silt_format::number::{to_u16, to_u32, to_u64};
use silt_format::{
    BlockWriter, DeadRange, Directory, Error, Frame, HEADER_BYTES, ObjectKind, Result, SeriesId,
    names,
};

use super::dead::holds;
use crate::chunks::{Container, read_frame};
use crate::objects::{Address, Objects, Scratch, close_object};

/// What every rewriting of one series' containers works with.
pub(crate) struct Rewriter<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) series: SeriesId,
    pub(crate) fingerprinter: Fingerprinter,
    pub(crate) frame_bytes: usize,
    pub(crate) zstd_level: i32,
}

/// A container that is being written.
struct Draft {
    directory: Directory,
    body: Vec<u8>,
    raw: Vec<u8>,
}

impl Rewriter<'_> {
    /// Writes container `number` anew as `revision`, durable on return, without the slots in `dead`.
    /// The answer is its bytes. Fails as `Corrupt` if a living chunk is not what it should be.
    pub(crate) fn rewrite(
        &self,
        old: &Container,
        number: u32,
        revision: u32,
        dead: &[DeadRange],
    ) -> Result<u64> {
        let kind = ObjectKind::Container;
        let address = Address { kind, series: self.series, number: u64::from(number), revision };
        let header = self.objects.new_header(address);
        let sealer = self.objects.sealer(&header);
        let mut writer = BlockWriter::new(self.zstd_level)?;
        let mut draft = Draft {
            directory: Directory::default(),
            body: header.encode().to_vec(),
            raw: Vec::new(),
        };
        let mut end_frame = |draft: &mut Draft| {
            let frame = to_u64(draft.directory.frames.len());
            let offset = to_u32(draft.body.len());
            let sealed = writer.append(&sealer, frame, &draft.raw, &mut draft.body);
            let raw_bytes = to_u32(draft.raw.len());
            draft.directory.frames.push(Frame { offset, sealed_bytes: to_u32(sealed), raw_bytes });
            draft.raw.clear();
        };
        let (mut scratch, mut frame, mut frame_number) = (Scratch::new()?, Vec::new(), None);
        for (slot, place) in old.directory.slots() {
            if holds(dead, slot) {
                continue;
            }
            if frame_number != Some(place.frame) {
                read_frame(self.objects, old, place.frame, &mut scratch, &mut frame)?;
                frame_number = Some(place.frame);
            }
            let start = place.offset as usize;
            let chunk = &frame[start..start + place.length as usize];
            let fingerprint = old.directory.fingerprints[place.index as usize];
            if self.fingerprinter.fingerprint(chunk) != fingerprint {
                let name = &old.object.name;
                return Err(Error::corrupt(format!("slot {slot} of container {name} is damaged")));
            }
            if !draft.raw.is_empty() && draft.raw.len() + chunk.len() > self.frame_bytes {
                end_frame(&mut draft);
            }
            let number = to_u16(draft.directory.frames.len());
            draft.directory.push(slot, number, place.length, fingerprint);
            draft.raw.extend_from_slice(chunk);
        }
        if !draft.raw.is_empty() {
            end_frame(&mut draft);
        }
        assert!(draft.body.len() > HEADER_BYTES, "a container without living chunks is dropped");
        let mut writer = BlockWriter::new(self.zstd_level)?;
        let end = close_object(&mut writer, &sealer, draft.body.len(), &draft.directory.encode());
        let name = names::container(self.series, number, revision);
        self.objects.put_pieces(&name, kind, &[&draft.body, &end])
    }
}
