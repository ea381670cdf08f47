//! NBD exports of real servers.

use std::ffi::OsString;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use silt_format::{ErrorKind, Result};
use silt_source::{ExtentKind, SourceFormat, SourceOptions, VolumeSource, open_source};

use crate::qemu::{Images, KIB, MIB, qemu_io, succeed};

/// A server in the background. Dropping it ends the server.
struct Served {
    socket: PathBuf,
    pid_file: PathBuf,
}

impl Served {
    fn qemu(images: &Images, name: &str, args: &[&str], image: &Path) -> Self {
        let served = Self::of(images, name);
        let mut command = Command::new("qemu-nbd");
        command.args(["--fork", "-r", "-t", "-e", "8", "-k"]).arg(&served.socket);
        command.arg("--pid-file").arg(&served.pid_file).args(args).arg(image);
        succeed(&mut command);
        served
    }

    fn nbdkit(images: &Images, name: &str, args: &[&str]) -> Self {
        let served = Self::of(images, name);
        let mut command = Command::new("nbdkit");
        command.arg("-U").arg(&served.socket).arg("-P").arg(&served.pid_file).args(args);
        succeed(&mut command);
        served
    }

    fn of(images: &Images, name: &str) -> Self {
        let path = |extension| images.path(&format!("{name}.{extension}"));
        Self { socket: path("sock"), pid_file: path("pid") }
    }

    fn uri(&self, export: &str) -> OsString {
        format!("nbd+unix:///{export}?socket={}", self.socket.display()).into()
    }

    fn open(&self, export: &str) -> Result<Box<dyn VolumeSource>> {
        open_source(Path::new(&self.uri(export)), &SourceOptions::default())
    }

    fn end(&self) {
        let Ok(pid) = std::fs::read_to_string(&self.pid_file) else { return };
        let _ = Command::new("kill").args(["-9", pid.trim()]).status();
        let _ = std::fs::remove_file(&self.pid_file);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

fn whole(source: &dyn VolumeSource) -> Vec<u8> {
    let mut bytes = vec![0xaa; usize::try_from(source.info().size.unwrap()).unwrap()];
    assert_eq!(source.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Returns the number of bytes that the source reports as data.
fn data_bytes(source: &dyn VolumeSource) -> u64 {
    let (size, mut at, mut data) = (source.info().size.unwrap(), 0, 0);
    while at < size {
        let extent = source.extent_at(at).unwrap();
        assert_eq!(extent.offset, at);
        data += if extent.kind == ExtentKind::Data { extent.length } else { 0 };
        at += extent.length;
    }
    assert_eq!(at, size);
    data
}

fn noise(seed: u64, length: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

/// Makes a sparse image of 40 MiB with data at 0, 9 MiB and the end.
fn sparse(images: &Images) -> (PathBuf, Vec<u8>) {
    let (path, mut bytes) = (images.path("disk.raw"), vec![0; 40 << 20]);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (seed, at, length) in [(1, 0, 3 * MIB), (2, 9 * MIB, 64 * KIB), (3, 40 * MIB - 4096, 4096)]
    {
        let part = noise(seed, length);
        file.write_all_at(&part, at).unwrap();
        let at = usize::try_from(at).unwrap();
        bytes[at..at + part.len()].copy_from_slice(&part);
    }
    (path, bytes)
}

#[test]
fn raw_and_qcow2_images_are_read_from_qemu() {
    let images = Images::new();
    let (raw, expected) = sparse(&images);
    let qcow2 = images.path("disk.qcow2");
    let mut convert = Command::new("qemu-img");
    succeed(convert.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&raw).arg(&qcow2));
    for (format, image) in [("raw", &raw), ("qcow2", &qcow2)] {
        let served = Served::qemu(&images, format, &["-f", format], image);
        let source = served.open("").unwrap();
        let info = source.info();
        assert_eq!((info.format, info.size), (SourceFormat::Nbd, Some(40 * MIB)));
        assert_eq!(OsString::from(info.description), served.uri(""));
        assert!(whole(&*source) == expected, "{format}");
        let data = data_bytes(&*source);
        assert!((3 * MIB..5 * MIB).contains(&data), "{format}: {data}");
        // Reads return the same with and without known block status, and at unaligned offsets.
        assert!(whole(&*source) == expected, "{format}");
        for (at, length) in [(1, 511), (3 * MIB - 7, 100_000), (9 * MIB + 1, 70_000)] {
            let (at_index, mut part) = (usize::try_from(at).unwrap(), vec![9; length]);
            assert_eq!(source.read_at(at, &mut part).unwrap(), length);
            assert!(part == expected[at_index..at_index + length], "{at}");
        }
        let mut end = [0; 100];
        assert_eq!(source.read_at(40 * MIB - 10, &mut end).unwrap(), 10);
        assert_eq!(source.read_at(40 * MIB, &mut end).unwrap(), 0);
    }
}

#[test]
fn threads_share_a_connection_or_have_several() {
    let images = Images::new();
    let (raw, expected) = sparse(&images);
    // With `-e 1`, the server never answers a second connection.
    for (name, shared) in [("several", "8"), ("one", "1")] {
        let served = Served::qemu(&images, name, &["-f", "raw", "-e", shared], &raw);
        let source = served.open("").unwrap();
        std::thread::scope(|scope| {
            for worker in 0..6_usize {
                let (source, expected) = (&*source, &expected);
                scope.spawn(move || {
                    let mut part = vec![0; 700_000];
                    for round in 0..30_usize {
                        let at = (worker * 7_919_933 + round * 1_300_021) % (39 << 20);
                        source.read_at(at as u64, &mut part).unwrap();
                        assert!(part == expected[at..at + part.len()], "{name} {at}");
                    }
                });
            }
        });
    }
}

#[test]
fn servers_that_can_do_less_are_read_as_well() {
    let images = Images::new();
    let (raw, expected) = sparse(&images);
    let file = format!("file={}", raw.display());
    let servers: [(&str, &[&str]); 7] = [
        ("simple", &["--no-sr", "file", &file]),
        ("nothing", &["--mask-handshake=1", "file", &file]),
        ("noextents", &["--filter=noextents", "file", &file]),
        (
            "blocks",
            &[
                "--filter=blocksize-policy",
                "file",
                &file,
                "blocksize-minimum=4096",
                "blocksize-maximum=64K",
                "blocksize-error-policy=error",
            ],
        ),
        ("no-status", &["--filter=error", "file", &file, "error-extents-rate=1"]),
        ("slow", &["--filter=delay", "file", &file, "rdelay=1ms"]),
        ("parallel", &["-t", "8", "file", &file]),
    ];
    for (name, args) in servers {
        let served = Served::nbdkit(&images, name, args);
        let source = served.open("").unwrap();
        let data = data_bytes(&*source);
        let has_map = !["simple", "noextents", "no-status"].contains(&name);
        assert_eq!(data < 5 * MIB, has_map, "{name}: {data}");
        assert!(whole(&*source) == expected, "{name}");
        let mut part = vec![0; 5000];
        source.read_at(9 * MIB + 3, &mut part).unwrap();
        assert!(part == expected[(9 << 20) + 3..(9 << 20) + 5003], "{name}");
    }
}

#[test]
fn large_exports_cost_little_where_they_are_sparse() {
    let images = Images::new();
    let served = Served::nbdkit(&images, "big", &["memory", "size=900T"]);
    let source = served.open("").unwrap();
    let extent = source.extent_at(5).unwrap();
    assert_eq!((extent.offset, extent.kind), (5, ExtentKind::Zero));
    assert!(extent.length > 10 << 30, "{extent:?}");
    let served = Served::nbdkit(&images, "bigger", &["memory", "size=1100T"]);
    let error = served.open("").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn failed_reads_are_errors_and_leave_the_others() {
    let images = Images::new();
    let (raw, expected) = sparse(&images);
    let (file, trigger) = (format!("file={}", raw.display()), images.path("fail"));
    let errors = format!("error-file={}", trigger.display());
    let args = ["--filter=error", "file", &file, "error-pread=EIO", "error-pread-rate=1", &errors];
    let served = Served::nbdkit(&images, "failing", &args);
    let source = served.open("").unwrap();
    std::fs::write(&trigger, b"").unwrap();
    let mut part = vec![0; 1 << 20];
    let error = source.read_at(0, &mut part).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let message = error.to_string();
    assert!(message.contains("EIO") && message.contains("nbd+unix:///?socket="), "{message}");
    assert!(source.failure().is_none(), "the server is there");
    std::fs::remove_file(&trigger).unwrap();
    assert!(whole(&*source) == expected);
}

#[test]
fn a_server_that_is_gone_is_named() {
    let images = Images::new();
    let (raw, _) = sparse(&images);
    let served = Served::qemu(&images, "gone", &["-f", "raw"], &raw);
    let source = served.open("").unwrap();
    let mut part = vec![0; 1 << 20];
    source.read_at(0, &mut part).unwrap();
    assert!(source.failure().is_none());
    served.end();
    for error in [source.read_at(0, &mut part).unwrap_err(), source.failure().unwrap()] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let message = error.to_string();
        assert!(message.contains("gone.sock") && message.contains("closed"), "{message}");
    }
    assert!(source.extent_at(0).is_err(), "so that a backup ends");
    let error = served.open("").err().unwrap().to_string();
    // A server that is shutting down may still accept a connection, and closes it.
    let is_said = error.contains("connecting") || error.contains("closed the connection");
    assert!(error.contains("nbd+unix:///?socket=") && is_said, "{error}");
}

#[test]
fn exports_have_names_and_refusals_say_why() {
    let images = Images::new();
    let (raw, expected) = sparse(&images);
    let served = Served::qemu(&images, "named", &["-f", "raw", "-x", "my disk"], &raw);
    assert!(whole(&*served.open("my%20disk").unwrap()) == expected);
    let error = served.open("other").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("'other'"), "{error}");
    let old = Served::nbdkit(&images, "old", &["-o", "memory", "size=1M"]);
    let error = old.open("").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let options =
        SourceOptions { format: silt_source::FormatChoice::Qcow2, ..SourceOptions::default() };
    let error = open_source(Path::new(&served.uri("my%20disk")), &options).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn a_dirty_bitmap_is_a_map_of_changes() {
    let images = Images::new();
    let image = images.create("disk.qcow2", "", 64 * MIB);
    qemu_io(&image, "qcow2", &["write -P 1 0 64M"]);
    let mut bitmap = Command::new("qemu-img");
    succeed(bitmap.args(["bitmap", "--add"]).arg(&image).arg("since-monday"));
    qemu_io(&image, "qcow2", &["write -P 2 5M 64k", "write -P 3 40M 3M"]);
    let args = ["-f", "qcow2", "-B", "since-monday"];
    let served = Served::qemu(&images, "bitmap", &args, &image);
    let open = |context: &str| {
        let changed_context = Some(context.to_owned());
        let options = SourceOptions { changed_context, ..SourceOptions::default() };
        open_source(Path::new(&served.uri("")), &options).unwrap()
    };
    let source = open("qemu:dirty-bitmap:since-monday");
    let map = source.changed_map(MIB).unwrap().unwrap();
    let changed: Vec<u64> = (0..64).filter(|grain| map.is_changed(*grain)).collect();
    assert_eq!(changed, [5, 40, 41, 42]);
    assert_eq!(data_bytes(&*source), 64 * MIB, "allocation is told as well");
    let error = open("qemu:dirty-bitmap:since-sunday").changed_map(MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(served.open("").unwrap().changed_map(MIB).unwrap().is_none());
    let path = images.path("disk.qcow2");
    let options =
        SourceOptions { changed_context: Some("x:y".to_owned()), ..SourceOptions::default() };
    assert_eq!(open_source(&path, &options).err().unwrap().kind(), ErrorKind::Invalid);
}
