//! `silt repo rollback`: rolls a repository in a bucket back to a point in time.

use crate::cli::Rollback;
use crate::commands::{Failure, Session};
use siltstone::{Activity, Progress};

#[cfg(feature = "s3")]
pub fn run(session: &Session<'_>, args: &Rollback) -> Result<u8, Failure> {
    use jiff::Timestamp;
    use silt_format::names::{self, Numbered};
    use silt_format::{Error, ErrorKind};

    let location = session.location()?;
    if !location.starts_with("s3://") {
        let message =
            format!("{location} is not a bucket; folders keep no versions of deleted files");
        return Err(Error::new(ErrorKind::Unsupported, message).into());
    }
    let at_ns = crate::snapshot_name::parse_nanoseconds(&args.at)?;
    let at = Timestamp::from_nanosecond(i128::from(at_ns))
        .map_err(|error| Failure::Usage(format!("'{}': {error}", args.at)))?;
    let bucket = session.opener.bucket(location)?;
    let versions = bucket.versions()?;
    let was_there = |name: &str| {
        let mut all = versions.iter();
        all.any(|version| version.key.as_str() == name && version.modified <= at)
    };
    if !was_there(names::CONFIG) && !was_there(names::CONFIG_COPY) {
        let message = format!("there was no repository in {location} at {}", args.at);
        return Err(Error::new(ErrorKind::NoRepository, message).into());
    }
    // Objects that take precedence over older ones: newer heads, marks, newer lists of places and,
    // with `--keys`, of writers.
    let is_above = |key: &silt_storage::Key| {
        let name = key.as_str();
        name.starts_with(names::STATE)
            || Numbered::Places.is(name)
            || Numbered::Mark.is(name)
            || args.keys && name.starts_with(names::WRITERS)
    };
    let mut plan = silt_remote::Rollback::plan(&versions, at, is_above);
    let is_key = |version: &silt_remote::Version| version.key.as_str().starts_with(names::KEYS);
    let (keys, rest): (Vec<_>, Vec<_>) = plan.restored.into_iter().partition(is_key);
    let mut ids: Vec<_> =
        keys.iter().filter_map(|version| names::key_id(version.key.as_str())).collect();
    ids.sort_unstable();
    ids.dedup();
    // Passwords that were removed since then stay removed unless `--keys` is given.
    plan.restored = if args.keys { keys.into_iter().chain(rest).collect() } else { rest };
    // Heads last, so that other processes always find the objects that a head names.
    plan.restored.sort_by_key(|version| is_above(&version.key));
    if !args.dry_run {
        for (done, version) in plan.restored.iter().enumerate() {
            session.context.check_interrupted()?;
            let total = Some(plan.restored.len() as u64);
            let progress = Progress::objects(Activity::RollBack, done as u64, total);
            session.context.report(progress);
            bucket.restore_version(version)?;
        }
        silt_storage::Storage::delete(&*bucket, &plan.hidden)?;
        let mut config = Vec::new();
        let (name, range) = (silt_storage::Key::new(names::CONFIG)?, silt_storage::ByteRange::Full);
        silt_storage::Storage::get(&*bucket, &name, range, &mut config)?;
        session.noted.forget(silt_format::Header::decode(&config)?.repository);
    }
    session.reporter.finish();
    print(session, args, at_ns, &plan, &ids);
    Ok(0)
}

#[cfg(feature = "s3")]
fn print(
    session: &Session<'_>,
    args: &Rollback,
    at_ns: i64,
    plan: &silt_remote::Rollback,
    keys: &[silt_format::Id],
) {
    use serde_json::json;

    use crate::output;

    let bytes: u64 = plan.restored.iter().filter_map(|v| v.content.as_ref()).map(|c| c.1).sum();
    let (objects, hidden) = (plan.restored.len(), plan.hidden.len());
    if session.global.json {
        let value = json!({
            "at": output::rfc3339(at_ns), "restored_objects": objects, "restored_bytes": bytes,
            "deleted_newer_objects": hidden, "dry_run": args.dry_run,
            "differing_keys": keys.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "restored_keys": args.keys,
        });
        output::message("rolled_back", value);
        return;
    }
    let (restored, deleted) =
        if args.dry_run { ("Would restore", "delete") } else { ("Restored", "deleted") };
    output::outcome(
        args.dry_run,
        &format!(
            "{restored} {} ({}) to the state at {}, and {deleted} newer heads and lists: {hidden}.",
            output::count(objects, "object"),
            output::bytes(bytes),
            output::time(at_ns),
        ),
    );
    if !keys.is_empty() && !args.keys {
        let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
        output::line(&format!(
            "These keys were removed or overwritten after that time, and stay so: {}. If you did \
             not do that, run this again with --keys.",
            keys.join(", ")
        ));
    }
    if !args.dry_run {
        output::done("Run `silt check --read-data` to verify the result.");
    }
}

#[cfg(not(feature = "s3"))]
pub fn run(_: &Session<'_>, _: &Rollback) -> Result<u8, Failure> {
    Err(Failure::Usage("this program was built without support for buckets".to_owned()))
}
