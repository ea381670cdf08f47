//! The peers, at their default settings with zstd, each with a call for every disk and with one for
//! all.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::process::Call;
use crate::system::{Disk, Place, Reading, Silt, System, files};
use crate::workload::Workload;

/// Silt and every peer that is on the PATH; or those that are named.
pub fn systems(silt: &Path, wanted: &[String]) -> Vec<Box<dyn System>> {
    let silt = |in_rounds| Silt { program: silt.to_owned(), in_rounds };
    let mut all: Vec<Box<dyn System>> = vec![Box::new(silt(false)), Box::new(silt(true))];
    for at_once in [false, true] {
        all.push(Box::new(Restic { at_once }));
        all.push(Box::new(Borg { at_once }));
        all.push(Box::new(Kopia { at_once }));
        all.push(Box::new(Rustic { at_once }));
    }
    let is_wanted = |name: &str| wanted.iter().any(|it| it == name || it == program(name));
    if wanted.is_empty() {
        all.retain(|system| system.version().run().is_ok());
    } else {
        all.retain(|system| is_wanted(system.name()));
    }
    all
}

/// The program of a system's name.
pub fn program(name: &str) -> &str {
    name.split(' ').next().unwrap_or(name)
}

/// The paths at which restic and those like it put restored files.
fn below(disks: &[Disk<'_>], target: &Path) -> Vec<PathBuf> {
    let path = |disk: &Disk<'_>| target.join(disk.path.strip_prefix("/").unwrap_or(disk.path));
    disks.iter().map(path).collect()
}

/// What the disks of a call are called together.
fn label<'d>(disks: &[Disk<'d>]) -> &'d str {
    match disks {
        [disk] => disk.machine,
        _ => "all",
    }
}

fn with_paths(call: Call, disks: &[Disk<'_>]) -> Call {
    disks.iter().fold(call, |call, disk| call.arg(disk.path))
}

/// A backup program that silt is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Restic,
    Borg,
    Kopia,
    Rustic,
}

impl Peer {
    /// The name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Restic => "restic",
            Self::Borg => "borg",
            Self::Kopia => "kopia",
            Self::Rustic => "rustic",
        }
    }

    pub fn version(self, program: impl Into<OsString>) -> Call {
        match self {
            Self::Restic => Call::new(program).args(&["version"]),
            Self::Borg | Self::Kopia | Self::Rustic => Call::new(program).args(&["--version"]),
        }
    }

    /// The program on a repository, with a command.
    pub fn call(self, program: impl Into<OsString>, place: &Place, command: &[&str]) -> Call {
        let call = Call::new(program);
        let call = match self {
            Self::Restic => call
                .env("RESTIC_REPOSITORY", &place.repository)
                .env("RESTIC_PASSWORD", "bench")
                .env("RESTIC_CACHE_DIR", &place.home)
                .args(&["--quiet"]),
            Self::Borg => call
                .env("BORG_REPO", &place.repository)
                .env("BORG_PASSPHRASE", "bench")
                .env("BORG_BASE_DIR", &place.home)
                .env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes"),
            Self::Kopia => call
                .env("KOPIA_CONFIG_PATH", place.home.join("repository.config"))
                .env("KOPIA_CACHE_DIRECTORY", place.home.join("cache"))
                .env("KOPIA_LOG_DIR", place.home.join("logs"))
                .env("KOPIA_PASSWORD", "bench")
                .env("KOPIA_CHECK_FOR_UPDATES", "false"),
            Self::Rustic => call
                .env("RUSTIC_REPOSITORY", &place.repository)
                .env("RUSTIC_PASSWORD", "bench")
                .env("RUSTIC_CACHE_DIR", &place.home)
                .env("RUSTIC_NO_PROGRESS", "true"),
        };
        call.args(command)
    }

    /// Makes the repository. Kopia compresses nothing unless a policy says so.
    pub fn init(self, program: impl Into<OsString>, place: &Place) -> Vec<Call> {
        let program = program.into();
        let call = |command: &[&str]| self.call(&program, place, command);
        match self {
            Self::Restic => vec![call(&["init", "--repository-version", "2"])],
            Self::Borg => vec![call(&["init", "--encryption", "repokey-blake2"])],
            Self::Rustic => vec![call(&["init"])],
            Self::Kopia => {
                let create = call(&["repository", "create", "filesystem", "--path"]);
                let policy = call(&["policy", "set", "--global", "--compression=zstd"]);
                vec![create.arg(&place.repository), policy]
            }
        }
    }

    /// Backs up what the caller adds. Borg does not use zstd by itself.
    pub fn backup(self, program: impl Into<OsString>, place: &Place) -> Call {
        let command: &[&str] = match self {
            Self::Restic | Self::Rustic => &["backup"],
            Self::Borg => &["create", "--compression", "zstd", "--sparse"],
            Self::Kopia => &["snapshot", "create", "--no-progress"],
        };
        self.call(program, place, command)
    }
}

struct Restic {
    at_once: bool,
}

impl Restic {
    /// Newer versions have more options.
    fn knows(command: &str, option: &str) -> bool {
        let help = std::process::Command::new("restic").args([command, "--help"]).output();
        help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(option))
    }
}

impl System for Restic {
    fn name(&self) -> &'static str {
        if self.at_once { "restic at once" } else { "restic" }
    }
    fn version(&self) -> Call {
        Peer::Restic.version("restic")
    }
    fn init(&self, place: &Place) -> Vec<Call> {
        Peer::Restic.init("restic", place)
    }
    fn takes_all(&self, _: Workload) -> bool {
        self.at_once
    }
    fn backup(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        reading: Reading<'_>,
    ) -> Result<Option<Call>> {
        let call = Peer::Restic.backup("restic", place).args(&["--tag", label(disks)]);
        Ok(match reading {
            Reading::Usual => Some(with_paths(call, disks)),
            Reading::Everything => Some(with_paths(call.args(&["--force"]), disks)),
            Reading::Changed(_) => None,
        })
    }
    fn restore(&self, place: &Place, disks: &[Disk<'_>], target: &Path) -> (Call, Vec<PathBuf>) {
        let call =
            Peer::Restic.call("restic", place, &["restore", "latest", "--tag", label(disks)]);
        let writes_holes = Self::knows("restore", "--sparse");
        let call = if writes_holes { call.args(&["--sparse"]) } else { call };
        (call.args(&["--target"]).arg(target), below(disks, target))
    }
    fn restore_in_place(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        target: &Path,
    ) -> Option<(Call, Vec<PathBuf>)> {
        Self::knows("restore", "--overwrite").then(|| self.restore(place, disks, target))
    }
    fn check(&self, place: &Place) -> Call {
        Peer::Restic.call("restic", place, &["check", "--read-data"])
    }
}

struct Borg {
    at_once: bool,
}

impl Borg {
    fn archive(disks: &[Disk<'_>]) -> String {
        format!("::{}-{}", label(disks), disks.first().map_or(0, |disk| disk.day))
    }
}

impl System for Borg {
    fn name(&self) -> &'static str {
        if self.at_once { "borg at once" } else { "borg" }
    }
    fn version(&self) -> Call {
        Peer::Borg.version("borg")
    }
    fn init(&self, place: &Place) -> Vec<Call> {
        Peer::Borg.init("borg", place)
    }
    fn takes_all(&self, _: Workload) -> bool {
        self.at_once
    }
    fn backup(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        reading: Reading<'_>,
    ) -> Result<Option<Call>> {
        let call = Peer::Borg.backup("borg", place);
        let call = match reading {
            Reading::Usual => call,
            Reading::Everything => call.args(&["--files-cache", "disabled"]),
            Reading::Changed(_) => return Ok(None),
        };
        Ok(Some(with_paths(call.arg(Self::archive(disks)), disks)))
    }
    fn restore(&self, place: &Place, disks: &[Disk<'_>], target: &Path) -> (Call, Vec<PathBuf>) {
        let call = Peer::Borg.call("borg", place, &["extract", "--sparse"]).within(target);
        (call.arg(Self::archive(disks)), below(disks, target))
    }
    fn check(&self, place: &Place) -> Call {
        Peer::Borg.call("borg", place, &["check", "--verify-data"])
    }
}

struct Kopia {
    at_once: bool,
}

impl System for Kopia {
    fn name(&self) -> &'static str {
        if self.at_once { "kopia at once" } else { "kopia" }
    }
    fn version(&self) -> Call {
        Peer::Kopia.version("kopia")
    }
    fn init(&self, place: &Place) -> Vec<Call> {
        Peer::Kopia.init("kopia", place)
    }
    /// Its restore takes one snapshot, of one disk.
    fn takes_all(&self, workload: Workload) -> bool {
        self.at_once && workload <= Workload::Unchanged
    }
    fn backup(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        reading: Reading<'_>,
    ) -> Result<Option<Call>> {
        let call = Peer::Kopia.backup("kopia", place);
        Ok(match reading {
            Reading::Usual => Some(with_paths(call, disks)),
            Reading::Everything => Some(with_paths(call.args(&["--force-hash=100"]), disks)),
            Reading::Changed(_) => None,
        })
    }
    fn restore(&self, place: &Place, disks: &[Disk<'_>], target: &Path) -> (Call, Vec<PathBuf>) {
        let call = Peer::Kopia.call("kopia", place, &["restore", "--snapshot-time", "latest"]);
        let call = call.args(&["--write-sparse-files", "--no-progress"]);
        let files = files(disks, target);
        let call =
            disks.iter().zip(&files).fold(call, |call, (disk, file)| call.arg(disk.path).arg(file));
        (call, files)
    }
    fn check(&self, place: &Place) -> Call {
        Peer::Kopia.call("kopia", place, &["snapshot", "verify", "--verify-files-percent", "100"])
    }
}

struct Rustic {
    at_once: bool,
}

impl System for Rustic {
    fn name(&self) -> &'static str {
        if self.at_once { "rustic at once" } else { "rustic" }
    }
    fn version(&self) -> Call {
        Peer::Rustic.version("rustic")
    }
    fn init(&self, place: &Place) -> Vec<Call> {
        Peer::Rustic.init("rustic", place)
    }
    fn takes_all(&self, _: Workload) -> bool {
        self.at_once
    }
    fn backup(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        reading: Reading<'_>,
    ) -> Result<Option<Call>> {
        let call = Peer::Rustic.backup("rustic", place).args(&["--tag", label(disks)]);
        Ok(match reading {
            Reading::Usual => Some(with_paths(call, disks)),
            Reading::Everything => Some(with_paths(call.args(&["--force"]), disks)),
            Reading::Changed(_) => None,
        })
    }
    fn restore(&self, place: &Place, disks: &[Disk<'_>], target: &Path) -> (Call, Vec<PathBuf>) {
        let folder = disks.first().and_then(|disk| disk.path.parent()).unwrap_or(target);
        let snapshot = format!("latest:{}", folder.display());
        let call = Peer::Rustic.call(
            "rustic",
            place,
            &["restore", "--filter-tags", label(disks), &snapshot],
        );
        (call.arg(target), files(disks, target))
    }
    fn restore_in_place(
        &self,
        place: &Place,
        disks: &[Disk<'_>],
        target: &Path,
    ) -> Option<(Call, Vec<PathBuf>)> {
        Some(self.restore(place, disks, target))
    }
    fn check(&self, place: &Place) -> Call {
        Peer::Rustic.call("rustic", place, &["check", "--read-data"])
    }
}
