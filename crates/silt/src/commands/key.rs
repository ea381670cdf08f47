//! `silt key`.

use serde_json::json;
use siltstone::{KeyAccess, KeyInfo, Repository};

use super::{Failure, Session, init, short};
use crate::cli::{Key, NewKey, NewPassword};
use crate::{output, secrets};

pub fn run(session: &Session<'_>, args: &Key) -> Result<u8, Failure> {
    let repository = match args {
        Key::List => session.repository()?,
        Key::Add(_) | Key::Remove { .. } | Key::Passwd(_) => session.repository_to_change(false)?,
    };
    match args {
        Key::List => list(session, &repository),
        Key::Add(args) => {
            let access = own_names(&repository, access(args)?)?;
            let id = add(session, &repository, &args.password, &access)?;
            changed(session, "key_added", id, "Added");
            if access.is_write_only && !session.global.json {
                let also = if access.is_alone { "" } else { " and the shared store" };
                output::done(&format!(
                    "A host with this key can test guesses of 4 KiB blocks against its \
                     series{also}."
                ));
                if access.series.iter().any(|series| series.ends_with('*')) {
                    output::done(
                        "Because it contains a prefix, it shows names, sizes and times of all \
                         series.",
                    );
                }
            }
            Ok(0)
        }
        Key::Remove { id } => {
            let id = repository.remove_key(id)?;
            changed(session, "key_removed", id, "Removed");
            Ok(0)
        }
        Key::Passwd(args) => {
            // The new key first, so that there always is one.
            let own =
                repository.keys()?.into_iter().find(|key| repository.opened_by == Some(key.id));
            let access = own.map_or_else(KeyAccess::full, |own| KeyAccess {
                is_write_only: own.is_write_only,
                series: own.series,
                is_alone: false,
            });
            let id = add(session, &repository, args, &access)?;
            if let Some(old) = repository.opened_by {
                repository.remove_key(&old.to_string())?;
            }
            changed(session, "key_replaced", id, "Replaced the password by");
            Ok(0)
        }
    }
}

fn changed(session: &Session<'_>, message_type: &str, id: silt_format::Id, what: &str) {
    if session.global.json {
        output::message(message_type, json!({"id": id.to_string()}));
    } else {
        output::done(&format!("{what} key {}.", short(id)));
    }
}

fn add(
    session: &Session<'_>,
    repository: &Repository,
    args: &NewPassword,
    access: &KeyAccess,
) -> Result<silt_format::Id, Failure> {
    let (file, option) = (args.new_password_file.as_deref(), "--new-password-file");
    let password = secrets::password(&secrets::NEW, file, option, "New password: ", true)?;
    Ok(repository.add_key(&password, args.cost.to_kdf()?, &init::label(session), access)?)
}

/// The rights of a new key.
fn access(args: &NewKey) -> Result<KeyAccess, Failure> {
    let (is_write_only, series) = (args.write_only, args.series.clone());
    match (is_write_only, series.is_empty()) {
        (true, true) => Err(Failure::Usage(
            "--write-only needs --series, the series that the host may write: --series web1, or \
             --series 'db-*'; '*' means every series"
                .to_owned(),
        )),
        (false, true) => Ok(KeyAccess::full()),
        (_, false) => Ok(KeyAccess { is_write_only, series, is_alone: args.no_share }),
    }
}

/// The rights by the series' own names, from which keys derive.
fn own_names(repository: &Repository, mut access: KeyAccess) -> Result<KeyAccess, Failure> {
    for name in access.series.iter_mut().filter(|name| !name.ends_with('*')) {
        *name = repository.own_name(name)?;
    }
    Ok(access)
}

fn may(key: &KeyInfo) -> &'static str {
    if key.is_being_removed {
        "being removed"
    } else if key.is_write_only {
        "write-only"
    } else {
        "all"
    }
}

fn list(session: &Session<'_>, repository: &Repository) -> Result<u8, Failure> {
    let keys = repository.keys()?;
    if session.global.json {
        for key in keys {
            let value = json!({
                "id": key.id.to_string(),
                "created": output::rfc3339(key.label.created_ns),
                "host": key.label.host,
                "user": key.label.user,
                "write_only": key.is_write_only,
                "series": key.series,
                "being_removed": key.is_being_removed,
                "in_use": repository.opened_by == Some(key.id),
            });
            output::message("key", value);
        }
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = keys
        .iter()
        .map(|key| {
            let used = if repository.opened_by == Some(key.id) { "*" } else { "" };
            vec![
                short(key.id),
                output::time(key.label.created_ns),
                key.label.host.clone(),
                key.label.user.clone(),
                may(key).to_owned(),
                key.series.join(","),
                used.to_owned(),
            ]
        })
        .collect();
    output::table(&["ID", "CREATED", "HOST", "USER", "MAY", "SERIES", "IN USE"], &rows, &[]);
    Ok(0)
}
