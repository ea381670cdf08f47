//! Whether the line or the compression is what a replication waits for.

/// Bytes of chunks that are sent before it is looked again.
const SPAN_BYTES: u64 = 16 << 20;
/// Spans that are compressed after frames have turned out to be slower.
const REST_SPANS: u32 = 64;

/// Decides whether chunks are compressed together, which saves bytes, or go as the frames that are
/// stored, which saves time.
///
/// Begins with compressing. If the source hardly ever waits for the line, the processor is the
/// limit, and frames are tried; what brings more chunks per second is kept.
pub(crate) struct Pace {
    sends_frames: bool,
    /// When the current span began, in nanoseconds since 1970.
    began_ns: i64,
    bytes: u64,
    /// Time that was spent waiting for the other end, in nanoseconds.
    waited_ns: i64,
    /// Bytes of chunks per second when they were compressed last.
    compressed_rate: u64,
    rest: u32,
}

impl Pace {
    /// Begins at a time in nanoseconds since 1970.
    pub fn new(now_ns: i64) -> Self {
        Self {
            sends_frames: false,
            began_ns: now_ns,
            bytes: 0,
            waited_ns: 0,
            compressed_rate: 0,
            rest: 0,
        }
    }

    /// Whether frames go as they are stored.
    pub fn sends_frames(&self) -> bool {
        self.sends_frames
    }

    /// Notes that the source has waited for the other end.
    pub fn waited(&mut self, from_ns: i64, to_ns: i64) {
        self.waited_ns = self.waited_ns.saturating_add(to_ns.saturating_sub(from_ns).max(0));
    }

    /// Notes that chunks were sent.
    pub fn sent(&mut self, bytes: u64, now_ns: i64) {
        self.bytes += bytes;
        let elapsed_ns = now_ns.saturating_sub(self.began_ns).max(1);
        let milliseconds = u64::try_from(elapsed_ns / 1_000_000).unwrap_or(0).max(1);
        // Compressed, the whole span would have been sent by now: on a thin line, a span of frames
        // takes far more bytes than all that is saved before.
        let compressed_bytes = self.compressed_rate.saturating_mul(milliseconds) / 1000;
        let is_late = self.sends_frames && compressed_bytes > SPAN_BYTES;
        if self.bytes < SPAN_BYTES && !is_late {
            return;
        }
        let rate = self.bytes.saturating_mul(1000) / milliseconds;
        let waits = self.waited_ns > elapsed_ns / 4;
        if self.sends_frames {
            if waits && rate < self.compressed_rate {
                (self.sends_frames, self.rest) = (false, REST_SPANS);
            }
        } else {
            self.compressed_rate = rate;
            self.sends_frames = !waits && self.rest == 0;
            self.rest = self.rest.saturating_sub(1);
        }
        (self.began_ns, self.bytes, self.waited_ns) = (now_ns, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Sends spans, of which each takes `span_ms`, and `waited_ms` of that waiting.
    fn send(pace: &mut Pace, now_ns: &mut i64, spans: u32, (span_ms, waited_ms): (i64, i64)) {
        for _ in 0..spans {
            pace.waited(*now_ns, *now_ns + waited_ms * MS);
            *now_ns += span_ms * MS;
            pace.sent(SPAN_BYTES, *now_ns);
        }
    }

    #[test]
    fn a_thin_line_gets_compressed_chunks() {
        let (mut pace, mut now_ns) = (Pace::new(5), 5);
        send(&mut pace, &mut now_ns, 500, (60_000, 59_000));
        assert!(!pace.sends_frames());
    }

    #[test]
    fn a_fast_line_gets_frames() {
        let (mut pace, mut now_ns) = (Pace::new(5), 5);
        send(&mut pace, &mut now_ns, 1, (400, 10));
        assert!(pace.sends_frames());
        // Even if the other end is now what it waits for.
        send(&mut pace, &mut now_ns, 100, (40, 20));
        assert!(pace.sends_frames());
    }

    #[test]
    fn a_line_on_which_frames_are_slower_gets_compressed_chunks_again() {
        let (mut pace, mut now_ns) = (Pace::new(5), 5);
        send(&mut pace, &mut now_ns, 1, (400, 10));
        send(&mut pace, &mut now_ns, 1, (600, 500));
        assert!(!pace.sends_frames());
        send(&mut pace, &mut now_ns, REST_SPANS, (400, 10));
        assert!(!pace.sends_frames());
        send(&mut pace, &mut now_ns, 1, (400, 10));
        assert!(pace.sends_frames(), "after a while they are tried again");
    }

    #[test]
    fn frames_are_given_up_before_the_end_of_a_span_if_they_are_slower() {
        let (mut pace, mut now_ns) = (Pace::new(5), 5);
        send(&mut pace, &mut now_ns, 1, (3_000, 100));
        let mut sent_bytes = 0;
        while pace.sends_frames() {
            pace.waited(now_ns, now_ns + 900 * MS);
            now_ns += 1_000 * MS;
            pace.sent(1 << 20, now_ns);
            sent_bytes += 1 << 20;
        }
        assert_eq!(sent_bytes, 4 << 20, "as much as was sent in the time of a compressed span");
    }

    #[test]
    fn a_clock_that_is_set_back_breaks_nothing() {
        let mut pace = Pace::new(i64::MAX);
        pace.waited(10, 5);
        pace.sent(SPAN_BYTES, i64::MIN);
        pace.sent(SPAN_BYTES, 0);
    }
}
