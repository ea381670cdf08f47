//! Targets of every kind.

use crate::kit::{Place, can, changed, disk, tool};

fn backed_up(seed: u64, mib: usize) -> (Place, Vec<u8>) {
    let place = Place::new();
    let bytes = disk(seed, mib);
    let image = place.write("disk.raw", &bytes);
    place.silt(&["backup", "vm", &image]).exits(0);
    (place, bytes)
}

#[test]
fn raw_files_are_sparse_and_never_replaced_unasked() {
    let (place, bytes) = backed_up(1, 24);
    place.silt(&["restore", "latest", "out.raw"]).exits(0);
    assert!(place.read("out.raw") == bytes);
    let allocated = tool("stat", &["-c", "%b", &place.text("out.raw")]).parse::<usize>().unwrap();
    assert!(allocated * 512 < bytes.len() * 9 / 10, "zeros are holes");
    place.write("out.raw", b"precious");
    place.silt(&["restore", "latest", "out.raw"]).exits(13).says("--force");
    assert_eq!(place.read("out.raw"), b"precious");
    place.silt(&["restore", "latest", "out.raw", "--force"]).exits(0);
    assert!(place.read("out.raw") == bytes);
}

#[test]
fn qcow2_images_are_whole_and_equal() {
    let (place, _) = backed_up(2, 24);
    place.silt(&["restore", "latest", "out.qcow2", "--format", "qcow2"]).exits(0);
    tool("qemu-img", &["check", "-q", &place.text("out.qcow2")]);
    let (raw, qcow2) = (place.text("disk.raw"), place.text("out.qcow2"));
    tool("qemu-img", &["compare", "-q", "-f", "raw", "-F", "qcow2", &raw, &qcow2]);
}

#[test]
fn standard_output_carries_data_alone_and_ranges_are_exact() {
    let (place, bytes) = backed_up(3, 9);
    let output = place.command().args(["restore", "latest", "-"]).output().unwrap();
    assert!(output.status.success() && output.stdout == bytes);
    for (range, start, end) in [
        ("1MiB+4KiB", 1 << 20, (1 << 20) + 4096),
        ("5-12", 5, 12),
        ("9000000-", 9_000_000, 9 << 20),
    ] {
        let args = ["restore", "latest", "-", "--range", range, "--json"];
        let output = place.command().args(args).output().unwrap();
        assert!(output.stdout == bytes[start..end], "{range}");
    }
    place
        .silt(&["restore", "latest", "-", "--range", "9MiB+1"])
        .exits(2)
        .says("exceeds the volume");
    place.silt(&["restore", "latest", "part.raw", "--range", "0-4096"]).exits(0);
    assert!(place.read("part.raw") == bytes[..4096]);
}

#[test]
fn in_place_rewrites_what_differs() {
    let (place, bytes) = backed_up(4, 16);
    place.write("disk.raw", &changed(&bytes, 5));
    let args = ["restore", "latest", "disk.raw", "--in-place", "--json"];
    let summary = place.silt(&args).exits(0).summary();
    let written = summary["written_bytes"].as_u64().unwrap();
    assert!(written > 0 && written <= 21 * 4096, "{written}");
    assert!(place.read("disk.raw") == bytes);
    let summary = place.silt(&args).exits(0).summary();
    assert_eq!(summary["written_bytes"], 0);
    place.silt(&["restore", "latest", "nothing.raw", "--in-place"]).exits(1).says("does not exist");
}

#[test]
fn a_block_device_gets_the_disk() {
    if !can("loop") {
        return;
    }
    let (place, bytes) = backed_up(5, 16);
    place.write("device.raw", &vec![9; 16 << 20]);
    let device = tool("losetup", &["--find", "--show", &place.text("device.raw")]);
    let refused = place.silt(&["restore", "latest", &device]);
    let done = place.silt(&["restore", "latest", &device, "--force"]);
    let again = place.silt(&["restore", "latest", &device, "--in-place"]);
    let source = place.silt(&["backup", "device", &device, "--json"]);
    tool("losetup", &["-d", &device]);
    refused.exits(13).says("--force");
    done.exits(0);
    again.exits(0);
    assert_eq!(source.exits(0).summary()["volumes"][0]["source_format"], "block");
    assert!(place.read("device.raw") == bytes);
}

#[test]
fn a_time_means_the_end_of_its_day_where_the_user_lives() {
    let (place, _) = backed_up(6, 2);
    let today = tool("date", &["-u", "+%F"]);
    place.silt(&["show", &format!("vm@{today}")]).exits(0);
    place.silt(&["show", "vm@2001-01-01"]).exits(1).says("no snapshot that old");
    place.silt(&["show", "vm@yesterday"]).exits(2).says("is not a time");
}

#[test]
fn all_volumes_of_a_snapshot_are_restored_to_a_folder() {
    let place = Place::new();
    let disks = [disk(1, 6), disk(2, 3)];
    let files = [place.write("a.raw", &disks[0]), place.write("b.raw", &disks[1])];
    let volumes = [format!("root={}", files[0]), format!("data={}", files[1])];
    place.silt(&["backup", "vm", &volumes[0], &volumes[1]]).exits(0);
    let folder = place.text("out/");
    place.silt(&["restore", "vm@latest", &folder, "--dry-run"]).exits(0).says("out/data.raw");
    assert!(!place.path("out").exists());
    place.silt(&["restore", "vm@latest", &folder]).exits(0);
    assert!(place.read("out/root.raw") == disks[0] && place.read("out/data.raw") == disks[1]);
    // What is there is kept, and does not stop the others.
    std::fs::remove_file(place.path("out/data.raw")).unwrap();
    place.silt(&["restore", "vm@latest", &place.text("out")]).exits(13).says("already exists");
    assert!(place.read("out/data.raw") == disks[1]);
    place.silt(&["restore", "vm@latest:data", &folder, "--force"]).exits(0);
    let range = ["restore", "vm@latest", &folder, "--range", "0+4096", "--force"];
    place.silt(&range).exits(2).says("SNAPSHOT:VOLUME");
    let qcow2 = ["restore", "vm@latest", &place.text("images/"), "--format", "qcow2"];
    place.silt(&qcow2).exits(0);
    assert!(place.path("images/root.qcow2").exists());
}
