//! Sources of every kind.

use std::io::Write;
use std::process::Stdio;

use crate::kit::{Place, changed, damage, disk, tool};

fn restored(place: &Place, snapshot: &str) -> Vec<u8> {
    place.silt(&["restore", snapshot, "restored.raw", "--force"]).exits(0);
    place.read("restored.raw")
}

#[test]
fn qcow2_chains_and_compressed_images_are_backed_up_as_a_guest_sees_them() {
    let place = Place::new();
    let base = place.write("base.raw", &disk(1, 16));
    for (number, extra) in
        [vec![], vec!["-c"], vec!["-c", "-o", "compression_type=zstd"]].into_iter().enumerate()
    {
        let image = place.text(&format!("image{number}.qcow2"));
        let mut args = vec!["convert", "-f", "raw", "-O", "qcow2"];
        args.extend(extra);
        args.extend([base.as_str(), image.as_str()]);
        tool("qemu-img", &args);
        place.silt(&["backup", &format!("vm{number}"), &image]).exits(0);
        assert!(restored(&place, &format!("vm{number}@latest")) == disk(1, 16), "image {number}");
    }
    let overlay = place.text("overlay.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &base, "-F", "raw", &overlay]);
    let writes = ["-c", "write -P 7 1M 300k", "-c", "write -z 5M 1M", "-c", "discard 9M 64k"];
    let mut args = vec!["-f", "qcow2"];
    args.extend(writes);
    args.push(&overlay);
    tool("qemu-io", &args);
    place.silt(&["backup", "chain", &overlay]).exits(0);
    let shown = place.silt(&["show", "chain@latest"]).exits(0).printed();
    assert!(shown.contains(&format!("backed by  {base}")), "{shown}");
    let flat = place.text("flat.raw");
    tool("qemu-img", &["convert", "-O", "raw", &overlay, &flat]);
    assert!(restored(&place, "chain@latest") == place.read("flat.raw"));
    // The map of the overlay names what changed against the base.
    place.silt(&["backup", "web", &format!("disk={base}")]).exits(0);
    let map = tool("qemu-img", &["map", "--output=json", &overlay]);
    place.write("map.json", map.as_bytes());
    let args = ["backup", "web", &format!("disk={overlay}"), "--changed", "map.json", "--json"];
    let summary = place.silt(&args).exits(0).summary();
    assert!(summary["volumes"][0]["levels"]["map"].as_u64().unwrap() > 0);
    assert!(restored(&place, "web@latest") == place.read("flat.raw"));
}

#[test]
fn a_wrong_map_is_found_out_and_the_snapshot_is_right() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(5, 16));
    place.silt(&["backup", "vm", &image]).exits(0);
    std::fs::write(&image, disk(6, 16)).unwrap();
    place.write("map.json", b"[]");
    // An empty list may come from a program that has failed.
    let with_map = ["backup", "vm", &image, "--changed", "map.json"];
    place.silt(&with_map).exits(1).says("--changed-form rbd");
    let run = place.silt(&[&with_map[..], &["--changed-form", "rbd"]].concat()).exits(4);
    run.says("the changed-blocks map is wrong");
    assert!(restored(&place, "vm@latest") == disk(6, 16));
    let run = place.silt(&[&with_map[..], &["--changed-form", "rbd"]].concat()).exits(0);
    run.says("8 segments unchanged according to the map, ");
    place.silt(&["show", "vm@latest"]).exits(0).says("every segment was read or compared since");
    place
        .silt(&[&with_map[..], &["--changed-form", "qemu"]].concat())
        .exits(1)
        .says("ends at byte 0");
    place.write("map.json", b"{\"offset\":1}");
    place.silt(&["backup", "vm", &image, "--changed", "map.json"]).exits(1).says("map.json");
}

#[test]
fn standard_input_and_several_volumes_go_into_one_snapshot() {
    let place = Place::new();
    let mut dump = disk(7, 5);
    dump.truncate((5 << 20) - 123);
    let image = place.write("root.raw", &disk(8, 6));
    let mut command = place.command();
    command.args(["backup", "db", &image, "dump=-"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&dump).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(restored(&place, "db@latest:dump") == dump);
    assert!(restored(&place, "db@latest:root") == disk(8, 6));
    place.silt(&["restore", "db@latest", "x"]).exits(2).says("root, dump");
    place.silt(&["restore", "db@latest:swap", "x"]).exits(1).says("no volume 'swap'");
}

#[test]
fn an_unchanged_disk_writes_next_to_nothing_and_a_day_of_change_little() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(9, 40));
    place.silt(&["backup", "vm", &image]).exits(0);
    let before = place.objects("");
    let summary = place.silt(&["backup", "vm", &image, "--json"]).exits(0).summary();
    assert!(summary["written_bytes"].as_u64().unwrap() < 64 << 10);
    assert_eq!(place.objects("").len() - before.len(), 2, "a snapshot and a head");
    std::fs::write(&image, changed(&disk(9, 40), 3)).unwrap();
    let summary = place.silt(&["backup", "vm", &image, "--json"]).exits(0).summary();
    assert!(summary["written_bytes"].as_u64().unwrap() < 1 << 20, "{summary}");
    assert!(restored(&place, "vm@latest") == changed(&disk(9, 40), 3));
}

#[test]
fn content_defined_chunks_find_what_has_shifted() {
    let place = Place::new();
    let mut bytes = disk(10, 8);
    let image = place.write("a.bin", &bytes);
    let args = ["backup", "vm", &image, "--chunking", "fastcdc:1024/4096/16384", "--json"];
    place.silt(&args).exits(0);
    bytes.splice(100_000..100_000, [1, 2, 3]);
    bytes.truncate(8 << 20);
    std::fs::write(&image, &bytes).unwrap();
    let summary = place.silt(&args).exits(0).summary();
    let new = summary["volumes"][0]["levels"]["new"].as_u64().unwrap();
    assert!(new < 2 << 20, "{new} bytes of 8 MiB are new");
    assert!(restored(&place, "vm@latest") == bytes);
}

#[test]
fn a_dirty_bitmap_served_over_nbd_is_a_map_and_an_allocation_map_is_not() {
    let place = Place::new();
    let image = place.text("disk.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &image, "64M"]);
    tool("qemu-io", &["-f", "qcow2", "-c", "write -P 3 0 30M", &image]);
    tool("qemu-img", &["bitmap", "--add", &image, "today"]);
    place.silt(&["backup", "vm", &image]).exits(0);
    tool("qemu-io", &["-f", "qcow2", "-c", "write -P 9 8M 64k", &image]);
    tool("qemu-img", &["bitmap", "--disable", &image, "today"]);
    let (socket, pid) = (place.text("nbd.sock"), place.text("nbd.pid"));
    let mut args = vec!["--fork", "--pid-file", &pid, "-r", "-t", "-f", "qcow2", "-B", "today"];
    args.extend(["-k", &socket, &image]);
    tool("qemu-nbd", &args);
    let uri = format!("nbd+unix:///?socket={socket}");
    let dirty = tool("nbdinfo", &["--map=qemu:dirty-bitmap:today", "--json", &uri]);
    let allocated = tool("nbdinfo", &["--map", "--json", &uri]);
    tool("kill", &[String::from_utf8(place.read("nbd.pid")).unwrap().trim()]);
    place.write("dirty.json", dirty.as_bytes());
    place.write("allocated.json", allocated.as_bytes());
    let args = ["backup", "vm", &image, "--allow-in-use", "--json", "--changed"];
    let summary = place.silt(&[&args[..], &["dirty.json"]].concat()).exits(0).summary();
    let levels = &summary["volumes"][0]["levels"];
    assert_eq!(levels["map"], 62 << 20, "all but one segment is clean: {levels}");
    assert!(restored(&place, "vm@latest")[8 << 20..][..65536].iter().all(|byte| *byte == 9));
    place.silt(&[&args[..], &["allocated.json"]].concat()).exits(1).says("dirty-bitmap");
}

#[test]
fn a_backup_names_the_way_out_of_a_damaged_head() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["backup", "vm", &image, "--tag", "second"]).exits(0);
    let head =
        place.objects("state").into_iter().find(|path| path.to_str().unwrap().contains("heads"));
    damage(&head.unwrap());
    for command in [
        &["backup", "vm", &image][..],
        &["restore", "vm@latest", "out.raw"],
        &["tag", "add", "vm@latest", "x"],
        &["forget", "vm", "--keep-last", "1"],
        &["status"],
    ] {
        place.silt(command).says("silt recover vm");
    }
    let of = |series: &str| format!("[series.{series}]\nvolumes = {{ a = \"{image}\" }}\n");
    place.write("fleet.toml", [of("other"), of("vm")].concat().as_bytes());
    let run = place.silt(&["backup", "--fleet", "fleet.toml"]).exits(5);
    assert!(run.out.contains("Made snapshot of other"), "{}", run.printed());
    run.says("silt recover vm");
    place.silt(&["recover", "vm"]).exits(0);
    place.silt(&["backup", "vm", &image]).exits(0);
}

/// The second backup recognizes segments by their hash; a dry run remembers nothing.
#[test]
fn an_unchanged_disk_is_recognized_by_what_the_machine_remembers() {
    let place = Place::new();
    place.write("disk.raw", &disk(3, 16));
    let recognized = |more: &[&str]| {
        let args = [&["backup", "vm", "disk.raw", "--json"], more].concat();
        place.silt(&args).exits(0).summary()["recognized_segments"].as_u64().unwrap()
    };
    assert_eq!(recognized(&["--dry-run"]), 0);
    assert_eq!(recognized(&[]), 0);
    let all = recognized(&[]);
    assert!(all > 0);
    assert_eq!(recognized(&["--no-parent"]), 0);
    place.write("disk.raw", &changed(&disk(3, 16), 1));
    assert!(recognized(&[]) < all);
    assert!(restored(&place, "vm@latest") == changed(&disk(3, 16), 1));
    std::fs::remove_dir_all(place.path("state")).unwrap();
    assert_eq!(recognized(&[]), 0);
    assert_eq!(recognized(&[]), all);
}
