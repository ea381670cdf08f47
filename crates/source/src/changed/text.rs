//! JSON text with bounded strings and nesting.

use std::io::{self, BufReader, Read};

/// Maximum length of a string in bytes; paths and descriptions of image chains are shorter.
const STRING_BYTES_MAX: usize = 64 << 10;
/// Maximum nesting depth of lists and objects.
const DEPTH_MAX: usize = 64;

/// Passes JSON text on. Fails for strings and nesting that would make a parser use unbounded
/// memory: a parser stores its nesting, even while skipping.
pub(super) struct BoundedText<R: Read> {
    reader: BufReader<R>,
    place: Position,
    depth: usize,
}

#[derive(Clone, Copy)]
enum Position {
    Outside,
    Inside { bytes: usize },
    Escaped { bytes: usize },
}

impl<R: Read> BoundedText<R> {
    pub(super) fn new(reader: R) -> Self {
        let reader = BufReader::with_capacity(64 << 10, reader);
        Self { reader, place: Position::Outside, depth: 0 }
    }

    fn pass(&mut self, byte: u8) -> io::Result<()> {
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        self.place = match (self.place, byte) {
            (Position::Outside, b'"') => Position::Inside { bytes: 0 },
            (Position::Outside, b'[' | b'{') if self.depth == DEPTH_MAX => {
                return refused("it is nested too deeply");
            }
            (Position::Outside, _) => {
                match byte {
                    b'[' | b'{' => self.depth += 1,
                    b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
                Position::Outside
            }
            (Position::Inside { .. }, b'"') => Position::Outside,
            (Position::Inside { bytes }, _) if bytes >= STRING_BYTES_MAX => {
                return refused("a string is too long");
            }
            (Position::Inside { bytes }, b'\\') => Position::Escaped { bytes: bytes + 1 },
            (Position::Inside { bytes } | Position::Escaped { bytes }, _) => {
                Position::Inside { bytes: bytes + 1 }
            }
        };
        Ok(())
    }
}

impl<R: Read> Read for BoundedText<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buf)?;
        buf[..count].iter().try_for_each(|&byte| self.pass(byte))?;
        Ok(count)
    }
}
