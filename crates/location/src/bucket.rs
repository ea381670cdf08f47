//! How buckets are reached: from the environment, and from options behind a location.

use std::time::Duration;

use silt_format::number::to_usize;
use silt_format::{Error, Result};
use silt_remote::{Lock, LockMode, Settings};

/// The beginning of the names of objects that hold data.
const DATA: &str = "containers/";
const OPTIONS: [&str; 7] =
    ["class", "metadata-class", "lock", "lock-mode", "connections", "timeout", "retries"];

/// The location without its options, and the settings for it.
///
/// Options stand behind it as
/// `?class=GLACIER_IR&metadata-class=STANDARD&lock=30d&lock-mode=compliance`. They take precedence
/// over `connections`, and that over the environment's `SILT_S3_...`.
pub fn settings(location: &str, connections: Option<usize>) -> Result<(&str, Settings)> {
    settings_in(location, connections, std::env::vars().collect())
}

/// The same in a given environment.
fn settings_in(
    location: &str,
    connections: Option<usize>,
    environment: Vec<(String, String)>,
) -> Result<(&str, Settings)> {
    let (place, options) = location.split_once('?').unwrap_or((location, ""));
    let mut given: Vec<(&str, &str)> = Vec::new();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let pair = option.split_once('=').filter(|(name, _)| OPTIONS.contains(name));
        let unknown = || {
            let known = OPTIONS.join(", ");
            Error::invalid(format!("{location}: unknown option '{option}'; use {known}"))
        };
        given.push(pair.ok_or_else(unknown)?);
    }
    let connections = connections.map(|connections| connections.to_string());
    let text = |name: &str| -> Option<String> {
        let option = name.to_ascii_lowercase().replace('_', "-");
        let given = given.iter().find(|(known, _)| *known == option);
        let flag = || if name == "CONNECTIONS" { connections.clone() } else { None };
        let variable = || {
            let variable = format!("SILT_S3_{name}");
            environment.iter().find(|(known, _)| *known == variable).map(|(_, value)| value.clone())
        };
        let found = given.map(|(_, value)| (*value).to_owned()).or_else(flag).or_else(variable);
        found.filter(|value| !value.is_empty())
    };
    let number = |name: &str| -> Result<Option<u64>> {
        let parsed = text(name).map(|value| value.parse());
        parsed.transpose().map_err(|_| Error::invalid(format!("SILT_S3_{name} is not a number")))
    };
    let count = |name: &str| number(name).map(|number| number.map(to_usize));
    let data_class = text("CLASS");
    let other_class = text("METADATA_CLASS").or_else(|| data_class.clone());
    let mut storage_classes = Vec::new();
    storage_classes.extend(data_class.map(|class| (DATA.to_owned(), class)));
    storage_classes.extend(other_class.map(|class| (String::new(), class)));
    let settings = Settings {
        storage_classes,
        connections: count("CONNECTIONS")?,
        timeout: number("TIMEOUT")?.map(Duration::from_secs),
        retries: count("RETRIES")?,
        lock: lock(text("LOCK").as_deref(), text("LOCK_MODE").as_deref())?,
        environment,
    };
    Ok((place, settings))
}

fn lock(time: Option<&str>, mode: Option<&str>) -> Result<Option<Lock>> {
    let Some(time) = time else { return Ok(None) };
    let days = time.strip_suffix('d').unwrap_or(time).parse().ok();
    let days = days.filter(|days| (1..=36_500).contains(days)).ok_or_else(|| {
        Error::invalid(format!("'{time}' is not a lock time; use days, such as 30d"))
    })?;
    let mode = match mode.map(str::to_ascii_lowercase).as_deref() {
        None | Some("governance") => LockMode::Governance,
        Some("compliance") => LockMode::Compliance,
        Some(other) => {
            let message = format!("'{other}' is not a lock mode; use governance or compliance");
            return Err(Error::invalid(message));
        }
    };
    Ok(Some(Lock { mode, days }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_behind_a_location() {
        let (place, set) =
            settings("s3://b/p?class=IA&lock=30d&lock-mode=compliance", None).unwrap();
        assert_eq!(place, "s3://b/p");
        assert_eq!(set.lock, Some(Lock { mode: LockMode::Compliance, days: 30 }));
        let class = |prefix: &str, class: &str| (prefix.to_owned(), class.to_owned());
        assert_eq!(set.storage_classes, [class(DATA, "IA"), class("", "IA")]);
        let (_, set) = settings("s3://b?class=IA&metadata-class=STANDARD", None).unwrap();
        assert_eq!(set.storage_classes, [class(DATA, "IA"), class("", "STANDARD")]);
        assert!(set.lock.is_none());
        for wrong in ["s3://b?clas=IA", "s3://b?lock=tomorrow", "s3://b?lock=0d", "s3://b?lock"] {
            assert!(settings(wrong, None).is_err(), "{wrong}");
        }
        assert!(settings("s3://b?lock=1&lock-mode=strict", None).is_err());
    }

    #[test]
    fn an_option_of_the_command_line_beats_its_variable() {
        let environment = || vec![("SILT_S3_CONNECTIONS".to_owned(), "3".to_owned())];
        let connections = |location: &str, flag: Option<usize>| {
            settings_in(location, flag, environment()).unwrap().1.connections
        };
        assert_eq!(connections("s3://b", None), Some(3));
        assert_eq!(connections("s3://b", Some(7)), Some(7));
        assert_eq!(connections("s3://b?connections=2", Some(7)), Some(2), "of this place alone");
        let wrong = vec![("SILT_S3_CONNECTIONS".to_owned(), "many".to_owned())];
        assert!(settings_in("s3://b", None, wrong.clone()).is_err());
        assert!(settings_in("s3://b", Some(1), wrong).is_ok(), "it is not used");
    }
}
