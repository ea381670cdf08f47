//! `silt node`.

use std::sync::Arc;

use serde_json::json;
use silt_agent::{NodeProcess, NodeServerOptions};
use silt_format::{Error, ErrorKind};
use silt_location::{absolute, names_of};
use silt_storage::Storage;
use siltstone::{HealReport, NodeStatus, Repository};

use super::{Failure, Session, Traffic, cluster};
use crate::cli::{Node, NodeCommand, NodeRun};
use crate::output;

pub fn run(session: &Session<'_>, args: &Node) -> Result<u8, Failure> {
    let command = match &args.command {
        None | Some(NodeCommand::List) => return list(session),
        Some(NodeCommand::Run(args)) => return answer(session, args),
        Some(command) => command,
    };
    let repository = session.repository_to_change(false)?;
    let here = here(session, &repository)?;
    let open = |location: &str| session.storage(location, Traffic::Other, false);
    let (name, done) = match command {
        NodeCommand::List | NodeCommand::Run(_) => return list(session),
        NodeCommand::Add { name, location } => {
            add(session, repository, &here, (name, location))?;
            (name, format!("Added node {name}; backups that begin now write to it."))
        }
        NodeCommand::Copy { name, location } => {
            repository.node(name)?;
            create(session, location)?;
            let (_, report) = repository.add_node_place(&here, name, &absolute(location), &open)?;
            (name, format!("Node {name} is in {location} too ({}).", written(&report)))
        }
        NodeCommand::Drain { name, location } => {
            repository.node(name)?;
            create(session, location)?;
            let (_, report) = repository.move_node(&here, name, &absolute(location), &open)?;
            (name, format!("Node {name} is in {location} now ({}).", written(&report)))
        }
        NodeCommand::Remove { name, lost } => {
            repository.remove_node(&here, name, *lost, &open)?;
            let next =
                if *lost { "; the next backups store again what they need of it" } else { "" };
            (name, format!("Node {name} is not used any more{next}."))
        }
        NodeCommand::Close { name } => {
            repository.close_node(&here, name, true, &open)?;
            (name, format!("Backups that begin now write nothing to node {name}."))
        }
        NodeCommand::Open { name } => {
            repository.close_node(&here, name, false, &open)?;
            (name, format!("Backups that begin now write to node {name}."))
        }
    };
    session.reporter.finish();
    if session.global.json {
        output::message("node_changed", json!({"name": name}));
    } else {
        output::done(&done);
    }
    Ok(0)
}

/// Adds a node to a repository that was opened by `here`.
pub fn add(
    session: &Session<'_>,
    repository: Repository,
    here: &str,
    (name, location): (&str, &str),
) -> Result<Repository, Failure> {
    let place = absolute(location);
    // It is opened when nothing speaks against the node.
    let open = |at: &str| match at {
        new if new == place => create(session, location),
        at => session.storage(at, Traffic::Other, false),
    };
    Ok(repository.add_node(here, name, &place, &open)?)
}

fn answer(session: &Session<'_>, args: &NodeRun) -> Result<u8, Failure> {
    let (repository, group) = cluster::connect(session, &args.bus)?;
    let options = NodeServerOptions::new(args.index_memory, !args.approximate);
    let (names, json) = (&args.names[..], session.global.json);
    let finish_line = &|| session.reporter.finish();
    NodeProcess { repository: &repository, names, options, group: &group, finish_line, json }.run()
}

fn written(report: &HealReport) -> String {
    let objects = output::count(report.copied_objects, "object");
    format!("{objects}, {} copied", output::bytes(report.copied_bytes))
}

/// The location by which the repository was opened, as the list of places spells it.
fn here(session: &Session<'_>, repository: &Repository) -> Result<String, Failure> {
    let names = names_of(session.location()?);
    let is_listed =
        |name: &&String| repository.places().iter().any(|place| place.location == **name);
    Ok(names.iter().find(is_listed).or(names.first()).cloned().unwrap_or_default())
}

/// Makes an empty place, or goes on with one that an interrupted command has begun.
fn create(session: &Session<'_>, location: &str) -> silt_format::Result<Arc<dyn Storage>> {
    match session.opener.create(location, session.unique()) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let place = session.opener.open(location)?;
            let was_begun = !place.list(silt_format::names::ROOT, None)?.objects.is_empty();
            let exists = format!("{location} is not empty; a node needs an empty location");
            if was_begun { Ok(place) } else { Err(Error::new(ErrorKind::AlreadyExists, exists)) }
        }
        created => created,
    }
}

fn list(session: &Session<'_>) -> Result<u8, Failure> {
    let repository = session.repository()?;
    let mut nodes = repository.node_status()?;
    // Others that were taken out concern nobody.
    nodes.retain(|node| !node.locations.is_empty() || node.is_lost);
    session.reporter.finish();
    if session.global.json {
        for node in &nodes {
            let value = json!({
                "name": node.name,
                "number": node.number,
                "locations": node.locations,
                "is_closed": node.is_closed,
                "containers": node.containers,
                "container_bytes": node.container_bytes,
                "backups": node.backups,
                "failure": node.failure,
                "is_lost": node.is_lost,
            });
            output::message("node", value);
        }
        return Ok(0);
    }
    if nodes.is_empty() {
        output::line("The repository has no nodes; `silt node add NAME LOCATION` adds one.");
    }
    for node in &nodes {
        let place = node.locations.join(", ");
        output::line(&format!("{:<15} {:<27} {place}", node.name, state(node)));
    }
    Ok(0)
}

fn state(node: &NodeStatus) -> String {
    if node.is_lost {
        return "lost".to_owned();
    }
    if let Some(failure) = &node.failure {
        return failure.clone();
    }
    let mut state = vec![output::bytes(node.container_bytes)];
    if node.is_closed {
        state.push("closed".to_owned());
    }
    if node.backups > 0 {
        state.push(format!("{} writing", output::count(node.backups, "backup")));
    }
    state.join(", ")
}
