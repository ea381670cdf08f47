//! What the benchmark asks of a backup system.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::process::Call;
use crate::workload::Workload;

/// Where a system keeps what it needs in one round.
pub struct Place {
    /// The repository's folder.
    pub repository: PathBuf,
    /// Caches and settings.
    pub home: PathBuf,
}

/// One disk of one day, at a path that is the same every day.
#[derive(Clone, Copy)]
pub struct Disk<'a> {
    pub machine: &'a str,
    pub day: usize,
    pub path: &'a Path,
}

/// What a backup reads.
#[derive(Clone, Copy)]
pub enum Reading<'a> {
    /// What the program reads by itself: perhaps nothing of a file that looks as it was.
    Usual,
    /// Every byte, however the files look.
    Everything,
    /// What this map, in the form of `rbd diff`, says has changed.
    Changed(&'a Path),
}

/// A backup program, and whether one call of it takes all disks. Each method makes the command line
/// for a task, or `None` if the program can't do it.
pub trait System {
    /// The program, and a word for the way it is used.
    fn name(&self) -> &'static str;
    fn version(&self) -> Call;
    /// Makes the repository.
    fn init(&self, place: &Place) -> Vec<Call>;
    /// Whether one call takes all disks in this workload, or there is one for each.
    fn takes_all(&self, workload: Workload) -> bool;
    /// Backs up disks.
    fn backup(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        reading: Reading<'_>,
    ) -> Result<Option<Call>>;
    /// Restores disks below `target`; the second part is where each will be.
    fn restore(&self, place: &Place, disks: &[Disk<'_>], target: &Path) -> (Call, Vec<PathBuf>);
    /// The same over older ones that are there, writing no more than what differs.
    fn restore_in_place(
        &self,
        _: &Place,
        _: &[Disk<'_>],
        _target: &Path,
    ) -> Option<(Call, Vec<PathBuf>)> {
        None
    }
    /// Restores a range of a disk to `target`.
    fn restore_range(
        &self,
        _: &Place,
        _: &Disk<'_>,
        _range: (u64, u64),
        _target: &Path,
    ) -> Option<Call> {
        None
    }
    /// Reads and verifies everything.
    fn check(&self, place: &Place) -> Call;
}

/// A file for each disk in a folder.
pub fn files(disks: &[Disk<'_>], target: &Path) -> Vec<PathBuf> {
    disks.iter().map(|disk| target.join(format!("{}.raw", disk.machine))).collect()
}

/// Silt itself.
pub struct Silt {
    pub program: PathBuf,
    /// Whether all disks are backed up in a round.
    pub in_rounds: bool,
}

impl Silt {
    pub fn call(&self, place: &Place) -> Call {
        Call::new(&self.program)
            .env("SILT_REPOSITORY", &place.repository)
            .env("SILT_PASSWORD", "bench")
            .args(&["--quiet"])
    }

    fn restore_with(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        target: &Path,
        options: &[&str],
    ) -> (Call, Vec<PathBuf>) {
        let files = files(disks, target);
        let call = self.call(place).args(&["restore"]).args(options);
        let pairs = disks.iter().zip(&files);
        let call = pairs.fold(call, |call, (disk, file)| {
            call.args(&[&format!("{}@latest", disk.machine)]).arg(file)
        });
        (call, files)
    }
}

impl System for Silt {
    fn name(&self) -> &'static str {
        if self.in_rounds { "silt round" } else { "silt" }
    }
    fn version(&self) -> Call {
        Call::new(&self.program).args(&["version"])
    }
    fn init(&self, place: &Place) -> Vec<Call> {
        vec![self.call(place).args(&["init"])]
    }
    fn takes_all(&self, workload: Workload) -> bool {
        self.in_rounds && workload <= Workload::Unchanged
    }
    fn backup(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        reading: Reading<'_>,
    ) -> Result<Option<Call>> {
        if self.in_rounds {
            let (mut text, fleet) = (String::new(), place.home.join("fleet.toml"));
            for Disk { machine, path, .. } in disks {
                let path = path.display();
                writeln!(text, "[series.{machine}]\nvolumes = {{ disk = \"{path}\" }}")?;
            }
            std::fs::write(&fleet, text)?;
            let call = self.call(place).args(&["backup", "--temp"]).arg(&place.home);
            let usual = !matches!(reading, Reading::Changed(_));
            return Ok(usual.then(|| call.args(&["--fleet"]).arg(fleet)));
        }
        let call = self.call(place).args(&["backup"]);
        let call = disks.iter().fold(call, |call, disk| call.args(&[disk.machine]).arg(disk.path));
        Ok(Some(match reading {
            Reading::Changed(map) => call.args(&["--changed"]).arg(map),
            Reading::Usual | Reading::Everything => call,
        }))
    }
    fn restore(&self, place: &Place, disks: &[Disk<'_>], target: &Path) -> (Call, Vec<PathBuf>) {
        self.restore_with(place, disks, target, &[])
    }
    fn restore_in_place(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        target: &Path,
    ) -> Option<(Call, Vec<PathBuf>)> {
        Some(self.restore_with(place, disks, target, &["--in-place"]))
    }
    fn restore_range(
        &self,
        place: &Place,
        disk: &Disk<'_>,
        (start, end): (u64, u64),
        target: &Path,
    ) -> Option<Call> {
        let snapshot = format!("{}@latest", disk.machine);
        let range = format!("{start}-{end}");
        let call = self.call(place).args(&["restore", "--force", "--range", &range, &snapshot]);
        Some(call.arg(target))
    }
    fn check(&self, place: &Place) -> Call {
        self.call(place).args(&["check", "--read-data"])
    }
}
