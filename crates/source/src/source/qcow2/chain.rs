//! A qcow2 image and its backing chain.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use silt_format::{Advice, Error, ErrorKind, Result, ResultExt};

use super::reader::{Image, Joined};
use super::{Backing, Unit};
use crate::number::{lock, to_usize};
use crate::source::open::{Format, SourceOptions, is_named_qcow2, open_unused};
use crate::source::raw::RawSource;
use crate::source::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource};

/// Maximum number of files in a chain; each needs an open file and a share of the table cache.
const FILES_MAX: usize = 64;
/// Size of the table cache in bytes, for the whole chain.
const TABLE_BYTES_MAX: u64 = 4 << 20;

/// A qcow2 image with its backing files.
pub(crate) struct Qcow2Source {
    /// From the top down; each is backed by the next, the last by `base`.
    images: Vec<Image>,
    base: Option<RawSource>,
    /// The last compressed cluster that was read only in part.
    cluster: Mutex<Option<CachedCluster>>,
}

struct CachedCluster {
    layer: usize,
    offset: u64,
    bytes: Arc<[u8]>,
}

impl Qcow2Source {
    /// Opens the image in `file`, and its chain.
    pub(crate) fn open(file: File, path: &Path, options: &SourceOptions) -> Result<Self> {
        let allowed = Allowed::new(path, &options.allow_backing);
        let mut images = vec![Image::open(file, path, false)?];
        let mut base = None;
        let mut seen = vec![identity(images[0].file(), path)?];
        while let Some(top) = images.last()
            && let Some(backing) = &top.header().backing
        {
            let names = || names(&images);
            if images.len() == FILES_MAX {
                let what =
                    format!("the backing chain is longer than {FILES_MAX} files: {}", names());
                return Err(Error::invalid(what));
            }
            let (path, format) = resolve(top.path(), backing).context(names)?;
            let (file, medium) = open_unused(&path, options.allow_in_use)
                .context(|| format!("the backing file of {}", names()))?;
            allowed.verify(&file, &path).context(names)?;
            let identity = identity(&file, &path)?;
            if seen.contains(&identity) {
                return Err(Error::corrupt(format!(
                    "the backing chain loops: {} -> {}",
                    names(),
                    path.display()
                )));
            }
            seen.push(identity);
            match format {
                Format::Raw => {
                    // Other machines may use it too.
                    base = Some(RawSource::new(file, &path, medium, true)?);
                    break;
                }
                Format::Qcow2 => {
                    let image = Image::open(file, &path, true)
                        .context(|| format!("the backing file of {}", names()))?;
                    images.push(image);
                }
            }
        }
        let share = TABLE_BYTES_MAX / images.len() as u64;
        images.iter_mut().for_each(|image| image.keep_tables(share));
        Ok(Self { images, base, cluster: Mutex::new(None) })
    }

    /// Returns the kind of `length` bytes at `offset`, as seen from layer `layer` downwards;
    /// perhaps of fewer bytes.
    fn kind(&self, layer: usize, offset: u64, length: u64) -> Result<(ExtentKind, u64)> {
        let Some(image) = self.images.get(layer) else {
            return match &self.base {
                Some(base) if offset < base.size() => {
                    let extent = base.extent_at(offset)?;
                    Ok((extent.kind, extent.length.min(length)))
                }
                _ => Ok((ExtentKind::Zero, length)),
            };
        };
        if offset >= image.size() {
            return Ok((ExtentKind::Zero, length));
        }
        let span = image.span(offset, length, Joined::ByKind)?;
        match span.unit {
            Unit::Zero => Ok((ExtentKind::Zero, span.length)),
            Unit::Data(_) | Unit::Compressed { .. } => Ok((ExtentKind::Data, span.length)),
            Unit::Unallocated => self.kind(layer + 1, offset, span.length),
        }
    }

    /// Fills `buf` as seen from layer `layer` downwards; zeros past the end of each layer.
    fn read(&self, layer: usize, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        let Some(image) = self.images.get(layer) else {
            return self.read_base(offset, buf);
        };
        while !buf.is_empty() {
            if offset >= image.size() {
                buf.fill(0);
                return Ok(());
            }
            let span = image.span(offset, buf.len() as u64, Joined::ForReading)?;
            let (part, rest) = buf.split_at_mut(to_usize(span.length));
            match span.unit {
                Unit::Zero => part.fill(0),
                Unit::Data(from) => image.read_data(from, part)?,
                Unit::Compressed { offset: from, bytes } => {
                    self.read_compressed(layer, (from, bytes), offset, part)?;
                }
                Unit::Unallocated => self.read(layer + 1, offset, part)?,
            }
            offset += span.length;
            buf = rest;
        }
        Ok(())
    }

    fn read_base(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(base) = &self.base else {
            buf.fill(0);
            return Ok(());
        };
        let count = base.read_at(offset, buf)?;
        let left = usize::try_from(base.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        if count < left.min(buf.len()) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("{} shrank while it was read", base.path().display()),
            ));
        }
        buf[count..].fill(0);
        Ok(())
    }

    /// Fills `buf` from a compressed cluster at `stored` (offset and bytes in the file); `buf`
    /// starts at byte `offset` of the volume and lies within that byte's cluster.
    fn read_compressed(
        &self,
        layer: usize,
        stored: (u64, u64),
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let image = &self.images[layer];
        let cluster_bytes = image.header().cluster_bytes();
        if buf.len() as u64 == cluster_bytes {
            return image.read_compressed(stored.0, stored.1, buf);
        }
        let cached = match &*lock(&self.cluster) {
            Some(last) if (last.layer, last.offset) == (layer, stored.0) => {
                Some(Arc::clone(&last.bytes))
            }
            _ => None,
        };
        let bytes = if let Some(bytes) = cached {
            bytes
        } else {
            let mut bytes = vec![0; to_usize(cluster_bytes)];
            image.read_compressed(stored.0, stored.1, &mut bytes)?;
            let bytes: Arc<[u8]> = bytes.into();
            let cluster = CachedCluster { layer, offset: stored.0, bytes: Arc::clone(&bytes) };
            *lock(&self.cluster) = Some(cluster);
            bytes
        };
        let within = to_usize(offset & (cluster_bytes - 1));
        buf.copy_from_slice(&bytes[within..within + buf.len()]);
        Ok(())
    }
}

impl VolumeSource for Qcow2Source {
    fn info(&self) -> SourceInfo {
        let top = &self.images[0];
        let description = top.path().display().to_string();
        let below = self.images[1..].iter().map(Image::path);
        let below = below.chain(self.base.as_ref().map(RawSource::path));
        SourceInfo {
            description,
            format: SourceFormat::Qcow2,
            size: Some(top.size()),
            backing: below.map(|path| path.display().to_string()).collect(),
        }
    }

    fn is_sequential(&self) -> bool {
        false
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let size = self.images[0].size();
        assert!(offset < size, "an extent was asked for past the end of the volume");
        let (kind, length) = self.kind(0, offset, size - offset)?;
        Ok(Extent { offset, length, kind })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = self.images[0].size().saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        self.read(0, offset, &mut buf[..count])?;
        Ok(count)
    }
}

/// Device and inode, which identify a file whatever its name.
fn identity(file: &File, path: &Path) -> Result<(u64, u64)> {
    let metadata =
        file.metadata().map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    Ok((metadata.dev(), metadata.ino()))
}

fn names(images: &[Image]) -> String {
    let names: Vec<_> = images.iter().map(|image| image.path().display().to_string()).collect();
    names.join(" -> ")
}

/// The folders where backing files may be, with links resolved.
struct Allowed(Vec<PathBuf>);

impl Allowed {
    fn new(image: &Path, more: &[PathBuf]) -> Self {
        let own = image
            .parent()
            .map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
        let real = image.canonicalize().ok();
        let behind_links = real.as_deref().and_then(Path::parent);
        let all = own.into_iter().chain(behind_links).chain(more.iter().map(PathBuf::as_path));
        Self(all.filter_map(|path| path.canonicalize().ok()).collect())
    }

    /// Fails with `Denied` if the open file is elsewhere, whatever `path` points to by now.
    fn verify(&self, file: &File, path: &Path) -> Result<()> {
        let path = path.display();
        let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|error| Error::io(format!("resolving {path}"), error))?;
        if self.0.iter().any(|folder| real.starts_with(folder)) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Denied,
            format!("its backing file {path} is outside the image's folder"),
        )
        .with_advice(Advice::AllowBackingFolder))
    }
}

/// Returns the path and format of the backing file of the image at `overlay`.
fn resolve(overlay: &Path, backing: &Backing) -> Result<(PathBuf, Format)> {
    let name = backing.name.strip_prefix(b"file:").unwrap_or(&backing.name);
    let shown = String::from_utf8_lossy(name);
    let before_folder = name.split(|&byte| byte == b'/').next().unwrap_or(name);
    if before_folder.contains(&b':') {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("its backing file is not a path: {shown}; rebase the image onto a file first"),
        ));
    }
    let folder = overlay.parent().unwrap_or(Path::new(""));
    let path = folder.join(OsStr::from_bytes(name));
    let format = match backing.format.as_deref() {
        Some(b"qcow2") => Format::Qcow2,
        // Detecting the format by content would let a guest choose the format of its raw disk.
        None if is_named_qcow2(&path) => Format::Qcow2,
        Some(b"raw" | b"file" | b"host_device") | None => Format::Raw,
        Some(other) => {
            let format = String::from_utf8_lossy(other);
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "its backing file {shown} has format {format}; only raw and qcow2 are supported"
                ),
            ));
        }
    };
    Ok((path, format))
}
