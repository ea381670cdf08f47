//! Remembers the newest states seen: a storage that shows an older one serves an old state, or
//! hides something.
//!
//! Nothing in a repository distinguishes a provider's copy of yesterday from the current one: every
//! object in it is intact. Only the memory of this process and the notes of this machine can.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use silt_format::{Advice, Error, RepositoryId, Result, SeriesId};

use crate::env::Env;
use crate::sync::lock;

/// The newest generation of each series that was seen, and the newest list of writers, which has no
/// series.
pub struct Seen {
    repository: RepositoryId,
    env: Arc<dyn Env>,
    newest: Mutex<HashMap<SeriesId, u64>>,
}

impl Seen {
    /// Loads the newest heads that this process and this machine have seen of a repository.
    pub fn new(repository: RepositoryId, env: &Arc<dyn Env>) -> Self {
        Self { repository, env: Arc::clone(env), newest: Mutex::default() }
    }

    /// The newest head of a series that was seen. To be asked before the storage is: another thread
    /// of this process may commit while the storage answers.
    pub fn newest(&self, series: SeriesId) -> u64 {
        self.known(series, 0)
    }

    /// Fails with `Corrupt` if the newest head that storage shows is older than the one `known`
    /// before it was asked.
    pub fn compare(&self, series: SeriesId, known: u64, newest: u64) -> Result<()> {
        if newest >= known {
            return Ok(());
        }
        let what = if series == SeriesId::NONE {
            "list of writers".to_owned()
        } else {
            format!("head of series {series}")
        };
        Err(Error::corrupt(format!(
            "the newest {what} in the storage is {newest}, but {known} was seen before: the \
             storage serves an old state or hides newer objects"
        ))
        .with_advice(Advice::AcceptOlderState))
    }

    /// Records for this process an intact head that was read. A name alone does not count: anyone
    /// may have created it.
    pub fn met(&self, series: SeriesId, newest: u64) {
        self.known(series, newest);
    }

    /// What is known once `newest` is, too.
    fn known(&self, series: SeriesId, newest: u64) -> u64 {
        let mut known = lock(&self.newest);
        let noted = || self.env.newest_seen(self.repository, series);
        let known = known.entry(series).or_insert_with(noted);
        *known = newest.max(*known);
        *known
    }

    /// Records a durable head for later processes, too.
    pub fn note(&self, series: SeriesId, newest: u64) {
        self.met(series, newest);
        self.env.note_newest(self.repository, series, newest);
    }
}
