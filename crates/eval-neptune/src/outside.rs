//! Programs of others on the same versions: rsync and xdelta3, as they are installed.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Result;
use crate::prepare::{Cut, Prepared};

/// What a program sent after round 0, or why there is nothing.
pub struct Outside {
    pub name: &'static str,
    pub sent: std::result::Result<u64, String>,
}

/// Bytes of all versions at most; beyond it, the programs do not run.
const BYTES_MAX: u64 = 1 << 30;

/// Runs the programs that are installed.
pub fn run(prepared: &Prepared) -> Vec<Outside> {
    let explained = |sent: Result<u64>| sent.map_err(|error| error.to_string());
    let all = [
        ("rsync, without compression", "rsync", &["--no-whole-file"][..]),
        ("rsync -z", "rsync", &["--no-whole-file", "-z"][..]),
        ("xdelta3 -9, by file", "xdelta3", &[][..]),
    ];
    all.into_iter()
        .map(|(name, program, options)| {
            let sent = if !is_installed(program) {
                Err(format!("{program} is not installed"))
            } else if prepared.bytes > BYTES_MAX {
                Err("the set is too large for copies of its files".to_owned())
            } else if program == "rsync" {
                explained(rsync(prepared, options))
            } else {
                explained(xdelta(prepared))
            };
            Outside { name, sent }
        })
        .collect()
}

fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

fn write(prepared: &Prepared, version: &Cut, folder: &Path) -> Result<()> {
    Ok(std::fs::write(folder.join(version.file.to_string()), prepared.version(version))?)
}

/// Bytes that rsync sends between two folders, round by round.
fn rsync(prepared: &Prepared, options: &[&str]) -> Result<u64> {
    let (from, to) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut total = 0;
    for round in prepared.versions.chunk_by(|a, b| a.round == b.round) {
        for version in round {
            write(prepared, version, from.path())?;
            if version.round == 0 {
                write(prepared, version, to.path())?;
            }
        }
        if round.first().is_none_or(|version| version.round == 0) {
            continue;
        }
        let names: Vec<String> = round.iter().map(|version| version.file.to_string()).collect();
        let list = tempfile::NamedTempFile::new()?;
        std::fs::write(list.path(), names.join("\n"))?;
        let output = Command::new("rsync")
            .env("LC_ALL", "C")
            .args(["-I", "--no-human-readable", "--stats", "--files-from"])
            .arg(list.path())
            .args(options)
            .arg(format!("{}/", from.path().display()))
            .arg(format!("{}/", to.path().display()))
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| line.strip_prefix("Total bytes sent: "));
        total += line.ok_or("rsync printed no total")?.replace(',', "").parse::<u64>()?;
    }
    Ok(total)
}

/// Bytes of xdelta3's deltas from the file's version before; new files are encoded without one.
fn xdelta(prepared: &Prepared) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let (old, new, delta) =
        (folder.path().join("old"), folder.path().join("new"), folder.path().join("delta"));
    let (mut last, mut total) = (HashMap::new(), 0);
    for version in &prepared.versions {
        let before: Option<&Cut> = last.insert(version.file, version);
        if version.round == 0 {
            continue;
        }
        std::fs::write(&new, prepared.version(version))?;
        let mut command = Command::new("xdelta3");
        command.args(["-e", "-f", "-9"]);
        if let Some(before) = before {
            std::fs::write(&old, prepared.version(before))?;
            command.arg("-s").arg(&old);
        }
        let status = command.arg(&new).arg(&delta).status()?;
        if !status.success() {
            return Err("xdelta3 failed".into());
        }
        total += std::fs::metadata(&delta)?.len();
    }
    Ok(total)
}
