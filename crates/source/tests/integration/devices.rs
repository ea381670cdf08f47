//! Block devices, by loop devices; needs root.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use silt_format::ErrorKind;
use silt_source::{
    MARKER_TEXT, SourceFormat, TargetFormat, TargetMode, TargetOptions, VolumeTarget, open_target,
};

use crate::qemu::{Images, MIB, assert_same, open, read_by_extents, succeed};

/// A loop device over a file of `size` bytes, gone when dropped; `None` without root.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(images: &Images, size: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            // Written past the test runner, which would keep it to itself.
            let said = b"SKIPPED: tests of block devices need root for loop devices\n";
            std::io::stderr().write_all(said).unwrap();
            return None;
        }
        let file = images.path("device.raw");
        fs::write(&file, vec![0x77; usize::try_from(size).unwrap()]).unwrap();
        let output = succeed(Command::new("losetup").args(["--find", "--show"]).arg(&file));
        Some(Self(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())))
    }
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        succeed(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

fn target(path: &Path, size: u64, mode: TargetMode) -> silt_format::Result<Box<dyn VolumeTarget>> {
    open_target(path, TargetOptions { format: TargetFormat::Raw, size, mode })
}

/// A device that nobody uses any more, opened for writing. A process that another test has just
/// started holds what was open here until it runs its program.
#[expect(clippy::disallowed_methods, reason = "another process needs a moment")]
fn free_target(path: &Path, size: u64) -> Box<dyn VolumeTarget> {
    for _ in 0..100 {
        match target(path, size, TargetMode::Replace) {
            Err(error) if error.kind() == ErrorKind::Denied => {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("{} stays in use", path.display());
}

#[test]
fn a_device_is_overwritten_and_marked_until_the_end() {
    let images = Images::new();
    let Some(device) = LoopDevice::new(&images, 8 * MIB) else { return };
    let mut expected = vec![0x77; 8 << 20];
    let writing = free_target(device.path(), 6 * MIB);
    assert!(!writing.can_read());
    writing.write_at(0, &vec![1; 100_000]).unwrap();
    writing.write_zeroes(MIB + 100, 2 * MIB).unwrap();
    writing.write_zeroes(5 * MIB + 513, 10).unwrap();
    assert!(fs::read(device.path()).unwrap().starts_with(MARKER_TEXT.as_bytes()));
    writing.finish().unwrap();
    expected[..100_000].fill(1);
    expected[(1 << 20) + 100..(3 << 20) + 100].fill(0);
    expected[(5 << 20) + 513..(5 << 20) + 523].fill(0);
    assert_same(&fs::read(device.path()).unwrap(), &expected, "replaced");

    let writing = target(device.path(), 8 * MIB, TargetMode::InPlace).unwrap();
    assert!(writing.can_read());
    let mut found = vec![0; 8 << 20];
    writing.read_at(0, &mut found).unwrap();
    assert_same(&found, &expected, "in place, before");
    writing.write_at(7 * MIB, &[2; 4096]).unwrap();
    assert!(fs::read(device.path()).unwrap().starts_with(MARKER_TEXT.as_bytes()));
    writing.finish().unwrap();
    expected[7 << 20..(7 << 20) + 4096].fill(2);
    assert_same(&fs::read(device.path()).unwrap(), &expected, "in place");

    let source = open(device.path());
    assert_eq!(source.info().format, SourceFormat::Block);
    assert_eq!(source.info().size, Some(8 * MIB));
    assert_same(&read_by_extents(&*source).unwrap(), &expected, "as a source");
}

#[test]
fn a_device_is_not_overwritten_by_mistake() {
    let images = Images::new();
    let Some(device) = LoopDevice::new(&images, MIB) else { return };
    let kind = |size, mode| target(device.path(), size, mode).err().map(|error| error.kind());
    let error = target(device.path(), MIB, TargetMode::New).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(error.advice(), Some(&silt_format::Advice::OverwriteDevice), "{error}");
    assert_eq!(kind(MIB + 1, TargetMode::Replace), Some(ErrorKind::Invalid));
    assert_eq!(kind(MIB + 1, TargetMode::InPlace), Some(ErrorKind::Invalid));
    let options =
        TargetOptions { format: TargetFormat::Qcow2, size: MIB, mode: TargetMode::Replace };
    let error = open_target(device.path(), options).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let holder = File::open(device.path()).unwrap();
    // Readers do not matter.
    drop(free_target(device.path(), MIB));
    drop(holder);
    let writing = free_target(device.path(), MIB);
    let second = kind(MIB, TargetMode::Replace);
    assert_eq!(second, Some(ErrorKind::Denied), "two restores at once");
    drop(writing);
    assert_same(&fs::read(device.path()).unwrap(), &vec![0x77; 1 << 20], "nothing was written");
}

#[test]
fn a_mounted_device_is_refused() {
    let images = Images::new();
    let Some(device) = LoopDevice::new(&images, 8 * MIB) else { return };
    succeed(Command::new("mkfs.ext4").arg("-q").arg(device.path()));
    let folder = images.path("mounted");
    fs::create_dir(&folder).unwrap();
    succeed(Command::new("mount").arg(device.path()).arg(&folder));
    let mounted = target(device.path(), MIB, TargetMode::Replace).err();
    succeed(Command::new("umount").arg(&folder));
    let error = mounted.unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("mounted"), "{error}");
    free_target(device.path(), MIB);
}

#[test]
fn a_device_with_a_qcow2_header_is_raw_unless_asked() {
    let images = Images::new();
    let Some(device) = LoopDevice::new(&images, 4 * MIB) else { return };
    let image = images.create("image.qcow2", "", MIB);
    fs::write(device.path(), fs::read(image).unwrap()).unwrap();
    assert_eq!(open(device.path()).info().size, Some(4 * MIB));
    let options = silt_source::SourceOptions {
        format: silt_source::FormatChoice::Qcow2,
        ..Default::default()
    };
    let source = silt_source::open_source(device.path(), &options).unwrap();
    assert_eq!(source.info().size, Some(MIB));
}
