//! The encoding of replies.

use silt_format::number::to_u64;
use silt_source::nbd::wire::{
    EXTENDED_REPLY_MAGIC, OPTION_REPLY_MAGIC, ReplyForm, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk,
};

/// Longest message beside an error.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The request that a chunk belongs to, and the form of its header.
#[derive(Clone, Copy, Debug)]
pub struct To {
    /// The form.
    pub form: ReplyForm,
    /// The request's cookie.
    pub cookie: u64,
    /// The request's offset.
    pub offset: u64,
}

/// A length in the protocol's terms; what is sent is far shorter than this can say.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// As much of a message as is sent: whole characters.
fn message(text: &str) -> &str {
    let end = (0..=text.len().min(MESSAGE_BYTES_MAX)).rfind(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Appends a reply to an option.
pub fn option(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&length(data.len()));
    out.extend_from_slice(data);
}

/// Appends a reply to an option that has failed.
pub fn option_error(out: &mut Vec<u8>, of: u32, kind: u32, why: &str) {
    option(out, of, kind, message(why).as_bytes());
}

/// Appends the header of a simple reply; data follows if there is no error.
pub fn simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

/// Appends the header of a chunk; its payload follows.
fn chunk_header(out: &mut Vec<u8>, to: To, kind: u16, is_last: bool, payload: usize) {
    let flags = if is_last { chunk::FLAG_DONE } else { 0 };
    let is_extended = to.form == ReplyForm::Extended;
    let magic = if is_extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
    out.extend_from_slice(&magic.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&to.cookie.to_be_bytes());
    if is_extended {
        out.extend_from_slice(&to.offset.to_be_bytes());
        out.extend_from_slice(&to_u64(payload).to_be_bytes());
    } else {
        out.extend_from_slice(&length(payload));
    }
}

/// Appends the chunk that ends a reply without data.
pub fn none(out: &mut Vec<u8>, to: To) {
    chunk_header(out, to, chunk::NONE, true, 0);
}

/// Appends a chunk of `length` zeros, which are data to be overwritten, and returns where they
/// begin.
pub fn data(out: &mut Vec<u8>, to: To, is_last: bool, offset: u64, length: usize) -> usize {
    chunk_header(out, to, chunk::OFFSET_DATA, is_last, length + 8);
    out.extend_from_slice(&offset.to_be_bytes());
    let start = out.len();
    out.resize(start + length, 0);
    start
}

/// Appends a chunk of a hole, which is not empty. It is part of a reply to a read, so that its
/// length fits in 32 bits.
pub fn hole(out: &mut Vec<u8>, to: To, is_last: bool, offset: u64, length: u64) {
    chunk_header(out, to, chunk::OFFSET_HOLE, is_last, 12);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
}

/// Appends a chunk of at least one extent. Without extended headers, lengths have at most 32 bits.
pub fn extents(out: &mut Vec<u8>, to: To, is_last: bool, context: u32, all: &[(u64, u32)]) {
    let is_extended = to.form == ReplyForm::Extended;
    if !is_extended {
        chunk_header(out, to, chunk::BLOCK_STATUS, is_last, 4 + 8 * all.len());
        out.extend_from_slice(&context.to_be_bytes());
        for (length, state) in all {
            let length = u32::try_from(*length).unwrap_or(u32::MAX);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&state.to_be_bytes());
        }
        return;
    }
    chunk_header(out, to, chunk::BLOCK_STATUS_EXT, is_last, 8 + 16 * all.len());
    out.extend_from_slice(&context.to_be_bytes());
    out.extend_from_slice(&length(all.len()));
    for (length, state) in all {
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&u64::from(*state).to_be_bytes());
    }
}

/// Appends a chunk that ends a reply with an error, at an offset if that is known.
pub fn error(out: &mut Vec<u8>, to: To, errno: u32, why: &str, offset: Option<u64>) {
    let why = message(why).as_bytes();
    let kind = if offset.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
    let payload = 6 + why.len() + if offset.is_some() { 8 } else { 0 };
    chunk_header(out, to, kind, true, payload);
    out.extend_from_slice(&errno.to_be_bytes());
    out.extend_from_slice(&u16::try_from(why.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(why);
    out.extend(offset.iter().flat_map(|offset| offset.to_be_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_laid_out_as_the_protocol_says() {
        let to = To { form: ReplyForm::Structured, cookie: 9, offset: 512 };
        let mut out = Vec::new();
        let start = data(&mut out, to, false, 512, 3);
        out[start..].copy_from_slice(b"abc");
        let header = [0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 11];
        assert_eq!(out, [&header[..], &[0, 0, 0, 0, 0, 0, 2, 0], b"abc"].concat());

        out.clear();
        hole(&mut out, to, true, 1, 4096);
        assert_eq!(out[4..8], [0, 1, 0, 2]);
        assert_eq!(out[16..], [0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 16, 0]);

        out.clear();
        extents(&mut out, to, true, 1, &[(5, 3), (6, 0)]);
        assert_eq!(out[16..20], [0, 0, 0, 20]);
        assert_eq!(out[20..], [0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 0]);

        out.clear();
        error(&mut out, to, 5, "no", Some(7));
        assert_eq!(out[4..8], [0, 1, 0x80, 2]);
        assert_eq!(
            out[16..],
            [&[0, 0, 0, 16, 0, 0, 0, 5, 0, 2][..], b"no", &7_u64.to_be_bytes()].concat()
        );
    }

    #[test]
    fn extended_chunks_repeat_the_offset_and_have_longer_lengths() {
        let to = To { form: ReplyForm::Extended, cookie: 9, offset: 512 };
        let mut out = Vec::new();
        none(&mut out, to);
        assert_eq!(out[..8], [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 0]);
        assert_eq!(out[8..], [9_u64, 512, 0].map(u64::to_be_bytes).concat());

        out.clear();
        extents(&mut out, to, true, 1, &[(1 << 40, 3), (6, 0)]);
        assert_eq!(out[6..8], [0, 6]);
        assert_eq!(out[24..32], 40_u64.to_be_bytes());
        assert_eq!(out[32..40], [0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(out[40..], [1 << 40, 3, 6, 0].map(u64::to_be_bytes).concat());
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let mut out = Vec::new();
        option_error(&mut out, 1, 2, &"ä".repeat(2000));
        assert_eq!(std::str::from_utf8(&out[20..]).unwrap().chars().count(), 512);
        let odd = format!("x{}", "ä".repeat(2000));
        assert_eq!(message(&odd).len(), 1023);
    }
}
