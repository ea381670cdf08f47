//! NBD exports as volumes to back up: `silt backup web1 root=nbd+unix:///?socket=PATH`.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::exports::Served;
use crate::kit::{Place, can, disk, tool};

/// A qemu-nbd in the background, which ends when this is dropped.
struct Qemu {
    socket: String,
    pid: String,
}

impl Qemu {
    fn start(place: &Place, name: &str, args: &[&str]) -> Self {
        let (socket, pid) =
            (place.text(&format!("{name}.sock")), place.text(&format!("{name}.pid")));
        let common = ["--fork", "-r", "-t", "-e", "8", "-k", &socket, "--pid-file", &pid];
        tool("qemu-nbd", &[&common[..], args].concat());
        let pid = std::fs::read_to_string(pid).unwrap().trim().to_owned();
        Self { socket, pid }
    }
    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }
    /// Bytes that it has read from files.
    fn read_bytes(&self) -> u64 {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.pid)).unwrap();
        let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        read.parse().unwrap()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.pid]).status();
        // It is no child of this process, and its locks last until it has ended.
        while Path::new("/proc").join(&self.pid).exists() {
            std::thread::yield_now();
        }
    }
}

/// Bytes by level of a backup's only volume.
fn levels(summary: &Value) -> &Value {
    &summary["volumes"][0]["levels"]
}

fn only_volume(place: &Place, snapshot: &str) -> Value {
    let shown = place.silt(&["show", snapshot, "--json"]).exits(0).messages();
    let snapshot = shown.iter().find(|message| message["message_type"] == "snapshot").unwrap();
    snapshot["volumes"][0].clone()
}

#[test]
fn an_export_is_backed_up_like_a_file() {
    if !can("nbd") {
        return;
    }
    let (place, image) = (Place::new(), disk(1, 20));
    let raw = place.write("disk.raw", &image);
    place.silt(&["backup", "web1", &format!("root={raw}")]).exits(0);
    let qcow2 = place.text("disk.qcow2");
    tool("qemu-img", &["convert", "-O", "qcow2", &raw, &qcow2]);
    let server = Qemu::start(&place, "disk", &["-f", "qcow2", &qcow2]);
    let uri = server.uri();
    let made = place.silt(&["backup", "web1", &format!("root={uri}"), "--json"]).exits(0).summary();
    assert_eq!(levels(&made)["new"], 0, "all of it is there already: {made}");
    assert!(place.restored("web1@latest:root") == image);
    let volume = only_volume(&place, "web1@latest");
    assert_eq!((volume["source"].as_str(), &volume["source_format"]), (Some(&*uri), &"nbd".into()));

    // Without a name, the volume is called like the socket; the next backup finds it by itself.
    place.silt(&["backup", "web2", &uri]).exits(0);
    assert_eq!(only_volume(&place, "web2@latest")["name"], "disk");
    place.silt(&["backup", "--all"]).exits(0);
    for (series, expected) in [("web1", 3), ("web2", 2)] {
        let listed = place.silt(&["snapshots", series, "--json"]).exits(0).messages();
        let count = listed.iter().filter(|message| message["message_type"] == "snapshot").count();
        assert_eq!(count, expected, "{series}");
    }
    let wrong = place.silt(&["backup", "web1", &format!("nbd+unix:///x%zz?socket={uri}")]);
    wrong.exits(1).says("hexadecimal");
    let gone = place.silt(&["backup", "web1", "nbd+unix:///?socket=/nonexistent/x"]);
    gone.exits(1).says("NBD server nbd+unix:///?socket=/nonexistent/x: connecting");
}

#[test]
fn an_export_of_a_snapshot_is_backed_up_elsewhere() {
    if !can("nbd") {
        return;
    }
    let (place, elsewhere) = (Place::new(), Place::new());
    let older = disk(2, 40);
    let mut newer = older.clone();
    newer[9_000_000..9_100_000].fill(7);
    for image in [&older, &newer] {
        let path = place.write("root.raw", image);
        place.silt(&["backup", "web1", &format!("root={path}")]).exits(0);
    }
    let served = Served::start(&place, &[]);
    let listed = place.silt(&["snapshots", "--json"]).exits(0).messages();
    let ids = listed.iter().filter_map(|message| message["id"].as_str());
    let ids: Vec<String> = ids.map(str::to_owned).collect();
    let source = |id: &str| format!("root={}", served.uri(&format!("{id}:root")));
    elsewhere.silt(&["backup", "copy", &source(&ids[0])]).exits(0);
    assert!(elsewhere.restored("copy@latest") == older);
    let file = elsewhere.write("root.raw", &older);
    let same = ["backup", "copy", &format!("root={file}"), "--json"];
    let same = elsewhere.silt(&same).exits(0).summary();
    assert_eq!(levels(&same)["new"], 0, "the same chunks: {same}");

    // The server knows what has changed; only that is read, and samples.
    let since = format!("silt:changed-since:{}", ids[0]);
    let next = ["backup", "copy", &source(&ids[1]), "--changed", &since, "--json"];
    let made = elsewhere.silt(&next).exits(0).summary();
    assert_ne!(levels(&made)["map"], 0, "{made}");
    assert!(elsewhere.restored("copy@latest") == newer);
    let name = ["backup", "copy", &source(&ids[1]), "--changed", "silt:changed-since:ffffffff"];
    elsewhere.silt(&name).exits(1).says("no metadata context");
    let path = ["backup", "copy", "root.raw", "--changed", &since];
    elsewhere.silt(&path).exits(1).says("not an NBD export");
}

#[test]
fn a_dirty_bitmap_of_qemu_saves_reading() {
    if !can("nbd") {
        return;
    }
    let place = Place::new();
    let (raw, qcow2) = (place.write("disk.raw", &disk(4, 256)), place.text("disk.qcow2"));
    tool("qemu-img", &["convert", "-O", "qcow2", &raw, &qcow2]);
    tool("qemu-img", &["bitmap", "--add", &qcow2, "monday"]);
    let full = Qemu::start(&place, "full", &["-f", "qcow2", "-B", "monday", &qcow2]);
    place.silt(&["backup", "web1", &format!("root={}", full.uri())]).exits(0);
    let read_in_full = full.read_bytes();
    drop(full);
    let writes = ["-c", "write -P 7 10M 64k", "-c", "write -P 8 100M 3M", "-c", "write -z 200M 1M"];
    tool("qemu-io", &[&["-f", "qcow2"], &writes[..], &[&qcow2]].concat());
    let server = Qemu::start(&place, "next", &["-f", "qcow2", "-B", "monday", &qcow2]);
    let (source, before) = (format!("root={}", server.uri()), server.read_bytes());
    let next = ["backup", "web1", &source, "--changed", "root=qemu:dirty-bitmap:monday", "--json"];
    let made = place.silt(&next).exits(0).summary();
    let read = server.read_bytes() - before;
    // 4 of 128 segments are dirty; 8 samples and a thirtieth are compared.
    assert!(read < read_in_full / 4, "{read} of {read_in_full}");
    assert!(levels(&made)["map"].as_u64().unwrap() > 200 << 20, "{made}");
    let flat = place.text("flat.raw");
    tool("qemu-img", &["convert", "-O", "raw", "-U", &qcow2, &flat]);
    assert!(place.restored("web1@latest:root") == std::fs::read(&flat).unwrap());
}

/// A socket that hands on what a server says, up to so many bytes, and hangs up.
fn cut_off(place: &Place, server: &str, bytes: u64) -> PathBuf {
    let (path, server) = (place.path("cut.sock"), server.to_owned());
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(&server) else { return };
            let (mut up, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut up, &mut to);
            });
            let (mut from, mut client) = (server.take(bytes), client);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut client);
                let _ = client.flush();
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    path
}

#[test]
fn a_server_that_vanishes_leaves_no_snapshot() {
    if !can("nbd") {
        return;
    }
    let (place, image) = (Place::new(), disk(6, 24));
    let raw = place.write("disk.raw", &image);
    let server = Qemu::start(&place, "disk", &["-f", "raw", &raw]);
    // Also in the middle of the last segment, where zeros could stand for what is missing.
    for bytes in [5 << 20, (image.len() as u64) / 4] {
        let cut = cut_off(&place, &server.socket, bytes);
        let uri = format!("nbd+unix:///?socket={}", cut.display());
        let run = place.silt(&["backup", "web1", &format!("root={uri}")]);
        assert_ne!(run.code, 0, "{}", run.printed());
        run.says(&format!("NBD server {uri}: the server has closed the connection"));
        let listed = place.silt(&["snapshots", "--json"]).messages();
        assert!(listed.iter().all(|message| message["message_type"] != "snapshot"), "{listed:?}");
        std::fs::remove_file(cut).unwrap();
    }
}
