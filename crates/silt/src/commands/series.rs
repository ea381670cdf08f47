//! `silt rename`, `silt remove` and `silt tag`.

use serde_json::json;
use silt_format::{Advice, Error, ErrorKind};
use siltstone::DeleteMethod;

use super::{Failure, Session, delete, short};
use crate::cli::{Remove, Rename, Tag, TagChange};
use crate::{confirm, output};

pub fn rename(session: &Session<'_>, args: &Rename) -> Result<u8, Failure> {
    let repository = session.repository_to_change(false)?;
    let renamed = repository.rename(&args.series, &args.new)?;
    if session.global.json {
        let value = json!({
            "series": renamed.shown, "before": renamed.before, "own_name": renamed.own_name,
        });
        output::message("renamed", value);
        return Ok(0);
    }
    if renamed.before == renamed.shown {
        output::done(&format!("Series {} has this name already.", renamed.shown));
        return Ok(0);
    }
    output::done(&format!("Series {} is now shown as {}.", renamed.before, renamed.shown));
    if renamed.own_name != renamed.shown {
        output::done(&format!("Backups under its own name, {}, still go to it.", renamed.own_name));
    }
    Ok(0)
}

pub fn remove(session: &Session<'_>, args: &Remove) -> Result<u8, Failure> {
    let repository = session.repository_to_change(args.dry_run)?;
    let names = std::slice::from_ref(&args.series);
    let head = repository.heads(names)?.pop();
    let head = head.ok_or_else(|| Error::invalid("no series"))?;
    let shown = head.shown().to_owned();
    if let Some(entry) = head.snapshots.iter().find(|entry| entry.is_protected()) {
        let message = format!("snapshot {} of series '{shown}' is protected", entry.id);
        let error = Error::new(ErrorKind::Denied, message);
        return Err(error.with_advice(Advice::UnprotectSnapshot { snapshot: entry.id }).into());
    }
    let ids: Vec<_> = head.snapshots.iter().map(|entry| entry.id).collect();
    if ids.is_empty() {
        if session.global.json {
            let value = json!({"series": shown, "deleted": [], "dry_run": args.dry_run});
            output::message("removed", value);
        } else {
            output::outcome(args.dry_run, &format!("Series {shown} has no snapshots."));
        }
        return Ok(0);
    }
    if !args.dry_run && !args.yes {
        let count = output::count(ids.len(), "snapshot");
        confirm::ask(
            &format!("delete series {shown} with its {count}"),
            "pass --yes to delete it without asking, or --dry-run to see what would be deleted",
        )?;
    }
    let report = repository.delete(&head.name, &ids, DeleteMethod::Approximate)?;
    let space = args.dry_run.then(|| delete::space(session, &repository, &head.name));
    if session.global.json {
        let ids: Vec<String> = report.deleted.iter().map(ToString::to_string).collect();
        let value = json!({
            "series": shown,
            "deleted": ids,
            "dry_run": args.dry_run,
            "freed_now_bytes": space.map(|space| space.now_bytes),
            "freed_later_bytes": space.map(|space| space.later_bytes),
        });
        output::message("removed", value);
        return Ok(0);
    }
    delete::print(session, &shown, &report, space);
    if !args.dry_run {
        output::done("`silt undelete` brings them back until a reclaim has freed their space.");
    }
    Ok(0)
}

pub fn tag(session: &Session<'_>, args: &Tag) -> Result<u8, Failure> {
    let (change, adds) = match args {
        Tag::Add(change) => (change, true),
        Tag::Remove(change) => (change, false),
    };
    let (snapshots, tags) = split(change)?;
    let (add, remove) = if adds { (tags, &[][..]) } else { (&[][..], tags) };
    let repository = session.repository_to_change(false)?;
    // All are found before the first is changed.
    for found in delete::find(&repository, snapshots)? {
        for id in found.ids {
            let (labels, is_changed) =
                repository.change_labels(&found.own_name, id, add, remove)?;
            if session.global.json {
                let value = json!({
                    "series": found.shown, "id": id.to_string(), "tags": labels,
                    "changed": is_changed,
                });
                output::message("tags", value);
            } else {
                let tags = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
                let what = if is_changed { "now" } else { "still" };
                output::done(&format!(
                    "Snapshot {} of {}: tags are {what} {tags}",
                    short(id),
                    found.shown
                ));
            }
        }
    }
    Ok(0)
}

/// The snapshots and the tags of the command line.
fn split(change: &TagChange) -> Result<(&[String], &[String]), Failure> {
    match change.words.as_slice() {
        // The usual case: one snapshot, and its tags.
        [snapshot, tags @ ..] if change.snapshots.is_empty() && !tags.is_empty() => {
            Ok((std::slice::from_ref(snapshot), tags))
        }
        tags if !change.snapshots.is_empty() && !tags.is_empty() => Ok((&change.snapshots, tags)),
        _ => Err(Failure::Usage("name a snapshot and at least one tag".to_owned())),
    }
}
