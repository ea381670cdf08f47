//! Opens targets: finds out their kind, and whether they may be written.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use silt_format::{Advice, Error, ErrorKind, Result};

use super::VolumeTarget;
use super::in_place::InPlaceTarget;
use super::new_file::NewFileTarget;
use super::partial::Partial;
use super::qcow2::Qcow2Target;
use crate::in_use::{refuse_open, refuse_written};
use crate::positioned::{Medium, length, medium, read_up_to};
use crate::source::qcow2::MAGIC;

/// The format in which a target stores its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetFormat {
    /// The volume's bytes, unchanged.
    Raw,
    /// A qcow2 image without a backing file.
    Qcow2,
}

/// Whether existing content of a target is kept, replaced or overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetMode {
    /// The target must not exist.
    New,
    /// An existing target is replaced once the volume is complete (`--force`); a block device is
    /// overwritten as data arrives.
    Replace,
    /// An existing target is overwritten where it differs (`--in-place`).
    InPlace,
}

/// How to open a target.
#[derive(Clone, Copy, Debug)]
pub struct TargetOptions {
    /// The target's format.
    pub format: TargetFormat,
    /// Size of the volume in bytes.
    pub size: u64,
    /// How to treat existing contents.
    pub mode: TargetMode,
}

/// Opens `path` to write a volume to.
///
/// A file is written beside its name, with [`PARTIAL_SUFFIX`](super::PARTIAL_SUFFIX), and published
/// by `finish`; unfinished, that file stays until the next run overwrites it. Block devices, and
/// files restored in place, are written directly, their first block last.
///
/// Fails with AlreadyExists if the target exists and the mode is New; NotFound if it does not exist
/// and the mode is InPlace; Denied without permission, or while another program uses the target;
/// Invalid for a device that is too small and for paths that cannot hold a volume; Unsupported for
/// qcow2 in place or on a device; Busy while another restore writes the same partial file.
pub fn open_target(path: &Path, options: TargetOptions) -> Result<Box<dyn VolumeTarget>> {
    let there = path.symlink_metadata().is_ok();
    if !there && options.mode == TargetMode::InPlace {
        return Err(Error::new(ErrorKind::NotFound, format!("{} does not exist", path.display()))
            .with_advice(Advice::CreateTarget));
    }
    if !there {
        return open_partial(path, options);
    }
    let medium = medium(path)?;
    match (options.mode, medium) {
        (TargetMode::New, Medium::File) => {
            Err(Error::new(ErrorKind::AlreadyExists, format!("{} already exists", path.display()))
                .with_advice(Advice::ReplaceTarget))
        }
        (TargetMode::New, Medium::Device) => Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("{} is a block device", path.display()),
        )
        .with_advice(Advice::OverwriteDevice)),
        (TargetMode::Replace, Medium::File) => open_replacing(path, options),
        (TargetMode::Replace | TargetMode::InPlace, _) => open_in_place(path, medium, options),
    }
}

fn open_replacing(path: &Path, options: TargetOptions) -> Result<Box<dyn VolumeTarget>> {
    // A symbolic link stays; the image that it points to is replaced.
    let path = path
        .canonicalize()
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    let file = File::open(&path)
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    // A program that has it open would go on writing to an unlinked file.
    refuse_written(&file, &path, Advice::FreeTarget)?;
    open_partial(&path, options)
}

fn open_partial(path: &Path, options: TargetOptions) -> Result<Box<dyn VolumeTarget>> {
    let partial = Partial::create(path, options.mode == TargetMode::Replace)?;
    match options.format {
        TargetFormat::Raw => Ok(Box::new(NewFileTarget::new(partial, options.size)?)),
        TargetFormat::Qcow2 => Ok(Box::new(Qcow2Target::new(partial, options.size)?)),
    }
}

fn open_in_place(
    path: &Path,
    medium: Medium,
    options: TargetOptions,
) -> Result<Box<dyn VolumeTarget>> {
    if options.format == TargetFormat::Qcow2 {
        let what = match medium {
            Medium::File => "qcow2 images cannot be restored in place; restore to a new file",
            Medium::Device => "qcow2 images cannot be written to a device; restore as raw",
        };
        let what = format!("{}: {what} instead", path.display());
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let file = open_exclusive(path, medium)?;
    refuse_open(&file, path)?;
    match medium {
        Medium::Device => check_device(&file, path, options.size)?,
        Medium::File => refuse_image(&file, path)?,
    }
    let readable = options.mode == TargetMode::InPlace;
    Ok(Box::new(InPlaceTarget::new(file, path, medium, options.size, readable)?))
}

/// Opens for reading and writing; a device exclusively (`O_EXCL`), so that nothing else has it
/// mounted or claimed.
fn open_exclusive(path: &Path, medium: Medium) -> Result<File> {
    let mut open = OpenOptions::new();
    open.read(true).write(true);
    if medium == Medium::Device {
        open.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    open.open(path).map_err(|error| {
        if Errno::from_io_error(&error) == Some(Errno::BUSY) {
            let what = format!(
                "{} is mounted or held by another program; unmount or release it first",
                path.display()
            );
            return Error::new(ErrorKind::Denied, what);
        }
        Error::io(format!("opening {} for writing", path.display()), error)
    })
}

fn check_device(file: &File, path: &Path, size: u64) -> Result<()> {
    let has = length(file, path)?;
    if has < size {
        return Err(Error::invalid(format!(
            "{} has {has} bytes, but the volume has {size}; restore to a larger device",
            path.display()
        )));
    }
    Ok(())
}

/// Raw bytes written into a qcow2 image would destroy it. A raw disk that only begins like one does
/// not have the name of one.
fn refuse_image(file: &File, path: &Path) -> Result<()> {
    let mut magic = [0; 4];
    let count = read_up_to(file, path, 0, &mut magic)?;
    if count == magic.len() && magic == MAGIC && crate::source::is_named_qcow2(path) {
        let what = "is a qcow2 image, which cannot be restored in place; restore to a new file";
        let what = format!("{} {what} instead", path.display());
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    Ok(())
}
