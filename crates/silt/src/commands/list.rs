//! `silt snapshots`, `silt show` and `silt ls`.

use silt_format::{Id, Level, LevelBytes, Snapshot, SnapshotEntry};

use siltstone::{AllHeads, Repository};

use super::each::Each;
use super::{Failure, Session, short, snapshot_json, volume};
use crate::cli::{ListSnapshots, OneSnapshot};
use crate::{output, snapshot_name};

pub fn snapshots(session: &Session<'_>, args: &ListSnapshots) -> Result<u8, Failure> {
    let repository = session.repository()?;
    let mut rows = Vec::new();
    let AllHeads { mut heads, damaged: lost, .. } = repository.all_heads(&args.series)?;
    let mut each = Each::new(session);
    each.damaged(&lost);
    let mut damaged = !lost.is_empty();
    // For a damaged head, the one before it is listed.
    heads.extend(lost.into_iter().filter_map(|lost| lost.before));
    for head in heads {
        let deleted: Vec<_> = head.deleted.iter().map(|deleted| deleted.entry.clone()).collect();
        for entry in if args.deleted { &deleted } else { &head.snapshots } {
            let (snapshot, key) = match repository.snapshot_and_key(head.series, entry) {
                Ok(read) => read,
                Err(error) => {
                    damaged = true;
                    session.context.warn(&error);
                    continue;
                }
            };
            if session.global.json {
                let mut value = snapshot_json(&head, &entry.labels, &snapshot);
                value["protected"] = entry.is_protected().into();
                value["deleted"] = args.deleted.into();
                value["key"] = key.map(|key| key.to_string()).into();
                output::message("snapshot", value);
            } else {
                rows.push(row(head.shown(), entry, &snapshot, key));
            }
        }
    }
    if !session.global.json {
        if rows.is_empty() && !damaged && args.deleted {
            output::line("No deleted snapshot can be brought back.");
        } else if rows.is_empty() && !damaged {
            output::line("No snapshots yet. `silt backup SERIES PATH` makes one.");
        } else {
            let header =
                ["ID", "TIME", "SERIES", "VOLUMES", "SIZE", "NEW", "STORED", "KEY", "TAGS"];
            output::table(&header, &rows, &[3, 4, 5, 6]);
        }
    }
    Ok(if damaged { 5 } else { 0 })
}

fn row(series: &str, entry: &SnapshotEntry, snapshot: &Snapshot, key: Option<Id>) -> Vec<String> {
    let levels = snapshot.levels();
    let mut tags = entry.labels.join(",");
    if entry.is_protected() {
        tags.push_str(if tags.is_empty() { "(protected)" } else { " (protected)" });
    }
    vec![
        short(snapshot.id),
        output::time(snapshot.time_ns),
        series.to_owned(),
        snapshot.volumes.len().to_string(),
        output::bytes(levels.total()),
        output::bytes(levels.get(Level::New)),
        output::bytes(snapshot.stored_bytes()),
        key.map_or_else(String::new, short),
        tags,
    ]
}

pub fn show(session: &Session<'_>, args: &OneSnapshot) -> Result<u8, Failure> {
    let selector = snapshot_name::parse(&args.snapshot)?;
    let repository = session.repository()?;
    let found = repository.find(&selector)?;
    let (snapshot, key) = (&found.snapshot, found.key);
    if session.global.json {
        let mut value = snapshot_json(&found.head, &found.entry.labels, snapshot);
        value["key"] = key.map(|key| key.to_string()).into();
        output::message("snapshot", value);
        return Ok(0);
    }
    let parent = snapshot.parent.map_or("none".to_owned(), |id| id.to_string());
    output::line(&format!("Snapshot   {}", snapshot.id));
    let own_name = match &found.head.alias {
        Some(_) => format!(" (its own name is {})", found.head.name),
        None => String::new(),
    };
    output::line(&format!("Series     {}{own_name}", found.head.shown()));
    output::line(&format!("Time       {}", output::time(snapshot.time_ns)));
    output::line(&format!("Took       {} ms", snapshot.duration_ms));
    output::line(&format!("Parent     {parent}"));
    output::line(&format!("Made by    {} on {}", snapshot.program, snapshot.host));
    if let Some(key) = key {
        output::line(&format!("Signed by  key {}", writer(&repository, key)?));
    }
    if !found.entry.labels.is_empty() {
        output::line(&format!("Tags       {}", found.entry.labels.join(", ")));
    }
    if let Some(summary) = snapshot.summary {
        output::line(&format!(
            "Summary    {} references in {}",
            summary.references,
            output::bytes(summary.geometry.bytes())
        ));
    }
    for volume in &snapshot.volumes {
        output::line("");
        output::line(&format!(
            "Volume '{}': {} from {} ({}), {}, added {}",
            volume.name,
            output::bytes(volume.bytes),
            volume.source,
            volume.source_format,
            volume.chunking,
            output::bytes(volume.stored_bytes)
        ));
        if !volume.backing.is_empty() {
            output::line(&format!("  backed by  {}", volume.backing.join(", over ")));
        }
        if let Some(proof) = &volume.map_proof {
            output::line(&format!(
                "  map: {} of {} segments not read, except {} that were compared; every segment \
                 was read or compared since {}",
                proof.clean - proof.compared.min(proof.clean),
                silt_format::segment_count(volume.bytes),
                proof.compared,
                output::time(proof.since_ns())
            ));
        }
        print_levels(&volume.levels);
        for span in &volume.unreadable {
            let end = span.offset + span.length;
            output::line(&format!(
                "  unreadable: bytes {}..{end} are stored as zeros",
                span.offset
            ));
        }
    }
    Ok(0)
}

/// Describes a key.
fn writer(repository: &Repository, key: Id) -> Result<String, Failure> {
    let known = repository.keys()?.into_iter().find(|known| known.id == key);
    let what = known.map_or("removed since".to_owned(), |known| {
        let what = if known.is_write_only { "write-only" } else { "all" };
        format!("{what}, made on {} by {}", known.label.host, known.label.user)
    });
    Ok(format!("{} ({what})", short(key)))
}

fn print_levels(levels: &LevelBytes) {
    let explain = |level| match level {
        Level::Zero => "zeros and holes, never stored",
        Level::Map => "unchanged according to the map, not read",
        Level::Digest => "segments equal to the parent's",
        Level::SameOffset => "chunks of the parent's segment at this offset",
        Level::Similar => "chunks of similar segments",
        Level::Recent => "chunks stored earlier in this backup",
        Level::Adopted => "chunks stored by an interrupted backup",
        Level::Shared => "chunks of the shared store",
        Level::New => "stored",
    };
    let used = Level::ALL.into_iter().filter(|level| levels.get(*level) > 0);
    let rows: Vec<Vec<String>> = used
        .map(|level| {
            vec![
                format!("  {}", level.name()),
                output::bytes(levels.get(level)),
                output::percent(levels.get(level), levels.total()),
                explain(level).to_owned(),
            ]
        })
        .collect();
    output::table(&["  LEVEL", "BYTES", "SHARE", "WHAT"], &rows, &[1, 2]);
}

pub fn ls(session: &Session<'_>, args: &OneSnapshot) -> Result<u8, Failure> {
    let (selector, name) = snapshot_name::parse_with_volume(&args.snapshot)?;
    let found = session.repository()?.find(&selector)?;
    let wanted = name.as_deref().map(|name| volume(&found, Some(name))).transpose()?;
    let wanted = wanted.map(|of| of.volume());
    let volumes = found.snapshot.volumes.iter();
    let volumes: Vec<_> = volumes.filter(|v| wanted.is_none_or(|w| w.name == v.name)).collect();
    if session.global.json {
        for volume in volumes {
            output::message("volume", super::volume_json(volume));
        }
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = volumes
        .into_iter()
        .map(|volume| {
            let levels = &volume.levels;
            vec![
                volume.name.clone(),
                output::bytes(volume.bytes),
                output::bytes(levels.total() - levels.get(Level::Zero)),
                output::bytes(levels.get(Level::New)),
                output::bytes(volume.stored_bytes),
                volume.source_format.clone(),
                volume.source.clone(),
            ]
        })
        .collect();
    let header = ["VOLUME", "SIZE", "DATA", "NEW", "STORED", "FORMAT", "SOURCE"];
    output::table(&header, &rows, &[1, 2, 3, 4]);
    Ok(0)
}
