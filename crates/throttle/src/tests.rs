use std::sync::atomic::{AtomicI64, Ordering};

use silt_format::Lease;
use silt_format::number::to_usize;
use silt_repository::env::Process;

use silt_source::SourceFormat;

use super::*;

const SECOND: i64 = 1_000_000_000;
const RATE: u64 = 1_000_000;
const PIECE: u64 = RATE / 100;

/// A clock that only waiting moves.
#[derive(Default)]
struct Clock(AtomicI64);

impl Clock {
    fn pass(&self, nanoseconds: i64) {
        self.0.fetch_add(nanoseconds, Ordering::SeqCst);
    }
}

impl Env for Clock {
    fn now_ns(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
    fn entropy(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
    fn process(&self) -> Process {
        Process::default()
    }
    fn may_be_running(&self, _: &Lease) -> bool {
        true
    }
    fn is_interrupted(&self) -> bool {
        false
    }
    fn sleep_ns(&self, nanoseconds: u64) {
        self.pass(i64::try_from(nanoseconds).unwrap());
    }
}

fn limit() -> (Arc<Clock>, Throttle) {
    let clock = Arc::new(Clock::default());
    let throttle = Throttle::new(clock.clone(), RATE);
    (clock, throttle)
}

fn catching_up() -> (Arc<Clock>, Throttle) {
    let (clock, throttle) = limit();
    (clock, throttle.catching_up())
}

/// Takes pieces until a time, and returns how many bytes have passed.
fn take_until(clock: &Clock, throttle: &Throttle, end_ns: i64) -> u64 {
    let mut bytes = 0;
    while clock.now_ns() < end_ns {
        throttle.take(PIECE);
        bytes += PIECE;
    }
    bytes
}

#[test]
fn bytes_pass_at_the_limit() {
    for (clock, throttle) in [limit(), catching_up()] {
        clock.pass(3600 * SECOND);
        let begin = clock.now_ns();
        let bytes = take_until(&clock, &throttle, begin + 10 * SECOND);
        assert!(bytes.abs_diff(10 * RATE) <= PIECE, "{bytes}");
    }
}

/// A process that works for 4 ms after each piece, and for 200 ms after each fiftieth.
#[test]
fn pauses_are_caught_up() {
    let pieces = 1000;
    let [even, caught_up] = [limit(), catching_up()].map(|(clock, throttle)| {
        for piece in 1..=pieces {
            throttle.take(PIECE);
            clock.pass(if piece % 50 == 0 { SECOND / 5 } else { SECOND / 250 });
        }
        clock.now_ns()
    });
    let expected_ns = i64::try_from(pieces * PIECE / RATE).unwrap() * SECOND;
    assert!(caught_up.abs_diff(expected_ns) < SECOND.unsigned_abs() / 3, "{caught_up}");
    assert!(even > expected_ns + 3 * SECOND, "{even}");
}

/// After a long pause, as many bytes pass as in one more second, at twice the rate.
#[test]
fn a_long_pause_is_caught_up_in_part_and_slowly() {
    let (clock, throttle) = catching_up();
    throttle.take(PIECE);
    clock.pass(3600 * SECOND);
    let begin = clock.now_ns();
    let bytes = take_until(&clock, &throttle, begin + SECOND / 2);
    assert!(bytes.abs_diff(RATE) <= PIECE, "twice the rate: {bytes}");
    let bytes = bytes + take_until(&clock, &throttle, begin + 10 * SECOND);
    assert!(bytes.abs_diff(11 * RATE) <= 2 * PIECE, "one second more: {bytes}");
}

#[test]
fn no_bytes_do_not_wait() {
    let (clock, throttle) = limit();
    throttle.take(RATE);
    throttle.take(0);
    assert_eq!(clock.now_ns(), 0);
}

/// A source whose every second block of 1,000 bytes is zeros.
struct Striped {
    sequential: bool,
}

const STRIPE: u64 = 1000;

impl VolumeSource for Striped {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            size: Some(10 * STRIPE),
            description: "stripes".to_owned(),
            format: SourceFormat::Raw,
            backing: Vec::new(),
        }
    }
    fn is_sequential(&self) -> bool {
        self.sequential
    }
    fn extent_at(&self, offset: u64) -> Result<Extent> {
        assert!(offset < 10 * STRIPE && !self.sequential);
        let stripe = offset / STRIPE;
        let kind = if stripe.is_multiple_of(2) { ExtentKind::Data } else { ExtentKind::Zero };
        Ok(Extent { offset, length: (stripe + 1) * STRIPE - offset, kind })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(buf.len().min(to_usize(10 * STRIPE - offset)))
    }
}

#[test]
fn zeros_of_a_source_pass_freely() {
    for (offset, length, data) in
        [(0, 1000, 1000), (1000, 1000, 0), (500, 2000, 1000), (0, 10_000, 5000), (8500, 9000, 500)]
    {
        assert_eq!(data_bytes(&Striped { sequential: false }, offset, length), data, "{offset}");
        assert_eq!(data_bytes(&Striped { sequential: true }, offset, length), length, "{offset}");
    }
    let (clock, throttle) = limit();
    let source: Box<dyn VolumeSource> = Box::new(Striped { sequential: false });
    let source = Throttled::new(source).reads(Some(Arc::new(throttle)));
    for _ in 0..=100 {
        source.read_at(0, &mut [0; 10_000]).unwrap();
    }
    assert_eq!(clock.now_ns(), SECOND / 2);
}
