//! Fleet files: the series of a round and their volumes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use silt_agent::Schedule;
use silt_format::{Error, ErrorKind};

use crate::cli::TreeArgs;
use crate::commands::Failure;
use crate::commands::made_here::MadeHere;
use crate::commands::volume_args::PathText;
use crate::secrets;

/// Maximum size of a fleet file in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Labels for all snapshots.
    #[serde(default)]
    pub tags: Vec<String>,
    pub series: BTreeMap<String, Series>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Paths by the volumes' names.
    pub volumes: BTreeMap<String, PathText>,
    /// A command that prepares the volumes.
    #[serde(default)]
    pub before: Option<String>,
    /// A command to run once they are no longer needed.
    #[serde(default)]
    pub after: Option<String>,
    /// What of its file trees is backed up; as the command line says if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeArgs>,
    /// When an agent backs it up.
    #[serde(default, skip_serializing)]
    pub schedule: Option<Schedule>,
    /// The name in the file, if the series is called by the one it is shown under.
    #[serde(skip)]
    pub given: Option<String>,
}

impl Fleet {
    /// The same with the own names of its series.
    pub fn with_own_names(
        self,
        own_name: impl Fn(&str) -> Result<String, Error>,
    ) -> Result<Self, Failure> {
        let mut found = BTreeMap::new();
        for (name, mut series) in self.series {
            let own = own_name(&name)?;
            series.given = (own != name).then_some(name);
            if found.insert(own.clone(), series).is_some() {
                return Err(Failure::Usage(format!("series '{own}' is in the fleet twice")));
            }
        }
        Ok(Self { series: found, ..self })
    }
}

/// An error in one line: the file, the line, its key and what is wrong.
pub fn toml_error(file: &Path, text: &str, error: &toml::de::Error) -> String {
    let message = error.message().trim_end().replace('\n', ", ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return format!("{}: {message}", file.display());
    };
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    let key = line.split('=').next().unwrap_or_default().trim();
    let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
    format!("{}: line {number}: {key}{message}", file.display())
}

pub fn read(file: &Path) -> Result<Fleet, Failure> {
    let failed = |error| Error::io(format!("read the fleet file {}", file.display()), error);
    if std::fs::metadata(file).map_err(failed)?.len() > FILE_BYTES_MAX {
        let message = format!("{} is not a fleet file: it is too large", file.display());
        return Err(Failure::Usage(message));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let fleet: Fleet = toml::from_str(&text).map_err(|error| {
        Failure::Usage(format!("the fleet file is invalid: {}", toml_error(file, &text, &error)))
    })?;
    let empty = fleet.series.iter().find(|(_, series)| series.volumes.is_empty());
    match empty {
        Some((name, _)) => Err(Failure::Usage(format!("series '{name}' has no volumes"))),
        None if fleet.series.is_empty() => {
            Err(Failure::Usage(format!("{} lists no series", file.display())))
        }
        None => Ok(fleet),
    }
}

/// All series that this machine has backed up to a repository.
pub fn made_here(made_here: &MadeHere) -> Result<Fleet, Failure> {
    let fleet = Fleet { tags: Vec::new(), series: made_here.all()? };
    if fleet.series.is_empty() {
        let message = "this machine has not backed up any series to this repository yet; name a \
                       series and its volumes";
        return Err(Failure::Usage(message.to_owned()));
    }
    Ok(fleet)
}

/// Returns a shell command without passwords in its environment and without standard input.
pub fn shell(command: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).stdin(Stdio::null());
    for variables in [secrets::CURRENT, secrets::NEW, secrets::ADMINISTRATOR] {
        for name in [variables.value, variables.file, variables.command] {
            shell.env_remove(name);
        }
    }
    shell
}

/// Runs a command of a fleet file with the shell; `SILT_SERIES` holds the series. Passwords are not
/// passed on. Its output goes to standard error, because standard output is this program's.
pub fn run_hook(series: &str, which: &str, command: &str) -> Result<(), Error> {
    let failed = |why: String| {
        let message = format!("series '{series}': the command `{which}` failed: {why}");
        Error::new(ErrorKind::Unavailable, message)
    };
    let mut shell = shell(command);
    let status = shell.env("SILT_SERIES", series).stdout(std::io::stderr()).status();
    let status = status.map_err(|error| failed(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(failed(status.to_string())) }
}
