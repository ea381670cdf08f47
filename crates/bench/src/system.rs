//! What the benchmark asks of a backup system.

use std::path::{Path, PathBuf};

use crate::process::Call;

/// Where a system keeps what it needs in one round.
pub struct Place {
    /// The repository's folder.
    pub repository: PathBuf,
    /// Caches and settings.
    pub home: PathBuf,
}

/// One disk of one day, at a path that is the same every day.
pub struct Disk<'a> {
    pub machine: &'a str,
    pub day: usize,
    pub path: &'a Path,
}

/// A backup program. Each method makes the command line for a task, or `None` if the program can't
/// do it.
pub trait System {
    fn name(&self) -> &'static str;
    fn version(&self) -> Call;
    /// Makes the repository.
    fn init(&self, place: &Place) -> Call;
    /// Backs up a disk; `changed` is a map of what changed, in the form of `rbd diff`.
    fn backup(&self, place: &Place, disk: &Disk<'_>, changed: Option<&Path>) -> Option<Call>;
    /// Restores a disk below or at `target`; the second part is where it will be.
    fn restore(&self, place: &Place, disk: &Disk<'_>, target: &Path) -> Option<(Call, PathBuf)>;
    /// Restores a disk over an older one at `target`.
    fn restore_in_place(&self, _: &Place, _: &Disk<'_>, _target: &Path) -> Option<Call> {
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

/// Silt itself.
pub struct Silt {
    pub program: PathBuf,
}

impl Silt {
    fn call(&self, place: &Place) -> Call {
        Call::new(&self.program)
            .env("SILT_REPOSITORY", &place.repository)
            .env("SILT_PASSWORD", "bench")
            .args(&["--quiet"])
    }
}

impl System for Silt {
    fn name(&self) -> &'static str {
        "silt"
    }
    fn version(&self) -> Call {
        Call::new(&self.program).args(&["version"])
    }
    fn init(&self, place: &Place) -> Call {
        self.call(place).args(&["init"])
    }
    fn backup(&self, place: &Place, disk: &Disk<'_>, changed: Option<&Path>) -> Option<Call> {
        let call = self.call(place).args(&["backup", disk.machine]).arg(disk.path);
        Some(match changed {
            Some(map) => call.args(&["--changed"]).arg(map),
            None => call,
        })
    }
    fn restore(&self, place: &Place, disk: &Disk<'_>, target: &Path) -> Option<(Call, PathBuf)> {
        let file = target.join(format!("{}.raw", disk.machine));
        let snapshot = format!("{}@latest", disk.machine);
        Some((self.call(place).args(&["restore", &snapshot]).arg(&file), file))
    }
    fn restore_in_place(&self, place: &Place, disk: &Disk<'_>, target: &Path) -> Option<Call> {
        let snapshot = format!("{}@latest", disk.machine);
        Some(self.call(place).args(&["restore", "--in-place", &snapshot]).arg(target))
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
