//! The retention policy that a series' head stores.

use silt_format::{Advice, Error, ErrorKind, Result, RetentionPolicy};

use crate::edit::Edit;
use crate::repository::Repository;

/// A series and its retention policy.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let policy = RetentionPolicy { daily: 7, ..RetentionPolicy::default() };
/// repository.set_policy("web1", Some(policy))?;
/// for SeriesPolicy { series, policy } in repository.policies(&[])? {
///     assert_eq!(series, "web1");
///     assert_eq!(policy.map(|policy| policy.daily), Some(7));
/// }
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SeriesPolicy {
    /// The series' name.
    pub series: String,
    /// Its policy, if it has one.
    pub policy: Option<RetentionPolicy>,
}

impl Repository {
    /// Stores a series' policy, or removes it.
    pub fn set_policy(&self, series: &str, policy: Option<RetentionPolicy>) -> Result<()> {
        if policy.as_ref().is_some_and(|policy| policy.is_empty() && policy.keep_deleted_s == 0) {
            return Err(Error::new(ErrorKind::Invalid, "the policy would keep nothing")
                .with_advice(Advice::KeepSomething));
        }
        let mut edit = Edit::begin_brief(self, self.series_id(series), series)?;
        if edit.head.policy != policy {
            edit.head.policy = policy;
            edit.commit()?;
        }
        edit.finish()
    }

    /// Returns the policies of the series in `names`, or of all if it is empty.
    pub fn policies(&self, names: &[String]) -> Result<Vec<SeriesPolicy>> {
        let heads = self.heads(names)?.into_iter();
        let shown = |head: &silt_format::Head| head.shown().to_owned();
        Ok(heads.map(|head| SeriesPolicy { series: shown(&head), policy: head.policy }).collect())
    }
}
