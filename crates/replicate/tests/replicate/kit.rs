//! Repositories in memory, and disks made of noise.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use silt_format::replica::ReplicaRole;
use silt_format::{KdfCost, KeyLabel};
use silt_replicate::{
    Connection, Replica, ReplicateOptions, ReplicateReport, Stream, Traffic, replicate,
    replicate_over, serve,
};
use siltstone::source::StreamSource;
use siltstone::storage::MemoryStorage;
use siltstone::{
    BackupOptions, BackupReport, CheckOptions, Config, Context, DataCheck, KeyAccess, Protection,
    Repository, Selector, SystemEnv, VolumeReader, When,
};

pub const SEGMENT: usize = 2 << 20;

pub fn context() -> Context {
    SystemEnv::context()
}

pub struct Site {
    pub repository: Repository,
    pub storage: Arc<MemoryStorage>,
}

pub const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };

/// An encrypted site; [`Site::opened_by`] opens it again.
pub fn encrypted_site() -> Site {
    let storage = Arc::new(MemoryStorage::new());
    let protection = protected();
    let made = Repository::init(storage.clone(), context(), Config::default(), &protection, None);
    Site { repository: made.unwrap(), storage }
}

/// An encrypted replica of an encrypted site.
pub fn encrypted_replica_of(site: &Site) -> Site {
    let storage = Arc::new(MemoryStorage::new());
    let made = site.repository.init_replica(storage.clone(), context(), &protected(), None);
    Site { repository: made.unwrap(), storage }
}

pub fn protected() -> Protection {
    let label = KeyLabel::default();
    Protection::Password { password: b"all".to_vec(), cost: COST, label }
}

impl Site {
    /// Adds a write-only key for `series`, and opens the site with it.
    pub fn write_only(&self, password: &[u8], series: &[&str]) -> Self {
        let access = KeyAccess::write_only(series);
        self.repository.add_key(password, COST, &KeyLabel::default(), &access).unwrap();
        self.opened_by(password)
    }

    pub fn opened_by(&self, password: &[u8]) -> Self {
        opened(self.storage.clone(), password)
    }
}

pub fn opened(storage: Arc<MemoryStorage>, password: &[u8]) -> Site {
    let password = password.to_vec();
    let repository = Repository::open(storage.clone(), context(), move || Ok(password));
    Site { repository: repository.unwrap(), storage }
}

pub fn site() -> Site {
    let storage = Arc::new(MemoryStorage::new());
    let repository =
        Repository::init(storage.clone(), context(), Config::default(), &Protection::None, None);
    Site { repository: repository.unwrap(), storage }
}

pub fn replica_of(site: &Site) -> Site {
    let storage = Arc::new(MemoryStorage::new());
    let protection = Protection::None;
    let repository = site.repository.init_replica(storage.clone(), context(), &protection, None);
    Site { repository: repository.unwrap(), storage }
}

/// Bytes that do not compress and do not repeat.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}

pub fn back_up_with(site: &Site, series: &str, disk: &[u8], options: BackupOptions) {
    let mut backup = site.repository.backup(series, options).unwrap();
    let source = StreamSource::new(Box::new(std::io::Cursor::new(disk.to_vec())));
    backup.add_volume("root", &source, None).unwrap();
    backup.finish().unwrap();
}

pub fn back_up(site: &Site, series: &str, disks: &[(&str, &[u8])]) -> BackupReport {
    let mut backup = site.repository.backup(series, BackupOptions::default()).unwrap();
    for (name, bytes) in disks {
        let source = StreamSource::new(Box::new(std::io::Cursor::new(bytes.to_vec())));
        backup.add_volume(name, &source, None).unwrap();
    }
    backup.finish().unwrap()
}

pub fn send(from: &Site, to: &Site) -> ReplicateReport {
    send_by(from, to, ReplicateOptions::default())
}

pub fn send_by(from: &Site, to: &Site, options: ReplicateOptions) -> ReplicateReport {
    replicate(&from.repository, &to.repository, options, BackupOptions::default()).unwrap()
}

/// Sends to a destination that may have another secret.
pub fn send_anew(from: &Site, to: &Site) -> ReplicateReport {
    send_by(from, to, ReplicateOptions { foreign: true, ..ReplicateOptions::default() })
}

/// The newest snapshot's volume.
pub fn read(site: &Site, series: &str, volume: &str) -> Vec<u8> {
    let latest = Selector::Time(Some(series.to_owned()), When::Latest);
    read_of(site, &latest, volume)
}

pub fn read_of(site: &Site, selector: &Selector, volume: &str) -> Vec<u8> {
    let found = site.repository.find(selector).unwrap();
    let reader = VolumeReader::open(&site.repository, found.volume(volume).unwrap(), 0).unwrap();
    let mut bytes = vec![0; usize::try_from(reader.bytes()).unwrap()];
    assert_eq!(reader.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Reads all data, and fails on damage and on objects that nothing refers to.
pub fn check(site: &Site) {
    let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = site.repository.check(&options).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

/// A stream on a socket, with another way of writing.
pub fn stream_of(socket: UnixStream, writer: Box<dyn Write + Send>) -> Stream<'static> {
    let closed = socket.try_clone().unwrap();
    let close = Box::new(move || drop(closed.shutdown(std::net::Shutdown::Both)));
    Stream { reader: Box::new(socket), writer, close }
}

/// Replicates through a connection on a pair of sockets, the replica in a thread of its own.
/// `wrap` may change what the source writes to.
pub fn send_over(
    from: &Site,
    to: &Site,
    wrap: impl FnOnce(UnixStream) -> Box<dyn Write + Send>,
) -> (silt_format::Result<(ReplicateReport, Traffic)>, silt_format::Result<u64>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let served = scope.spawn(move || {
            let writer = Box::new(theirs.try_clone().unwrap());
            let stream = stream_of(theirs, writer);
            let mut connection = Connection::open(&to.repository, ReplicaRole::Replica, stream, 3)?;
            serve(Replica::new(&to.repository, BackupOptions::default()), &mut connection)
        });
        let writer = wrap(ours.try_clone().unwrap());
        let stream = stream_of(ours.try_clone().unwrap(), writer);
        let sent = Connection::open(&from.repository, ReplicaRole::Source, stream, 3);
        let sent = sent.and_then(|mut connection| {
            let options = ReplicateOptions::default();
            let report = replicate_over(&from.repository, options, &mut connection)?;
            Ok((report, connection.traffic()))
        });
        drop(ours);
        (sent, served.join().unwrap())
    })
}

/// A stream that ends after some bytes.
pub struct Cut {
    pub stream: UnixStream,
    pub left: usize,
}

impl Write for Cut {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            self.stream.shutdown(std::net::Shutdown::Both)?;
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let part = bytes.len().min(self.left);
        self.left -= part;
        self.stream.write(&bytes[..part])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}
