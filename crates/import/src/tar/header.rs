//! The header of an entry: 512 bytes.

/// The size of headers; content is padded to a multiple of it.
pub(crate) const BLOCK_BYTES: usize = 512;
/// Digits that a time has behind the point.
const NANOSECOND_DIGITS: usize = 9;

use silt_format::tree::Timestamp;

#[derive(Clone)]
pub(crate) struct Header(pub(crate) [u8; BLOCK_BYTES]);

impl Header {
    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    /// Whether the sum of the bytes is right; old programs summed them as signed numbers.
    pub(crate) fn has_right_sum(&self) -> bool {
        let field = 148..156;
        let (mut unsigned, mut signed) = (0_i128, 0_i128);
        for (at, byte) in self.0.iter().enumerate() {
            let byte = if field.contains(&at) { b' ' } else { *byte };
            unsigned += i128::from(byte);
            signed += i128::from(i8::from_ne_bytes([byte]));
        }
        self.number(148, 8).is_some_and(|stored| stored == unsigned || stored == signed)
    }

    pub(crate) fn kind(&self) -> u8 {
        self.0[156]
    }

    /// A text that ends at the first zero byte, or with the field.
    pub(crate) fn text(&self, at: usize, bytes: usize) -> &[u8] {
        until_zero(&self.0[at..at + bytes])
    }

    /// A number in octal digits or, if its first bit is set, in binary. An empty field is 0.
    pub(crate) fn number(&self, at: usize, bytes: usize) -> Option<i128> {
        number(&self.0[at..at + bytes])
    }

    /// Names of owners and numbers of devices are where V7 had nothing.
    pub(crate) fn has_owners(&self) -> bool {
        &self.0[257..262] == b"ustar"
    }

    /// The path, with the prefix that ustar and star have.
    pub(crate) fn path(&self) -> Vec<u8> {
        let name = self.text(0, 100);
        let prefix = if &self.0[257..263] != b"ustar\0" {
            &[]
        } else if &self.0[508..512] == b"tar\0" {
            self.text(345, 131)
        } else {
            self.text(345, 155)
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }
}

pub(crate) fn until_zero(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// A number in octal digits or in binary, in a field of at most 12 bytes.
pub(crate) fn number(field: &[u8]) -> Option<i128> {
    if let [first @ (0x80 | 0xff), rest @ ..] = field {
        let sign = if *first == 0xff { -1 } else { 0 };
        return Some(rest.iter().fold(sign, |number, byte| number << 8 | i128::from(*byte)));
    }
    let text: &[u8] = field.trim_ascii_start();
    let end = text.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(text.len());
    let digits = &text[..end];
    digits.iter().try_fold(0_i128, |number, digit| match digit {
        b'0'..=b'7' => Some(number << 3 | i128::from(digit - b'0')),
        _ => None,
    })
}

/// A decimal number without a sign.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

/// A time in seconds since 1970, with a fraction of any length.
pub(crate) fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let digits = &fraction[..fraction.len().min(NANOSECOND_DIGITS)];
    let nanoseconds: u32 = format!("{digits:0<NANOSECOND_DIGITS$}").parse().ok()?;
    Some(match (is_negative, nanoseconds) {
        (false, nanoseconds) => Timestamp { seconds, nanoseconds },
        (true, 0) => Timestamp { seconds: -seconds, nanoseconds },
        (true, _) => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"\x80\0\0\0\0\x20\0\0"), Some(0x20_0000));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), Some(-2));
        assert_eq!(number(b"89"), None);
        assert_eq!(number(b"-1\0"), None);
    }

    #[test]
    fn times_are_decimal_before_and_after_1970() {
        assert_eq!(time(b"12"), Some(at(12, 0)));
        assert_eq!(time(b"12.5"), Some(at(12, 500_000_000)));
        assert_eq!(time(b"12.0000000019"), Some(at(12, 1)));
        assert_eq!(time(b"-0.5"), Some(at(-1, 500_000_000)));
        assert_eq!(time(b"-3"), Some(at(-3, 0)));
        for text in [&b""[..], b".5", b"1e9", b"+1", b"--1", b"99999999999999999999", b"1.-5"] {
            assert_eq!(time(text), None, "{text:?}");
        }
    }
}
