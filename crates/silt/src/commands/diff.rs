//! `silt diff`.

use serde_json::json;

use super::{Failure, Session, spans, volume};
use crate::cli::Diff;
use crate::{output, snapshot_name};

/// Maximum number of ranges printed per volume; JSON has all.
const SPANS_SHOWN: usize = 20;

pub fn run(session: &Session<'_>, args: &Diff) -> Result<u8, Failure> {
    let (old, old_volume) = snapshot_name::parse_with_volume(&args.old)?;
    let (new, new_volume) = snapshot_name::parse_with_volume(&args.new)?;
    let repository = session.repository()?;
    let (old, new) = (repository.find(&old)?, repository.find(&new)?);
    let pairs = if old_volume.is_some() || new_volume.is_some() {
        let old_name = old_volume.as_deref().or(new_volume.as_deref());
        let new_name = new_volume.as_deref().or(old_volume.as_deref());
        vec![(volume(&old, old_name)?, volume(&new, new_name)?)]
    } else {
        new.volumes().filter_map(|new| Some((old.volume(&new.volume().name).ok()?, new))).collect()
    };
    for (old, new) in pairs {
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
            "Volume '{}': {} of {} differ in {} ranges",
            new_volume.name,
            output::bytes(diff.bytes),
            output::bytes(new_volume.bytes),
            diff.spans.len()
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
    Ok(0)
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
