//! The shared index in the memory of hosts: how many chunks are looked up through a NATS server,
//! and what backups gain by it over reading the index from the storage.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use silt_cluster::index::{FINGERPRINTS_MAX, IndexClient, IndexServer};
use silt_cluster::{Bus, Messages, Name, NatsBus, NatsOptions};
use silt_format::{Config, Fingerprint, KdfCost, KeyLabel, Level};
use silt_remote::S3Storage;
use silt_remote::server::{BUCKET, Server};
use silt_repository::env::Context;
use silt_repository::system::SystemEnv;
use silt_runs::shared_record::SharedRecord;
use silt_runs::{RunReader, Stream};
use silt_storage::{CachedStorage, LocalStorage, Storage};
use siltstone::source::{SourceOptions, open_source};
use siltstone::storage::CACHE_POLICY;
use siltstone::{BackupOptions, PopularOptions, Protection, Repository, SharePolicy, SharedPlaces};

use crate::link::Delay;
use crate::numbers::median;
use crate::{IndexOptions, Result};

/// Bytes on their way: enough for 500 MB/s.
const WINDOW: usize = 8 << 20;
/// How long the throughput is measured.
const MEASURED: Duration = Duration::from_secs(10);
/// A segment of a disk that is made of known and new parts.
const PART: usize = 64 << 10;
const CACHE_BYTES: u64 = 512 << 20;
/// Memory of a host that holds the index.
const MEMORY_BYTES: u64 = 4 << 30;

/// A NATS server of its own.
pub struct Nats {
    child: Child,
    pub port: u16,
    _folder: tempfile::TempDir,
}

impl Nats {
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("nats-server");
        command.args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"]).arg(folder.path());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { child, port, _folder: folder })
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn connect(port: u16, member: &str) -> Result<Arc<dyn Bus>> {
    let env = Arc::new(SystemEnv::new(Arc::default()));
    let options = NatsOptions::new(format!("nats://127.0.0.1:{port}"), Name::new(member)?);
    for _ in 0..50 {
        if let Ok(bus) = NatsBus::connect(options.clone(), env.clone()) {
            return Ok(Arc::new(bus));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err("the NATS server does not answer".into())
}

fn open(storage: Arc<dyn Storage>) -> Result<Repository> {
    Ok(Repository::open(storage, SystemEnv::context(), || Ok(b"benchmark".to_vec()))?)
}

pub fn open_below(storage: Arc<dyn Storage>) -> Result<silt_repository::Repository> {
    let password = || Ok(b"benchmark".to_vec());
    Ok(silt_repository::Repository::open(storage, SystemEnv::context(), password)?)
}

/// A repository in which two series have the same chunks, which are shared.
fn make(storage: &Arc<dyn Storage>, work: &Path, gib: u64) -> Result<()> {
    let protection = Protection::Password {
        password: b"benchmark".to_vec(),
        cost: KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 },
        label: KeyLabel::default(),
    };
    let context: Context = SystemEnv::context();
    let made =
        Repository::init(Arc::clone(storage), context, Config::default(), &protection, None)?;
    let disk = work.join("common.raw");
    let mut file = File::create(&disk)?;
    std::io::copy(&mut File::open("/dev/urandom")?.take(gib << 30), &mut file)?;
    for series in ["a", "b"] {
        back_up(&made, series, &disk, None)?;
    }
    let (spool, policy) = (work.to_owned(), SharePolicy::Duplicates);
    made.build_popular(&PopularOptions { policy, spool, memory_bytes: 0, dry_run: false })?;
    Ok(())
}

/// Backs a disk up: the seconds that it took, and the bytes that the shared store had.
fn back_up(
    repository: &Repository,
    series: &str,
    disk: &Path,
    places: Option<Arc<dyn SharedPlaces>>,
) -> Result<(f64, u64)> {
    let began = Instant::now();
    let options = BackupOptions { places, ..BackupOptions::default() };
    let mut backup = repository.backup(series, options)?;
    let source = open_source(disk, &SourceOptions::default())?;
    backup.add_volume("disk", &*source, None)?;
    let report = backup.finish()?;
    let shared = report.snapshot.volumes[0].levels.get(Level::Shared);
    Ok((began.elapsed().as_secs_f64(), shared))
}

/// A disk of which every other part is shared, each from another place.
fn make_disk(work: &Path, gib: u64) -> Result<std::path::PathBuf> {
    use std::os::unix::fs::FileExt;
    let (common, path) = (File::open(work.join("common.raw"))?, work.join("disk.raw"));
    let parts = (gib << 30) / PART as u64;
    let (file, mut random) = (File::create(&path)?, File::open("/dev/urandom")?);
    let mut part = vec![0; PART];
    for number in 0..parts {
        if number % 2 == 0 {
            // An odd step visits each part once.
            common.read_exact_at(&mut part, (number * 7919 % parts) * PART as u64)?;
        } else {
            random.read_exact(&mut part)?;
        }
        file.write_all_at(&part, number * PART as u64)?;
    }
    Ok(path)
}

pub fn run(options: &IndexOptions) -> Result<()> {
    let work = options.work.join("index");
    std::fs::create_dir_all(&work)?;
    let nats = Nats::start()?;
    let near: Arc<dyn Storage> = Arc::new(LocalStorage::create(work.join("near"))?);
    make(&near, &work, options.gib)?;
    throughput(&nats, &near)?;
    let disk = make_disk(&work, options.gib)?;
    println!("\n| storage | index | s (median) | shared, MiB |\n|---|---|---:|---:|");
    compare("folder", &|| Ok(Arc::clone(&near)), nats.port, &disk, options)?;
    let server = Server::start_in(&[work.join("drive")], &[]).ok_or("minio is missing")?;
    let location = format!("s3://{BUCKET}/far");
    let direct: Arc<dyn Storage> = Arc::new(S3Storage::open(&location, &server.settings())?);
    make(&direct, &work, options.gib)?;
    let disk = make_disk(&work, options.gib)?;
    let round_trip = Duration::from_millis(options.round_trip_ms);
    let link = Delay::start(([127, 0, 0, 1], server.port()).into(), round_trip, WINDOW)?;
    let bus = Delay::start(([127, 0, 0, 1], nats.port).into(), round_trip, WINDOW)?;
    let settings = server.settings_by(&format!("http://{}", link.address));
    let cache = work.join("cache");
    let far = || -> Result<Arc<dyn Storage>> {
        drop(std::fs::remove_dir_all(&cache));
        let bucket = Arc::new(S3Storage::open(&location, &settings)?);
        Ok(Arc::new(CachedStorage::new(bucket, &cache, CACHE_POLICY, CACHE_BYTES)))
    };
    let name = format!("bucket {} ms away, cache empty", options.round_trip_ms);
    compare(&name, &far, bus.address.port(), &disk, options)?;
    drop(server);
    std::fs::remove_dir_all(&work)?;
    Ok(())
}

/// Hosts that hold the whole index of a storage.
fn serve(storage: &Arc<dyn Storage>, port: u16, hosts: &[Name]) -> Result<Vec<IndexServer>> {
    let mut servers = Vec::new();
    for host in hosts {
        let bus = connect(port, host.as_str())?;
        let repository = open_below(Arc::clone(storage))?;
        let messages = Messages::new(&repository.objects);
        let server = IndexServer::start(&*bus, &messages, host.clone(), MEMORY_BYTES)?;
        server.refresh(hosts)?;
        // The server answers as long as its connection is there.
        std::mem::forget(bus);
        servers.push(server);
    }
    Ok(servers)
}

/// Looks up chunks, half of which are shared, from several threads, and prints the rate.
fn throughput(nats: &Nats, storage: &Arc<dyn Storage>) -> Result<()> {
    let repository = open_below(Arc::clone(storage))?;
    let store = repository.objects.keys.shared_store_id(0);
    let head = repository.head(store)?.ok_or("nothing is shared")?;
    let mut known = Vec::new();
    for run in &head.runs {
        let mut stream = Stream::new(RunReader::new(&repository.objects, store, *run));
        while let Some(record) = stream.next()? {
            known.push((record.fingerprint, SharedRecord::decode(&record).chunk_bytes));
        }
    }
    println!(
        "{} chunks in the index; questions of {FINGERPRINTS_MAX} chunks, half of them known\n",
        known.len()
    );
    println!(
        "| hosts | clients | million chunks/s | p50, ms | p99, ms |\n|---:|---:|---:|---:|---:|"
    );
    for (hosts, clients) in [(1, 1), (1, 2), (2, 2), (2, 4)] {
        let names: Vec<Name> = (0..hosts)
            .map(|number| Name::new(format!("holder{number}")))
            .collect::<silt_format::Result<_>>()?;
        let servers = serve(storage, nats.port, &names)?;
        let is_over = AtomicBool::new(false);
        let measured = std::thread::scope(|scope| -> Result<Vec<Vec<f64>>> {
            let mut threads = Vec::new();
            for number in 0..clients {
                let bus = connect(nats.port, &format!("client{number}"))?;
                let messages = Messages::new(&open(Arc::clone(storage))?.objects);
                let client = IndexClient::new(bus, messages, SystemEnv::context(), &names)?;
                let (known, is_over) = (&known, &is_over);
                threads.push(scope.spawn(move || ask(&client, known, number, is_over)));
            }
            std::thread::sleep(MEASURED);
            is_over.store(true, Ordering::SeqCst);
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined
                .map(|times| Ok(times.map_err(|_| "a client has failed")??))
                .collect::<Result<Vec<_>>>()
        })?;
        drop(servers);
        let mut times: Vec<f64> = measured.into_iter().flatten().collect();
        times.sort_by(f64::total_cmp);
        let rate = (times.len() * FINGERPRINTS_MAX) as f64 / MEASURED.as_secs_f64() / 1e6;
        let at = |percent: usize| times[times.len() * percent / 100] * 1000.0;
        println!("| {hosts} | {clients} | {rate:.2} | {:.2} | {:.2} |", at(50), at(99));
    }
    Ok(())
}

/// Asks again and again; the seconds of each question.
fn ask(
    client: &IndexClient,
    known: &[(Fingerprint, u32)],
    number: usize,
    is_over: &AtomicBool,
) -> std::result::Result<Vec<f64>, String> {
    let (mut times, mut at) = (Vec::new(), number * 1_000_003);
    while !is_over.load(Ordering::SeqCst) {
        let wanted: Vec<(Fingerprint, u32)> = (0..FINGERPRINTS_MAX)
            .map(|place| {
                at = (at + 7919) % known.len();
                let (mut fingerprint, bytes) = known[at];
                if place % 2 == 0 {
                    fingerprint.0[12] ^= 0x55;
                }
                (fingerprint, bytes)
            })
            .collect();
        let began = Instant::now();
        let found = client.find(&wanted).unwrap_or_default().into_iter().flatten().count();
        times.push(began.elapsed().as_secs_f64());
        if found != FINGERPRINTS_MAX / 2 {
            return Err(format!("{found} chunks of {FINGERPRINTS_MAX} were found"));
        }
    }
    Ok(times)
}

/// Backs a disk up with the index in the storage and with that in memory, by turns.
fn compare(
    name: &str,
    storage: &dyn Fn() -> Result<Arc<dyn Storage>>,
    port: u16,
    disk: &Path,
    options: &IndexOptions,
) -> Result<()> {
    let hosts = [Name::new("holder0")?, Name::new("holder1")?];
    let servers = serve(&storage()?, port, &hosts)?;
    let (mut by_storage, mut by_memory) = (Vec::new(), Vec::new());
    let (mut shared_storage, mut shared_memory) = (0, 0);
    for run in 0..options.runs {
        let repository = open(storage()?)?;
        let (seconds, shared) = back_up(&repository, &format!("s{run}"), disk, None)?;
        by_storage.push(seconds);
        shared_storage = shared;
        let repository = open(storage()?)?;
        let messages = Messages::new(&repository.objects);
        let bus = connect(port, "client")?;
        let client = IndexClient::new(bus, messages, SystemEnv::context(), &hosts)?;
        let places: Option<Arc<dyn SharedPlaces>> = Some(Arc::new(client));
        let (seconds, shared) = back_up(&repository, &format!("m{run}"), disk, places)?;
        by_memory.push(seconds);
        shared_memory = shared;
    }
    drop(servers);
    let mib = |bytes: u64| bytes >> 20;
    let (storage_s, memory_s) = (median(by_storage), median(by_memory));
    println!("| {name} | runs in the storage | {storage_s:.2} | {} |", mib(shared_storage));
    println!("| {name} | memory of two hosts | {memory_s:.2} | {} |", mib(shared_memory));
    Ok(())
}
