//! An element of a map of changes, of whichever form.

use std::fmt;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::MapForm;

/// The fields of all forms that matter; which of them are there tells the form.
#[derive(Deserialize)]
pub(super) struct Element {
    start: Option<u64>,
    offset: Option<u64>,
    length: Option<u64>,
    depth: Option<u64>,
    present: Option<bool>,
    description: Option<String>,
    exists: Option<Exists>,
}

/// `rbd` writes "true" or "false" as a string; either way, what is listed has changed.
struct Exists;

impl<'de> Deserialize<'de> for Exists {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExistsVisitor)
    }
}

struct ExistsVisitor;

impl Visitor<'_> for ExistsVisitor {
    type Value = Exists;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false")
    }
    fn visit_bool<E: serde::de::Error>(self, _exists: bool) -> Result<Exists, E> {
        Ok(Exists)
    }
    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Exists, E> {
        if matches!(word, "true" | "false") {
            return Ok(Exists);
        }
        Err(E::invalid_value(Unexpected::Str(word), &self))
    }
}

/// What an element says about a range of the volume, in bytes.
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) changed: bool,
}

impl Element {
    /// The element's form and what it says; else why it is of no use.
    pub(super) fn interpret(&self) -> Result<(MapForm, Range), String> {
        let Some(length) = self.length else {
            return Err("it has no length".to_owned());
        };
        if let (Some(start), Some(depth)) = (self.start, self.depth) {
            // Before QEMU 6.1 nothing said whether a range is present: it may have changed then.
            let changed = depth == 0 && self.present.unwrap_or(true);
            return Ok((MapForm::QemuImg, Range { start, length, changed }));
        }
        match (self.offset, &self.description, &self.exists) {
            (Some(start), Some(description), None) => {
                let changed = is_dirty(description)?;
                Ok((MapForm::NbdInfo, Range { start, length, changed }))
            }
            (Some(start), None, Some(_)) => {
                Ok((MapForm::RbdDiff, Range { start, length, changed: true }))
            }
            _ => Err("it has the fields neither of qemu-img map (start, length, depth, present) \
                      nor of nbdinfo --map (offset, length, description) nor of rbd diff (offset, \
                      length, exists)"
                .to_owned()),
        }
    }
}

fn is_dirty(description: &str) -> Result<bool, String> {
    match description {
        "dirty" => Ok(true),
        "clean" => Ok(false),
        other => Err(format!(
            "the description {other:?} tells of allocation, not of changes; make the map with \
             nbdinfo --map=qemu:dirty-bitmap:NAME"
        )),
    }
}
