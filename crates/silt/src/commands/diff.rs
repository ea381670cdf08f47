//! `silt diff`.

use serde_json::json;

use super::{Failure, Session, spans, trees, volume};
use crate::cli::Diff;
use crate::snapshot_name::WithPath;
use crate::{output, snapshot_name};

/// Maximum number of ranges printed per volume; JSON has all.
const SPANS_SHOWN: usize = 20;

pub fn run(session: &Session<'_>, args: &Diff) -> Result<u8, Failure> {
    let (old_place, new_place) =
        (snapshot_name::parse_with_path(&args.old)?, snapshot_name::parse_with_path(&args.new)?);
    let repository = session.repository()?;
    let old = repository.find(&old_place.selector)?;
    let new = repository.find(&new_place.selector)?;
    if old_place.path.is_some() || new_place.path.is_some() {
        let at = |place: &WithPath| place.path.clone().unwrap_or_default();
        let old = trees::tree(&old, old_place.volume.as_deref())?;
        let new = trees::tree(&new, new_place.volume.as_deref())?;
        let (old_path, new_path) = (at(&old_place), at(&new_place));
        return trees::compare(session, &repository, (old, &old_path), (new, &new_path));
    }
    let (old_volume, new_volume) = (old_place.volume, new_place.volume);
    let pairs = if old_volume.is_some() || new_volume.is_some() {
        let old_name = old_volume.as_deref().or(new_volume.as_deref());
        let new_name = new_volume.as_deref().or(old_volume.as_deref());
        vec![(volume(&old, old_name)?, volume(&new, new_name)?)]
    } else {
        new.volumes().filter_map(|new| Some((old.volume(&new.volume().name).ok()?, new))).collect()
    };
    let mut code = 0;
    for (old, new) in pairs {
        if trees::is_tree_volume(&old) && trees::is_tree_volume(&new) {
            code = code.max(trees::compare(session, &repository, (old, b""), (new, b""))?);
            continue;
        }
        let diff = repository.diff(old, new)?;
        let (old_volume, new_volume) = (old.volume(), new.volume());
        if session.global.json {
            let value = json!({
                "volume": new_volume.name,
                "old_bytes": old_volume.bytes,
                "new_bytes": new_volume.bytes,
                "changed_bytes": diff.bytes,
                "spans": spans(&diff.spans),
            });
            output::message("diff", value);
            continue;
        }
        output::line(&format!(
            "Volume '{}': {} of {} differ, in {}",
            new_volume.name,
            output::bytes(diff.bytes),
            output::bytes(new_volume.bytes),
            output::count(diff.spans.len(), "range")
        ));
        for span in diff.spans.iter().take(SPANS_SHOWN) {
            output::line(&format!("  {}+{}", span.offset, span.length));
        }
        if diff.spans.len() > SPANS_SHOWN {
            output::line("  ... (--json prints all)");
        }
    }
    one_sided(session, &old.snapshot, &new.snapshot, "only in the older snapshot");
    one_sided(session, &new.snapshot, &old.snapshot, "only in the newer snapshot");
    Ok(code)
}

fn one_sided(
    session: &Session<'_>,
    here: &silt_format::Snapshot,
    there: &silt_format::Snapshot,
    what: &str,
) {
    let lacks = |name: &str| !there.volumes.iter().any(|v| v.name == name);
    for volume in here.volumes.iter().filter(|v| lacks(&v.name)) {
        if session.global.json {
            output::message("diff", json!({"volume": volume.name, "note": what}));
        } else {
            output::line(&format!("Volume '{}' is {what}", volume.name));
        }
    }
}
