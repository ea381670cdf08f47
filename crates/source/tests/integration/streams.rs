//! Standard input and output.

use std::io::{self, Cursor, Read, Write};
use std::sync::{Arc, Mutex};

use silt_format::ErrorKind;
use silt_source::{
    ExtentKind, SourceFormat, StreamSource, StreamTarget, VolumeSource, VolumeTarget,
};

/// Yields a byte at a time, interrupted before each; fails at `fail_at`.
struct Trickle {
    bytes: Vec<u8>,
    at: usize,
    interrupted: bool,
    fail_at: usize,
}

impl Read for Trickle {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.interrupted = !self.interrupted;
        if self.interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.at == self.fail_at {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let Some(&byte) = self.bytes.get(self.at) else { return Ok(0) };
        self.at += 1;
        buf[0] = byte;
        Ok(1)
    }
}

#[test]
fn a_stream_fills_buffers_and_then_knows_its_size() {
    let bytes: Vec<u8> = (0..=255).collect();
    let reader = Trickle { bytes: bytes.clone(), at: 0, interrupted: false, fail_at: usize::MAX };
    let source = StreamSource::new(Box::new(reader));
    assert!(source.is_sequential());
    assert_eq!((source.info().format, source.info().size), (SourceFormat::Stream, None));
    assert_eq!(source.extent_at(0).unwrap().kind, ExtentKind::Data);
    let mut buf = [0; 100];
    let mut found = Vec::new();
    for expected in [100, 100, 56] {
        let count = source.read_at(found.len() as u64, &mut buf).unwrap();
        assert_eq!(count, expected);
        found.extend_from_slice(&buf[..count]);
    }
    assert_eq!(found, bytes);
    assert_eq!(source.info().size, Some(256));
    assert_eq!(source.read_at(256, &mut buf).unwrap(), 0);
}

#[test]
fn a_stream_is_read_in_order_or_not_at_all() {
    let source = StreamSource::new(Box::new(Cursor::new(vec![1; 100])));
    source.read_at(0, &mut [0; 10]).unwrap();
    for offset in [0, 9, 11] {
        let error = source.read_at(offset, &mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert_eq!(source.read_at(10, &mut [0; 10]).unwrap(), 10);
}

#[test]
fn after_a_failed_read_nothing_is_read_twice() {
    let reader = Trickle { bytes: vec![1; 100], at: 0, interrupted: false, fail_at: 15 };
    let source = StreamSource::new(Box::new(reader));
    source.read_at(0, &mut [0; 10]).unwrap();
    let error = source.read_at(10, &mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("byte 15"), "{error}");
    assert_eq!(source.read_at(10, &mut [0; 10]).unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Keeps what is written; fails past `limit`.
#[derive(Clone)]
struct Sink {
    bytes: Arc<Mutex<Vec<u8>>>,
    limit: usize,
}

impl Sink {
    fn new(limit: usize) -> Self {
        Self { bytes: Arc::default(), limit }
    }
}

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        if bytes.len() + buf.len() > self.limit {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        bytes.extend_from_slice(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn zeros_are_written_out() {
    let sink = Sink::new(usize::MAX);
    let target: Box<dyn VolumeTarget> =
        Box::new(StreamTarget::new(Box::new(sink.clone()), 300_003));
    assert!(!target.can_read());
    assert_eq!(target.read_at(0, &mut [0]).unwrap_err().kind(), ErrorKind::Unsupported);
    target.write_at(0, &[1, 2, 3]).unwrap();
    target.write_zeroes(3, 299_990).unwrap();
    for offset in [0, 299_992, 299_994] {
        assert_eq!(target.write_at(offset, &[9]).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(target.write_at(299_993, &[4; 11]).unwrap_err().kind(), ErrorKind::Invalid);
    target.write_at(299_993, &[4; 10]).unwrap();
    target.finish().unwrap();
    let found = sink.bytes.lock().unwrap();
    let expected = [&[1, 2, 3][..], &vec![0; 299_990], &[4; 10]].concat();
    assert_eq!(*found, expected);
}

#[test]
fn an_incomplete_stream_does_not_finish() {
    let target = Box::new(StreamTarget::new(Box::new(Sink::new(usize::MAX)), 10));
    target.write_at(0, &[1; 9]).unwrap();
    assert_eq!(target.finish().unwrap_err().kind(), ErrorKind::Invalid);
    let target = Box::new(StreamTarget::new(Box::new(Sink::new(5)), 10));
    target.write_at(0, &[1; 5]).unwrap();
    assert_eq!(target.write_at(5, &[1; 5]).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(target.write_at(5, &[]).unwrap_err().kind(), ErrorKind::Invalid, "it is broken");
    assert_eq!(target.finish().unwrap_err().kind(), ErrorKind::Invalid);
}
