//! Opens sources: finds out their format by name and content, and whether they may be read now.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use silt_format::{Advice, Error, Result};

use super::VolumeSource;
use super::nbd::NbdSource;
use super::qcow2::{MAGIC, Qcow2Source};
use super::raw::RawSource;
use crate::in_use::refuse_written;
use crate::nbd::Uri;
use crate::positioned::{Medium, medium, read_up_to};

/// The format of a source, as chosen by the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FormatChoice {
    /// Chosen by extension and checked against the content; never by content alone.
    #[default]
    Auto,
    /// The bytes unchanged, whatever they look like.
    Raw,
    /// A qcow2 image.
    Qcow2,
}

/// How to open a source.
#[derive(Clone, Debug, Default)]
pub struct SourceOptions {
    /// The source's format.
    pub format: FormatChoice,
    /// Read images that another program has open for writing; the backup may then not be of a
    /// single point in time.
    pub allow_in_use: bool,
    /// Folders, files and devices, besides the image's own folder, where backing files may be. An
    /// image names its backing file itself, so a guest or user who can write to the image could
    /// otherwise name any file of this machine.
    pub allow_backing: Vec<PathBuf>,
    /// The metadata context in which an NBD server reports changed blocks, such as
    /// `qemu:dirty-bitmap:NAME`; for [`VolumeSource::changed_map`].
    pub changed_context: Option<String>,
}

/// Opens the file, device or NBD export at `path` to read a volume from. An NBD export is named by
/// a URI such as `nbd://host/export` or `nbd+unix:///export?socket=path`.
///
/// Fails with Unavailable if an NBD server cannot be reached; NotFound; Denied without permission,
/// while another program writes to it, or if a backing file is outside the allowed folders; Invalid
/// if name and content disagree; Corrupt and Unsupported for qcow2 images and backing files that
/// cannot be read.
pub fn open_source(path: &Path, options: &SourceOptions) -> Result<Box<dyn VolumeSource>> {
    if Uri::is_uri(path.as_os_str()) {
        return open_nbd(path, options);
    }
    if options.changed_context.is_some() {
        let message = format!("{} is not an NBD export, so it has no contexts", path.display());
        return Err(Error::invalid(message));
    }
    let (file, medium) = open_unused(path, options.allow_in_use)?;
    match format_of(&file, path, medium, options.format)? {
        Format::Raw => Ok(Box::new(RawSource::new(file, path, medium, false)?)),
        Format::Qcow2 => Ok(Box::new(Qcow2Source::open(file, path, options)?)),
    }
}

fn open_nbd(path: &Path, options: &SourceOptions) -> Result<Box<dyn VolumeSource>> {
    if options.format == FormatChoice::Qcow2 {
        let message = format!("{} is an NBD export, which is raw", path.display());
        return Err(Error::invalid(message));
    }
    let changed = options.changed_context.as_deref();
    Ok(Box::new(NbdSource::open(path.as_os_str(), changed)?))
}

pub(crate) enum Format {
    Raw,
    Qcow2,
}

/// Opens a file or device unless another program writes to it.
pub(crate) fn open_unused(path: &Path, allow_in_use: bool) -> Result<(File, Medium)> {
    let medium = medium(path)?;
    let file = File::open(path)
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    if !allow_in_use {
        refuse_written(&file, path, Advice::ReadInUse)?;
    }
    Ok((file, medium))
}

fn format_of(file: &File, path: &Path, medium: Medium, choice: FormatChoice) -> Result<Format> {
    let named = is_named_qcow2(path);
    match (choice, medium) {
        (FormatChoice::Qcow2, _) => return Ok(Format::Qcow2),
        // The content of a device is under the guest's control, so it decides nothing.
        (FormatChoice::Raw, _) | (FormatChoice::Auto, Medium::Device) => return Ok(Format::Raw),
        (FormatChoice::Auto, Medium::File) => {}
    }
    if let Some(format) = named_otherwise(path) {
        return Err(Error::invalid(format!(
            "{} has the name of a {format} image, a format that cannot be read",
            path.display()
        ))
        .with_advice(Advice::ConvertImage));
    }
    let mut magic = [0; 4];
    let count = read_up_to(file, path, 0, &mut magic)?;
    let looks = count == magic.len() && magic == MAGIC;
    let path = path.display();
    match (named, looks) {
        (true, true) => Ok(Format::Qcow2),
        (false, false) => Ok(Format::Raw),
        (true, false) => {
            Err(Error::invalid(format!("{path} has the name of a qcow2 image, but is not one"))
                .with_advice(Advice::ReadRaw))
        }
        (false, true) => Err(Error::invalid(format!(
            "{path} begins like a qcow2 image, but does not have its name; a guest could have \
             written that header into its raw disk"
        ))
        .with_advice(Advice::NameFormat)),
    }
}

/// The format of an image by its name, if it is one that cannot be read.
fn named_otherwise(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_ascii_lowercase();
    match extension.to_str()? {
        "vmdk" => Some("VMDK"),
        "vhd" | "vpc" => Some("VHD"),
        "vhdx" => Some("VHDX"),
        "vdi" => Some("VDI"),
        "qed" => Some("QED"),
        _ => None,
    }
}

/// Whether a path ends in `.qcow2` or `.qcow`.
pub(crate) fn is_named_qcow2(path: &Path) -> bool {
    let is = |extension: &OsStr| {
        extension.eq_ignore_ascii_case("qcow2") || extension.eq_ignore_ascii_case("qcow")
    };
    path.extension().is_some_and(is)
}
