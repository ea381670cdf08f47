//! Images that QEMU's programs hold open.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use silt_format::{ErrorKind, Result};
use silt_source::{
    SourceOptions, TargetFormat, TargetMode, TargetOptions, VolumeSource, open_source, open_target,
};

use crate::qemu::{Images, MIB, succeed};

/// A qemu-io that has an image open until it is dropped.
struct Holder(Child);

impl Holder {
    fn new(path: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new("qemu-io")
            .args(arguments)
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        // It answers once the image is open.
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("MiB"), "{line}");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn open(path: &Path) -> Result<Box<dyn VolumeSource>> {
    open_source(path, &SourceOptions::default())
}

fn assert_in_use(path: &Path) {
    let error = open(path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let message = error.to_string();
    assert!(message.contains("open for writing by another program"), "{message}");
    assert_eq!(error.advice(), Some(&silt_format::Advice::ReadInUse), "{message}");
    let options = SourceOptions { allow_in_use: true, ..SourceOptions::default() };
    open_source(path, &options).unwrap();
}

#[test]
fn an_image_open_for_writing_is_refused() {
    let images = Images::new();
    let path = images.create("disk.qcow2", "", MIB);
    let holder = Holder::new(&path, &["-f", "qcow2"]);
    assert_in_use(&path);
    drop(holder);
    open(&path).unwrap();
    let raw = images.path("disk.raw");
    std::fs::write(&raw, vec![1; 1 << 20]).unwrap();
    let holder = Holder::new(&raw, &["-f", "raw"]);
    assert_in_use(&raw);
    drop(holder);
    open(&raw).unwrap();
}

#[test]
fn an_image_open_for_reading_is_not() {
    let images = Images::new();
    let path = images.create("disk.qcow2", "", MIB);
    let _holder = Holder::new(&path, &["-r", "-f", "qcow2"]);
    open(&path).unwrap();
}

#[test]
fn an_exported_image_is_refused() {
    let images = Images::new();
    let path = images.create("disk.qcow2", "", MIB);
    let pid_file = images.path("pid");
    succeed(
        Command::new("qemu-nbd")
            .args(["--fork", "--persistent", "-f", "qcow2"])
            .arg(format!("--socket={}", images.path("socket").display()))
            .arg(format!("--pid-file={}", pid_file.display()))
            .arg(&path)
            .stdin(Stdio::null()),
    );
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    let refused = std::panic::catch_unwind(|| assert_in_use(&path));
    succeed(Command::new("kill").arg(pid.trim()));
    refused.unwrap();
}

#[test]
fn the_backing_file_of_a_running_vm_is_readable_and_its_overlay_is_not() {
    let images = Images::new();
    let base = images.create("base.qcow2", "", MIB);
    let top = images.overlay("top.qcow2", "base.qcow2", "qcow2", "", None);
    let holder = Holder::new(&top, &["-f", "qcow2"]);
    assert_in_use(&top);
    open(&base).unwrap();
    drop(holder);
    let _holder = Holder::new(&base, &["-f", "qcow2"]);
    let error = open(&top).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("base.qcow2"), "{error}");
    let options = SourceOptions { allow_in_use: true, ..SourceOptions::default() };
    open_source(&top, &options).unwrap();
}

#[test]
fn targets_in_use_are_refused() {
    let images = Images::new();
    let path = images.path("disk.raw");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let target = |mode| {
        let options = TargetOptions { format: TargetFormat::Raw, size: MIB, mode };
        open_target(&path, options).err().map(|error| error.kind())
    };
    {
        let _holder = Holder::new(&path, &["-f", "raw"]);
        assert_eq!(target(TargetMode::Replace), Some(ErrorKind::Denied));
        assert_eq!(target(TargetMode::InPlace), Some(ErrorKind::Denied));
    }
    {
        // Whoever reads it keeps the old file when it is replaced, and sees changes in place.
        let _holder = Holder::new(&path, &["-r", "-f", "raw"]);
        assert_eq!(target(TargetMode::InPlace), Some(ErrorKind::Denied));
        assert_eq!(target(TargetMode::Replace), None);
    }
    assert_eq!(target(TargetMode::InPlace), None);
}
