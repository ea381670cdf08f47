//! The model: what must be true of the repository, updated as the history runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::disk;
use crate::plan::Series;
use crate::random::Random;

/// What is known of one snapshot.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its disk, if the backup was reported as done.
    pub image: Option<Arc<Vec<u8>>>,
    /// Whether it must be listed; `None` while uncertain.
    pub is_living: Option<bool>,
    /// Counts what was tried with it.
    attempts: u64,
    /// How many of these haven't ended.
    pending: u64,
}

/// What was attempted, and which results were reported.
pub struct Model {
    images: BTreeMap<Series, Vec<u8>>,
    /// Every disk that was ever backed up, or tried to be.
    tried: BTreeMap<Series, Vec<Arc<Vec<u8>>>>,
    /// Snapshots by series and id.
    pub known: BTreeMap<(Series, u64), Known>,
    /// What must not be.
    pub violations: Vec<String>,
    random: Random,
}

impl Model {
    /// A model of a repository without snapshots.
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x000d_15c5);
        let image = disk::image(&mut random);
        let images = Series::ALL.into_iter().map(|series| (series, image.clone())).collect();
        let (tried, known) = (BTreeMap::new(), BTreeMap::new());
        Self { images, tried, known, violations: Vec::new(), random }
    }

    /// A disk changes, and is about to be backed up.
    pub fn change(&mut self, series: Series) -> Arc<Vec<u8>> {
        let image = self.images.entry(series).or_default();
        disk::change(image, &mut self.random);
        let image = Arc::new(image.clone());
        self.tried.entry(series).or_default().push(Arc::clone(&image));
        image
    }

    /// A snapshot was reported as made.
    pub fn made(&mut self, series: Series, id: u64, image: &Arc<Vec<u8>>) {
        let image = Some(Arc::clone(image));
        // Others may have seen it, and deleted it, before its maker was told.
        let known = self.entry(series, id);
        known.image = image;
        if known.attempts == 0 {
            known.is_living = Some(true);
        }
    }

    fn entry(&mut self, series: Series, id: u64) -> &mut Known {
        let unknown = Known { image: None, is_living: None, attempts: 0, pending: 0 };
        self.known.entry((series, id)).or_insert(unknown)
    }

    /// Somebody begins to delete a snapshot, or to bring it back; with what it returns the end is
    /// told.
    pub fn begin(&mut self, series: Series, id: u64) -> (u64, Option<bool>) {
        let known = self.entry(series, id);
        known.attempts += 1;
        known.pending += 1;
        (known.attempts, known.is_living.take())
    }

    /// It was done, or certainly not done. Of attempts that overlap, nobody knows which came last.
    pub fn end(&mut self, series: Series, id: u64, attempt: u64, is_living: Option<bool>) {
        let known = self.entry(series, id);
        known.pending -= 1;
        let was_alone = known.attempts == attempt && known.pending == 0;
        known.is_living = is_living.filter(|_| was_alone);
    }

    /// Somebody restored a snapshot.
    pub fn restored(&mut self, series: Series, id: u64, bytes: &[u8], by: &str) {
        let known = self.known.get(&(series, id)).and_then(|known| known.image.as_deref());
        let is_right = match known {
            Some(image) => image == bytes,
            None => {
                self.tried.get(&series).is_some_and(|all| all.iter().any(|image| **image == bytes))
            }
        };
        if !is_right {
            self.violations
                .push(format!("{by}: {}@{id:016x} restores to a wrong disk", series.name()));
        }
    }
}
