//! Starting to read from a bucket far away: a MinIO of this machine behind a link that delays.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use silt_remote::server::{BUCKET, Server};

use crate::export::{Served, median};
use crate::process::Call;
use crate::{FarOptions, Result};

const BLOCK: usize = 4096;
/// Places of a disk that hold data, at equal distances, and how much each holds.
const PLACES: u64 = 64;
const PLACE_BYTES: u64 = 4 << 20;

/// A link to a port of this machine: everything arrives half a round trip later, and a new
/// connection takes a whole round trip. The rate is not limited.
///
/// It runs until the process ends.
pub struct Link {
    port: u16,
}

impl Link {
    pub fn start(to: u16, round_trip: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || forward(client, to, round_trip));
            }
        });
        Ok(Self { port })
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn forward(client: TcpStream, to: u16, round_trip: Duration) {
    thread::sleep(round_trip);
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let there = thread::spawn(move || pass(from_client, to_server, round_trip / 2));
    pass(server, client, round_trip / 2);
    let _ = there.join();
}

/// Passes bytes on, each after `delay`, until either end is closed.
fn pass(mut from: TcpStream, to: TcpStream, delay: Duration) {
    let (sent, due) = channel::<(Instant, Vec<u8>)>();
    let writer = thread::spawn(move || deliver(to, &due));
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if sent.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
            break;
        }
    }
    drop(sent);
    let _ = writer.join();
}

fn deliver(mut to: TcpStream, due: &Receiver<(Instant, Vec<u8>)>) {
    for (when, bytes) in due {
        thread::sleep(when.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A disk that is empty but for a few places; their bytes don't compress.
fn make_disk(path: &Path, gib: u64) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(gib << 30)?;
    let mut random = File::open("/dev/urandom")?;
    let mut piece = vec![0; usize::try_from(PLACE_BYTES)?];
    for place in 0..PLACES {
        random.read_exact(&mut piece)?;
        file.write_all_at(&piece, place * ((gib << 30) / PLACES))?;
    }
    Ok(())
}

pub fn run(options: &FarOptions) -> Result<()> {
    let work = options.work.join("far");
    std::fs::create_dir_all(&work)?;
    let server = Server::start_in(&[work.join("drive")], &[]).ok_or("minio is missing")?;
    let link = Link::start(server.port(), Duration::from_millis(options.round_trip_ms))?;
    println!("| disk | repository | start to the first 4 KiB, s (median, most) |\n|---|---|---|");
    for gib in [64, 4 << 10] {
        let disk = work.join("disk.raw");
        make_disk(&disk, gib)?;
        let cache = work.join(format!("cache{gib}"));
        let silt = Call::new(&options.silt).env("SILT_PASSWORD", "bench");
        let folder = silt.clone().env("SILT_REPOSITORY", work.join(format!("folder{gib}")));
        let bucket = silt.env("SILT_REPOSITORY", format!("s3://{BUCKET}/{gib}"));
        let mut bucket = bucket.env("SILT_CACHE_DIR", &cache);
        for (name, value) in server.settings().environment {
            bucket.environment.push((String::leak(name), value.into()));
        }
        for near in [&folder, &bucket] {
            near.clone().args(&["init", "--quiet"]).run()?;
            near.clone().args(&["backup", "vm", "--quiet"]).arg(&disk).run()?;
        }
        let bucket = bucket.env("AWS_ENDPOINT_URL", link.endpoint());
        for (call, is_cold, what) in [
            (&folder, false, "folder"),
            (&bucket, true, "bucket, cache empty"),
            (&bucket, false, "bucket, cache warm"),
        ] {
            let mut firsts = Vec::new();
            for run in 0..options.runs {
                if is_cold {
                    drop(std::fs::remove_dir_all(&cache));
                }
                let number = (run as u64 * 7 + 3) % PLACES;
                firsts.push(first(&work, call, &disk, number * ((gib << 30) / PLACES))?);
            }
            let most = firsts.iter().copied().fold(0.0, f64::max);
            println!("| {gib} GiB | {what} | {:.3}, {most:.3} |", median(firsts));
        }
    }
    drop(server);
    std::fs::remove_dir_all(&work)?;
    Ok(())
}

/// Starts a server and reads a block at `offset`. Returns the seconds that it took.
fn first(work: &Path, call: &Call, disk: &Path, offset: u64) -> Result<f64> {
    let socket = work.join("silt.sock");
    let mut command = Command::new(&call.program);
    command.envs(call.environment.iter().map(|(name, value)| (name, value)));
    command.args(["serve", "nbd", "vm@latest", "--quiet", "--socket"]).arg(&socket);
    let served = Served::start(command.stderr(Stdio::null()), &socket)?;
    let bytes = served.connect()?.read(offset, BLOCK)?;
    let seconds = served.started.elapsed().as_secs_f64();
    let mut expected = vec![0; BLOCK];
    File::open(disk)?.read_exact_at(&mut expected, offset)?;
    if bytes != expected {
        return Err("other bytes were read than were backed up".into());
    }
    Ok(seconds)
}
