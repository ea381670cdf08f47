//! The peers, at their default settings with zstd.

use std::path::{Path, PathBuf};

use crate::process::Call;
use crate::system::{Disk, Place, Silt, System};

/// Silt and every peer that is on the PATH; or those that are named.
pub fn systems(silt: &Path, wanted: &[String]) -> Vec<Box<dyn System>> {
    let mut all: Vec<Box<dyn System>> = vec![
        Box::new(Silt { program: silt.to_owned() }),
        Box::new(Restic),
        Box::new(Borg),
        Box::new(Kopia),
        Box::new(Rustic),
    ];
    if wanted.is_empty() {
        all.retain(|system| system.version().run().is_ok());
    } else {
        all.retain(|system| wanted.iter().any(|name| name == system.name()));
    }
    all
}

/// The path at which restic and those like it put a restored file.
fn below(target: &Path, path: &Path) -> PathBuf {
    target.join(path.strip_prefix("/").unwrap_or(path))
}

struct Restic;

impl Restic {
    fn call(place: &Place) -> Call {
        Call::new("restic")
            .env("RESTIC_REPOSITORY", &place.repository)
            .env("RESTIC_PASSWORD", "bench")
            .env("RESTIC_CACHE_DIR", &place.home)
            .args(&["--quiet"])
    }

    /// Versions from 0.15 write zeros as holes when asked.
    fn writes_holes() -> bool {
        let help = std::process::Command::new("restic").args(["restore", "--help"]).output();
        help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--sparse"))
    }
}

impl System for Restic {
    fn name(&self) -> &'static str {
        "restic"
    }
    fn version(&self) -> Call {
        Call::new("restic").args(&["version"])
    }
    fn init(&self, place: &Place) -> Call {
        Self::call(place).args(&["init", "--repository-version", "2"])
    }
    fn backup(&self, place: &Place, disk: &Disk<'_>, changed: Option<&Path>) -> Option<Call> {
        let call = Self::call(place).args(&["backup", "--tag", disk.machine]).arg(disk.path);
        changed.is_none().then_some(call)
    }
    fn restore(&self, place: &Place, disk: &Disk<'_>, target: &Path) -> Option<(Call, PathBuf)> {
        let call = Self::call(place).args(&["restore", "latest", "--tag", disk.machine]);
        let call = if Self::writes_holes() { call.args(&["--sparse"]) } else { call };
        Some((call.args(&["--target"]).arg(target), below(target, disk.path)))
    }
    fn check(&self, place: &Place) -> Call {
        Self::call(place).args(&["check", "--read-data"])
    }
}

struct Borg;

impl Borg {
    fn call(place: &Place, command: &str) -> Call {
        Call::new("borg")
            .env("BORG_REPO", &place.repository)
            .env("BORG_PASSPHRASE", "bench")
            .env("BORG_BASE_DIR", &place.home)
            .env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes")
            .args(&[command])
    }
}

impl System for Borg {
    fn name(&self) -> &'static str {
        "borg"
    }
    fn version(&self) -> Call {
        Call::new("borg").args(&["--version"])
    }
    fn init(&self, place: &Place) -> Call {
        Self::call(place, "init").args(&["--encryption", "repokey-blake2"])
    }
    fn backup(&self, place: &Place, disk: &Disk<'_>, changed: Option<&Path>) -> Option<Call> {
        let archive = format!("::{}-{}", disk.machine, disk.day);
        let call = Self::call(place, "create").args(&["--compression", "zstd", "--sparse"]);
        changed.is_none().then(|| call.args(&[&archive]).arg(disk.path))
    }
    fn restore(&self, place: &Place, disk: &Disk<'_>, target: &Path) -> Option<(Call, PathBuf)> {
        let archive = format!("::{}-{}", disk.machine, disk.day);
        let call = Self::call(place, "extract").args(&["--sparse", &archive]).within(target);
        Some((call, below(target, disk.path)))
    }
    fn check(&self, place: &Place) -> Call {
        Self::call(place, "check").args(&["--verify-data"])
    }
}

struct Kopia;

impl Kopia {
    fn call(place: &Place) -> Call {
        Call::new("kopia")
            .env("KOPIA_CONFIG_PATH", place.home.join("repository.config"))
            .env("KOPIA_CACHE_DIRECTORY", place.home.join("cache"))
            .env("KOPIA_LOG_DIR", place.home.join("logs"))
            .env("KOPIA_PASSWORD", "bench")
            .env("KOPIA_CHECK_FOR_UPDATES", "false")
    }
}

impl System for Kopia {
    fn name(&self) -> &'static str {
        "kopia"
    }
    fn version(&self) -> Call {
        Call::new("kopia").args(&["--version"])
    }
    fn init(&self, place: &Place) -> Call {
        Self::call(place)
            .args(&["repository", "create", "filesystem", "--path"])
            .arg(&place.repository)
    }
    fn backup(&self, place: &Place, disk: &Disk<'_>, changed: Option<&Path>) -> Option<Call> {
        let call = Self::call(place).args(&["snapshot", "create"]).arg(disk.path);
        changed.is_none().then_some(call)
    }
    fn restore(&self, place: &Place, disk: &Disk<'_>, target: &Path) -> Option<(Call, PathBuf)> {
        let file = target.join(format!("{}.raw", disk.machine));
        let call = Self::call(place).args(&["restore", "--snapshot-time", "latest"]);
        Some((call.arg(disk.path).arg(&file), file))
    }
    fn check(&self, place: &Place) -> Call {
        Self::call(place).args(&["snapshot", "verify", "--verify-files-percent", "100"])
    }
}

struct Rustic;

impl Rustic {
    fn call(place: &Place) -> Call {
        Call::new("rustic")
            .env("RUSTIC_REPOSITORY", &place.repository)
            .env("RUSTIC_PASSWORD", "bench")
            .env("RUSTIC_CACHE_DIR", &place.home)
            .env("RUSTIC_NO_PROGRESS", "true")
    }
}

impl System for Rustic {
    fn name(&self) -> &'static str {
        "rustic"
    }
    fn version(&self) -> Call {
        Call::new("rustic").args(&["--version"])
    }
    fn init(&self, place: &Place) -> Call {
        Self::call(place).args(&["init"])
    }
    fn backup(&self, place: &Place, disk: &Disk<'_>, changed: Option<&Path>) -> Option<Call> {
        let call = Self::call(place).args(&["backup", "--tag", disk.machine]).arg(disk.path);
        changed.is_none().then_some(call)
    }
    fn restore(&self, place: &Place, disk: &Disk<'_>, target: &Path) -> Option<(Call, PathBuf)> {
        let file = target.join(format!("{}.raw", disk.machine));
        let snapshot = format!("latest:{}", disk.path.display());
        let call = Self::call(place).args(&["restore", "--filter-tags", disk.machine, &snapshot]);
        Some((call.arg(&file), file))
    }
    fn restore_in_place(&self, place: &Place, disk: &Disk<'_>, target: &Path) -> Option<Call> {
        let snapshot = format!("latest:{}", disk.path.display());
        let call = Self::call(place).args(&["restore", "--filter-tags", disk.machine, &snapshot]);
        Some(call.arg(target))
    }
    fn check(&self, place: &Place) -> Call {
        Self::call(place).args(&["check", "--read-data"])
    }
}
