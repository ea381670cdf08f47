//! Images made, changed, converted and checked by QEMU's own programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use silt_source::{ExtentKind, SourceOptions, VolumeSource, open_source};
use tempfile::TempDir;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A folder for a test's images, gone after it.
pub struct Images(TempDir);

impl Images {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A new qcow2 image; `options` as `-o` takes them, perhaps empty.
    pub fn create(&self, name: &str, options: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2"]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        succeed(command.arg(&path).arg(size.to_string()));
        path
    }

    /// A new qcow2 image over `backing`, of the same size unless `size` is given.
    pub fn overlay(
        &self,
        name: &str,
        backing: &str,
        backing_format: &str,
        options: &str,
        size: Option<u64>,
    ) -> PathBuf {
        let path = self.path(name);
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2", "-b", backing, "-F", backing_format]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.arg(&path).args(size.map(|size| size.to_string()));
        succeed(&mut command);
        path
    }
}

/// Runs `commands` of qemu-io on an image.
pub fn qemu_io(path: &Path, format: &str, commands: &[&str]) {
    let mut command = Command::new("qemu-io");
    command.args(["-f", format]);
    for line in commands {
        command.args(["-c", line]);
    }
    let output = succeed(command.arg(path));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!said.contains("failed") && !said.contains("rror"), "{commands:?}: {said}");
}

pub fn qemu_img(arguments: &[&str], paths: &[&Path]) {
    succeed(Command::new("qemu-img").args(arguments).args(paths));
}

pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The volume in an image as QEMU reads it.
pub fn raw_bytes(path: &Path, format: &str) -> Vec<u8> {
    let raw = tempfile::NamedTempFile::new().unwrap();
    qemu_img(&["convert", "-f", format, "-O", "raw"], &[path, raw.path()]);
    std::fs::read(raw.path()).unwrap()
}

pub fn open(path: &Path) -> Box<dyn VolumeSource> {
    open_source(path, &SourceOptions::default()).unwrap()
}

/// All of a volume, by reads of `step` bytes.
pub fn read_in_steps(source: &dyn VolumeSource, step: usize) -> silt_format::Result<Vec<u8>> {
    let (mut bytes, mut buf) = (Vec::new(), vec![0xee; step]);
    loop {
        let count = source.read_at(bytes.len() as u64, &mut buf)?;
        bytes.extend_from_slice(&buf[..count]);
        if count < step {
            return Ok(bytes);
        }
    }
}

/// All of a volume, by its extents: only what is data is read.
pub fn read_by_extents(source: &dyn VolumeSource) -> silt_format::Result<Vec<u8>> {
    let size = source.info().size.unwrap();
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let at = bytes.len();
        let extent = source.extent_at(at as u64)?;
        assert_eq!(extent.offset, at as u64);
        assert!(extent.length > 0 && extent.length <= size - extent.offset, "{extent:?}");
        let end = at + usize::try_from(extent.length).unwrap();
        bytes.resize(end, 0);
        if extent.kind == ExtentKind::Data {
            assert_eq!(source.read_at(at as u64, &mut bytes[at..])?, end - at);
        }
    }
    Ok(bytes)
}

/// Fails at the first byte that differs; the slices are too long to print.
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let differing = found.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!(differing, None, "{what}: first differing byte");
}

/// Checks that a qcow2 image reads as QEMU reads it: whole, in odd steps, by extents.
pub fn assert_reads_as_qemu(path: &Path, what: &str) {
    let expected = raw_bytes(path, "qcow2");
    let source = open(path);
    assert_eq!(source.info().size, Some(expected.len() as u64), "{what}: size");
    for step in [2 << 20, 100_003] {
        let found = read_in_steps(&*source, step).unwrap();
        assert_same(&found, &expected, &format!("{what}, in steps of {step}"));
    }
    assert_same(&read_by_extents(&*source).unwrap(), &expected, &format!("{what}, by extents"));
}
