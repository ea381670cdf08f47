//! The data of options, as clients send it. Pure functions over bytes.

use silt_source::nbd::wire::STRING_BYTES_MAX;

/// Maximum size of an option's data; longer options are skipped.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
/// Most kinds of information that a client may ask for at once.
const INFOS_MAX: usize = 64;
/// Most queries of metadata contexts at once.
const QUERIES_MAX: usize = 64;

/// The data of `INFO` and `GO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoRequest {
    /// The export.
    pub export: String,
    /// Kinds of information; see [`info`](silt_source::nbd::wire::info).
    pub wanted: Vec<u16>,
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextRequest {
    /// The export.
    pub export: String,
    /// Names of contexts or beginnings of names.
    pub queries: Vec<String>,
}

/// Takes apart what a client has sent; every part is checked against what is left.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A string behind its length.
    fn string(&mut self) -> Option<String> {
        let length = usize::try_from(self.u32()?).ok()?;
        self.take(length).and_then(string)
    }
}

/// A string as the protocol has them: UTF-8, without NUL, not too long.
pub fn string(bytes: &[u8]) -> Option<String> {
    let is_short = bytes.len() <= STRING_BYTES_MAX && !bytes.contains(&0);
    is_short.then(|| std::str::from_utf8(bytes).ok().map(str::to_owned)).flatten()
}

/// Parses the data of `INFO` and `GO`; `None` if it is malformed.
pub fn parse_info(data: &[u8]) -> Option<InfoRequest> {
    let mut reader = Reader(data);
    let export = reader.string()?;
    let count = usize::from(reader.u16()?);
    if count > INFOS_MAX || reader.0.len() != count * 2 {
        return None;
    }
    let wanted = (0..count).map(|_| reader.u16()).collect::<Option<_>>()?;
    Some(InfoRequest { export, wanted })
}

/// Parses the data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`; `None` if it is malformed.
pub fn parse_contexts(data: &[u8]) -> Option<ContextRequest> {
    let mut reader = Reader(data);
    let export = reader.string()?;
    let count = usize::try_from(reader.u32()?).ok()?;
    if count > QUERIES_MAX {
        return None;
    }
    let queries = (0..count).map(|_| reader.string()).collect::<Option<_>>()?;
    reader.0.is_empty().then_some(ContextRequest { export, queries })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn what_is_asked_of_an_export_is_understood() {
        let data = [text("a:b"), vec![0, 2, 0, 3, 0, 1]].concat();
        let parsed = parse_info(&data).unwrap();
        assert_eq!((parsed.export.as_str(), parsed.wanted), ("a:b", vec![3, 1]));
        for end in 0..data.len() {
            assert_eq!(parse_info(&data[..end]), None, "cut at {end}");
        }
        assert_eq!(parse_info(&[&data[..], &[0]].concat()), None);
    }

    #[test]
    fn metadata_contexts_are_understood() {
        let data = [text(""), vec![0, 0, 0, 2], text("base:"), text("x")].concat();
        let parsed = parse_contexts(&data).unwrap();
        assert_eq!((parsed.export.as_str(), parsed.queries.len()), ("", 2));
        for end in 0..data.len() {
            assert_eq!(parse_contexts(&data[..end]), None, "cut at {end}");
        }
        let flood = [text(""), vec![0xff; 4]].concat();
        assert_eq!(parse_contexts(&flood), None);
    }

    #[test]
    fn lengths_beyond_the_data_and_odd_strings_are_refused() {
        assert_eq!(parse_info(&[0xff; 6]), None);
        assert_eq!(string(b"\xff"), None);
        assert_eq!(string(b"a\0b"), None);
        assert_eq!(string(&vec![b'a'; STRING_BYTES_MAX + 1]), None);
        assert!(string(&vec![b'a'; STRING_BYTES_MAX]).is_some());
    }
}
