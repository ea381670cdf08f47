//! Sources of volumes, and targets of restores.

pub use silt_source::{open_source, open_target};

/// The ranges of a volume that may have changed since the last backup.
///
/// A backup reads only those, and samples of the rest.
///
/// ```
/// use siltstone::source::{ChangedMap, MapForm};
///
/// let json = br#"[{"offset": 0, "length": 4194304, "type": 0, "description": "clean"},
///                 {"offset": 4194304, "length": 65536, "type": 1, "description": "dirty"},
///                 {"offset": 4259840, "length": 4128768, "type": 0, "description": "clean"}]"#;
/// let map = ChangedMap::parse(&json[..], 8 << 20, 2 << 20, None)?;
/// assert_eq!(map.form(), MapForm::NbdInfo);
/// assert_eq!((map.grains(), map.changed_grains()), (4, 1));
/// assert!(map.is_changed(2));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::ChangedMap;

/// A range of a volume that is all zeros, or all data.
///
/// ```
/// use siltstone::source::{ExtentKind, SourceOptions, open_source};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.raw");
/// std::fs::write(&path, [7; 8192]).unwrap();
/// let source = open_source(&path, &SourceOptions::default())?;
/// let extent = source.extent_at(4096)?;
/// assert_eq!((extent.offset, extent.length), (4096, 4096));
/// assert_eq!(extent.kind, ExtentKind::Data);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::Extent;

/// Whether a range of a volume has to be read.
///
/// ```
/// use siltstone::source::{ExtentKind, VolumeSource};
///
/// /// Bytes that a full copy of a volume has to read.
/// fn data_bytes(source: &dyn VolumeSource) -> siltstone::Result<u64> {
///     let (mut at, mut bytes) = (0, 0);
///     while at < source.info().size.unwrap_or(0) {
///         let extent = source.extent_at(at)?;
///         bytes += if extent.kind == ExtentKind::Data { extent.length } else { 0 };
///         at += extent.length;
///     }
///     Ok(bytes)
/// }
/// # let folder = tempfile::tempdir().unwrap();
/// # std::fs::write(folder.path().join("disk.raw"), [7; 8192]).unwrap();
/// # use siltstone::source::open_source;
/// # let source = open_source(&folder.path().join("disk.raw"), &Default::default())?;
///
/// assert_eq!(data_bytes(&*source)?, 8192);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::ExtentKind;

/// The format of a source, if its name does not determine it.
///
/// ```
/// use siltstone::source::{FormatChoice, SourceFormat, SourceOptions, open_source};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.qcow2");
/// std::fs::write(&path, [7; 8192]).unwrap();
/// assert!(open_source(&path, &SourceOptions::default()).is_err(), "it is no qcow2 image");
///
/// let options = SourceOptions { format: FormatChoice::Raw, ..SourceOptions::default() };
/// assert_eq!(open_source(&path, &options)?.info().format, SourceFormat::Raw);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::FormatChoice;

/// The program that wrote a list of changes.
///
/// ```
/// use siltstone::source::{ChangedMap, MapForm};
///
/// // `rbd diff` writes an empty list if nothing has changed; the list does not say that it is one.
/// let map = ChangedMap::parse(&b"[]"[..], 8 << 20, 2 << 20, Some(MapForm::RbdDiff))?;
/// assert_eq!(map.changed_grains(), 0);
/// assert!(ChangedMap::parse(&b"[]"[..], 8 << 20, 2 << 20, None).is_err());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::MapForm;

/// How a source stores its volume.
///
/// ```
/// use siltstone::source::{SourceFormat, StreamSource, VolumeSource};
///
/// let source = StreamSource::new(Box::new(&b"bytes"[..]));
/// assert_eq!(source.info().format, SourceFormat::Stream);
/// assert!(source.is_sequential());
/// ```
pub use silt_source::SourceFormat;

/// The name, format and size of a source.
///
/// ```
/// use siltstone::source::{SourceFormat, SourceOptions, open_source};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.raw");
/// std::fs::write(&path, [7; 8192]).unwrap();
/// let info = open_source(&path, &SourceOptions::default())?.info();
/// assert_eq!(info.size, Some(8192));
/// assert_eq!(info.format, SourceFormat::Raw);
/// assert!(info.backing.is_empty(), "only a qcow2 image has backing files");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::SourceInfo;

/// How a file or device is opened to be backed up.
///
/// ```
/// use siltstone::source::{FormatChoice, SourceOptions, open_source};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("guest.img");
/// # std::fs::write(&path, [7; 8192]).unwrap();
/// let options = SourceOptions {
///     format: FormatChoice::Raw,
///     allow_backing: vec!["/var/lib/images".into()],
///     ..SourceOptions::default()
/// };
/// let source = open_source(&path, &options)?;
/// assert_eq!(source.info().size, Some(8192));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::SourceOptions;

/// A volume that is read from a stream, such as standard input.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let mut backup = repository.backup("database", BackupOptions::default())?;
/// let dump: &[u8] = b"CREATE TABLE letters (id integer);";
/// let source = StreamSource::new(Box::new(dump));
/// assert_eq!(backup.add_volume("dump", &source, None)?.bytes, 34);
/// backup.finish()?;
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::StreamSource;

/// A volume that is restored to a stream, such as standard output.
///
/// ```
/// # use std::io::Write;
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Time(None, When::Latest))?;
/// # let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("out");
/// let writer = Box::new(std::fs::File::create(&path).unwrap());
/// let target = Box::new(StreamTarget::new(writer, 100_000));
/// let options = RestoreOptions { jobs: 1, ..RestoreOptions::default() };
/// repository.restore(found.volume("root")?, &*target, options)?;
/// target.finish()?;
/// assert_eq!(std::fs::read(&path).unwrap(), [7; 100_000]);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::StreamTarget;

/// The format that a volume is restored to.
///
/// ```
/// use siltstone::source::{TargetFormat, TargetMode, TargetOptions, open_target};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("disk.qcow2");
/// let (format, mode) = (TargetFormat::Qcow2, TargetMode::New);
/// let options = TargetOptions { format, size: 1 << 30, mode };
/// open_target(&path, options)?.finish()?;
/// assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20, "zeros take no space in an image");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::TargetFormat;

/// Whether a restore may overwrite its target.
///
/// ```
/// use siltstone::ErrorKind;
/// use siltstone::source::{TargetFormat, TargetMode, TargetOptions, open_target};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.raw");
/// std::fs::write(&path, b"something else").unwrap();
/// let format = TargetFormat::Raw;
/// let options = |mode| TargetOptions { format, size: 8192, mode };
/// let error = open_target(&path, options(TargetMode::New)).err().unwrap();
/// assert_eq!(error.kind(), ErrorKind::AlreadyExists);
/// open_target(&path, options(TargetMode::Replace))?.finish()?;
/// assert_eq!(std::fs::read(&path).unwrap(), [0; 8192]);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::TargetMode;

/// How a file or device is opened to restore to it.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let volume = found.volume("root")?;
/// # let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("disk.raw");
/// let (format, mode) = (TargetFormat::Raw, TargetMode::New);
/// let options = TargetOptions { format, size: volume.volume().bytes, mode };
/// let target = open_target(&path, options)?;
/// repository.restore(volume, &*target, RestoreOptions::default())?;
/// target.finish()?;
/// assert_eq!(std::fs::read(&path).unwrap(), [7; 100_000]);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::TargetOptions;

/// A volume that can be backed up. A program can bring its own kind:
///
/// ```
/// use siltstone::{Result, source::*};
///
/// /// A disk of ones.
/// struct Ones(u64);
///
/// impl VolumeSource for Ones {
///     fn info(&self) -> SourceInfo {
///         let (description, format) = ("ones".to_owned(), SourceFormat::Raw);
///         SourceInfo { description, format, size: Some(self.0), backing: Vec::new() }
///     }
///     fn is_sequential(&self) -> bool { false }
///     fn extent_at(&self, offset: u64) -> Result<Extent> {
///         Ok(Extent { offset, length: self.0 - offset, kind: ExtentKind::Data })
///     }
///     fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
///         let length = buf.len().min((self.0 - offset) as usize);
///         buf[..length].fill(1);
///         Ok(length)
///     }
/// }
///
/// let mut bytes = [0; 8];
/// assert_eq!(Ones(1 << 30).read_at((1 << 30) - 3, &mut bytes)?, 3);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::VolumeSource;

/// A volume that can be restored to. A program can bring its own kind:
///
/// ```
/// # use std::sync::Mutex;
/// use siltstone::{Error, ErrorKind, Result, source::VolumeTarget};
///
/// /// A volume in memory.
/// struct Memory(Mutex<Vec<u8>>);
///
/// impl VolumeTarget for Memory {
///     fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
///         self.0.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
///         Ok(())
///     }
///     fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
///         self.write_at(offset, &vec![0; length as usize])
///     }
///     fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
///         Err(Error::new(ErrorKind::Unsupported, "this target can't be read"))
///     }
///     fn can_read(&self) -> bool { false }
///     fn finish(self: Box<Self>) -> Result<()> { Ok(()) }
/// }
///
/// let target = Memory(Mutex::new(vec![9; 4096]));
/// target.write_zeroes(0, 4096)?;
/// assert_eq!(target.0.lock().unwrap()[..], [0; 4096]);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_source::VolumeTarget;
