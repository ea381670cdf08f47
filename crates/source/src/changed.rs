//! What a hypervisor or a storage system says has changed in a volume.

mod element;
mod text;

use std::fmt;
use std::io::{self, Read};

use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use silt_format::{Advice, Error, Result};

use self::element::{Element, Range};
use self::text::BoundedText;
use crate::number::to_usize;

/// The most memory that a map takes, in bytes: at 2 MiB a bit, a volume of 1 PiB.
pub const CHANGED_MAP_BYTES_MAX: u64 = 64 << 20;

/// Which program wrote a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapForm {
    /// `qemu-img map --output=json` of an overlay: what its top layer holds has changed.
    QemuImg,
    /// `nbdinfo --map=qemu:dirty-bitmap:NAME --json`.
    NbdInfo,
    /// `rbd diff --format json`; what is not listed has not changed.
    RbdDiff,
    /// A scan of our own, shortly before.
    Scan,
}

/// Which grains of a volume may have changed: a bit for each.
pub struct ChangedMap {
    form: MapForm,
    grains: u64,
    words: Vec<u64>,
}

impl ChangedMap {
    /// Reads the JSON that one of the programs of [`MapForm`] wrote about a volume of `volume_size`
    /// bytes; `grain` is in bytes, at least 1. A range changes every grain it touches. The list is
    /// never in memory as a whole. The `form` is seen from the elements; it has to be said for a
    /// list without any, which only `rbd diff` writes to say that nothing has changed.
    ///
    /// Invalid, with the number of the element (from 1) where one is to blame: what is in no known
    /// form or in several, is no JSON, reaches past the end of the volume, or tells of less than
    /// the whole volume where the form tells of everything; an nbdinfo map of allocation rather
    /// than of changes; a volume of more grains than [`CHANGED_MAP_BYTES_MAX`] has bits.
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
                "a volume of {volume_size} bytes is too large for a map of changes; back it up \
                 without one"
            )));
        }
        let map =
            Self { form: MapForm::RbdDiff, grains, words: vec![0; to_usize(grains.div_ceil(64))] };
        let mut filling = Filling { map, volume_size, grain, form, covered: 0, number: 0 };
        let mut json = serde_json::Deserializer::from_reader(BoundedText::new(reader));
        let parsed = (&mut filling).deserialize(&mut json).and_then(|()| json.end());
        parsed.map_err(|error| failure(filling.number, error))?;
        filling.finish()
    }

    /// The map of a volume of `volume_size` bytes in which the grains listed have changed.
    pub fn of_grains(volume_size: u64, grain: u64, changed: &[u64]) -> Result<Self> {
        let grains = volume_size.div_ceil(grain);
        if grains > CHANGED_MAP_BYTES_MAX * 8 {
            return Err(Error::invalid(format!("a map of {grains} grains is too large")));
        }
        let words = vec![0; to_usize(grains.div_ceil(64))];
        let mut map = Self { form: MapForm::Scan, grains, words };
        changed.iter().filter(|index| **index < grains).for_each(|index| map.set(*index, *index));
        Ok(map)
    }

    /// Whether grain `grain_index` may have changed; true past the end of the volume.
    pub fn is_changed(&self, grain_index: u64) -> bool {
        grain_index >= self.grains
            || self.words[to_usize(grain_index / 64)] >> (grain_index % 64) & 1 != 0
    }

    /// How many grains may have changed.
    pub fn changed_grains(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// How many grains the volume has.
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

/// A map while its elements arrive.
struct Filling {
    map: ChangedMap,
    volume_size: u64,
    grain: u64,
    form: Option<MapForm>,
    /// Bytes from the beginning of the volume on that elements told of without a gap.
    covered: u64,
    /// The element being read, from 1; 0 before and behind the list.
    number: u64,
}

impl Filling {
    fn add(&mut self, element: &Element) -> Result<(), String> {
        let (form, range) = element.interpret()?;
        if *self.form.get_or_insert(form) != form {
            return Err(
                "it has another form than was said, or than the elements before it".to_owned()
            );
        }
        let Range { start, length, changed } = range;
        let end = start.checked_add(length).filter(|&end| end <= self.volume_size);
        let Some(end) = end else {
            return Err(format!(
                "{length} bytes at byte {start} reach past the end of the volume, which has {} \
                 bytes",
                self.volume_size
            ));
        };
        if form != MapForm::RbdDiff && start > self.covered {
            return Err(format!("bytes {} to {start} are missing before it", self.covered));
        }
        self.covered = self.covered.max(end);
        if changed && length > 0 {
            self.map.set(start / self.grain, (end - 1) / self.grain);
        }
        Ok(())
    }

    fn finish(self) -> Result<ChangedMap> {
        let Some(form) = self.form else {
            return Err(Error::invalid(
                "the map of changes is empty: only `rbd diff` writes such a map, where nothing \
                 has changed",
            )
            .with_advice(Advice::NameMapForm));
        };
        if form != MapForm::RbdDiff && self.covered < self.volume_size {
            return Err(Error::invalid(format!(
                "the map of changes ends at byte {} of a volume of {} bytes; make it anew from \
                 the same volume",
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
        f.write_str("a list as qemu-img map, nbdinfo --map or rbd diff write it in JSON")
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

/// What parsing failed with, at element `number` if it is not 0.
fn failure(number: u64, error: serde_json::Error) -> Error {
    let what = match number {
        0 => "reading the map of changes".to_owned(),
        _ => format!("reading the map of changes, element {number}"),
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
