//! NBD URIs, as doc/uri.md of NetworkBlockDevice/nbd specifies them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use silt_format::{Error, ErrorKind, Result};

use super::wire::{PORT, STRING_BYTES_MAX};

/// Maximum length of a URI in bytes.
const URI_BYTES_MAX: usize = 16 << 10;
/// The schemes, each with whether it uses a Unix socket, and whether it uses TLS.
const SCHEMES: [(&str, bool, bool); 4] = [
    ("nbd", false, false),
    ("nbds", false, true),
    ("nbd+unix", true, false),
    ("nbds+unix", true, true),
];

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host, by name or number, and a TCP port.
    Tcp(String, u16),
    /// The path of a Unix socket; in the abstract namespace if it begins with NUL.
    Unix(OsString),
}

/// The TLS parameters of a URI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UriTls {
    /// The folder of certificates; `None` for the system's authorities.
    pub certificates: Option<PathBuf>,
    /// The server's name in its certificate, if it is not the host.
    pub hostname: Option<String>,
}

/// An export of an NBD server.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    text: OsString,
    /// The server's address.
    pub address: Address,
    /// The export's name. It should be UTF-8, but any bytes except NUL are accepted.
    pub export: Vec<u8>,
    /// The TLS parameters; `None` for the schemes without TLS.
    pub tls: Option<UriTls>,
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.text.display(), f)
    }
}

/// Returns the properties of the scheme and the text after `://`, if the text is an NBD URI.
fn scheme(text: &[u8]) -> Option<((bool, bool), &[u8])> {
    let at = text.windows(3).position(|window| window == b"://")?;
    let name = std::str::from_utf8(&text[..at]).ok()?;
    let (_, is_unix, is_tls) =
        SCHEMES.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
    Some(((*is_unix, *is_tls), &text[at + 3..]))
}

impl Uri {
    /// Returns whether a source's path is an NBD URI. For a file with such a name, prepend `./`.
    pub fn is_uri(text: &OsStr) -> bool {
        scheme(text.as_bytes()).is_some()
    }

    /// Parses a URI.
    ///
    /// Fails with `Invalid` if it is not an NBD URI, is malformed, or has unknown parameters, and
    /// with `Unsupported` for kinds of TLS that are not supported.
    pub fn parse(text: &OsStr) -> Result<Self> {
        parse(text.as_bytes()).map_err(|Wrong(kind, why)| {
            let shown: String = text.to_string_lossy().chars().take(200).collect();
            Error::new(kind, format!("the NBD URI {shown} is not usable: {why}"))
        })
    }

    /// Returns the URI with absolute paths, so that it means the same in any folder.
    ///
    /// Fails with an I/O error if there is no current folder.
    pub fn absolute(&self) -> Result<OsString> {
        let text = self.text.as_bytes();
        let text = text.split(|byte| *byte == b'#').next().unwrap_or_default();
        let (before, query) = split_at_byte(text, b'?');
        let mut absolute = before.to_vec();
        let parameters = query.unwrap_or_default().split(|byte| *byte == b'&');
        let mut mark = b'?';
        for parameter in parameters.filter(|each| !each.is_empty()) {
            absolute.push(mark);
            mark = b'&';
            let (name, value) = split_at_byte(parameter, b'=');
            let is_path = matches!(decode(name).as_deref(), Ok(b"socket" | b"tls-certificates"));
            let Some(Ok(path)) = value.map(decode).filter(|_| is_path) else {
                absolute.extend_from_slice(parameter);
                continue;
            };
            let path = OsString::from_vec(path);
            // A NUL in front names an abstract socket, which is in no folder.
            let path = if path.as_bytes().starts_with(&[0]) {
                path
            } else {
                let found = std::path::absolute(path);
                found.map_err(|error| Error::io("find the current folder", error))?.into()
            };
            absolute.extend_from_slice(name);
            absolute.push(b'=');
            for byte in path.as_bytes() {
                match byte {
                    b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'/' | b'.' | b'-' | b'_' => {
                        absolute.push(*byte);
                    }
                    _ => absolute.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                }
            }
        }
        Ok(OsString::from_vec(absolute))
    }

    /// Returns a name for the volume: the last word of the export's name, or the socket's name.
    pub fn volume_name(&self) -> String {
        let socket = match &self.address {
            Address::Unix(path) if self.export.is_empty() => path.as_bytes(),
            _ => &[],
        };
        let name = String::from_utf8_lossy(if socket.is_empty() { &self.export } else { socket });
        let mut words = name.split(['/', ':', '@', '=', '\0']).filter(|word| !word.is_empty());
        let last = words.next_back().unwrap_or_default();
        let stem = if socket.is_empty() { Some(last) } else { last.split('.').next() };
        let stem = stem.filter(|stem| !stem.is_empty() && !stem.contains(char::is_control));
        stem.unwrap_or("volume").to_owned()
    }

    /// Returns the name that the server's certificate must have.
    pub fn server_name(&self) -> &str {
        let named = self.tls.as_ref().and_then(|tls| tls.hostname.as_deref());
        named.unwrap_or(match &self.address {
            Address::Tcp(host, _) => host,
            Address::Unix(_) => "localhost",
        })
    }
}

/// The reason why a URI cannot be used.
struct Wrong(ErrorKind, String);

fn invalid<T>(why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong(ErrorKind::Invalid, why.into()))
}

fn parse(text: &[u8]) -> Result<Uri, Wrong> {
    if text.len() > URI_BYTES_MAX {
        return invalid("it is too long");
    }
    let Some(((is_unix, is_tls), rest)) = scheme(text) else {
        return invalid("it does not begin with nbd://, nbds://, nbd+unix:// or nbds+unix://");
    };
    let rest = rest.split(|byte| *byte == b'#').next().unwrap_or_default();
    let (rest, query) = split_at_byte(rest, b'?');
    let (authority, path) = match rest.iter().position(|byte| *byte == b'/') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &rest[..0]),
    };
    let export = decode(path)?;
    if export.contains(&0) || export.len() > STRING_BYTES_MAX {
        return invalid("the export's name contains a NUL or is longer than 4096 bytes");
    }
    let query = Query::parse(query.unwrap_or_default())?;
    let address = match (is_unix, query.socket) {
        (true, Some(socket)) => unix(authority, socket)?,
        (true, None) => return invalid("it names no socket: add ?socket=PATH"),
        (false, None) => tcp(authority)?,
        (false, Some(_)) => return invalid("only nbd+unix:// and nbds+unix:// have a socket"),
    };
    if !is_tls && query.tls != UriTls::default() {
        return invalid("only nbds:// and nbds+unix:// have settings of TLS");
    }
    let text = OsString::from_vec(text.to_vec());
    Ok(Uri { text, address, export, tls: is_tls.then_some(query.tls) })
}

fn split_at_byte(bytes: &[u8], byte: u8) -> (&[u8], Option<&[u8]>) {
    match bytes.iter().position(|each| *each == byte) {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    }
}

/// Decodes `%2F` and the like.
fn decode(text: &[u8]) -> Result<Vec<u8>, Wrong> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            decoded.push(*byte);
            continue;
        }
        let both = (digit(rest.first()), digit(rest.get(1)));
        let (Some(high), Some(low)) = both else {
            return invalid("two hexadecimal digits must follow each %");
        };
        decoded.extend(u8::try_from(high * 16 + low).ok());
        rest = &rest[2..];
    }
    Ok(decoded)
}

fn decode_text(text: &[u8], what: &str) -> Result<String, Wrong> {
    String::from_utf8(decode(text)?).or_else(|_| invalid(format!("its {what} is not UTF-8")))
}

fn without_user(authority: &[u8]) -> Result<&[u8], Wrong> {
    match split_at_byte(authority, b'@') {
        (rest, None) => Ok(rest),
        _ => Err(Wrong(
            ErrorKind::Unsupported,
            "TLS with user names (PSK) is not supported; use certificates".to_owned(),
        )),
    }
}

fn unix(authority: &[u8], socket: Vec<u8>) -> Result<Address, Wrong> {
    if !without_user(authority)?.is_empty() {
        return invalid("a Unix socket has no host: write three slashes after the colon");
    }
    if socket.iter().skip(1).any(|byte| *byte == 0) {
        return invalid("the socket's path contains a NUL");
    }
    Ok(Address::Unix(OsString::from_vec(socket)))
}

fn tcp(authority: &[u8]) -> Result<Address, Wrong> {
    let authority = without_user(authority)?;
    let (host, port) = if let Some(rest) = authority.strip_prefix(b"[") {
        let (host, behind) = split_at_byte(rest, b']');
        let Some(behind) = behind else {
            return invalid("the bracket around the address is not closed");
        };
        (host, behind)
    } else {
        let at = authority.iter().position(|byte| *byte == b':');
        authority.split_at(at.unwrap_or(authority.len()))
    };
    let host = decode_text(host, "host")?;
    if host.is_empty() {
        return invalid("it names no host");
    }
    let port = match port.strip_prefix(b":") {
        None if port.is_empty() => PORT,
        Some(b"") => PORT,
        Some(digits) => match std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()) {
            Some(port) => port,
            None => return invalid("its port is not a number from 0 to 65535"),
        },
        None => return invalid("only a port may follow the address"),
    };
    Ok(Address::Tcp(host, port))
}

#[derive(Default)]
struct Query {
    socket: Option<Vec<u8>>,
    tls: UriTls,
}

impl Query {
    fn parse(text: &[u8]) -> Result<Self, Wrong> {
        let mut query = Self::default();
        let parameters = text.split(|byte| *byte == b'&').filter(|each| !each.is_empty());
        for parameter in parameters {
            let (name, value) = split_at_byte(parameter, b'=');
            let (name, value) = (decode_text(name, "parameter")?, value.unwrap_or_default());
            query.set(&name, value)?;
        }
        Ok(query)
    }

    fn set(&mut self, name: &str, value: &[u8]) -> Result<(), Wrong> {
        match name {
            "socket" => {
                let path = decode(value)?;
                if path.is_empty() {
                    return invalid("the socket has no path");
                }
                self.socket = Some(path);
            }
            "tls-certificates" => {
                let folder = OsString::from_vec(decode(value)?);
                self.tls.certificates = Some(PathBuf::from(folder));
            }
            "tls-hostname" => self.tls.hostname = Some(decode_text(value, "tls-hostname")?),
            "tls-type" if value == b"x509" => {}
            "tls-verify-peer" if value == b"1" || value == b"true" => {}
            "tls-type" | "tls-verify-peer" | "tls-psk-file" | "tls-username" => {
                let why = format!("{name}={} is not supported", String::from_utf8_lossy(value));
                return Err(Wrong(ErrorKind::Unsupported, why));
            }
            _ => return invalid(format!("there is no parameter '{name}'")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
