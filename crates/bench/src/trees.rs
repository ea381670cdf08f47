//! File trees: silt, restic and Kopia on the same directories, by turns.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::process::{Call, Cost};
use crate::sharing::folder_bytes;
use crate::{Result, TreesOptions};

/// A file that was changed shortly before is read again by the next backup of silt.
const SETTLE: std::time::Duration = std::time::Duration::from_secs(3);
/// Files in a folder of the tree of small files.
const FOLDER_FILES: u64 = 1000;

/// A task, and the share of restic's time that silt may take.
const TASKS: [(&str, f64); 4] =
    [("first backup", 0.35), ("nothing changed", 0.25), ("next version", 0.35), ("restore", 0.6)];
/// The share of restic's repository.
const SIZE_BAR: f64 = 0.85;

/// A backup program.
enum Program {
    Silt(PathBuf),
    Restic(PathBuf),
    Kopia(PathBuf),
}

/// What one program took for one tree.
#[derive(Serialize)]
struct Measured {
    program: &'static str,
    run: usize,
    /// As [`TASKS`]; what the tree does not have is missing.
    costs: Vec<Cost>,
    repository_bytes: u64,
}

pub fn run(options: &TreesOptions) -> Result<()> {
    std::fs::create_dir_all(&options.work)?;
    let mut programs = vec![Program::Silt(options.silt.clone())];
    programs.extend(options.restic.clone().map(Program::Restic));
    programs.extend(options.kopia.clone().map(Program::Kopia));
    for program in &programs {
        program.version().run()?;
    }
    let mut all = Vec::new();
    let tree = options.work.join("tree");
    if let Some(first) = options.source.first() {
        println!("{} and {} later versions\n", first.display(), options.source.len() - 1);
        for run in 0..options.runs {
            for program in &programs {
                replace(first, &tree)?;
                all.push(program.measure(&options.work, run, options.source.get(1))?);
            }
        }
        print(&programs, &all);
    }
    if options.small_files > 0 {
        println!("\n{} small and empty files\n", options.small_files);
        remove(&tree)?;
        small_files(&tree, options.small_files)?;
        std::thread::sleep(SETTLE);
        let mut small = Vec::new();
        for run in 0..options.runs {
            for program in &programs {
                small.push(program.measure(&options.work, run, None)?);
            }
        }
        print(&programs, &small);
        all.append(&mut small);
    }
    remove(&tree)?;
    std::fs::write(options.work.join("trees.json"), serde_json::to_string_pretty(&all)?)?;
    Ok(())
}

/// Lets `tree` be what `source` is, at the same path.
fn replace(source: &Path, tree: &Path) -> Result<()> {
    std::fs::create_dir_all(tree)?;
    let from = format!("{}/", source.display());
    Call::new("rsync").args(&["-aHAX", "--delete", &from]).arg(tree).run()?;
    std::thread::sleep(SETTLE);
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Half of the files are empty, half have a line of their own.
fn small_files(tree: &Path, files: u64) -> Result<()> {
    for number in 0..files {
        let folder = tree.join(format!("{:05}", number / FOLDER_FILES));
        if number.is_multiple_of(FOLDER_FILES) {
            std::fs::create_dir_all(&folder)?;
        }
        let text = if number % 2 == 0 { String::new() } else { format!("file number {number}\n") };
        std::fs::write(folder.join(format!("{number}.txt")), text)?;
    }
    Ok(())
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Self::Silt(_) => "silt",
            Self::Restic(_) => "restic",
            Self::Kopia(_) => "kopia",
        }
    }

    fn version(&self) -> Call {
        match self {
            Self::Silt(program) | Self::Restic(program) => Call::new(program).args(&["version"]),
            Self::Kopia(program) => Call::new(program).args(&["--version"]),
        }
    }

    /// The program on the repository in `place`.
    fn call(&self, place: &Path) -> Call {
        let (repository, home) = (place.join("repository"), place.join("home"));
        match self {
            Self::Silt(program) => Call::new(program)
                .env("SILT_REPOSITORY", repository)
                .env("SILT_PASSWORD", "bench")
                .args(&["--quiet"]),
            Self::Restic(program) => Call::new(program)
                .env("RESTIC_REPOSITORY", repository)
                .env("RESTIC_PASSWORD", "bench")
                .env("RESTIC_CACHE_DIR", home)
                .args(&["--quiet"]),
            Self::Kopia(program) => Call::new(program)
                .env("KOPIA_CONFIG_PATH", home.join("repository.config"))
                .env("KOPIA_CACHE_DIRECTORY", home.join("cache"))
                .env("KOPIA_LOG_DIR", home.join("logs"))
                .env("KOPIA_PASSWORD", "bench")
                .env("KOPIA_CHECK_FOR_UPDATES", "false"),
        }
    }

    fn init(&self, place: &Path) -> Call {
        let call = self.call(place);
        match self {
            Self::Silt(_) | Self::Restic(_) => call.args(&["init"]),
            Self::Kopia(_) => call
                .args(&["repository", "create", "filesystem", "--path"])
                .arg(place.join("repository")),
        }
    }

    fn backup(&self, place: &Path, tree: &Path) -> Call {
        let call = self.call(place);
        match self {
            Self::Silt(_) => call.args(&["backup", "home"]).arg(tree),
            Self::Restic(_) => call.args(&["backup"]).arg(tree),
            Self::Kopia(_) => call.args(&["snapshot", "create"]).arg(tree),
        }
    }

    fn restore(&self, place: &Path, tree: &Path, target: &Path) -> Call {
        let call = self.call(place);
        match self {
            Self::Silt(_) => call.args(&["restore", "home@latest"]).arg(target),
            Self::Restic(_) => {
                let snapshot = format!("latest:{}", tree.display());
                call.args(&["restore", &snapshot, "--target"]).arg(target)
            }
            Self::Kopia(_) => {
                call.args(&["restore", "--snapshot-time", "latest"]).arg(tree).arg(target)
            }
        }
    }

    /// Does all tasks with a new repository.
    fn measure(&self, work: &Path, run: usize, next: Option<&PathBuf>) -> Result<Measured> {
        let (place, tree, target) = (work.join("place"), work.join("tree"), work.join("restored"));
        remove(&place)?;
        std::fs::create_dir_all(place.join("home"))?;
        let sync = || Call::new("sync").run();
        self.init(&place).run()?;
        sync()?;
        let mut costs = vec![self.backup(&place, &tree).run()?];
        costs.push(self.backup(&place, &tree).run()?);
        if let Some(next) = next {
            replace(next, &tree)?;
            sync()?;
            costs.push(self.backup(&place, &tree).run()?);
            let repository_bytes = folder_bytes(&place.join("repository"))?;
            remove(&target)?;
            sync()?;
            // Silt syncs what it restores; the others leave that to the kernel.
            let restored = self.restore(&place, &tree, &target).run()?;
            let synced = if matches!(self, Self::Silt(_)) { Cost::default() } else { sync()? };
            costs.push(restored.and(synced));
            let same = ["-rlH", "--checksum", "--dry-run", "--itemize-changes", "--delete"];
            let sides = [&tree, &target].map(|side| format!("{}/", side.display()));
            Call::new("rsync").args(&same).args(&[&sides[0], &sides[1]]).silent()?;
            remove(&target)?;
            remove(&place)?;
            return Ok(Measured { program: self.name(), run, costs, repository_bytes });
        }
        let repository_bytes = folder_bytes(&place.join("repository"))?;
        remove(&place)?;
        Ok(Measured { program: self.name(), run, costs, repository_bytes })
    }
}

/// The median over the runs of a program.
fn median(
    all: &[Measured],
    program: &str,
    value: impl Fn(&Measured) -> Option<f64>,
) -> Option<f64> {
    let of_program = all.iter().filter(|it| it.program == program);
    let mut values: Vec<f64> = of_program.filter_map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn print(programs: &[Program], all: &[Measured]) {
    println!("| | program | s | of restic's | bar | CPU s | of restic's | MiB at most |");
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    let shown = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |it| format!("{it:.2}"));
    for (at, (task, bar)) in TASKS.iter().enumerate() {
        for program in programs.iter().map(Program::name) {
            let of = |program: &str, value: fn(&Cost) -> f64| {
                median(all, program, |it| it.costs.get(at).map(value))
            };
            let Some(wall_s) = of(program, |cost| cost.wall_s) else { continue };
            let cpu_s = of(program, |cost| cost.cpu_s).unwrap_or(0.0);
            let mib = of(program, |cost| cost.rss_bytes as f64).unwrap_or(0.0) / 1_048_576.0;
            let wall_ratio = of("restic", |cost| cost.wall_s).map(|restic| wall_s / restic);
            let cpu_ratio = of("restic", |cost| cost.cpu_s).map(|restic| cpu_s / restic);
            let bar = if program == "silt" { format!("{bar:.2}") } else { String::new() };
            println!(
                "| {task} | {program} | {wall_s:.2} | {} | {bar} | {cpu_s:.2} | {} | {mib:.0} |",
                shown(wall_ratio),
                shown(cpu_ratio)
            );
        }
    }
    for program in programs.iter().map(Program::name) {
        let of = |program| median(all, program, |it| Some(it.repository_bytes as f64));
        let Some(bytes) = of(program) else { continue };
        let ratio = of("restic").map(|restic| bytes / restic);
        let mib = bytes / 1_048_576.0;
        println!(
            "repository of {program}: {mib:.0} MiB, {} of restic's (bar {SIZE_BAR})",
            shown(ratio)
        );
    }
}
