//! `silt forget`.

use std::collections::{BTreeMap, HashMap};

use jiff::tz::TimeZone;
use serde_json::json;
use silt_format::{Error, ErrorKind, Head, Id, RetentionPolicy, Snapshot, SnapshotEntry};
use siltstone::{
    AllHeads, Candidate, DeleteMethod, Kept, ReclaimOptions, Repository, apply_policy,
};

use super::each::Each;
use super::{Failure, Session, delete, reclaim, short};
use crate::cli::{Forget, Group};
use crate::{confirm, output, snapshot_name};

/// How long snapshots deleted by `forget --reclaim` can be brought back by default.
const KEEP_DELETED_S: u64 = 24 * 3600;

/// The exit status if a backup was made, and `--forget` failed afterwards.
const FORGET_FAILED: u8 = 6;

/// A snapshot that a policy is applied to.
struct Row {
    /// The series' name for people.
    series: String,
    entry: SnapshotEntry,
    snapshot: Snapshot,
}

pub fn run(session: &Session<'_>, args: &Forget) -> Result<u8, Failure> {
    let of_profile = || match &session.chosen.profile.retention {
        Some(rules) => rules.policy(),
        None => Ok(None),
    };
    let given = args.keep.policy()?.map_or_else(of_profile, |given| Ok(Some(given)))?;
    // All options are parsed before anything is deleted.
    let keep_deleted_s =
        args.keep_deleted.as_deref().map(snapshot_name::parse_seconds).transpose()?;
    let repository = session.repository_to_change(args.dry_run)?;
    let mut each = Each::new(session);
    let AllHeads { heads, damaged, .. } = repository.all_heads(&args.series)?;
    each.damaged(&damaged);
    if given.is_none() && heads.iter().all(|head| head.policy.is_none()) {
        let message = "no policy: pass a rule such as --keep-daily 7, or store a policy with `silt \
                       policy set`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let mut groups: BTreeMap<Vec<String>, (RetentionPolicy, Vec<Row>)> = BTreeMap::new();
    let mut living: BTreeMap<String, usize> = BTreeMap::new();
    let mut own_names: HashMap<String, String> = HashMap::new();
    let with_policy = |head: Head| {
        let policy = given.clone().or_else(|| head.policy.clone())?;
        Some((head, policy))
    };
    let heads = heads.into_iter().filter_map(with_policy).collect();
    each_rows(&repository, heads, &mut each, |head, policy, rows| {
        own_names.insert(head.shown().to_owned(), head.name.clone());
        living.insert(head.shown().to_owned(), rows.len());
        for row in rows {
            let group = groups.entry(group(&row, &args.group_by));
            group.or_insert_with(|| (policy.clone(), Vec::new())).1.push(row);
        }
    })?;
    let mut doomed: BTreeMap<String, Vec<Id>> = BTreeMap::new();
    for (name, (policy, rows)) in &groups {
        let kept = decide(session, &repository, policy, rows)?;
        if args.dry_run || session.global.json || !session.global.quiet {
            print(session, name, rows, &kept);
        }
        let series: HashMap<Id, &str> =
            rows.iter().map(|row| (row.entry.id, row.series.as_str())).collect();
        for kept in kept.iter().filter(|kept| kept.reasons.is_empty()) {
            doomed.entry(series[&kept.id].to_owned()).or_default().push(kept.id);
        }
    }
    let going = |series: &String| doomed.get(series).map_or(0, Vec::len);
    let counts: Vec<_> =
        living.iter().map(|(series, all)| (series.as_str(), going(series), *all)).collect();
    if !args.dry_run {
        refuse_emptying(&counts, args.allow_empty)?;
        confirm_many(&counts, args.yes)?;
    }
    if doomed.is_empty() && !session.global.json {
        output::outcome(args.dry_run, "Nothing to delete.");
    }
    delete_all(&repository, args.dry_run, (doomed, &own_names), &mut each)?;
    if args.reclaim {
        let options = ReclaimOptions {
            keep_deleted_s,
            keep_deleted_unless_said_s: KEEP_DELETED_S,
            ..reclaim::defaults(session)
        };
        each.worsen(reclaim::reclaim(session, &repository, &args.series, &options, args.dry_run)?);
    }
    Ok(each.status())
}

/// Deletes snapshots of series, which are named as they are shown.
fn delete_all(
    repository: &Repository,
    is_dry: bool,
    (doomed, own_names): (BTreeMap<String, Vec<Id>>, &HashMap<String, String>),
    each: &mut Each<'_>,
) -> Result<(), Failure> {
    let session = each.session();
    let delete = |repository: &Repository, (series, ids): (String, Vec<Id>)| {
        let deleted = repository.delete(&own_names[&series], &ids, DeleteMethod::Approximate);
        (series, deleted.map_err(Failure::from))
    };
    repository.each_beside(doomed.into_iter().collect(), delete, |(series, deleted)| {
        if let Some(report) = each.tried(&series, deleted)? {
            let own_name = &own_names[&series];
            let space = is_dry.then(|| delete::space(session, repository, own_name));
            delete::print(session, &series, &report, space);
        }
        Ok(())
    })
}

/// Reads the living snapshots of series, and calls `take` with each series and its rules.
fn each_rows(
    repository: &Repository,
    heads: Vec<(Head, RetentionPolicy)>,
    each: &mut Each<'_>,
    mut take: impl FnMut(Head, &RetentionPolicy, Vec<Row>),
) -> Result<(), Failure> {
    let read = |repository: &Repository, (head, policy)| {
        let rows = rows(repository, &head).map_err(Failure::from);
        (head, policy, rows)
    };
    repository.each_beside(heads, read, |(head, policy, rows)| {
        if let Some(rows) = each.tried(head.shown(), rows)? {
            take(head, &policy, rows);
        }
        Ok(())
    })
}

/// All living snapshots of a series.
fn rows(repository: &Repository, head: &Head) -> silt_format::Result<Vec<Row>> {
    let row = |entry: &SnapshotEntry| {
        let snapshot = repository.snapshot(head.series, entry)?;
        Ok(Row { series: head.shown().to_owned(), entry: entry.clone(), snapshot })
    };
    head.snapshots.iter().map(row).collect()
}

/// Fails with `Denied` if the rules would delete all snapshots of a series, because such rules are
/// most likely a mistake. `counts` holds, for each series, how many would be deleted and how many
/// exist.
fn refuse_emptying(counts: &[(&str, usize, usize)], is_allowed: bool) -> Result<(), Failure> {
    let emptied = counts.iter().filter(|(_, going, all)| *going > 0 && going == all);
    let emptied: Vec<&str> = emptied.map(|(series, ..)| *series).collect();
    if emptied.is_empty() || is_allowed {
        return Ok(());
    }
    let message = format!(
        "the rules keep no snapshot of {}, so nothing was deleted; check them with --dry-run, or \
         pass --allow-empty",
        emptied.join(", ")
    );
    Err(Failure::Error(Error::new(ErrorKind::Denied, message)))
}

/// Asks for confirmation if more than half of a series' snapshots would be deleted.
fn confirm_many(counts: &[(&str, usize, usize)], is_sure: bool) -> Result<(), Failure> {
    let many = counts.iter().filter(|(_, going, all)| 2 * going > *all);
    let many: Vec<String> =
        many.map(|(series, going, all)| format!("{going} of {all} of {series}")).collect();
    if many.is_empty() || is_sure {
        return Ok(());
    }
    let question = format!("delete {} snapshots", many.join(", "));
    confirm::ask(&question, "pass --yes to delete them without asking, or --dry-run to list them")
}

/// Fails with `Denied` if `backup --forget` could delete nothing, before anything is backed up.
pub fn require_right(repository: &Repository) -> Result<(), Failure> {
    let refused = "no backup was made, because this host may not delete what --forget would; leave \
                   --forget out, and run `silt forget` where the password for it is";
    let required = repository.required_authority().map(drop);
    Ok(required.map_err(|error| error.context(refused))?)
}

/// Applies the stored policy of a series after its backup, and returns the exit status.
pub fn after_backup(
    session: &Session<'_>,
    repository: &Repository,
    series: &str,
) -> Result<u8, Failure> {
    match apply_stored(session, repository, series) {
        Ok(()) => Ok(0),
        Err(Failure::Error(error)) if error.kind() == ErrorKind::Interrupted => Err(error.into()),
        Err(failure) => {
            session.reporter.finish();
            let message =
                format!("the snapshot of '{series}' was made, but --forget failed: {failure}");
            output::error(session.global.json, &message, FORGET_FAILED);
            Ok(FORGET_FAILED)
        }
    }
}

/// Applies the stored policy of a series.
fn apply_stored(
    session: &Session<'_>,
    repository: &Repository,
    series: &str,
) -> Result<(), Failure> {
    let heads = repository.heads(&[series.to_owned()])?;
    let Some((head, policy)) = heads.into_iter().find_map(|h| h.policy.clone().map(|p| (h, p)))
    else {
        let message = format!("series '{series}' has no stored policy; nothing is deleted");
        session.warn(&message);
        return Ok(());
    };
    let rows = rows(repository, &head)?;
    let kept = decide(session, repository, &policy, &rows)?;
    let doomed: Vec<Id> =
        kept.iter().filter(|kept| kept.reasons.is_empty()).map(|kept| kept.id).collect();
    refuse_emptying(&[(series, doomed.len(), rows.len())], false)?;
    if 2 * doomed.len() > rows.len() {
        // Nobody is there to ask. Once a user has confirmed the policy, it deletes little each day.
        session.warn(&format!(
            "the policy of '{series}' would delete {} of its {} snapshots; nothing is deleted \
             until you confirm it with `silt forget {series}`",
            doomed.len(),
            rows.len()
        ));
        return Ok(());
    }
    if !doomed.is_empty() {
        let report = repository.delete(&head.name, &doomed, DeleteMethod::Approximate)?;
        delete::print(session, head.shown(), &report, None);
    }
    Ok(())
}

fn group(row: &Row, by: &[Group]) -> Vec<String> {
    let part = |group: &Group| match group {
        Group::Series => row.series.clone(),
        Group::Host => row.snapshot.host.clone(),
        Group::Tags => {
            let mut tags = row.entry.labels.clone();
            tags.sort();
            tags.join(",")
        }
    };
    by.iter().map(part).collect()
}

fn decide(
    session: &Session<'_>,
    repository: &Repository,
    policy: &RetentionPolicy,
    rows: &[Row],
) -> Result<Vec<Kept>, Failure> {
    let candidate = |row: &Row| {
        let age = match policy.age_min_s {
            0 => None,
            _ => repository.snapshot_age_s(row.snapshot.series, row.entry.id)?,
        };
        Ok(Candidate::new(&row.entry, age))
    };
    let candidates = rows.iter().map(candidate).collect::<silt_format::Result<Vec<_>>>()?;
    let now_ns = session.context.env.now_ns();
    Ok(apply_policy(policy, &candidates, now_ns, &TimeZone::system())?)
}

fn print(session: &Session<'_>, group: &[String], rows: &[Row], kept: &[Kept]) {
    let by_id: HashMap<Id, &Row> = rows.iter().map(|row| (row.entry.id, row)).collect();
    let decided = kept.iter().map(|kept| (by_id[&kept.id], kept));
    if session.global.json {
        for (row, kept) in decided {
            let value = json!({
                "group": group,
                "series": row.series,
                "id": row.entry.id.to_string(),
                "time": output::rfc3339(row.entry.time_ns),
                "tags": row.entry.labels,
                "keep": !kept.reasons.is_empty(),
                "reasons": kept.reasons,
            });
            output::message("decision", value);
        }
        return;
    }
    output::line(&format!("{}:", group.join(", ")));
    let rows: Vec<Vec<String>> = decided
        .map(|(row, kept)| {
            let what = if kept.reasons.is_empty() { "delete" } else { "keep" };
            vec![
                format!("  {}", short(row.entry.id)),
                output::time(row.entry.time_ns),
                what.to_owned(),
                kept.reasons.join(", "),
                row.entry.labels.join(","),
            ]
        })
        .collect();
    output::table(&["  ID", "TIME", "WHAT", "WHY", "TAGS"], &rows, &[]);
}
