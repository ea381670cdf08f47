//! Packs new chunks into frames, and frames into containers.

use std::collections::VecDeque;
use std::sync::Arc;

use silt_format::number::{to_u16, to_u64};
use silt_format::{
    ApplicationRun, BlockWriter, CONTAINER_SLOTS_MAX, Config, Error, FRAMES_MAX, Fingerprint,
    FramePacker, HEADER_BYTES, Header, ObjectKind, ObjectTag, RawFrame, Reference, Result, Sealer,
    SeriesId, large_frame_bytes, names,
};
use silt_repository::directories::close_object;
use silt_repository::objects::{Address, Objects};
use silt_repository::upload::Uploads;
use silt_repository::upload_queue::Upload;

use silt_routing::Application;
use silt_storage::Pieces;

use super::packed_frames::PackedFrames;
use super::pipeline::{FRAMES_IN_FLIGHT, FrameJob, LARGE_FRAMES_IN_FLIGHT, Pipeline};

/// Writes the containers of one session, or of one addition to the shared store.
pub struct ContainerWriter {
    objects: Arc<Objects>,
    series: SeriesId,
    /// The number of the store in references.
    store: u16,
    container_bytes: usize,
    /// The size of frames at most: the configured one, that for large files, and the one that
    /// applies to the next chunks.
    small_frame_bytes: usize,
    large_frame_bytes: usize,
    frame_bytes: usize,
    /// The size of the current frame, if it is one that is compressed already.
    packed_bytes: Option<usize>,
    /// Frames that are sealed at once at most.
    frames_in_flight: usize,
    writer: BlockWriter,
    tag: ObjectTag,
    next_number: u32,
    open: Option<OpenContainer>,
    /// Bytes of sealed frames and directories so far.
    pub stored_bytes: u64,
    uploads: Uploads,
    packed: PackedFrames,
    /// Of the next chunks.
    application: u16,
}

struct OpenContainer {
    number: u32,
    header: Header,
    sealer: Arc<Sealer>,
    packer: FramePacker,
    /// The frames that are still being sealed, oldest first.
    in_flight: VecDeque<InFlight>,
    /// Their sizes before compression together, in bytes.
    in_flight_bytes: usize,
    /// Header and sealed frames.
    body: Pieces,
}

/// A frame that is being sealed.
struct InFlight {
    ticket: u64,
    number: u16,
    raw_bytes: usize,
}

/// The numbers and tags of durable containers: proof for a commit.
pub struct DurableContainers(pub Vec<(u32, ObjectTag)>);

impl ContainerWriter {
    /// Returns a writer of containers from number `next` on, with the session's tag.
    pub fn new(
        objects: &Arc<Objects>,
        (series, store): (SeriesId, u16),
        config: &Config,
        (next_number, tag): (u32, ObjectTag),
        uploads: Uploads,
    ) -> Result<Self> {
        Ok(Self {
            objects: Arc::clone(objects),
            series,
            store,
            container_bytes: config.container_bytes as usize,
            small_frame_bytes: config.frame_bytes as usize,
            large_frame_bytes: large_frame_bytes(config),
            frame_bytes: config.frame_bytes as usize,
            packed_bytes: None,
            frames_in_flight: FRAMES_IN_FLIGHT,
            writer: BlockWriter::new(config.zstd_level)?,
            tag,
            next_number,
            open: None,
            stored_bytes: 0,
            uploads,
            packed: PackedFrames::default(),
            application: ApplicationRun::UNKNOWN,
        })
    }

    /// Seals at most so many frames at once, to save memory where other writers are at work too.
    pub(crate) fn limit_in_flight(&mut self, frames: usize) {
        self.frames_in_flight = frames.clamp(1, FRAMES_IN_FLIGHT);
    }

    /// Returns the number of the next container.
    pub fn next_number(&self) -> u32 {
        self.next_number
    }

    /// Starts numbering after containers that an interrupted backup has left.
    pub fn start_at(&mut self, number: u32) {
        self.next_number = self.next_number.max(number);
    }

    /// Frames that are compressed already.
    pub fn packed_frames(&mut self) -> &mut PackedFrames {
        &mut self.packed
    }

    /// Puts the next chunks into frames for large files, or into those of the configured size.
    pub(crate) fn set_large_frames(&mut self, are_large: bool) {
        self.frame_bytes = if are_large { self.large_frame_bytes } else { self.small_frame_bytes };
    }

    /// Notes in the directory of which application the next chunks are.
    pub(crate) fn set_application(&mut self, application: Application) {
        self.application = application.0;
    }

    /// Ends the frame, and the container, that a chunk of so many bytes does not fit into. Whether
    /// the chunk would begin a container.
    pub(crate) fn make_room(
        &mut self,
        pipeline: &Pipeline<'_>,
        chunk_bytes: usize,
        fingerprint: &Fingerprint,
    ) -> Result<bool> {
        if let Some(bytes) = self.packed.begins(fingerprint) {
            self.end_frame(pipeline)?;
            self.packed_bytes = Some(bytes.min(self.large_frame_bytes));
        }
        let frame_bytes = self.packed_bytes.unwrap_or(self.frame_bytes);
        let open = self.open.as_ref();
        if open.is_some_and(|open| open.packer.must_end_before(chunk_bytes, frame_bytes)) {
            self.end_frame(pipeline)?;
        }
        if self.open.as_ref().is_some_and(|open| open.packer.slots() == CONTAINER_SLOTS_MAX) {
            self.close(pipeline)?;
        }
        Ok(self.open.is_none())
    }

    /// Bytes of the container that is being filled: its header and sealed frames.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.body.len())
    }

    /// Adds a chunk. The returned reference becomes valid when the session commits.
    pub fn append(
        &mut self,
        pipeline: &Pipeline<'_>,
        chunk: &[u8],
        fingerprint: Fingerprint,
    ) -> Result<Reference> {
        self.make_room(pipeline, chunk.len(), &fingerprint)?;
        let frame_bytes = self.packed_bytes.unwrap_or(self.frame_bytes);
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let packer = FramePacker::new(pipeline.frame_buffer(0));
                let number = self.next_number;
                self.next_number = number.checked_add(1).ok_or_else(|| {
                    Error::invalid("the series has used all 2^32 container numbers")
                })?;
                let address = Address::tagged(ObjectKind::Container, self.series, number, self.tag);
                none.insert(OpenContainer::new(&self.objects, address, number, packer)?)
            }
        };
        if frame_bytes > self.small_frame_bytes {
            let enlarged = open.packer.enlarge(frame_bytes, || pipeline.frame_buffer(frame_bytes));
            enlarged.into_iter().for_each(|small| pipeline.recycle_frame(small));
        }
        let slot = to_u16(open.packer.slots());
        open.packer.begin_application(slot, self.application);
        open.packer.push(slot, chunk, fingerprint, frame_bytes);
        Ok(Reference::new(self.store, open.number, slot))
    }

    /// Hands the current frame to the workers, and closes the container when the finished frames
    /// fill it. The workers may lag by a fixed number of frames, so containers end at the same
    /// chunk whatever the workers' speed.
    pub fn end_frame(&mut self, pipeline: &Pipeline<'_>) -> Result<()> {
        let bytes_max = self.in_flight_bytes_max();
        let Some(open) = &mut self.open else { return Ok(()) };
        let Some(frame) = open.packer.end_frame(|| pipeline.frame_buffer(0)) else {
            return Ok(());
        };
        self.packed_bytes = None;
        let packed = self.packed.take(open.packer.fingerprints(&frame));
        let RawFrame { number, raw, .. } = frame;
        let raw_bytes = raw.len();
        let sealer = Arc::clone(&open.sealer);
        let ticket = pipeline.seal(FrameJob { ticket: 0, number, sealer, raw, packed });
        open.in_flight.push_back(InFlight { ticket, number, raw_bytes });
        open.in_flight_bytes += raw_bytes;
        while open.in_flight.len() >= self.frames_in_flight || open.in_flight_bytes > bytes_max {
            self.stored_bytes += open.settle_one(&self.objects, pipeline)?;
        }
        let frames_full = open.packer.frames() == FRAMES_MAX;
        if open.body.len() >= self.container_bytes || frames_full {
            self.close(pipeline)?;
        }
        Ok(())
    }

    /// Ends the container that is being filled, if there is one, and hands it to the upload
    /// threads.
    pub fn close(&mut self, pipeline: &Pipeline<'_>) -> Result<()> {
        // Closing from within is harmless: an emptied frame is not ended twice.
        self.end_frame(pipeline)?;
        let Some(mut open) = self.open.take() else { return Ok(()) };
        while !open.in_flight.is_empty() {
            self.stored_bytes += open.settle_one(&self.objects, pipeline)?;
        }
        let (sealer, directory) = ((&open.header, &*open.sealer), open.packer.directory());
        let end = close_object(&mut self.writer, sealer, open.body.len(), &directory);
        self.stored_bytes += to_u64(end.len() + HEADER_BYTES);
        pipeline.recycle_frame(open.packer.into_buffer());
        let name = names::container(self.series, open.number, self.tag);
        self.uploads.submit(Upload { name, number: open.number, body: open.body, end })
    }

    /// Maximum size of the frames that are being sealed, before compression.
    fn in_flight_bytes_max(&self) -> usize {
        let large = LARGE_FRAMES_IN_FLIGHT.min(self.frames_in_flight) * self.large_frame_bytes;
        large.max(self.frames_in_flight * self.small_frame_bytes)
    }

    /// Waits until every container is durable; returns the proof of it.
    pub fn finish(self) -> Result<DurableContainers> {
        assert!(self.open.is_none(), "a container is closed with the volume that filled it");
        let mut durable = self.uploads.drain()?;
        durable.sort_unstable();
        Ok(DurableContainers(durable.into_iter().map(|number| (number, self.tag)).collect()))
    }
}

impl OpenContainer {
    fn new(objects: &Objects, address: Address, number: u32, packer: FramePacker) -> Result<Self> {
        let (header, sealer) = objects.begin_container(address)?;
        let mut body = Pieces::default();
        body.extend(&header.encode(), || objects.buffers.pieces.take());
        Ok(Self {
            number,
            header,
            sealer: Arc::new(sealer),
            packer,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            body,
        })
    }

    /// Takes the oldest sealed frame back; returns its size in bytes.
    fn settle_one(&mut self, objects: &Objects, pipeline: &Pipeline<'_>) -> Result<u64> {
        let Some(oldest) = self.in_flight.pop_front() else { return Ok(0) };
        self.in_flight_bytes -= oldest.raw_bytes;
        let sealed = pipeline.sealed(oldest.ticket)?;
        self.packer.place(oldest.number, self.body.len(), sealed.len());
        self.body.extend(&sealed, || objects.buffers.pieces.take());
        let bytes = to_u64(sealed.len());
        pipeline.recycle_frame(sealed);
        Ok(bytes)
    }
}
