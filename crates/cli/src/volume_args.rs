//! Volumes and their changed-blocks maps on the command line. Paths may hold any bytes.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use silt_source::nbd::Uri;
use silt_terminal::failure::Failure;

/// The name of a volume that has neither a name nor a file name.
const STANDARD_INPUT: &str = "stdin";

/// How the names of the metadata contexts begin that tell changes.
const CONTEXTS: [&str; 2] = ["qemu:dirty-bitmap:", "silt:changed-since:"];

/// A volume on the command line.
pub struct VolumeArg<'a> {
    pub name: Option<&'a str>,
    pub path: &'a Path,
}

impl<'a> VolumeArg<'a> {
    /// PATH or NAME=PATH.
    pub fn parse(text: &'a OsStr) -> Self {
        match split_name(text) {
            Some((name, path)) if !name.is_empty() && !name.contains('/') => {
                Self { name: Some(name), path: Path::new(path) }
            }
            _ => Self { name: None, path: Path::new(text) },
        }
    }

    /// Whether the volume is read from standard input.
    pub fn is_stdin(&self) -> bool {
        is_stdin(self.path)
    }

    /// The default name: the file's name up to its first dot, or the last word of an export's name.
    pub fn default_name(&self) -> String {
        if self.is_stdin() {
            return STANDARD_INPUT.to_owned();
        }
        if let Ok(uri) = Uri::parse(self.path.as_os_str()) {
            return uri.volume_name();
        }
        let file = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let file = file.unwrap_or_else(|| "volume".to_owned());
        let stem = file.split('.').find(|part| !part.is_empty()).unwrap_or("volume");
        stem.to_owned()
    }

    fn is_called(&self, name: &str) -> bool {
        self.name.map_or_else(|| self.default_name() == name, |own| own == name)
    }
}

/// The metadata context by which an NBD server is asked for a changed-blocks map, if `map` is the
/// name of one and not of a file.
pub fn changed_context(map: &Path) -> Option<&str> {
    let text = map.to_str()?;
    CONTEXTS.iter().any(|begin| text.starts_with(begin)).then_some(text)
}

/// Whether a path means standard input or output.
pub fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the map file of each volume that has one, by the volume's index.
pub fn changed_args<'a>(
    args: &'a [OsString],
    volumes: &[VolumeArg<'_>],
) -> Result<HashMap<usize, &'a Path>, Failure> {
    let mut found = HashMap::new();
    for text in args {
        let named = split_name(text).and_then(|(name, path)| {
            volumes.iter().position(|volume| volume.is_called(name)).map(|at| (at, path))
        });
        let (at, path) = match named {
            Some(named) => named,
            None if volumes.len() == 1 => (0, text.as_os_str()),
            None => {
                return Err(Failure::Usage(format!(
                    "--changed {}: there are several volumes; use --changed NAME=FILE",
                    text.display()
                )));
            }
        };
        if found.insert(at, Path::new(path)).is_some() {
            let message = format!("--changed {}: the volume already has a map", text.display());
            return Err(Failure::Usage(message));
        }
    }
    Ok(found)
}

/// Splits NAME=PATH; `None` without a name before the first `=`.
fn split_name(text: &OsStr) -> Option<(&str, &OsStr)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let name = std::str::from_utf8(&bytes[..at]).ok()?;
    Some((name, OsStr::from_bytes(&bytes[at + 1..])))
}

/// A path in a text file: a string, or `{ "bytes": [47, 255] }` if it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathText(pub PathBuf);

/// A pattern for paths, in a text file in the same form, or on the command line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct PatternText(PathText);

impl From<OsString> for PatternText {
    fn from(pattern: OsString) -> Self {
        Self(PathText(pattern.into()))
    }
}

impl AsRef<[u8]> for PatternText {
    fn as_ref(&self) -> &[u8] {
        self.0.0.as_os_str().as_bytes()
    }
}

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes { bytes: Vec<u8> },
}

impl Serialize for PathText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let written = match self.0.to_str() {
            Some(text) => Written::Text(text.to_owned()),
            None => Written::Bytes { bytes: self.0.as_os_str().as_bytes().to_vec() },
        };
        written.serialize(to)
    }
}

impl<'de> Deserialize<'de> for PathText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match Written::deserialize(from)? {
            Written::Text(text) => text.into(),
            Written::Bytes { bytes } => OsString::from_vec(bytes).into(),
        }))
    }
}
