//! An element of a changed-blocks map, in any form.

use std::fmt;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::MapForm;

/// The relevant fields of all forms; the fields present determine the form.
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

/// `rbd` writes "true" or "false" as a string; in both cases the listed range has changed.
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

/// A range of the volume and whether it changed, in bytes.
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) changed: bool,
}

impl Element {
    /// Returns the element's form and change, or the reason why it is invalid.
    pub(super) fn interpret(&self) -> Result<(MapForm, Range), String> {
        let Some(length) = self.length else {
            return Err("it has no length".to_owned());
        };
        if let (Some(start), Some(depth)) = (self.start, self.depth) {
            // Before QEMU 6.1 there was no field `present`: the range may have changed then.
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
            _ => Err("its fields are not those of qemu-img map (start, length, depth, present), \
                      nbdinfo --map (offset, length, description) or rbd diff (offset, length, \
                      exists)"
                .to_owned()),
        }
    }
}

fn is_dirty(description: &str) -> Result<bool, String> {
    match description {
        "dirty" => Ok(true),
        "clean" => Ok(false),
        other => Err(format!(
            "the description {other:?} is of allocation, not of changes; create the map with \
             nbdinfo --map=qemu:dirty-bitmap:NAME"
        )),
    }
}
