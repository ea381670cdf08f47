//! `silt restore` of file trees.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};
use silt_format::{Error, ErrorKind, VolumeKind};
use silt_tree::{Existing, MakeOptions, Missing, OwnerChoice, OwnerMap, XattrChoice};
use siltstone::{FoundVolume, PathRules, Repository, TreeRestoreOptions, TreeRestoreReport};

use crate::cli::{Owners, Restore, TreeRestoreArgs, Xattrs};
use crate::commands::{Failure, Session, listing, short};
use crate::output;

/// Failures that are printed one by one.
const FAILURES_SHOWN: usize = 20;

/// Restores what is at `path` of a file tree into the folder `target`.
pub fn restore(
    session: &Session<'_>,
    args: &Restore,
    repository: &Repository,
    of: FoundVolume<'_>,
    path: &[u8],
    target: &Path,
) -> Result<u8, Failure> {
    for (name, given) in [
        ("--range", args.range.is_some()),
        ("--format", args.format.is_some()),
        ("--salvage", args.salvage),
    ] {
        if given {
            return Err(Failure::Usage(format!("{name} is for disks, not for file trees")));
        }
    }
    let rules = path_rules(&args.tree)?;
    if args.dry_run {
        return announce(session, repository, of, path, target, &rules);
    }
    let options = TreeRestoreOptions {
        rules,
        make: make_options(args, of)?,
        delete: args.tree.delete,
        jobs: session.global.jobs,
        memory_bytes: session.global.memory << 20,
    };
    let report = repository.restore_tree(of, path, target, &options);
    let report = report.map_err(|error| match error.kind() {
        // What exists was kept: a refusal, not a failure.
        ErrorKind::AlreadyExists => error.with_kind(ErrorKind::Denied),
        _ => error,
    })?;
    session.reporter.finish();
    let found = of.found();
    let (made, shown) = (&report.made, target.display());
    if session.global.json {
        let mut value = json!({
            "snapshot": found.snapshot.id.to_string(),
            "volume": of.volume().name,
            "target": target.to_string_lossy(),
            "entries": made.made,
            "bytes": report.bytes,
            "removed": made.removed,
            "unreadable": report.unreadable,
            "failed": made.failed,
            "failures": failures_json(&made.failures),
            "owners_not_set": made.missing.owners,
            "xattrs_not_set": made.missing.xattrs,
            "flags_not_set": made.missing.flags,
            "devices_not_made": made.missing.devices,
        });
        listing::set_bytes(&mut value, "path", path);
        output::message("summary", value);
    } else {
        output::done(&format!(
            "Restored {}, {}, of volume '{}' of snapshot {} ({}, {}) to {shown}",
            output::count(made.made, "entry"),
            output::bytes(report.bytes),
            of.volume().name,
            short(found.snapshot.id),
            found.head.shown(),
            output::time(found.snapshot.time_ns),
        ));
        if made.removed > 0 {
            let removed = output::count(made.removed, "entry");
            output::done(&format!("Removed {removed} not in the snapshot"));
        }
    }
    Ok(conclude(session, args, &report))
}

/// Warns of what is missing, and returns the exit status.
fn conclude(session: &Session<'_>, args: &Restore, report: &TreeRestoreReport) -> u8 {
    let made = &report.made;
    warn_of_missing(session, &made.missing);
    if report.unreadable > 0 {
        let entries = output::count(report.unreadable, "entry");
        session.warn(&format!("{entries} incomplete: the backup could not read everything"));
    }
    let exists = |failure: &silt_tree::Failure| failure.error.kind() == ErrorKind::AlreadyExists;
    if !args.in_place && !args.force && made.failures.iter().any(exists) {
        let hint = "silt: --in-place rewrites what exists and differs, --force replaces it";
        output::note(hint);
    }
    failed(&made.failures, made.failed, "NOT restored")
}

/// Prints the entries that failed, and returns the exit status.
pub fn failed(first: &[silt_tree::Failure], count: u64, how: &str) -> u8 {
    for failure in first.iter().take(FAILURES_SHOWN) {
        let path = String::from_utf8_lossy(&failure.path);
        output::note(&format!("silt: {path} is {how}: {}", failure.error));
    }
    if count == 0 {
        return 0;
    }
    let verb = if count == 1 { "is" } else { "are" };
    output::note(&format!("silt: {} {verb} {how}", output::count(count, "entry")));
    let kinds = || first.iter().map(|failure| failure.error.kind());
    match () {
        () if kinds().any(is_damage) => 5,
        () if kinds().any(|kind| kind == ErrorKind::AlreadyExists) => 13,
        () => 1,
    }
}

/// Whether the error of an entry is about the repository and not about the target.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
}

/// Entries that failed as JSON.
pub fn failures_json(failures: &[silt_tree::Failure]) -> Value {
    let failures = failures.iter().map(|failure| {
        let mut value = json!({"error": failure.error.to_string()});
        listing::set_bytes(&mut value, "path", &failure.path);
        value
    });
    failures.collect()
}

/// One line for each kind of attribute that could not be set.
fn warn_of_missing(session: &Session<'_>, missing: &Missing) {
    for (count, what, why) in [
        (missing.owners, "entry", "without owner; run as root, or use --owners me"),
        (missing.xattrs, "extended attribute", "not set: a privilege is missing, or not supported"),
        (missing.flags, "entry", "without inode flags: a privilege is missing, or not supported"),
        (missing.devices, "device", "not created; only root can create devices"),
    ] {
        if count > 0 {
            session.warn(&format!("{} {why}", output::count(count, what)));
        }
    }
}

fn make_options(args: &Restore, of: FoundVolume<'_>) -> Result<MakeOptions, Failure> {
    let owners = match (args.tree.owners, &of.volume().kind) {
        (Owners::Names, VolumeKind::Tree(tree)) => {
            let here = silt_tree::Owners::of_this_machine()?;
            OwnerChoice::Mapped(OwnerMap::by_name(&tree.users, &tree.groups, &here))
        }
        (Owners::Me, _) => OwnerChoice::Maker,
        _ => OwnerChoice::Numbers,
    };
    let xattrs = match args.tree.xattrs {
        Xattrs::All => XattrChoice::All,
        Xattrs::User => XattrChoice::User,
        Xattrs::None => XattrChoice::None,
    };
    let existing = match (args.in_place, args.force) {
        (true, _) => Existing::KeepIfSame,
        (_, true) => Existing::Replace,
        _ => Existing::Refuse,
    };
    Ok(MakeOptions { existing, owners, xattrs, ..MakeOptions::default() })
}

fn path_rules(args: &TreeRestoreArgs) -> Result<PathRules, Failure> {
    let usage = |error: Error| Failure::Usage(error.to_string());
    let mut rules = PathRules::default();
    for pattern in &args.include {
        rules.include(pattern.as_bytes(), false).map_err(usage)?;
    }
    for pattern in &args.exclude {
        rules.exclude(pattern.as_bytes(), false).map_err(usage)?;
    }
    Ok(rules)
}

fn announce(
    session: &Session<'_>,
    repository: &Repository,
    of: FoundVolume<'_>,
    path: &[u8],
    target: &Path,
    rules: &PathRules,
) -> Result<u8, Failure> {
    let memory_bytes = session.global.memory << 20;
    let plan = repository.plan_tree_restore(of, path, rules, memory_bytes)?;
    if session.global.json {
        let mut value = json!({
            "dry_run": true,
            "snapshot": of.found().snapshot.id.to_string(),
            "volume": of.volume().name,
            "target": target.to_string_lossy(),
            "entries": plan.entries(),
            "files": plan.files,
            "directories": plan.directories,
            "bytes": plan.bytes,
            "failed": plan.failures.count,
            "failures": failures_json(&plan.failures.first),
        });
        listing::set_bytes(&mut value, "path", path);
        output::message("summary", value);
    } else {
        output::line(&format!(
            "Would restore {} ({}, {}), {}, of volume '{}' of snapshot {} ({}, {}) to {}",
            output::count(plan.entries(), "entry"),
            output::count(plan.files, "file"),
            output::count(plan.directories, "directory"),
            output::bytes(plan.bytes),
            of.volume().name,
            short(of.found().snapshot.id),
            of.found().head.shown(),
            output::time(of.found().snapshot.time_ns),
            target.display()
        ));
    }
    Ok(failed(&plan.failures.first, plan.failures.count, "NOT readable"))
}
