//! `silt init`.

use serde_json::json;
use silt_format::{Config, KeyLabel};
use silt_location::absolute;
use siltstone::{Administrator, Protection, Repository, is_name};

use super::{Failure, Session};
use crate::cli::Init;
use crate::{output, snapshot_name};

pub fn run(session: &Session<'_>, args: &Init) -> Result<u8, Failure> {
    let config = Config {
        zstd_level: args.compression,
        chunking: snapshot_name::parse_chunking(&args.chunking)?,
        ..Config::default()
    };
    let nodes = args.nodes.iter().map(|node| {
        let usage = || Failure::Usage(format!("--nodes {node}: write NAME=LOCATION"));
        node.split_once('=').ok_or_else(usage)
    });
    let nodes = nodes.collect::<Result<Vec<_>, Failure>>()?;
    verify_nodes(&nodes, session.location()?)?;
    config.validate().map_err(|error| Failure::Usage(error.to_string()))?;
    let location = session.location()?;
    // This check comes before the prompts for passwords.
    session.opener.refuse_existing(location)?;
    let protection = if args.no_encryption {
        Protection::None
    } else {
        let cost = args.cost.to_kdf()?;
        let password = session.password(true)?;
        Protection::Password { password, cost, label: label(session, "") }
    };
    let administrator = if args.append_only {
        let (password, label) = (session.admin_password(true)?, label(session, ""));
        Some(Administrator { password, cost: args.cost.to_kdf()?, label })
    } else {
        None
    };
    let unique = session.unique();
    let storage = session.opener.create(location, unique)?;
    let context = session.context.clone();
    let repository =
        Repository::init(storage, context, config, &protection, administrator.as_ref())?;
    let mut repository = repository;
    if let Some(authority) = &administrator {
        repository.authorize(&authority.password)?;
    }
    let here = silt_location::names_of(location).into_iter().next().unwrap_or_default();
    for (name, place) in nodes.iter().copied() {
        repository = super::node::add(session, repository, &here, (name, place))?;
    }
    let id = repository.id().to_string();
    if session.global.json {
        let encrypted = repository.is_encrypted();
        let append_only = repository.is_append_only();
        let value = json!({
            "id": id, "repository": location, "encrypted": encrypted, "append_only": append_only,
            "nodes": nodes.len(),
        });
        output::message("initialized", value);
    } else {
        output::done(&format!("Made repository {} in {location}.", &id[..8]));
        if repository.is_encrypted() {
            output::done("Keep the password safe: without it nobody can read the repository.");
        } else {
            output::done(
                "It is not encrypted: everyone who can read the folder can read the backups.",
            );
        }
        if !nodes.is_empty() {
            let count = output::count(nodes.len(), "storage node");
            output::done(&format!("Backups write new chunks to {count}."));
        }
        if repository.is_append_only() {
            output::done("Deleting and reclaiming need the administrator's password.");
        }
    }
    Ok(0)
}

/// Refuses nodes that could not be added, before anything is made.
fn verify_nodes(nodes: &[(&str, &str)], location: &str) -> Result<(), Failure> {
    let mut places = vec![absolute(location)];
    for (number, (name, place)) in nodes.iter().enumerate() {
        let refuse = |why: &str| Err(Failure::Usage(format!("--nodes {name}={place}: {why}")));
        if !is_name(name) || place.is_empty() {
            return refuse("write NAME=LOCATION");
        }
        if nodes[..number].iter().any(|(before, _)| before == name) {
            return refuse("another node has this name");
        }
        if places.contains(&absolute(place)) {
            return refuse("this location is used already");
        }
        places.push(absolute(place));
    }
    Ok(())
}

/// Describes who makes a key.
pub fn label(session: &Session<'_>, purpose: &str) -> KeyLabel {
    KeyLabel {
        created_ns: session.context.env.now_ns(),
        host: session.context.env.process().host,
        user: format!("uid {}", rustix::process::getuid().as_raw()),
        purpose: purpose.to_owned(),
    }
}
