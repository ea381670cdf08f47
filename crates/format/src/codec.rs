//! Bounds-checked reading and writing of little-endian fields and of tagged sections.

use crate::number::{to_u16, to_u32};
use crate::{Error, ErrorKind, Result};

/// A reader that does not know the tag of such a section must refuse the object.
pub(crate) const REQUIRED: u16 = 1;
const SECTION_FLAGS_KNOWN: u16 = REQUIRED;

/// Appends fields to a byte string.
#[derive(Default)]
pub(crate) struct Encoder {
    pub(crate) bytes: Vec<u8>,
}

impl Encoder {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }
    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }
    /// A string of at most 65,535 bytes, preceded by its length; a longer one is truncated at a
    /// character boundary.
    pub(crate) fn string(&mut self, value: &str) {
        let value = &value[..value.floor_char_boundary(usize::from(u16::MAX))];
        self.u16(to_u16(value.len()));
        self.raw(value.as_bytes());
    }
    pub(crate) fn count(&mut self, count: usize) {
        self.u32(to_u32(count));
    }
    /// A list of strings.
    pub(crate) fn strings(&mut self, values: &[String]) {
        self.count(values.len());
        values.iter().for_each(|value| self.string(value));
    }
    /// A tagged section: tag, flags, length, body.
    pub(crate) fn section(&mut self, tag: u16, flags: u16, body: impl FnOnce(&mut Self)) {
        self.u16(tag);
        self.u16(flags);
        let at = self.bytes.len();
        self.u32(0);
        body(self);
        let length = to_u32(self.bytes.len() - at - 4);
        self.bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }
}

/// Reads fields from a byte string; every error names the layout.
#[derive(Clone)]
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
    layout: &'static str,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8], layout: &'static str) -> Self {
        Self { rest: bytes, layout }
    }
    pub(crate) fn corrupt(&self, why: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("{}: {why}", self.layout))
    }
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.corrupt("it ends early"));
        };
        self.rest = rest;
        Ok(head)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }
    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }
    pub(crate) fn string(&mut self) -> Result<String> {
        let length = self.u16()?;
        let bytes = self.take(usize::from(length))?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.corrupt("a string is not UTF-8"))?;
        Ok(text.to_owned())
    }
    /// A count of items of at least `item_bytes` each. Fails if the remaining bytes cannot hold
    /// them.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count.saturating_mul(item_bytes) > self.rest.len() {
            return Err(self.corrupt(format!("it claims {count} items, but ends before them")));
        }
        Ok(count)
    }
    /// `count`, then that many items.
    pub(crate) fn list<T>(
        &mut self,
        item_bytes: usize,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.count(item_bytes)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }
    /// A list of strings.
    pub(crate) fn strings(&mut self) -> Result<Vec<String>> {
        self.list(2, Self::string)
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    pub(crate) fn rest_len(&self) -> usize {
        self.rest.len()
    }
    /// Fails if unread bytes are left.
    pub(crate) fn end(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        Err(self.corrupt(format!("it has {} extra bytes at the end", self.rest.len())))
    }
    /// Reads sections to the end; `visit` returns whether it knows a tag. An unknown section is
    /// skipped unless it is marked as required.
    pub(crate) fn sections(
        mut self,
        mut visit: impl FnMut(u16, &mut Decoder<'a>) -> Result<bool>,
    ) -> Result<()> {
        while !self.is_empty() {
            let (tag, flags) = (self.u16()?, self.u16()?);
            let length = self.u32()? as usize;
            let mut body = Decoder::new(self.take(length)?, self.layout);
            let known = flags & !SECTION_FLAGS_KNOWN == 0 && visit(tag, &mut body)?;
            if !known && (flags & REQUIRED != 0 || flags & !SECTION_FLAGS_KNOWN != 0) {
                return Err(unsupported(self.layout, &format!("section {tag} (flags {flags:#x})")));
            }
        }
        Ok(())
    }
}

/// The error for data written by a newer program.
pub(crate) fn unsupported(layout: &str, what: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("{layout}: this version does not know {what}; use a newer version"),
    )
}
