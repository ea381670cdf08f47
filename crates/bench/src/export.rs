//! The NBD server against qemu-nbd on the same disk, by one client that costs both the same.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use silt_source::nbd::wire::{
    EXPORT_NAME_ZEROES, OPTION_MAGIC, Request, command, handshake_flag, option,
};

use crate::numbers::{median, mixed};
use crate::process::Call;
use crate::{ExportOptions, Result};

const BLOCK: usize = 4096;
/// Requests of a run of random reads.
const REQUESTS: u64 = 100_000;

/// A server that was started, ended when this is dropped.
pub struct Served {
    child: Child,
    pub socket: PathBuf,
    pub started: Instant,
}

impl Served {
    pub fn start(command: &mut Command, socket: &Path) -> Result<Self> {
        // One that was killed has left its socket.
        drop(std::fs::remove_file(socket));
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        Ok(Self { child, socket: socket.to_owned(), started })
    }

    /// A client, as soon as the server takes one.
    pub fn connect(&self) -> Result<Client> {
        for _ in 0..10_000 {
            if let Ok(socket) = UnixStream::connect(&self.socket) {
                return Client::new(socket);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err("the server does not listen".into())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The largest resident set of a process so far, in bytes.
pub fn peak_bytes(process: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no VmHWM")?;
    Ok(kib.trim().parse::<u64>()? << 10)
}

/// A client of the default export.
pub struct Client {
    input: BufReader<UnixStream>,
    output: UnixStream,
    bytes: u64,
}

impl Client {
    fn new(socket: UnixStream) -> Result<Self> {
        let mut output = socket.try_clone()?;
        let mut input = BufReader::with_capacity(1 << 20, socket);
        input.read_exact(&mut [0; 18])?;
        output.write_all(&u32::from(handshake_flag::FIXED_NEWSTYLE).to_be_bytes())?;
        let numbers = [option::EXPORT_NAME.to_be_bytes(), 0_u32.to_be_bytes()];
        output.write_all(&[&OPTION_MAGIC.to_be_bytes()[..], &numbers.concat()].concat())?;
        let mut bytes = [0; 8];
        input.read_exact(&mut bytes)?;
        input.read_exact(&mut [0; 2 + EXPORT_NAME_ZEROES])?;
        Ok(Self { input, output, bytes: u64::from_be_bytes(bytes) })
    }

    /// Reads `length` bytes.
    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let (flags, cookie, bytes) = (0, 0, u64::try_from(length)?);
        let request = Request { flags, command: command::READ, cookie, offset, length: bytes };
        self.output.write_all(&request.encode(false))?;
        let (mut header, mut read) = ([0; 16], vec![0; length]);
        self.input.read_exact(&mut header)?;
        if header[4..8] != [0; 4] {
            return Err("a read failed".into());
        }
        self.input.read_exact(&mut read)?;
        Ok(read)
    }

    /// Reads random blocks of the first `within` bytes, `depth` at once; returns how many a second.
    fn random_reads(&mut self, depth: u64, within: u64, requests: u64) -> Result<f64> {
        let blocks = within.min(self.bytes) / BLOCK as u64;
        let length = u64::try_from(BLOCK)?;
        let (mut sent, mut done, mut block) = (0, 0, [0; BLOCK]);
        let begin = Instant::now();
        let mut out = Vec::new();
        while done < requests {
            out.clear();
            while sent < requests && sent - done < depth {
                let offset = mixed(sent) % blocks * BLOCK as u64;
                let (flags, cookie) = (0, sent);
                let request = Request { flags, command: command::READ, cookie, offset, length };
                out.extend_from_slice(&request.encode(false));
                sent += 1;
            }
            self.output.write_all(&out)?;
            // All replies that are there already are taken before the next requests are sent.
            loop {
                let mut header = [0; 16];
                self.input.read_exact(&mut header)?;
                if header[4..8] != [0; 4] {
                    return Err("a read failed".into());
                }
                self.input.read_exact(&mut block)?;
                done += 1;
                if self.input.buffer().len() < header.len() + BLOCK {
                    break;
                }
            }
        }
        Ok(requests as f64 / begin.elapsed().as_secs_f64())
    }
}

/// A disk that compresses to half.
fn make_disk(path: &Path, mib: u64) -> Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for number in 0..mib << 8 {
        let mut block = [0; BLOCK];
        for (at, word) in (0..).zip(block[..BLOCK / 2].chunks_exact_mut(8)) {
            word.copy_from_slice(&mixed(number << 9 | at).to_le_bytes());
        }
        file.write_all(&block)?;
    }
    Ok(file.flush()?)
}

pub fn run(options: &ExportOptions) -> Result<()> {
    let place = options.work.join("export");
    std::fs::create_dir_all(&place)?;
    let (disk, qcow2) = (place.join("disk.raw"), place.join("disk.qcow2"));
    let repository = place.join("repository");
    make_disk(&disk, options.mib)?;
    Call::new("qemu-img").args(&["convert", "-O", "qcow2"]).arg(&disk).arg(&qcow2).run()?;
    let call = |args: &[&str]| {
        let call = Call::new(&options.silt).args(args);
        call.env("SILT_REPOSITORY", &repository).env("SILT_PASSWORD", "bench")
    };
    call(&["init"]).run()?;
    call(&["backup", "vm"]).arg(&disk).run()?;

    let serve = || {
        let socket = place.join("silt.sock");
        let mut command = Command::new(&options.silt);
        command.env("SILT_REPOSITORY", &repository).env("SILT_PASSWORD", "bench");
        command.args(["serve", "nbd", "vm@latest", "--quiet", "--socket"]).arg(&socket);
        Served::start(command.stderr(Stdio::null()), &socket)
    };
    let qemu = || {
        let socket = place.join("qemu.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["-r", "-t", "-e", "16", "-f", "qcow2", "-k"]).arg(&socket).arg(&qcow2);
        Served::start(&mut command, &socket)
    };
    let (silt, qemu) = (serve()?, qemu()?);
    println!("| | silt | qemu-nbd | ratio |\n|---|---|---|---|");
    for (depth, mib) in [(1, options.hot_mib), (16, options.hot_mib), (1, options.mib)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..options.runs {
            for (served, rates) in [(&silt, &mut ours), (&qemu, &mut theirs)] {
                let mut client = served.connect()?;
                client.random_reads(16, mib << 20, (mib << 8).min(REQUESTS))?;
                rates.push(client.random_reads(depth, mib << 20, REQUESTS)?);
            }
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let ratio = ours / theirs;
        println!(
            "| 4 KiB in {mib} MiB, depth {depth}, 1/s | {ours:.0} | {theirs:.0} | {ratio:.2} |"
        );
    }

    let uri = |served: &Served| format!("nbd+unix:///?socket={}", served.socket.display());
    let (mut copies, mut restores, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let rate = |seconds: f64| options.mib as f64 / seconds;
    for _ in 0..options.runs {
        let copy = |served: &Served| Call::new("nbdcopy").arg(uri(served)).arg("null:").run();
        copies.push(rate(copy(&silt)?.wall_s));
        others.push(rate(copy(&qemu)?.wall_s));
        restores.push(rate(call(&["restore", "vm@latest", "-"]).run()?.wall_s));
    }
    let (copy, restore, other) = (median(copies), median(restores), median(others));
    println!("| nbdcopy to null, MiB/s | {copy:.0} | {other:.0} | {:.2} |", copy / other);
    println!("| against silt restore to null | {copy:.0} | {restore:.0} | {:.2} |", copy / restore);
    println!(
        "| memory at most, MiB | {} | {} | |",
        peak_bytes(silt.child.id())? >> 20,
        peak_bytes(qemu.child.id())? >> 20
    );
    drop((silt, qemu));

    let mut firsts = Vec::new();
    for _ in 0..options.runs {
        let served = serve()?;
        served.connect()?.random_reads(1, options.mib << 20, 1)?;
        firsts.push(served.started.elapsed().as_secs_f64());
    }
    println!("| start to the first 4 KiB, s | {:.3} | | |", median(firsts));
    std::fs::remove_dir_all(&place)?;
    Ok(())
}
