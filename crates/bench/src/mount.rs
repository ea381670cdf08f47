//! `silt mount` measured: listing many snapshots, reading a volume from front to back against
//! restoring it to nowhere and to a file, and `silt files` on a disk with a file system.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use silt_format::{Config, KdfCost, KeyLabel, Result as Silt};
use silt_source::{SourceOptions, VolumeTarget, open_source};
use silt_storage::LocalStorage;
use siltstone::{BackupOptions, Protection, Repository, RestoreOptions, Selector, SystemEnv, When};

use crate::{MountOptions, Result};

const PASSWORD: &str = "bench";
/// Series that the many snapshots are of.
const SERIES: u64 = 10;

/// Takes everything and keeps nothing.
struct Nowhere;

impl VolumeTarget for Nowhere {
    fn write_at(&self, _: u64, _: &[u8]) -> Silt<()> {
        Ok(())
    }
    fn write_zeroes(&self, _: u64, _: u64) -> Silt<()> {
        Ok(())
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> Silt<()> {
        Err(silt_format::Error::invalid("nothing was kept"))
    }
    fn can_read(&self) -> bool {
        false
    }
    fn finish(self: Box<Self>) -> Silt<()> {
        Ok(())
    }
}

/// A mounted folder; unmounted when dropped.
struct Mounted<'a> {
    options: &'a MountOptions,
    server: Child,
}

fn silt(options: &MountOptions) -> Command {
    let mut command = Command::new(&options.silt);
    command.env("SILT_REPOSITORY", options.work.join("repository"));
    command.env("SILT_PASSWORD", PASSWORD).stdin(Stdio::null());
    command
}

impl<'a> Mounted<'a> {
    fn new(options: &'a MountOptions) -> Result<Self> {
        fs::create_dir_all(options.work.join("mounted"))?;
        let mut command = silt(options);
        command.arg("mount").arg(options.work.join("mounted")).stdout(Stdio::piped());
        let mut server = command.spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        if line.is_empty() {
            return Err("silt mount has failed".into());
        }
        Ok(Self { options, server })
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let folder = self.options.work.join("mounted");
        let _ = silt(self.options).args(["umount", "--force"]).arg(folder).status();
        let _ = self.server.wait();
    }
}

/// Runs the measures.
pub fn run(options: &MountOptions) -> Result<()> {
    fs::create_dir_all(&options.work)?;
    let repository = make(options)?;
    let (mut of_nowhere, mut of_file) = (Vec::new(), Vec::new());
    for _ in 0..options.runs {
        let nowhere_s = restore(&repository)?;
        let file_s = restore_to_file(options)?;
        let mounted = Mounted::new(options)?;
        let (read_s, bytes) = read(&options.work.join("mounted/large/latest/disk.raw"))?;
        drop(mounted);
        println!(
            "{bytes} bytes: restored to nowhere in {nowhere_s:.3} s, to a file in {file_s:.3} s, \
             read in {read_s:.3} s"
        );
        of_nowhere.push(nowhere_s / read_s);
        of_file.push(file_s / read_s);
    }
    for (ratios, what) in [(&mut of_nowhere, "to nowhere"), (&mut of_file, "to a file")] {
        ratios.sort_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        println!("speed of a sequential read / of a restore {what}: {median:.2} (median)");
    }
    let mounted = Mounted::new(options)?;
    for (what, depth) in [
        ("series and ids, first", "2"),
        ("series and ids, again", "2"),
        ("and the volumes of each, first", "3"),
        ("and the volumes of each, again", "3"),
    ] {
        let start = Instant::now();
        let mut find = Command::new("find");
        find.arg(options.work.join("mounted")).args(["-mindepth", "2", "-maxdepth", depth]);
        let count = find.output()?.stdout.split(|byte| *byte == b'\n').count();
        println!("ls of {count} names, {what}: {:.3} s", start.elapsed().as_secs_f64());
    }
    drop(mounted);
    files(options)
}

fn make(options: &MountOptions) -> Result<Repository> {
    let folder = options.work.join("repository");
    let _ = fs::remove_dir_all(&folder);
    let storage = Arc::new(LocalStorage::create(&folder)?);
    let protection = Protection::Password {
        password: PASSWORD.as_bytes().to_vec(),
        cost: KdfCost::default(),
        label: KeyLabel::default(),
    };
    let context = SystemEnv::context();
    let repository = Repository::init(storage, context, Config::default(), &protection, None)?;
    let disk = options.work.join("disk");
    write_disk(&disk, options.mib)?;
    back_up(&repository, "large", &disk)?;
    let small = options.work.join("small");
    for number in 0..options.snapshots {
        fs::write(&small, number.to_le_bytes())?;
        back_up(&repository, &format!("small{}", number % SERIES), &small)?;
    }
    // A large disk, of which a file system uses little.
    File::create(&disk)?.set_len(40 << 30)?;
    let tree = options.work.join("tree");
    fs::create_dir_all(&tree)?;
    fs::write(tree.join("file"), vec![7; 1 << 20])?;
    let mut make = Command::new("mke2fs");
    let made = make.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&tree).arg(&disk).status()?;
    if !made.success() {
        return Err("mke2fs has failed".into());
    }
    back_up(&repository, "ext4", &disk)?;
    fs::remove_file(&disk)?;
    Ok(repository)
}

/// Bytes that compress to about half.
fn write_disk(disk: &Path, mib: u64) -> Result<()> {
    let mut file = File::create(disk)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut piece = vec![0; 1 << 20];
    for _ in 0..mib {
        for word in piece.chunks_exact_mut(16) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word[..8].copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&piece)?;
    }
    Ok(())
}

fn back_up(repository: &Repository, series: &str, disk: &Path) -> Result<()> {
    let mut backup = repository.backup(series, BackupOptions::default())?;
    backup.add_volume("disk", &*open_source(disk, &SourceOptions::default())?, None)?;
    backup.finish()?;
    Ok(())
}

fn restore(repository: &Repository) -> Result<f64> {
    let latest = Selector::Time(Some("large".to_owned()), When::Latest);
    let start = Instant::now();
    let found = repository.find(&latest)?;
    let options = RestoreOptions { memory_bytes: 64 << 20, ..RestoreOptions::default() };
    repository.restore(found.volume("disk")?, &Nowhere, options)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Restores by the program into a new file, whose pages the machine caches as it does those of a
/// mounted file.
fn restore_to_file(options: &MountOptions) -> Result<f64> {
    let file = options.work.join("restored");
    let start = Instant::now();
    let mut command = silt(options);
    let status = command.args(["--quiet", "restore", "large@latest:disk"]).arg(&file).status()?;
    if !status.success() {
        return Err("silt restore has failed".into());
    }
    let restore_s = start.elapsed().as_secs_f64();
    fs::remove_file(file)?;
    Ok(restore_s)
}

fn read(file: &Path) -> Result<(f64, u64)> {
    let start = Instant::now();
    let mut file = File::open(file)?;
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((start.elapsed().as_secs_f64(), bytes)),
            read => bytes += read as u64,
        }
    }
}

fn files(options: &MountOptions) -> Result<()> {
    for arguments in [["ls", "/"], ["cat", "/file"]] {
        let mut seconds = Vec::new();
        for _ in 0..options.runs {
            let start = Instant::now();
            let output = silt(options).args(["files", "ext4@latest"]).args(arguments).output()?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into());
            }
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        println!("silt files {} of a disk of 40 GiB: {median:.3} s (median)", arguments.join(" "));
    }
    Ok(())
}
