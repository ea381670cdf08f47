//! The memory that a disk takes which is too large to be made on most machines: it comes as a
//! stream.

use std::io::Write;

use crate::numbers::mixed;
use crate::process::{Call, Cost};
use crate::{MemoryOptions, Result};

const BLOCK: usize = 4096;
/// What is different in each block; the rest repeats it, so that a repository of the disk is a
/// fifteenth of it.
const NOISE: usize = 256;
/// Of so many blocks, one changes in a day.
const CHANGED_OF: u64 = 100;

pub fn run(options: &MemoryOptions) -> Result<()> {
    if let Some(day) = options.day {
        return stream(options.gib, day);
    }
    let place = options.work.join("memory");
    std::fs::create_dir_all(&options.work)?;
    let call = |args: &[&str]| {
        let call = Call::new(&options.silt).args(args);
        call.env("SILT_REPOSITORY", &place).env("SILT_PASSWORD", "bench")
    };
    let program = std::env::current_exe()?;
    let backup = |day: u64| {
        let gib = options.gib.to_string();
        let program = program.display();
        let source = format!("'{program}' memory --work - --gib {gib} --day {day}");
        call(&["backup", "vm", "disk=-", "--stdin-command", &source])
    };
    call(&["init"]).run()?;
    println!("{} GiB without holes, no block twice, 1 in {CHANGED_OF} changed\n", options.gib);
    println!("| | MiB at most | s | CPU s |\n|---|---|---|---|");
    let report = |what: &str, cost: Cost| {
        let mib = cost.rss_bytes as f64 / f64::from(1 << 20);
        println!("| {what} | {mib:.0} | {:.0} | {:.0} |", cost.wall_s, cost.cpu_s);
    };
    report("first backup", backup(0).run()?);
    report("next day", backup(1).run()?);
    report("restore", call(&["restore", "vm@latest", "-"]).run()?);
    report("check --read-data", call(&["check", "--read-data"]).run()?);
    report("forget --keep-last 1", call(&["forget", "--keep-last", "1"]).run()?);
    let all = ["reclaim", "--sweep", "--min-dead", "0", "--keep-deleted", "0s"];
    report("reclaim --sweep", call(&all).run()?);
    std::fs::remove_dir_all(&place)?;
    Ok(())
}

/// Writes the disk of a day.
fn stream(gib: u64, day: u64) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; 256 * BLOCK];
    let blocks = gib << 18;
    for first in (0..blocks).step_by(256) {
        for (number, block) in (first..).zip(buffer.chunks_exact_mut(BLOCK)) {
            let changes = mixed(number).is_multiple_of(CHANGED_OF);
            let mut state = mixed(number) ^ if changes { mixed(day) } else { 0 };
            for word in block[..NOISE].chunks_exact_mut(8) {
                state = mixed(state);
                word.copy_from_slice(&state.to_le_bytes());
            }
            for at in (NOISE..BLOCK).step_by(NOISE) {
                block.copy_within(..NOISE, at);
            }
        }
        out.write_all(&buffer)?;
    }
    Ok(())
}
