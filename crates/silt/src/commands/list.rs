//! `silt snapshots`, `silt show` and `silt ls`.

use silt_format::{Head, Id, Level, LevelBytes, Snapshot, SnapshotEntry, Volume};

use siltstone::{AllHeads, Repository};

use super::each::Each;
use super::{Failure, Session, short, snapshot_json, trees, volume};
use crate::cli::{ListSnapshots, Ls, OneSnapshot};
use crate::{output, snapshot_name};

/// Which snapshots are listed.
struct Filter<'a> {
    args: &'a ListSnapshots,
    /// Only those that began before, and after these times, in nanoseconds since 1970.
    before_ns: Option<i64>,
    after_ns: Option<i64>,
}

impl<'a> Filter<'a> {
    fn new(session: &Session<'_>, args: &'a ListSnapshots) -> Result<Self, Failure> {
        let now_ns = session.context.env.now_ns();
        let ago = |text: &Option<String>| {
            let seconds = text.as_deref().map(snapshot_name::parse_seconds).transpose()?;
            Ok::<_, Failure>(seconds.map(|seconds| {
                let ns = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
                now_ns.saturating_sub(ns)
            }))
        };
        Ok(Self { args, before_ns: ago(&args.older_than)?, after_ns: ago(&args.newer_than)? })
    }

    /// Whether it leaves anything out.
    fn is_given(&self) -> bool {
        let Self { args, before_ns, after_ns } = self;
        !args.tag.is_empty()
            || !args.host.is_empty()
            || before_ns.is_some()
            || after_ns.is_some()
            || args.latest.is_some()
    }

    /// What the head alone can tell.
    fn takes_entry(&self, entry: &SnapshotEntry) -> bool {
        let tags = &self.args.tag;
        (tags.is_empty() || tags.iter().any(|tag| entry.labels.contains(tag)))
            && self.before_ns.is_none_or(|before_ns| entry.time_ns < before_ns)
            && self.after_ns.is_none_or(|after_ns| entry.time_ns > after_ns)
    }

    fn takes(&self, snapshot: &Snapshot) -> bool {
        self.args.host.is_empty() || self.args.host.contains(&snapshot.host)
    }
}

/// A listed snapshot, and the key that signed it.
type Listed = (SnapshotEntry, Snapshot, Option<Id>);

/// The listed snapshots of a series, the oldest first, and whether one could not be read.
fn listed(repository: &Repository, head: &Head, filter: &Filter<'_>) -> (Vec<Listed>, bool) {
    let deleted = || head.deleted.iter().map(|deleted| deleted.entry.clone()).collect();
    let entries: Vec<SnapshotEntry> =
        if filter.args.deleted { deleted() } else { head.snapshots.clone() };
    let (mut found, mut is_damaged) = (Vec::new(), false);
    for entry in entries.into_iter().rev().filter(|entry| filter.takes_entry(entry)) {
        if filter.args.latest.is_some_and(|latest| found.len() >= latest) {
            break;
        }
        match repository.snapshot_and_key(head.series, &entry) {
            Ok((snapshot, key)) if filter.takes(&snapshot) => found.push((entry, snapshot, key)),
            Ok(_) => {}
            Err(error) => {
                is_damaged = true;
                repository.warn(&error);
            }
        }
    }
    found.reverse();
    (found, is_damaged)
}

pub fn snapshots(session: &Session<'_>, args: &ListSnapshots) -> Result<u8, Failure> {
    let filter = Filter::new(session, args)?;
    let repository = session.repository_to_list()?;
    let mut rows = Vec::new();
    let AllHeads { mut heads, damaged: lost, .. } = repository.all_heads(&args.series)?;
    let mut each = Each::new(session);
    each.damaged(&lost);
    let mut damaged = !lost.is_empty();
    // For a damaged head, the one before it is listed.
    heads.extend(lost.into_iter().filter_map(|lost| lost.before));
    let list = |repository: &Repository, head: Head| {
        let listed = listed(repository, &head, &filter);
        (head, listed)
    };
    repository.each_beside(heads, list, |(head, (found, is_damaged))| {
        damaged |= is_damaged;
        for (entry, snapshot, key) in found {
            if session.global.json {
                let mut value = snapshot_json(&head, &entry.labels, &snapshot);
                value["protected"] = entry.is_protected().into();
                value["deleted"] = args.deleted.into();
                value["key"] = key.map(|key| key.to_string()).into();
                output::message("snapshot", value);
            } else {
                rows.push(row(head.shown(), &entry, &snapshot, key));
            }
        }
        Ok::<_, Failure>(())
    })?;
    if !session.global.json {
        if !rows.is_empty() || damaged {
            let header =
                ["ID", "TIME", "SERIES", "VOLUMES", "SIZE", "NEW", "STORED", "KEY", "TAGS"];
            output::table(&header, &rows, &[3, 4, 5, 6]);
        } else if filter.is_given() {
            output::line("No snapshot matches.");
        } else if args.deleted {
            output::line("No deleted snapshot can be brought back.");
        } else {
            output::line("No snapshots yet. `silt backup SERIES PATH` makes one.");
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
        output::bytes(snapshot.volumes.iter().map(Volume::logical_bytes).sum()),
        output::bytes(levels.get(Level::New)),
        output::bytes(snapshot.stored_bytes()),
        key.map_or_else(String::new, short),
        tags,
    ]
}

/// Prints what a replicated snapshot is a copy of.
fn print_origin(snapshot: &Snapshot) {
    if let Some(origin) = snapshot.origin {
        let repository = &origin.repository.to_string()[..8];
        output::line(&format!("Copy of    {} in repository {repository}", origin.snapshot));
    }
}

pub fn show(session: &Session<'_>, args: &OneSnapshot) -> Result<u8, Failure> {
    let selector = snapshot_name::parse(&args.snapshot)?;
    let repository = session.repository_to_list()?;
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
    print_origin(snapshot);
    output::line(&format!("Made by    {} on {}", snapshot.program, snapshot.host));
    if let Some(key) = key {
        output::line(&format!("Signed by  key {}", writer(&repository, key)?));
    }
    if !found.entry.labels.is_empty() {
        output::line(&format!("Tags       {}", found.entry.labels.join(", ")));
    }
    if let Some(summary) = snapshot.summary {
        output::line(&format!(
            "Summary    {} in {}",
            output::count(summary.references, "reference"),
            output::bytes(summary.geometry.bytes())
        ));
    }
    for volume in &snapshot.volumes {
        output::line("");
        output::line(&format!(
            "Volume '{}': {} from {} ({}), {}, added {}",
            volume.name,
            output::bytes(volume.logical_bytes()),
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
                "  map: {} called unchanged, {} of them compared, {} not read; every segment was \
                 read or compared since {}",
                output::count(proof.clean, "segment"),
                proof.compared,
                proof.clean - proof.compared.min(proof.clean),
                output::time(proof.since_ns())
            ));
        }
        print_levels(&volume.levels);
        trees::print_kinds(volume);
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

pub fn ls(session: &Session<'_>, args: &Ls) -> Result<u8, Failure> {
    let (text, path) = snapshot_name::split_path(&args.snapshot)?;
    if path.is_some() {
        return trees::ls(session, args);
    }
    let (selector, name) = snapshot_name::parse_with_volume(text)?;
    let found = session.repository_to_list()?.find(&selector)?;
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
                output::bytes(volume.logical_bytes()),
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
