//! Backups of a large disk of which little or much has changed, against reading and digesting it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::bounds::{digest_bound, zstd_bound};
use crate::disks::Disks;
use crate::numbers::median;
use crate::process::Call;
use crate::run::warm;
use crate::{Result, ScanOptions};

/// Shares of the disk that change before a backup, in thousandths.
const CHANGED: [u64; 5] = [0, 1, 10, 50, 300];
/// Changes come in runs of this many bytes, as file systems write.
const RUN_BYTES: u64 = 64 << 10;
const BUFFER_BYTES: u64 = 1 << 20;

/// A stream of numbers (Knuth's MMIX generator).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }

    /// Bytes that zstd makes half as large: every second one is one of two.
    fn fill(&mut self, bytes: &mut [u8]) {
        for group in bytes.chunks_mut(4) {
            let noise = self.next().to_le_bytes();
            for (place, (byte, noise)) in group.iter_mut().zip(noise).enumerate() {
                *byte = if place % 2 == 0 { noise } else { noise & 1 };
            }
        }
    }
}

/// Writes new bytes into a share of the disk.
fn change(disk: &Path, bytes: u64, thousandths: u64, random: &mut Random) -> Result<()> {
    let file = File::options().write(true).open(disk)?;
    let mut run = vec![0; usize::try_from(RUN_BYTES)?];
    for _ in 0..bytes / RUN_BYTES * thousandths / 1000 {
        random.fill(&mut run);
        file.write_all_at(&run, random.next() % (bytes / RUN_BYTES) * RUN_BYTES)?;
    }
    Ok(())
}

/// Measures, and prints a table.
pub fn run(options: &ScanOptions) -> Result<()> {
    let work = options.work.join("scan");
    std::fs::create_dir_all(&work)?;
    let (disk, bytes) = (work.join("scan.day0.raw"), options.gib << 30);
    let mut random = Random(1);
    let file = File::create(&disk)?;
    let mut buffer = vec![0; usize::try_from(BUFFER_BYTES)?];
    for offset in (0..bytes).step_by(buffer.len()) {
        random.fill(&mut buffer);
        file.write_all_at(&buffer, offset)?;
    }
    drop(file);
    // The disks of a benchmark have two days; here the disk changes under one name.
    std::fs::hard_link(&disk, work.join("scan.day1.raw"))?;
    let disks = Disks::find(&work, &[], 2)?;
    let silt = Call::new(&options.silt)
        .env("SILT_REPOSITORY", work.join("repository"))
        .env("SILT_PASSWORD", "bench")
        .args(&["--quiet"]);
    silt.clone().args(&["init"]).run()?;
    println!("| {} GiB, changed | s | CPU s | bound, s | reached |", options.gib);
    println!("|---|---:|---:|---:|---:|");
    let backup = silt.args(&["backup", "scan"]).arg(&disk);
    warm(&disk)?;
    rustix::fs::sync();
    let first = backup.run()?;
    let row = |what: &str, (wall, cpu): (f64, f64), bound: f64| {
        println!("| {what} | {wall:.2} | {cpu:.2} | {bound:.2} | {:.0} % |", 100.0 * bound / wall);
    };
    row("all: the first backup; zstd", (first.wall_s, first.cpu_s), zstd_bound(&disks)?);
    for thousandths in CHANGED {
        let (mut walls, mut cpus, mut bounds) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.runs {
            change(&disk, bytes, thousandths, &mut random)?;
            warm(&disk)?;
            rustix::fs::sync();
            bounds.push(digest_bound(&disks)?);
            let cost = backup.run()?;
            walls.push(cost.wall_s);
            cpus.push(cost.cpu_s);
        }
        let what = format!("{:.1} %; read and digest", thousandths as f64 / 10.0);
        row(&what, (median(walls), median(cpus)), median(bounds));
    }
    std::fs::remove_dir_all(&work)?;
    Ok(())
}
