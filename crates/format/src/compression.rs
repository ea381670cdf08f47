//! The zstd levels of frames.

use crate::{BlockWriter, Result};

/// The highest level that a repository may have.
const LEVEL_MAX: i32 = 19;
/// One byte in this many is looked at to recognise text.
const TEXT_STEP: usize = 61;
/// Text in longer frames is compressed like everything else: zstd has other settings for them, with
/// which the lower level makes text 5 % larger instead of 1 %.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Text has less than one control character in this many bytes.
const TEXT_CONTROLS: usize = 256;

/// The zstd levels of frames, by what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    text: i32,
    other: i32,
}

impl Compression {
    /// Returns the levels for disks, whose frames are all compressed alike.
    pub fn of_disk(configured: i32) -> Self {
        Self { text: configured, other: configured }
    }

    /// Returns the levels for a file tree: higher than those of disks, as unchanged files are not
    /// compressed again. Text gains little by a second level, and slows down more than the rest.
    pub fn of_tree(configured: i32) -> Self {
        if configured <= 0 {
            return Self::of_disk(configured);
        }
        let above = |levels: i32| (configured + levels).min(LEVEL_MAX);
        Self { text: above(1), other: above(2) }
    }

    /// Returns a writer of frames.
    pub fn writer(self) -> Result<BlockWriter> {
        BlockWriter::new(self.other)
    }

    /// Returns the level for a frame with these bytes.
    pub fn level(self, raw: &[u8]) -> i32 {
        let may_be_text = self.text != self.other && raw.len() <= TEXT_BYTES_MAX;
        if may_be_text && is_text(raw) { self.text } else { self.other }
    }
}

/// Returns whether bytes are mostly text, judged by a sample.
fn is_text(raw: &[u8]) -> bool {
    let is_control = |byte: u8| byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
    let sample = raw.iter().step_by(TEXT_STEP);
    let looked_at = sample.len();
    sample.filter(|byte| is_control(**byte)).count() * TEXT_CONTROLS < looked_at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_compressed_higher_than_disks_and_text_less_than_the_rest() {
        let text = "fn main() {\n\tprintln!(\"Grüße\");\r\n}\n".repeat(100);
        let mut binary = text.clone().into_bytes();
        binary.iter_mut().step_by(9).for_each(|byte| *byte = 0);
        for (configured, of_text, of_binary) in
            [(1, 2, 3), (17, 18, 19), (19, 19, 19), (-3, -3, -3)]
        {
            let levels = Compression::of_tree(configured);
            assert_eq!(levels.level(text.as_bytes()), of_text, "{configured}");
            assert_eq!(levels.level(&binary), of_binary, "{configured}");
            assert_eq!(levels.level(text.repeat(100).as_bytes()), of_binary, "{configured}");
            assert_eq!(Compression::of_disk(configured).level(text.as_bytes()), configured);
        }
        assert_eq!(Compression::of_tree(1).level(&[]), 3);
    }
}
