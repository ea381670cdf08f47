//! The bytes of a replication by what they were for.

use serde_json::{Value, json};
use silt_replicate::Traffic;

/// The bytes of each phase in both directions.
pub fn phases(traffic: Traffic) -> Value {
    let Traffic { sent, received } = traffic;
    let phase = |sent: u64, received: u64| json!({"sent_bytes": sent, "received_bytes": received});
    json!({
        "agreement": phase(sent.agreement, received.agreement),
        "segments": phase(sent.segments, received.segments),
        "fingerprints": phase(sent.fingerprints, received.fingerprints),
        "chunks": phase(sent.chunks, received.chunks),
        "deltas": phase(sent.deltas, received.deltas),
        "entries": phase(sent.entries, received.entries),
    })
}
