//! Changed-blocks maps: the changes in a volume according to a hypervisor or storage system.

mod element;
mod text;

use std::fmt;
use std::io::{self, Read};

use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use silt_format::{Advice, Error, Result};

use self::element::{Element, Range};
use self::text::BoundedText;
use crate::number::to_usize;

/// Maximum memory of a map in bytes: at 2 MiB per bit, enough for a volume of 1 PiB.
pub const CHANGED_MAP_BYTES_MAX: u64 = 64 << 20;

/// The program that wrote a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapForm {
    /// `qemu-img map --output=json` of an overlay: ranges in its top layer have changed.
    QemuImg,
    /// `nbdinfo --map=qemu:dirty-bitmap:NAME --json`, or the NBD server itself.
    NbdInfo,
    /// `rbd diff --format json`; unlisted ranges have not changed.
    RbdDiff,
    /// Our own scan, shortly before.
    Scan,
}

/// The grains of a volume that may have changed: one bit each.
pub struct ChangedMap {
    form: MapForm,
    grain: u64,
    grains: u64,
    words: Vec<u64>,
}

impl ChangedMap {
    /// Reads the JSON that one of the programs of [`MapForm`] wrote about a volume of `volume_size`
    /// bytes; `grain` is in bytes, at least 1. A range changes every grain it touches. The list is
    /// never in memory as a whole. The form is detected from the elements; `form` must be given for
    /// an empty list, which only `rbd diff` writes, if nothing has changed.
    ///
    /// Fails with Invalid, with the number of the element (from 1) if there is one: for text that
    /// is not JSON or in no known form or in several; for ranges past the end of the volume; for a
    /// map that does not cover the whole volume although its form does; for an nbdinfo map of
    /// allocation rather than of changes; for a volume of more grains than
    /// [`CHANGED_MAP_BYTES_MAX`] has bits.
    pub fn parse(
        reader: impl Read,
        volume_size: u64,
        grain: u64,
        form: Option<MapForm>,
    ) -> Result<Self> {
        assert!(grain > 0, "a grain has at least one byte");
        let grains = volume_size.div_ceil(grain);
        if grains > CHANGED_MAP_BYTES_MAX * 8 {
            return Err(Error::invalid(format!(
                "a volume of {volume_size} bytes is too large for a changed-blocks map; back it up \
                 without one"
            )));
        }
        let map = Self::unchanged(MapForm::RbdDiff, grain, grains);
        let mut filling = Filling { map, volume_size, form, covered: 0, number: 0 };
        let mut json = serde_json::Deserializer::from_reader(BoundedText::new(reader));
        let parsed = (&mut filling).deserialize(&mut json).and_then(|()| json.end());
        parsed.map_err(|error| failure(filling.number, error))?;
        filling.finish()
    }

    /// Returns the map of a volume of `volume_size` bytes in which the listed grains have changed.
    pub fn of_grains(volume_size: u64, grain: u64, changed: &[u64]) -> Result<Self> {
        let grains = volume_size.div_ceil(grain);
        if grains > CHANGED_MAP_BYTES_MAX * 8 {
            return Err(Error::invalid(format!("a map of {grains} grains is too large")));
        }
        let mut map = Self::unchanged(MapForm::Scan, grain, grains);
        changed.iter().filter(|index| **index < grains).for_each(|index| map.set(*index, *index));
        Ok(map)
    }

    fn unchanged(form: MapForm, grain: u64, grains: u64) -> Self {
        Self { form, grain, grains, words: vec![0; to_usize(grains.div_ceil(64))] }
    }

    /// Returns the map of a volume in which nothing has changed, to [add](Self::add_range) to.
    pub(crate) fn of_ranges(volume_size: u64, grain: u64, form: MapForm) -> Result<Self> {
        let grains = volume_size.div_ceil(grain);
        if grains > CHANGED_MAP_BYTES_MAX * 8 {
            return Err(Error::invalid(format!("a map of {grains} grains is too large")));
        }
        Ok(Self::unchanged(form, grain, grains))
    }

    /// Marks the grains that bytes `start` to `end`, which is past `start`, touch.
    pub(crate) fn add_range(&mut self, start: u64, end: u64) {
        self.set(start / self.grain, (end - 1) / self.grain);
    }

    /// Returns whether grain `grain_index` may have changed; true past the end of the volume.
    pub fn is_changed(&self, grain_index: u64) -> bool {
        grain_index >= self.grains
            || self.words[to_usize(grain_index / 64)] >> (grain_index % 64) & 1 != 0
    }

    /// Number of grains that may have changed.
    pub fn changed_grains(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Number of grains in the volume.
    pub fn grains(&self) -> u64 {
        self.grains
    }

    /// Which program wrote the map.
    pub fn form(&self) -> MapForm {
        self.form
    }

    /// Sets the bits of grains `first` to `last`, both included.
    fn set(&mut self, first: u64, last: u64) {
        let (first_word, last_word) = (to_usize(first / 64), to_usize(last / 64));
        let from_first = u64::MAX << (first % 64);
        let to_last = u64::MAX >> (63 - last % 64);
        if first_word == last_word {
            self.words[first_word] |= from_first & to_last;
            return;
        }
        self.words[first_word] |= from_first;
        self.words[first_word + 1..last_word].fill(u64::MAX);
        self.words[last_word] |= to_last;
    }
}

impl fmt::Debug for ChangedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {} of {} grains", self.form, self.changed_grains(), self.grains)
    }
}

/// A map under construction.
struct Filling {
    map: ChangedMap,
    volume_size: u64,
    form: Option<MapForm>,
    /// Bytes from the start of the volume that the elements cover without a gap.
    covered: u64,
    /// The number of the element being read, from 1; 0 before and after the list.
    number: u64,
}

impl Filling {
    fn add(&mut self, element: &Element) -> Result<(), String> {
        let (form, range) = element.interpret()?;
        if *self.form.get_or_insert(form) != form {
            return Err(
                "its form is not the given one, or not that of the elements before it".to_owned()
            );
        }
        let Range { start, length, changed } = range;
        let end = start.checked_add(length).filter(|&end| end <= self.volume_size);
        let Some(end) = end else {
            return Err(format!(
                "{length} bytes at byte {start} exceed the volume, which has {} bytes",
                self.volume_size
            ));
        };
        if form != MapForm::RbdDiff && start > self.covered {
            return Err(format!("bytes {} to {start} are missing before it", self.covered));
        }
        self.covered = self.covered.max(end);
        if changed && length > 0 {
            self.map.add_range(start, end);
        }
        Ok(())
    }

    fn finish(self) -> Result<ChangedMap> {
        let Some(form) = self.form else {
            return Err(Error::invalid(
                "the changed-blocks map is empty; only `rbd diff` writes such a map, if nothing \
                 has changed",
            )
            .with_advice(Advice::NameMapForm));
        };
        if form != MapForm::RbdDiff && self.covered < self.volume_size {
            return Err(Error::invalid(format!(
                "the changed-blocks map ends at byte {}, but the volume has {} bytes; create it \
                 again from the same volume",
                self.covered, self.volume_size
            )));
        }
        Ok(ChangedMap { form, ..self.map })
    }
}

impl<'de> DeserializeSeed<'de> for &mut Filling {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for &mut Filling {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON list written by qemu-img map, nbdinfo --map or rbd diff")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        self.number = 1;
        while let Some(element) = elements.next_element::<Element>()? {
            self.add(&element).map_err(serde::de::Error::custom)?;
            self.number += 1;
        }
        self.number = 0;
        Ok(())
    }
}

/// Returns the parse error, at element `number` if it is not 0.
fn failure(number: u64, error: serde_json::Error) -> Error {
    let what = match number {
        0 => "reading the changed-blocks map".to_owned(),
        _ => format!("reading the changed-blocks map, element {number}"),
    };
    if error.is_io() {
        let error = io::Error::from(error);
        if error.kind() != io::ErrorKind::InvalidData {
            return Error::io(what, error);
        }
        return Error::invalid(what).with_source(error);
    }
    Error::invalid(what).with_source(error)
}

#[cfg(test)]
mod tests;
