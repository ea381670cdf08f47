//! `silt copies`.

use serde_json::json;
use silt_format::{Error, ErrorKind, NodePlaces};
use silt_location::{absolute, names_of};
use silt_storage::Key;
use siltstone::{Completeness, HealOptions, HealReport, Repository};

use super::{Failure, Session, Traffic};
use crate::cli::{Copies, CopiesCommand};
use crate::output;

/// The exit status if no place has an intact copy of an object.
const DAMAGE_FOUND: u8 = 5;

pub fn run(session: &Session<'_>, args: &Copies) -> Result<u8, Failure> {
    match &args.command {
        None => list(session, &session.repository()?),
        Some(CopiesCommand::Add { folder, shared }) => return add(session, folder, *shared),
        Some(CopiesCommand::Remove { folder, allow_incomplete }) => {
            let repository = session.repository_to_change(false)?;
            let location = listed(&repository, folder);
            let open = |location: &str| session.storage(location, Traffic::Other, false);
            if *allow_incomplete {
                repository.give_up_place(&location, &open)?;
            } else {
                repository.remove_place(&location, &open)?;
            }
            session.reporter.finish();
            if session.global.json {
                output::message("removed_copy", json!({"location": location}));
            } else {
                output::done(&format!("{location} is no longer a copy of the repository."));
            }
        }
        Some(CopiesCommand::Move { from, to }) => return moved(session, from, to),
        Some(CopiesCommand::Heal { read_data, dry_run }) => {
            let repository = session.repository_to_change(false)?;
            let options = HealOptions { read_data: *read_data, dry_run: *dry_run };
            let report = repository.heal_copies(options)?;
            session.reporter.finish();
            return Ok(print(session, &report, *dry_run));
        }
    }
    Ok(0)
}

fn list(session: &Session<'_>, repository: &Repository) {
    session.reporter.finish();
    let places = repository.places();
    if session.global.json {
        for place in &places {
            let value = json!({
                "location": place.location,
                "is_shared_store": place.is_shared,
                "is_complete": !place.is_filling,
                "node": place.node,
                "failure": place.failure,
            });
            output::message("copy", value);
        }
        return;
    }
    if places.is_empty() {
        output::line(
            "There is only one copy of the repository; `silt copies add FOLDER` adds another.",
        );
    }
    for place in &places {
        let what = match &place.node {
            Some(node) => format!("node {node}"),
            None if place.is_shared => "shared store".to_owned(),
            None => "repository".to_owned(),
        };
        let whole = if place.is_filling { "incomplete: run `silt copies add` again" } else { "ok" };
        let state = place.failure.as_deref().unwrap_or(whole);
        output::line(&format!("{what:<14}{}  {state}", place.location));
    }
}

/// Returns a location as the list of places spells it. The path of a missing folder cannot be
/// resolved, so it must match as listed.
fn listed(repository: &Repository, location: &str) -> String {
    let is_listed = repository.places().iter().any(|place| place.location == *location);
    if is_listed { location.to_owned() } else { absolute(location) }
}

fn moved(session: &Session<'_>, from: &str, to: &str) -> Result<u8, Failure> {
    let repository = session.repository_to_change(false)?;
    let (from, to) = (listed(&repository, from), absolute(to));
    let open = |location: &str| session.storage(location, Traffic::Other, false);
    let is_of = |node: &&NodePlaces| node.locations.contains(&from);
    let compares = match repository.nodes().iter().find(is_of) {
        Some(node) => format!("silt node copy {} {to}", node.name),
        None => format!("silt copies add {to}"),
    };
    let moved = repository.move_place(&from, &to, &open)?;
    let is_incomplete = moved == Completeness::Incomplete;
    session.reporter.finish();
    if session.global.json {
        let value = json!({"from": from, "to": to, "is_complete": !is_incomplete});
        output::message("moved_copy", value);
        return Ok(0);
    }
    output::done(&format!("The copy in {from} is now in {to}."));
    if is_incomplete {
        output::done(&format!("It counts as incomplete until `{compares}` has compared it."));
    }
    Ok(0)
}

fn add(session: &Session<'_>, folder: &str, is_shared: bool) -> Result<u8, Failure> {
    let repository = session.repository_to_change(false)?;
    let names = names_of(session.location()?);
    let is_listed =
        |name: &&String| repository.places().iter().any(|place| place.location == **name);
    let here = names.iter().find(is_listed).or(names.first()).cloned().unwrap_or_default();
    let unique = session.unique();
    match session.opener.create(folder, unique) {
        // It may be a copy that was away for a while; adding it compares all objects.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let place = session.opener.open(folder)?;
            let is_repository = place.head(&Key::new(silt_format::names::CONFIG)?).is_ok();
            // An interrupted `add` leaves at least the keys.
            let was_begun = !place.list(silt_format::names::ROOT, None)?.objects.is_empty();
            if !is_repository && !was_begun {
                let exists = format!("{folder} is not empty; a copy needs an empty folder");
                return Err(Error::new(ErrorKind::AlreadyExists, exists).into());
            }
        }
        created => drop(created?),
    }
    let open = |location: &str| session.storage(location, Traffic::Other, false);
    let location = absolute(folder);
    let (_, report) = if is_shared {
        repository.add_shared_place(&here, &location, &open)?
    } else {
        repository.add_place(&here, &location, &open)?
    };
    session.reporter.finish();
    Ok(print(session, &report, false))
}

fn print(session: &Session<'_>, report: &HealReport, dry_run: bool) -> u8 {
    let is_well = report.lost.is_empty() && report.conflicts.is_empty();
    let code = if is_well { 0 } else { DAMAGE_FOUND };
    if session.global.json {
        let value = json!({
            "checked_objects": report.checked_objects,
            "copied_objects": report.copied_objects,
            "replaced_objects": report.replaced_objects,
            "copied_bytes": report.copied_bytes,
            "lost": report.lost,
            "conflicts": report.conflicts,
            "dry_run": dry_run,
        });
        output::message("healed", value);
        return code;
    }
    let would = if dry_run { "would be " } else { "" };
    output::outcome(
        dry_run,
        &format!(
            "{} compared: {} {would}copied, {} {would}replaced ({} written)",
            output::count(report.checked_objects, "object"),
            report.copied_objects,
            report.replaced_objects,
            output::bytes(report.copied_bytes)
        ),
    );
    for name in &report.lost {
        output::note(&format!(
            "silt: no copy has an intact {name}; `silt check` reports what this affects"
        ));
    }
    for name in &report.conflicts {
        output::note(&format!(
            "silt: {name} is intact in two copies, but differs: each was used without the other; \
             both stay unchanged"
        ));
    }
    code
}
