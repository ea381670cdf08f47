//! The model: the expected state of the repository, updated while the history runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_format::tree::Timestamp;

use crate::content::Content;
use crate::disk;
use crate::plan::{Plan, Series, Shape};
use crate::random::Random;
use crate::tree::MemoryTree;

/// The expected state of one snapshot.
#[derive(Clone, Debug)]
pub struct Known {
    /// The bytes that a restore must return; `None` if the backup was not reported as done.
    pub image: Option<Arc<Vec<u8>>>,
    /// Whether it must be listed; `None` while unknown.
    pub is_living: Option<bool>,
    /// Number of attempts to delete it or to bring it back.
    attempts: u64,
    /// Number of these attempts that have not ended.
    pending: u64,
}

/// The attempted operations and their reported results.
pub struct Model {
    images: BTreeMap<Series, Vec<u8>>,
    trees: BTreeMap<Series, MemoryTree>,
    shapes: [Shape; 2],
    /// The content of every backup that was ever attempted.
    tried: BTreeMap<Series, Vec<Arc<Vec<u8>>>>,
    /// Snapshots by series and id.
    pub known: BTreeMap<(Series, u64), Known>,
    /// Violations found so far.
    pub violations: Vec<String>,
    random: Random,
    random_of_trees: Random,
}

impl Model {
    /// Returns the model of a repository without snapshots.
    pub fn new(plan: &Plan) -> Self {
        let mut random = Random(plan.seed ^ 0x000d_15c5);
        let mut random_of_trees = Random(plan.seed ^ 0x0007_4ee5);
        let image = disk::image(&mut random);
        let images = Series::ALL.into_iter().map(|series| (series, image.clone())).collect();
        let tree = MemoryTree::new(&mut random_of_trees, timestamp(0));
        let trees = Series::ALL.into_iter().map(|series| (series, tree.clone())).collect();
        let (tried, known, violations) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let shapes = plan.shapes;
        Self { images, trees, shapes, tried, known, violations, random, random_of_trees }
    }

    /// Changes the sources of a series at this time, and returns them to be backed up.
    pub fn change(&mut self, series: Series, now_ns: i64) -> Content {
        let shape = self.shapes[series as usize];
        let mut content = Content::default();
        if shape != Shape::Tree
            && let Some(image) = self.images.get_mut(&series)
        {
            disk::change(image, &mut self.random);
            content.disk = Some(image.clone());
        }
        if shape != Shape::Disk
            && let Some(tree) = self.trees.get_mut(&series)
        {
            tree.change(&mut self.random_of_trees, timestamp(now_ns));
            content.tree = Some(tree.clone());
        }
        content
    }

    /// Records the attempt of a backup. Returns the bytes that a restore must return.
    pub fn tries(&mut self, series: Series, content: &Content) -> Arc<Vec<u8>> {
        let expected = Arc::new(content.expected());
        self.tried.entry(series).or_default().push(Arc::clone(&expected));
        expected
    }

    /// Records that a backup was reported as done.
    pub fn made(&mut self, series: Series, id: u64, image: &Arc<Vec<u8>>) {
        let image = Some(Arc::clone(image));
        // Another host may have seen and deleted it before this was reported.
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

    /// Records the begin of an attempt to delete a snapshot or to bring it back. Returns the number
    /// of the attempt for [`end`](Self::end), and whether the snapshot was living.
    pub fn begin(&mut self, series: Series, id: u64) -> (u64, Option<bool>) {
        let known = self.entry(series, id);
        known.attempts += 1;
        known.pending += 1;
        (known.attempts, known.is_living.take())
    }

    /// Records the end of an attempt, with the state of the snapshot if it is certain. The state is
    /// unknown if another attempt overlapped: either may have come last.
    pub fn end(&mut self, series: Series, id: u64, attempt: u64, is_living: Option<bool>) {
        let known = self.entry(series, id);
        known.pending -= 1;
        let was_alone = known.attempts == attempt && known.pending == 0;
        known.is_living = is_living.filter(|_| was_alone);
    }

    /// Compares a restored snapshot with its expected bytes. If its backup was not reported as
    /// done, it must be one of the attempted ones.
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
                .push(format!("{by}: {}@{id:016x} restores to something else", series.name()));
        }
    }
}

/// Converts nanoseconds since 1970 into the form of a file's times.
fn timestamp(now_ns: i64) -> Timestamp {
    let nanoseconds = u32::try_from(now_ns.rem_euclid(1_000_000_000)).unwrap_or(0);
    Timestamp { seconds: now_ns.div_euclid(1_000_000_000), nanoseconds }
}
