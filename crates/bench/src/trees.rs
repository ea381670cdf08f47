//! File trees: silt and its peers on the same directories, by turns.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::ext4::Ext4;
use crate::peers::Peer;
use crate::process::{Call, Cost};
use crate::report::first_line;
use crate::sharing::folder_bytes;
use crate::system::{Place, Silt, System};
use crate::{Result, TreesOptions};

/// A file that was changed shortly before is read again by the next backup of silt.
const SETTLE: std::time::Duration = std::time::Duration::from_secs(3);
/// Where restored trees are until the end. For minutes, ext4 gives nobody the inodes of files that
/// were just removed, and searching for others takes longer than restoring.
const RESTORED: &str = "restored";
/// Files in a folder of the tree of small files.
const FOLDER_FILES: u64 = 1000;

/// A task, and the share of restic's time that silt may take.
const TASKS: [(&str, f64); 4] =
    [("first backup", 0.35), ("nothing changed", 0.25), ("next version", 0.35), ("restore", 0.6)];
/// The share of restic's repository.
const SIZE_BAR: f64 = 0.85;

/// A backup program.
enum Program {
    Silt(Silt),
    Peer(Peer, PathBuf),
}

/// What one program took for one tree.
#[derive(Serialize)]
struct Measured {
    program: &'static str,
    run: usize,
    /// As [`TASKS`]; what the tree does not have is missing.
    costs: Vec<Cost>,
    repository_bytes: u64,
    /// What `silt optimize` took then, and the repository after it.
    optimized: Option<(Cost, u64)>,
}

pub fn run(options: &TreesOptions) -> Result<()> {
    std::fs::create_dir_all(&options.work)?;
    // Borg restores into the folder that it is called in.
    let work = std::path::absolute(&options.work)?;
    let silt = Silt { program: options.silt.clone(), in_rounds: false };
    let mut programs = vec![Program::Silt(silt)];
    for (peer, program) in [
        (Peer::Restic, &options.restic),
        (Peer::Rustic, &options.rustic),
        (Peer::Borg, &options.borg),
        (Peer::Kopia, &options.kopia),
    ] {
        programs.extend(program.clone().map(|program| Program::Peer(peer, program)));
    }
    for program in &programs {
        program.version().run()?;
        println!("{}: {}", program.name(), first_line(&program.version()));
    }
    println!();
    let mut all = Vec::new();
    let tree = work.join("tree");
    if let Some(first) = options.source.first() {
        println!("{} and {} later versions\n", first.display(), options.source.len() - 1);
        for (run, program) in turns(&programs, options.runs) {
            replace(first, &tree)?;
            all.push(program.measure(&work, run, options.source.get(1), options)?);
        }
        print(&programs, &all);
    }
    if options.small_files > 0 {
        println!("\n{} small and empty files\n", options.small_files);
        remove(&tree)?;
        small_files(&tree, options.small_files)?;
        std::thread::sleep(SETTLE);
        let mut small = Vec::new();
        for (run, program) in turns(&programs, options.runs) {
            small.push(program.measure(&work, run, None, options)?);
        }
        print(&programs, &small);
        all.append(&mut small);
    }
    remove(&tree)?;
    remove(&work.join(RESTORED))?;
    std::fs::write(work.join("trees.json"), serde_json::to_string_pretty(&all)?)?;
    Ok(())
}

/// All programs in each run, each run beginning with another one.
fn turns(programs: &[Program], runs: usize) -> impl Iterator<Item = (usize, &Program)> {
    (0..runs).flat_map(move |run| {
        let programs = programs.iter().cycle().skip(run % programs.len()).take(programs.len());
        programs.map(move |program| (run, program))
    })
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
            Self::Peer(peer, _) => peer.name(),
        }
    }

    fn version(&self) -> Call {
        match self {
            Self::Silt(silt) => silt.version(),
            Self::Peer(peer, program) => peer.version(program),
        }
    }

    fn init(&self, place: &Place) -> Vec<Call> {
        match self {
            Self::Silt(silt) => silt.init(place),
            Self::Peer(peer, program) => peer.init(program, place),
        }
    }

    /// The backup with this number.
    fn backup(&self, place: &Place, tree: &Path, number: usize) -> Call {
        let call = match self {
            Self::Silt(silt) => silt.call(place).args(&["backup", "home"]),
            Self::Peer(Peer::Borg, program) => {
                Peer::Borg.backup(program, place).args(&[&format!("::tree-{number}")])
            }
            Self::Peer(peer, program) => peer.backup(program, place),
        };
        call.arg(tree)
    }

    /// Restores the backup with this number, which is the last, into an empty folder.
    fn restore(&self, place: &Place, tree: &Path, target: &Path, number: usize) -> Call {
        let (Self::Peer(_, program) | Self::Silt(Silt { program, .. })) = self;
        let latest = format!("latest:{}", tree.display());
        match self {
            Self::Silt(silt) => silt.call(place).args(&["restore", "home@latest"]).arg(target),
            Self::Peer(peer @ Peer::Restic, _) => {
                peer.call(program, place, &["restore", &latest, "--target"]).arg(target)
            }
            Self::Peer(peer @ Peer::Rustic, _) => {
                peer.call(program, place, &["restore", &latest]).arg(target)
            }
            Self::Peer(peer @ Peer::Borg, _) => {
                // Archives have paths without the first slash, and so has the target.
                let above = tree.components().count() - 1;
                let (above, archive) = (above.to_string(), format!("::tree-{number}"));
                let command = ["extract", "--sparse", "--strip-components", &above, &archive];
                peer.call(program, place, &command).within(target)
            }
            Self::Peer(peer @ Peer::Kopia, _) => {
                let command = ["restore", "--snapshot-time", "latest", "--no-progress"];
                peer.call(program, place, &command).arg(tree).arg(target)
            }
        }
    }

    /// Does all tasks with a new repository.
    fn measure(
        &self,
        work: &Path,
        run: usize,
        next: Option<&PathBuf>,
        options: &TreesOptions,
    ) -> Result<Measured> {
        let (folder, tree) = (work.join("place"), work.join("tree"));
        remove(&folder)?;
        let place = Place { repository: folder.join("repository"), home: folder.join("home") };
        std::fs::create_dir_all(&place.home)?;
        let sync = || Call::new("sync").run();
        self.init(&place).iter().try_for_each(|call| call.run().map(drop))?;
        sync()?;
        let mut costs = vec![self.backup(&place, &tree, 0).run()?];
        costs.push(self.backup(&place, &tree, 1).run()?);
        let mut repository_bytes = folder_bytes(&place.repository)?;
        if let Some(next) = next {
            replace(next, &tree)?;
            sync()?;
            costs.push(self.backup(&place, &tree, 2).run()?);
            repository_bytes = folder_bytes(&place.repository)?;
            costs.push(self.measure_restore(work, &place, run, options.ext4)?);
        }
        let optimized = match self {
            Self::Silt(silt) if options.optimize => {
                let cost = silt.call(&place).args(&["optimize"]).run()?;
                Some((cost, folder_bytes(&place.repository)?))
            }
            _ => None,
        };
        remove(&folder)?;
        Ok(Measured { program: self.name(), run, costs, repository_bytes, optimized })
    }

    /// Restores the third backup, and compares what is there.
    fn measure_restore(
        &self,
        work: &Path,
        place: &Place,
        run: usize,
        ext4: Option<u64>,
    ) -> Result<Cost> {
        let tree = work.join("tree");
        let ext4 = ext4.map(|gib| Ext4::make(work, gib)).transpose()?;
        let restored = ext4.as_ref().map_or_else(|| work.join(RESTORED), |it| it.folder.clone());
        let target = restored.join(format!("{}-{run}", self.name()));
        std::fs::create_dir_all(&target)?;
        let sync = || Call::new("sync").run();
        sync()?;
        // What is restored is on the disk, whoever sees to that.
        let cost = self.restore(place, &tree, &target, 2).run()?.and(sync()?);
        // Kopia makes files of their own from hard links.
        let kept = if matches!(self, Program::Peer(Peer::Kopia, ..)) { "-rl" } else { "-rlH" };
        let same = [kept, "--checksum", "--dry-run", "--itemize-changes", "--delete"];
        let sides = [&tree, &target].map(|side| format!("{}/", side.display()));
        Call::new("rsync").args(&same).args(&[&sides[0], &sides[1]]).silent()?;
        Ok(cost)
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
    let of =
        |value: fn(&(Cost, u64)) -> f64| median(all, "silt", |it| it.optimized.as_ref().map(value));
    if let Some(bytes) = of(|(_, bytes)| *bytes as f64) {
        let restic = median(all, "restic", |it| Some(it.repository_bytes as f64));
        println!(
            "after `silt optimize` ({:.1} s, CPU {:.1} s, {:.0} MiB at most): {:.0} MiB, {} \
             of restic's",
            of(|(cost, _)| cost.wall_s).unwrap_or(0.0),
            of(|(cost, _)| cost.cpu_s).unwrap_or(0.0),
            of(|(cost, _)| cost.rss_bytes as f64).unwrap_or(0.0) / 1_048_576.0,
            bytes / 1_048_576.0,
            shown(restic.map(|restic| bytes / restic)),
        );
    }
}
