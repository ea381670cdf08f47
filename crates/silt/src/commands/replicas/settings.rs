//! The replicas of a profile, and those that a command line names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};
use silt_replicate::{DeltaUse, Destination, ReplicateOptions};

use crate::cli::{DeltaWhen, Replicate};
use crate::commands::{Failure, Session};
use crate::rate::Rate;
use crate::snapshot_name;
use crate::window::Window;

/// The zstd level of what is sent.
const LEVEL: i32 = 9;

/// A replica in a profile.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ReplicaSettings {
    pub to: String,
    pub prefix: String,
    /// Names of series, and beginnings of names followed by `*`.
    pub series: Vec<String>,
    pub tags: Vec<String>,
    pub newest: Option<u32>,
    pub compression: Option<i32>,
    /// When chunks go as deltas.
    pub delta: Option<DeltaWhen>,
    pub limit_write: Option<Rate>,
    pub window: Option<Window>,
    pub password_file: Option<PathBuf>,
    pub password_command: Option<String>,
    /// How old the oldest snapshot may be that is not sent, in seconds.
    #[serde(deserialize_with = "period")]
    pub max_lag: Option<u64>,
    pub remote_program: Option<String>,
    /// Whether it has another secret, so that all is read and stored anew.
    pub foreign: bool,
}

fn period<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    snapshot_name::parse_seconds(&text).map(Some).map_err(|failure| de::Error::custom(&failure))
}

impl ReplicaSettings {
    /// What is wrong with the settings, and with which key.
    pub fn problem(&self, name: &str) -> Option<(&'static str, String)> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.starts_with(['-', '.']) || !name.chars().all(is_name) {
            let message = "the name of a replica has letters, digits, '-', '_' and '.'";
            return Some(("replicas", message.to_owned()));
        }
        if self.to.is_empty() {
            return Some(("to", "it is missing; it says where the replica is".to_owned()));
        }
        if let Err(error) = Destination::parse(&self.to) {
            return Some(("to", error.to_string()));
        }
        if self.compression.is_some_and(|level| !(1..=19).contains(&level)) {
            return Some(("compression", "it is not in the range 1 to 19".to_owned()));
        }
        if self.newest == Some(0) {
            return Some(("newest", "it is at least 1".to_owned()));
        }
        let has_both = self.password_file.is_some() && self.password_command.is_some();
        has_both.then(|| ("password-file, password-command", "use only one of the two".to_owned()))
    }

    /// Whether the replica is at a location that this machine opens, so that a relative path is one
    /// of the file's folder.
    pub fn is_folder(&self) -> bool {
        !self.to.contains("://") && !self.to.starts_with("exec:")
    }

    /// Which snapshots are sent.
    pub fn options(&self) -> ReplicateOptions {
        ReplicateOptions {
            series: self.series.clone(),
            prefix: self.prefix.clone(),
            tags: self.tags.clone(),
            newest: self.newest.and_then(|newest| usize::try_from(newest).ok()),
            delta: match self.delta {
                Some(DeltaWhen::Off) => DeltaUse::Off,
                Some(DeltaWhen::Auto) | None => DeltaUse::Auto,
            },
            ..ReplicateOptions::default()
        }
    }

    /// The zstd level of what is sent.
    pub fn level(&self) -> i32 {
        self.compression.unwrap_or(LEVEL)
    }

    /// Takes what the command line says.
    fn overridden(mut self, session: &Session<'_>, args: &Replicate) -> Self {
        if let Some(prefix) = &args.prefix {
            self.prefix.clone_from(prefix);
        }
        if !args.tag.is_empty() {
            self.tags.clone_from(&args.tag);
        }
        self.newest = args.newest.or(self.newest);
        self.compression = args.compression.or(self.compression);
        self.delta = args.delta.or(self.delta);
        self.window = args.window.clone().or(self.window);
        self.remote_program = args.remote_program.clone().or(self.remote_program);
        if self.limit_write.is_none() || session.chosen.is_on_command_line("limit-write") {
            self.limit_write.clone_from(&session.global.limit_write);
        }
        self
    }
}

/// A replica, and how snapshots are brought to it.
pub struct Target {
    /// Its name in the profile.
    pub name: Option<String>,
    pub settings: ReplicaSettings,
    /// Whether the command line names series, so that only they are sent.
    pub is_partial: bool,
}

impl Target {
    /// What messages call it.
    pub fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.settings.to)
    }
}

/// The replicas of the profile, if the repository is the profile's.
pub fn of_profile<'s>(session: &'s Session<'_>) -> BTreeMap<&'s str, &'s ReplicaSettings> {
    if !session.chosen.is_for(session.global) {
        return BTreeMap::new();
    }
    let all = session.chosen.profile.replicas.iter();
    all.map(|(name, settings)| (name.as_str(), settings)).collect()
}

/// The replicas that a command line stands for: the one that it names, or else all of the profile.
pub fn targets(session: &Session<'_>, args: &Replicate) -> Result<Vec<Target>, Failure> {
    let known = of_profile(session);
    let named = args.to.as_deref().map(located).transpose()?;
    let mut found = Vec::new();
    for (&name, &settings) in &known {
        let is_name = args.to.as_deref().is_none_or(|to| to == name);
        let is_meant = is_name || named.as_ref() == Some(&settings.to);
        if !is_meant {
            continue;
        }
        let mut settings = settings.clone().overridden(session, args);
        let series = selected(&settings.series, &args.series);
        if series.len() < args.series.len() && args.to.is_some() {
            return Err(Failure::Usage(format!(
                "the replica '{name}' takes only the series {}",
                settings.series.join(", ")
            )));
        }
        if series.is_empty() && !args.series.is_empty() {
            continue;
        }
        settings.series = series;
        let is_partial = !args.series.is_empty();
        found.push(Target { name: Some(name.to_owned()), settings, is_partial });
        if args.to.is_some() {
            return Ok(found);
        }
    }
    let Some(to) = named else {
        if found.is_empty() {
            let message = if known.is_empty() {
                "no replica: use --to DEST, or put replicas into the profile (`silt help profiles`)"
            } else {
                "no replica of the profile takes these series"
            };
            return Err(Failure::Usage(message.to_owned()));
        }
        return Ok(found);
    };
    let series = args.series.clone();
    let settings = ReplicaSettings { to, series, ..ReplicaSettings::default() };
    let settings = settings.overridden(session, args);
    Ok(vec![Target { name: None, settings, is_partial: !args.series.is_empty() }])
}

/// A destination whose folder, if it is one, has its path from the root: it is recorded, and means
/// the same in every folder.
fn located(to: &str) -> Result<String, Failure> {
    let is_folder = matches!(Destination::parse(to)?, Destination::Location(_));
    let absolute = std::path::absolute(to).ok().filter(|_| is_folder && !to.contains("://"));
    Ok(absolute.map_or_else(|| to.to_owned(), |path| path.to_string_lossy().into_owned()))
}

/// Those of the named series that a replica takes; all that it takes if none is named.
fn selected(taken: &[String], named: &[String]) -> Vec<String> {
    if named.is_empty() {
        return taken.to_vec();
    }
    let is_taken = |name: &&String| {
        let is = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => *name == pattern,
        };
        taken.is_empty() || taken.iter().any(is)
    };
    named.iter().filter(is_taken).cloned().collect()
}
