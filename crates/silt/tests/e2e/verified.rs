//! fio writes blocks with checksums and positions; it verifies them in what was backed up.

use std::process::Command;

use crate::exports::Served;
use crate::kit::{Place, can, tool};
use crate::mounts::Mounted;

const SIZE: &str = "--size=64m";
/// Blocks with a checksum and their own offset.
const BLOCKS: [&str; 4] =
    ["--bs=16k", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];

/// Whether fio finds all blocks that it has written, in random order.
fn verifies(arguments: &[String]) -> bool {
    let mut fio = Command::new("fio");
    fio.args(["--name=blocks", SIZE, "--rw=randread", "--readonly", "--minimal"]).args(BLOCKS);
    fio.args(arguments).output().unwrap().status.success()
}

#[test]
fn fio_verifies_an_export_and_a_mounted_volume() {
    if !can("fio") {
        return;
    }
    let place = Place::new();
    let raw = place.text("root.raw");
    let file = format!("--filename={raw}");
    let write = ["--name=blocks", SIZE, "--rw=randwrite", "--do_verify=0", "--ioengine=psync"];
    tool("fio", &[&write[..], &BLOCKS, &[&file]].concat());
    assert!(verifies(&[file.clone(), "--ioengine=psync".to_owned()]), "fio itself");
    place.silt(&["backup", "web1", &format!("root={raw}")]).exits(0);

    // One byte of one block, so that a failure is seen as one.
    let mut image = place.read("root.raw");
    let middle = image.len() / 2 + 77;
    image[middle] ^= 1;
    let wrong = place.write("wrong.raw", &image);
    assert!(!verifies(&[format!("--filename={wrong}"), "--ioengine=psync".to_owned()]));
    place.silt(&["backup", "wrong", &format!("root={wrong}")]).exits(0);

    let served = Served::start(&place, &[]);
    let over_nbd = |export: &str, depth: &str| {
        let uri = format!("--uri={}", served.uri(export));
        verifies(&["--ioengine=nbd".to_owned(), uri, format!("--iodepth={depth}")])
    };
    for depth in ["1", "16"] {
        assert!(over_nbd("web1@latest:root", depth), "depth {depth}");
        assert!(!over_nbd("wrong@latest:root", depth), "depth {depth}");
    }
    served.end().exits(0);

    if !can("fuse") {
        return;
    }
    let mounted = Mounted::new(&place);
    let in_folder = |series: &str| {
        let file = mounted.at(&format!("{series}/latest/root.raw"));
        let file = format!("--filename={}", file.display());
        verifies(&[file, "--ioengine=psync".to_owned()])
    };
    assert!(in_folder("web1"));
    assert!(!in_folder("wrong"));
    mounted.end("-TERM").exits(0);
}
