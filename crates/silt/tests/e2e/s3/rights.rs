//! Hosts with no more rights than they need: a key that only writes, and credentials that delete
//! nothing.

use silt_remote::server::BUCKET;

use super::Bucket;
use crate::kit::{self, Run};

/// The policy that docs/OPERATIONS.md gives for such hosts, without the condition that MinIO does
/// not know.
fn policy() -> String {
    let text = include_str!("../../../../../docs/OPERATIONS.md");
    let (_, policy) = text.split_once("```json\n").unwrap();
    let (policy, _) = policy.split_once("```").unwrap();
    let condition = ",\n   \"Condition\": {\"Null\": {\"s3:if-none-match\": \"false\"}}";
    assert!(policy.contains(condition));
    policy.replace(condition, "").replace("BUCKET", BUCKET).replace("PREFIX", "vms")
}

#[test]
fn a_host_that_only_writes_backs_up_with_rights_to_do_only_that() {
    let Some(bucket) = Bucket::new() else { return };
    let password = bucket.place.write("host", b"of the host");
    let add = ["key", "add", "--write-only", "--series", "vm", "--new-password-file", &password];
    bucket.silt(&[&add[..], &["--kdf-memory", "8", "--kdf-passes", "1"]].concat()).exits(0);
    let rights = bucket.server.settings_with_policy(&policy());
    let host = |arguments: &[&str]| {
        let mut command = bucket.command();
        command.envs(rights.environment.clone()).env("SILT_PASSWORD", "of the host");
        Run::of(command.args(arguments))
    };
    let (first, second) = (kit::disk(1, 12), kit::disk(2, 12));
    let file = bucket.place.write("vm.raw", &first);
    host(&["backup", "vm", &file]).exits(0);
    bucket.place.write("vm.raw", &second);
    let run = host(&["backup", "vm", &file]).exits(0);
    assert!(!run.err.contains("will expire"), "leases may be deleted: {}", run.err);
    host(&["snapshots", "vm"]).exits(0).says("vm");
    host(&["check"]).exits(0).says("No damage found");
    host(&["restore", "vm@latest", "-"]).exits(13);
    // With another's password it still can't take anything away.
    let delete = |arguments: &[&str]| {
        let mut command = bucket.command();
        Run::of(command.envs(rights.environment.clone()).args(arguments))
    };
    delete(&["delete", "vm@latest"]).exits(0);
    delete(&["reclaim", "--min-dead", "0", "--sweep", "--grace", "0h"]).exits(13);
    bucket.silt(&["undelete", "vm@latest"]);
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    let target = bucket.place.text("restored.raw");
    bucket.silt(&["restore", "vm@latest", &target]).exits(0);
    let restored = bucket.place.read("restored.raw");
    assert!(restored == first || restored == second);
}
