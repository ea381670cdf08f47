//! The disks that are backed up: machines over days.

use std::path::{Path, PathBuf};

use crate::Result;

/// How many machines are taken unless named.
const MACHINES_DEFAULT: usize = 3;

/// How many days the workloads take: the last is backed up with a changed map.
pub const DAYS: usize = 3;

/// Disks in one folder, called `VM.dayN.raw`.
pub struct Disks {
    folder: PathBuf,
    pub machines: Vec<String>,
    /// How many days every machine has.
    pub days: usize,
}

impl Disks {
    /// Finds the disks of a folder, of at most `days_max` days; `wanted` names machines, or is
    /// empty.
    pub fn find(folder: &Path, wanted: &[String], days_max: usize) -> Result<Self> {
        let folder = folder.canonicalize()?;
        let mut machines: Vec<String> = Vec::new();
        for entry in std::fs::read_dir(&folder)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            machines.extend(name.strip_suffix(".day0.raw").map(str::to_owned));
        }
        machines.sort();
        if wanted.is_empty() {
            machines.truncate(MACHINES_DEFAULT);
        } else {
            machines = wanted.to_vec();
        }
        let mut disks = Self { folder, machines, days: 0 };
        let has = |disks: &Self, day| disks.machines.iter().all(|vm| disks.path(vm, day).exists());
        while disks.days < days_max && has(&disks, disks.days) {
            disks.days += 1;
        }
        if disks.machines.is_empty() || disks.days < 2 {
            return Err(format!(
                "{} holds no machine with two days: files VM.day0.raw and VM.day1.raw",
                disks.folder.display()
            )
            .into());
        }
        Ok(disks)
    }

    pub fn path(&self, machine: &str, day: usize) -> PathBuf {
        self.folder.join(format!("{machine}.day{day}.raw"))
    }

    /// The last day that is used.
    pub fn last(&self) -> usize {
        self.days - 1
    }
}
