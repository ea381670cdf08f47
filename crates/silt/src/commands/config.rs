//! The configuration file and its profiles, and `silt config`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use serde::{Deserialize, Deserializer, de};
use serde_json::json;
use silt_agent::AgentSettings;
use silt_format::Error;
use silt_source::nbd::Uri;

use super::Failure;
use super::replicas::ReplicaSettings;
use super::rounds::{self, Series};
use super::volume_args::PathText;
use crate::cli::{ConfigCommand, Global, RetentionRules, compression_level};
use crate::rate::Rate;
use crate::{output, secrets, snapshot_name};

/// Maximum size of a configuration file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The file of all users of a machine.
const OF_THE_MACHINE: &str = "/etc/silt/silt.toml";
/// The profile that is used if no other is named.
const DEFAULT_PROFILE: &str = "default";

/// A configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    /// The profile to use if none is named.
    default_profile: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
    agent: Option<AgentSettings>,
}

/// Settings that are used together.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Profile {
    repository: Option<String>,
    password_file: Option<PathBuf>,
    password_command: Option<String>,
    jobs: Option<usize>,
    #[serde(deserialize_with = "memory")]
    memory: Option<u64>,
    /// The zstd level of what backups store.
    #[serde(deserialize_with = "compression")]
    pub compression: Option<i32>,
    limit_read: Option<Rate>,
    limit_write: Option<Rate>,
    cache_dir: Option<PathBuf>,
    cache_size: Option<u64>,
    /// Whether to use the cache.
    cache: Option<bool>,
    #[serde(deserialize_with = "wait")]
    wait: Option<u64>,
    #[serde(deserialize_with = "nice")]
    nice: Option<i32>,
    /// Labels for all snapshots of the profile's series.
    pub tags: Vec<String>,
    /// The rules of `silt forget`.
    pub retention: Option<RetentionRules>,
    /// The series that `silt backup` backs up.
    pub series: BTreeMap<String, Series>,
    /// Where `silt replicate` brings snapshots.
    pub replicas: BTreeMap<String, ReplicaSettings>,
}

/// A number in a range; the error has the line of the value.
fn ranged<'de, D: Deserializer<'de>>(
    from: D,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<u64>, D::Error> {
    let value = u64::deserialize(from)?;
    if range.contains(&value) {
        return Ok(Some(value));
    }
    let (least, most) = (range.start(), range.end());
    Err(de::Error::custom(format!("{value} is not in the range {least} to {most}")))
}

fn memory<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    ranged(from, 24..=1 << 20)
}

fn compression<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i32>, D::Error> {
    let level = match toml::Value::deserialize(from)? {
        toml::Value::String(name) => name,
        toml::Value::Integer(level) => level.to_string(),
        _ => String::new(),
    };
    compression_level(&level).map(Some).map_err(de::Error::custom)
}

fn nice<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i32>, D::Error> {
    Ok(ranged(from, 0..=19)?.and_then(|steps| i32::try_from(steps).ok()))
}

fn wait<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    snapshot_name::wait(&text)
        .map(Some)
        .map_err(|hint| de::Error::custom(format!("'{text}': {hint}")))
}

/// The file that is used, and the chosen profile.
#[derive(Clone, Default)]
pub struct Chosen {
    file: Option<PathBuf>,
    name: Option<String>,
    pub profile: Profile,
    /// The table of the agent.
    pub agent: Option<AgentSettings>,
    /// The settings in effect, and where each comes from.
    shown: Vec<Setting>,
}

#[derive(Clone)]
struct Setting {
    key: &'static str,
    value: serde_json::Value,
    from: &'static str,
}

/// Finds the file, chooses the profile, and sets what neither the command line nor the environment
/// sets.
pub fn apply(global: &mut Global, matches: &ArgMatches) -> Result<Chosen, Failure> {
    let Some((path, file)) = find(global)? else {
        if let Some(name) = &global.profile {
            let message = format!(
                "there is no configuration file with a profile '{name}'; pass --config FILE"
            );
            return Err(Failure::Usage(message));
        }
        let mut chosen = Chosen::default();
        chosen.settle(global, matches);
        return Ok(chosen);
    };
    let of_agent = || file.agent.as_ref()?.profile.as_ref().filter(|_| is_of_agents(matches));
    let named = global.profile.as_ref().or_else(of_agent).or(file.default_profile.as_ref());
    let name = named.cloned().unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
    let profile = match file.profiles.get(&name) {
        Some(profile) => Some(located(profile.clone(), &path)),
        None if named.is_none() => None,
        None => {
            let known: Vec<&str> = file.profiles.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Failure::Usage(format!(
                "{} has no profile '{name}'; there are: {known}",
                path.display()
            )));
        }
    };
    let folder = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
    let folder = folder.parent().unwrap_or(Path::new("/"));
    let mut chosen = Chosen {
        agent: file.agent.map(|agent| agent.located(folder)),
        file: Some(path),
        name: profile.is_some().then_some(name),
        profile: profile.unwrap_or_default(),
        shown: Vec::new(),
    };
    chosen.settle(global, matches);
    Ok(chosen)
}

/// Whether a command is about agents, so that the profile is theirs.
fn is_of_agents(matches: &ArgMatches) -> bool {
    matches!(matches.subcommand_name(), Some("agent" | "cluster"))
}

/// The names of the profiles of the configuration file.
pub fn profiles(global: &Global) -> Result<Vec<String>, Failure> {
    let found = find(global)?;
    Ok(found.map(|(_, file)| file.profiles.into_keys().collect()).unwrap_or_default())
}

/// The configuration file: the one that is named, that of the user, or that of the machine.
fn find(global: &Global) -> Result<Option<(PathBuf, File)>, Failure> {
    if let Some(path) = &global.config {
        return Ok(Some((path.clone(), read(path)?)));
    }
    let home = || Some(global.home.as_ref()?.join(".config"));
    let of_user = global.config_home.clone().or_else(home).map(|it| it.join("silt/silt.toml"));
    for path in of_user.into_iter().chain([PathBuf::from(OF_THE_MACHINE)]) {
        if path.exists() {
            let file = read(&path)?;
            return Ok(Some((path, file)));
        }
    }
    Ok(None)
}

fn read(path: &Path) -> Result<File, Failure> {
    let shown = path.display();
    let unread = |error: std::io::Error| {
        let error = Error::io(format!("read the configuration file {shown}"), error);
        // NotFound would be reported as a missing repository.
        Failure::Error(error.with_kind(silt_format::ErrorKind::Invalid))
    };
    if std::fs::metadata(path).map_err(unread)?.len() > FILE_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "{shown} is not a configuration file: it is too large"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let file: File = toml::from_str(&text)
        .map_err(|error| Failure::Usage(rounds::toml_error(path, &text, &error)))?;
    if let Some((key, what)) = file.agent.as_ref().and_then(AgentSettings::problem) {
        return Err(Failure::Usage(format!("{shown}: agent.{key}: {what}")));
    }
    for (name, profile) in &file.profiles {
        let wrong = |key: &str, what: &str| {
            Err(Failure::Usage(format!("{shown}: profile '{name}': {key}: {what}")))
        };
        if profile.password_file.is_some() && profile.password_command.is_some() {
            return wrong("password-file, password-command", "use only one of the two");
        }
        if let Some(rules) = &profile.retention {
            match rules.policy() {
                Ok(Some(_)) => {}
                Ok(None) => return wrong("retention", "it has no rule"),
                Err(failure) => return wrong("retention", &failure.to_string()),
            }
        }
        for (replica, settings) in &profile.replicas {
            if let Some((key, what)) = settings.problem(replica) {
                return wrong(&format!("replicas.{replica}: {key}"), &what);
            }
        }
        if let Some((series, _)) = profile.series.iter().find(|(_, it)| it.volumes.is_empty()) {
            return wrong(&format!("series.{series}"), "it has no volumes");
        }
    }
    Ok(file)
}

/// A profile whose relative paths begin at the folder of its file.
fn located(mut profile: Profile, file: &Path) -> Profile {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("/"));
    let password = profile.password_file.as_mut().filter(|it| !secrets::is_credential(it));
    for path in password.into_iter().chain(&mut profile.cache_dir) {
        *path = folder.join(&*path);
    }
    if let Some(repository) = profile.repository.as_mut().filter(|it| !it.contains("://")) {
        *repository = folder.join(&*repository).to_string_lossy().into_owned();
    }
    for replica in profile.replicas.values_mut() {
        let password = replica.password_file.as_mut();
        if let Some(password) = password.filter(|it| !secrets::is_credential(it)) {
            *password = folder.join(&*password);
        }
        if replica.is_folder() {
            replica.to = folder.join(&replica.to).to_string_lossy().into_owned();
        }
    }
    for series in profile.series.values_mut() {
        let volumes = series.volumes.values_mut();
        for PathText(path) in volumes.filter(|PathText(path)| !Uri::is_uri(path.as_os_str())) {
            *path = folder.join(&*path);
        }
    }
    profile
}

impl Chosen {
    /// The name of the profile.
    pub fn profile_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether the repository is that of the profile.
    pub fn is_for(&self, global: &Global) -> bool {
        self.profile.repository.is_none() || self.profile.repository == global.repo
    }

    /// The arguments with which another process of this program has the same settings.
    pub fn arguments(&self, global: &Global) -> Vec<OsString> {
        let mut all: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: OsString| all.extend([option.into(), value]);
        if let Some(file) = &self.file {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            add("--config", file.into());
        }
        if let Some(name) = &self.name {
            add("--profile", name.into());
        }
        if let Some(file) = &global.admin_password_file {
            add("--admin-password-file", file.into());
        }
        if let Some(connections) = global.connections {
            add("--connections", connections.to_string().into());
        }
        // A password file that is given is not settled: the profile has no say in it.
        let is_settled = self.shown.iter().any(|it| it.key == "password-file");
        if let Some(file) = global.password_file.as_ref().filter(|_| !is_settled) {
            add("--password-file", file.into());
        }
        for setting in self.shown.iter().filter(|it| it.from == "command line") {
            match (setting.key, &setting.value) {
                ("cache", _) => all.push("--no-cache".into()),
                ("wait", seconds) => all.extend(["--wait".into(), format!("{seconds}s").into()]),
                (key, serde_json::Value::String(text)) => {
                    all.extend([format!("--{key}").into(), text.into()]);
                }
                (key, value) => all.extend([format!("--{key}"), value.to_string()].map(Into::into)),
            }
        }
        all
    }

    /// Whether a setting is given as an option.
    pub fn is_on_command_line(&self, key: &str) -> bool {
        self.shown.iter().any(|it| it.key == key && it.from == "command line")
    }

    /// Sets the options that are not given, and notes where each comes from.
    fn settle(&mut self, global: &mut Global, matches: &ArgMatches) {
        let mut settling = Settling { chosen: self, matches };
        let profile = settling.chosen.profile.clone();
        settling.option("repository", "repo", &mut global.repo, profile.repository);
        // A password from elsewhere leaves out both of the profile.
        if secrets::is_asked(&secrets::CURRENT, global.password_file.as_deref()) {
            global.password_command = profile.password_command;
            let file = profile.password_file;
            settling.option("password-file", "password_file", &mut global.password_file, file);
        }
        let jobs = &mut Some(global.jobs);
        settling.option("jobs", "jobs", jobs, profile.jobs);
        global.jobs = jobs.unwrap_or_default();
        let memory = &mut Some(global.memory);
        settling.option("memory", "memory", memory, profile.memory);
        global.memory = memory.unwrap_or_default();
        if profile.compression.is_some() {
            settling.of_profile("compression", profile.compression);
        }
        settling.option("limit-read", "limit_read", &mut global.limit_read, profile.limit_read);
        settling.option("limit-write", "limit_write", &mut global.limit_write, profile.limit_write);
        settling.option("wait", "wait", &mut global.wait, profile.wait);
        settling.option("nice", "nice", &mut global.nice, profile.nice);
        settling.option("cache-dir", "cache_dir", &mut global.cache_dir, profile.cache_dir);
        settling.option("cache-size", "cache_size", &mut global.cache_size, profile.cache_size);
        let cache = &mut Some(!global.no_cache);
        settling.option("cache", "no_cache", cache, profile.cache);
        global.no_cache = !cache.unwrap_or(true);
    }
}

struct Settling<'a> {
    chosen: &'a mut Chosen,
    matches: &'a ArgMatches,
}

impl Settling<'_> {
    /// Notes a value of the profile that only some commands use.
    fn of_profile<T: serde::Serialize>(&mut self, key: &'static str, value: T) {
        self.chosen.shown.push(Setting { key, value: json!(value), from: "profile" });
    }

    /// Takes the profile's value unless the option `id` is given, and notes the result.
    fn option<T: Clone + serde::Serialize>(
        &mut self,
        key: &'static str,
        id: &str,
        value: &mut Option<T>,
        of_profile: Option<T>,
    ) {
        let from = match self.matches.value_source(id) {
            Some(ValueSource::CommandLine) => "command line",
            Some(ValueSource::EnvVariable) => "environment",
            _ if of_profile.is_some() => {
                *value = of_profile;
                "profile"
            }
            _ => "default",
        };
        let value = json!(value);
        self.chosen.shown.push(Setting { key, value, from });
    }
}

/// `silt config`.
pub fn run(global: &Global, chosen: &Chosen, command: &ConfigCommand) -> u8 {
    let file = chosen.file.as_ref().map(|file| file.display().to_string());
    match command {
        ConfigCommand::Check => {
            if global.json {
                let value = json!({"file": file, "profile": chosen.name});
                output::message("config_checked", value);
            } else if let Some(file) = file {
                output::done(&format!("{file} is correct."));
            } else {
                output::done("There is no configuration file.");
            }
        }
        ConfigCommand::Show => show(global, chosen, file),
    }
    0
}

fn show(global: &Global, chosen: &Chosen, file: Option<String>) {
    let series: Vec<&String> = chosen.profile.series.keys().collect();
    let replicas: Vec<&str> = chosen.profile.replicas.keys().map(String::as_str).collect();
    if global.json {
        let setting = |it: &Setting| json!({"key": it.key, "value": it.value, "from": it.from});
        let settings: Vec<_> = chosen.shown.iter().map(setting).collect();
        let value = json!({
            "file": file, "profile": chosen.name, "series": series, "replicas": replicas,
            "settings": settings,
        });
        output::message("config", value);
        return;
    }
    output::line(&format!("File     {}", file.unwrap_or_else(|| "none".to_owned())));
    output::line(&format!("Profile  {}", chosen.name.as_deref().unwrap_or("none")));
    if !series.is_empty() {
        let series: Vec<&str> = series.iter().map(|name| name.as_str()).collect();
        output::line(&format!("Series   {}", series.join(", ")));
    }
    if !replicas.is_empty() {
        output::line(&format!("Replicas  {}", replicas.join(", ")));
    }
    let rows = chosen.shown.iter().map(|it| {
        let value = match &it.value {
            serde_json::Value::Null => "-".to_owned(),
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        vec![it.key.to_owned(), value, it.from.to_owned()]
    });
    output::table(&["SETTING", "VALUE", "FROM"], &rows.collect::<Vec<_>>(), &[]);
}
