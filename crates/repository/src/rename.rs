//! Aliases of series, and labels of existing snapshots.
//!
//! Ids and keys derive from a series' own name, which never changes. Its head can hold another
//! name, the alias, which is shown instead. An alias is never the own name of another series, so a
//! name means one series. A rename looks for series of its name, and a first backup for aliases,
//! each after it has written its own.

use silt_format::names::Numbered;
use silt_format::{Advice, Error, ErrorKind, Head, Id, Result};

use crate::edit::Edit;
use crate::keys::KeyInfo;
use crate::repository::Repository;
use crate::series;

/// The most labels of a snapshot, and the most bytes of one.
const LABELS_MAX: usize = 256;
const LABEL_BYTES_MAX: usize = 255;

/// The result of a rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The series' own name.
    pub own_name: String,
    /// The name that was shown before.
    pub before: String,
    /// The name that is shown now.
    pub shown: String,
}

fn taken(message: String) -> Error {
    Error::new(ErrorKind::AlreadyExists, message).with_advice(Advice::ListSnapshots)
}

impl Repository {
    /// Returns the own name of the series called `name`, which may be its own name or its alias.
    /// Returns `name` if there is no such series yet.
    pub fn own_name(&self, name: &str) -> Result<String> {
        if self.objects.newest_name(Numbered::Head, self.series_id(name))?.is_some() {
            return Ok(name.to_owned());
        }
        Ok(self.shown_as(name)?.map_or_else(|| name.to_owned(), |head| head.name))
    }

    /// Fails with `AlreadyExists` if another series has this alias. A first backup calls it after
    /// it has written the series record.
    pub fn require_unused_name(&self, name: &str) -> Result<()> {
        match self.shown_as(name)? {
            None => Ok(()),
            Some(head) => Err(taken(format!(
                "'{name}' is the name under which series '{}' is shown; use another name",
                head.name
            ))),
        }
    }

    /// Gives a series, named by its own name or its alias, the alias `shown`.
    ///
    /// Fails with `AlreadyExists` if another series has or had that name, or a write-only key may
    /// create one; with `Denied` without the right to change the series; with `Busy` while another
    /// process changes it. If another process has taken the name meanwhile, the rename is undone.
    pub fn rename(&self, name: &str, shown: &str) -> Result<Renamed> {
        if !series::is_name(shown) {
            return Err(Error::invalid(format!(
                "'{shown}' is not allowed as the name of a series: use 1 to 255 bytes without \
                 '@', ':', '=', '/' and control characters, and not 'latest'"
            )));
        }
        let own_name = self.own_name(name)?;
        let mut edit = Edit::begin_brief(self, self.series_id(&own_name), &own_name)?;
        let before = edit.head.alias.clone();
        let renamed = Renamed {
            own_name: own_name.clone(),
            before: edit.head.shown().to_owned(),
            shown: shown.to_owned(),
        };
        let alias = (shown != own_name).then(|| shown.to_owned());
        if alias == before {
            edit.finish()?;
            return Ok(renamed);
        }
        self.require_free(&edit.head, shown)?;
        edit.head.alias = alias;
        edit.commit()?;
        // A first backup or another rename may have taken the name since.
        if let Err(error) = self.require_free(&edit.head, shown) {
            edit.head.alias = before;
            edit.commit()?;
            edit.finish()?;
            return Err(error.context("the rename was undone"));
        }
        edit.finish()?;
        Ok(renamed)
    }

    /// Fails with `AlreadyExists` if a series other than that of `head` has a name, is shown under
    /// it, or may come to have it.
    fn require_free(&self, head: &Head, name: &str) -> Result<()> {
        if name == head.name {
            return Ok(());
        }
        let id = self.series_id(name);
        if self.has_record(id)? || self.objects.newest_name(Numbered::Head, id)?.is_some() {
            return Err(taken(format!(
                "series '{name}' exists already, or has been renamed from that name"
            )));
        }
        let mut is_shown =
            |other: &Head| other.series != head.series && other.alias.as_deref() == Some(name);
        if let Some(other) = self.find_head(&mut is_shown)? {
            let message = format!("series '{}' is shown as '{name}' already", other.name);
            return Err(taken(message));
        }
        // Such a key does not open the series, so a host with it would make another one.
        let makes_another = |key: &&KeyInfo| {
            let names = |name: &str| key.series.iter().any(|known| known == name);
            let sees_all = key.series.iter().any(|known| known.ends_with(series::EVERY_SERIES));
            key.is_write_only && !sees_all && names(name) && !names(&head.name)
        };
        match self.keys()?.iter().find(makes_another) {
            None => Ok(()),
            Some(key) => Err(taken(format!(
                "key {} may write a series '{name}', and its host would make another one; remove \
                 the key first",
                key.id
            ))
            .with_advice(Advice::ListKeys)),
        }
    }

    /// Adds labels to a living snapshot, and removes others from it. Returns its labels, and
    /// whether they have changed.
    ///
    /// Fails with `NotFound` if the series has no such snapshot, with `Denied` without the right to
    /// change the series, and with `Busy` while another process changes it.
    pub fn change_labels(
        &self,
        series: &str,
        id: Id,
        add: &[String],
        remove: &[String],
    ) -> Result<(Vec<String>, bool)> {
        if let Some(long) = add.iter().find(|label| !(1..=LABEL_BYTES_MAX).contains(&label.len())) {
            let message = format!("the label '{long}' must have 1 to {LABEL_BYTES_MAX} bytes");
            return Err(Error::invalid(message));
        }
        let mut edit = Edit::begin_brief(self, self.series_id(series), series)?;
        let place = edit.place(id)?;
        let mut labels = edit.head.snapshots[place].labels.clone();
        labels.retain(|label| !remove.contains(label));
        for label in add {
            if !labels.contains(label) {
                labels.push(label.clone());
            }
        }
        if labels.len() > LABELS_MAX {
            return Err(Error::invalid(format!("a snapshot has at most {LABELS_MAX} labels")));
        }
        let is_changed = labels != edit.head.snapshots[place].labels;
        if is_changed {
            edit.head.snapshots[place].labels.clone_from(&labels);
            edit.commit()?;
        }
        edit.finish()?;
        Ok((labels, is_changed))
    }
}
