//! `silt key`.

use serde_json::json;
use siltstone::Repository;

use super::{Failure, Session, init, short};
use crate::cli::{Key, NewPassword};
use crate::{output, secrets};

pub fn run(session: &Session<'_>, args: &Key) -> Result<u8, Failure> {
    let repository = session.repository()?;
    match args {
        Key::List => list(session, &repository),
        Key::Add(args) => {
            let id = add(session, &repository, &args.password, args.write_only)?;
            changed(session, "key_added", id, "Added");
            Ok(0)
        }
        Key::Remove { id } => {
            let id = repository.remove_key(id)?;
            changed(session, "key_removed", id, "Removed");
            Ok(0)
        }
        Key::Passwd(args) => {
            // The new key first: at no time is there none.
            let id = add(session, &repository, args, false)?;
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
        output::line(&format!("{what} key {}.", short(id)));
    }
}

fn add(
    session: &Session<'_>,
    repository: &Repository,
    args: &NewPassword,
    is_write_only: bool,
) -> Result<silt_format::Id, Failure> {
    let (file, option) = (args.new_password_file.as_deref(), "--new-password-file");
    let password = secrets::password(&secrets::NEW, file, option, "New password: ", true)?;
    Ok(repository.add_key(&password, args.cost.to_kdf()?, &init::label(session), is_write_only)?)
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
                if key.is_write_only { "write-only" } else { "all" }.to_owned(),
                used.to_owned(),
            ]
        })
        .collect();
    output::table(&["ID", "CREATED", "HOST", "USER", "MAY", "IN USE"], &rows, &[]);
    Ok(0)
}
