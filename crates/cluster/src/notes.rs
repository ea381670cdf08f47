//! What an agent remembers of its tasks when it is started again.

use std::collections::BTreeMap;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use silt_format::{Error, Result};
use silt_storage::durable::TempFile;

use crate::Name;

/// What an agent remembers of a task. All times are nanoseconds since 1970, by the agent's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskNotes {
    /// When this agent first had the task: before, it was not due.
    pub first_seen_ns: i64,
    /// When it was done last: the time of the snapshot, or of the end of other work.
    pub done_ns: Option<i64>,
    /// When another agent said that it had done it.
    pub elsewhere_ns: Option<i64>,
    /// When its run was cancelled: what was due until then was given up.
    pub skipped_ns: Option<i64>,
    /// Failures since it was done last.
    pub attempts: u32,
    /// It is not tried again before this time.
    pub retry_ns: Option<i64>,
    /// Why it failed last, unless it was done since.
    pub failure: Option<String>,
    /// What was not as it should be when it was done last.
    pub warning: Option<String>,
}

/// Keeps the notes of an agent.
pub trait Notes: Send {
    /// The notes that were saved last, by the key of the task; none if they are lost.
    fn load(&mut self) -> Result<BTreeMap<Name, TaskNotes>>;

    /// Replaces the notes.
    fn save(&mut self, notes: &BTreeMap<Name, TaskNotes>) -> Result<()>;
}

/// Notes that end with the process. After each start, nothing is known to have been done.
#[derive(Debug, Default)]
pub struct NoNotes;

impl Notes for NoNotes {
    fn load(&mut self) -> Result<BTreeMap<Name, TaskNotes>> {
        Ok(BTreeMap::new())
    }

    fn save(&mut self, _: &BTreeMap<Name, TaskNotes>) -> Result<()> {
        Ok(())
    }
}

/// Notes in a file, which is replaced as a whole. A damaged or missing file counts as an empty one.
#[derive(Debug)]
pub struct FileNotes {
    path: PathBuf,
}

const FILE_VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    tasks: BTreeMap<Name, TaskNotes>,
}

impl FileNotes {
    /// Notes in the file at `path`, whose folder must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl Notes for FileNotes {
    fn load(&mut self) -> Result<BTreeMap<Name, TaskNotes>> {
        let bytes = match std::fs::read(&self.path) {
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(BTreeMap::new()),
            read => {
                read.map_err(|error| Error::io(format!("read {}", self.path.display()), error))?
            }
        };
        let file = serde_json::from_slice::<File>(&bytes).ok();
        let known = file.filter(|file| file.version == FILE_VERSION);
        Ok(known.map_or_else(BTreeMap::new, |file| file.tasks))
    }

    fn save(&mut self, notes: &BTreeMap<Name, TaskNotes>) -> Result<()> {
        let file = File { version: FILE_VERSION, tasks: notes.clone() };
        let text = serde_json::to_vec_pretty(&file)
            .map_err(|error| Error::invalid(format!("the notes cannot be written: {error}")))?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut temporary = TempFile::create_in(folder.unwrap_or(Path::new(".")))?;
        temporary.write_pieces(&[&text])?;
        temporary.publish_replacing(&self.path)
    }
}
