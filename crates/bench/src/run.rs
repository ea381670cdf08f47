//! The workloads, run by turns.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use silt_source::{ExtentKind, SourceOptions, open_source};

use crate::bounds::Bounds;
use crate::changes::{same, write_map};
use crate::disks::{DAYS, Disks};
use crate::peers::systems;
use crate::process::{Call, Cost};
use crate::report::{Measured, Results};
use crate::system::{Disk, Place, Reading, System};
use crate::workload::Workload;
use crate::{Options, Result};

/// How many ranges are restored, and how long each is.
const RANGES: u64 = 16;
const RANGE_BYTES: u64 = 1 << 20;

/// Measures, and writes the results.
pub fn run(options: &Options) -> Result<()> {
    let disks = Disks::find(&options.disks, &options.vms, DAYS)?;
    std::fs::create_dir_all(&options.work)?;
    let work = options.work.canonicalize()?;
    let systems = systems(&options.silt, &options.systems);
    let known = |name: &String| Workload::ALL.iter().any(|workload| workload.name() == *name);
    if let Some(unknown) = options.workloads.iter().find(|name| !known(name)) {
        let names: Vec<_> = Workload::ALL.iter().map(|workload| workload.name()).collect();
        return Err(format!("no workload is called {unknown}: use {}", names.join(", ")).into());
    }
    let wanted = |workload: Workload| {
        let named = options.workloads.iter().any(|name| name == workload.name());
        options.workloads.is_empty() || named || workload.is_needed()
    };
    let workloads: Vec<_> = Workload::ALL.into_iter().filter(|w| wanted(*w)).collect();
    let mut bench = Bench { disks, work, measured: BTreeMap::new() };
    let maps = bench.prepare()?;
    for round in 0..options.runs.max(1) {
        for system in &systems {
            bench.init(system.as_ref())?;
        }
        for workload in &workloads {
            for system in &systems {
                // By turns also in who comes first would matter little: each step begins synced.
                eprintln!("round {}: {}, {}", round + 1, workload.name(), system.name());
                bench.step(system.as_ref(), *workload, &maps)?;
            }
        }
    }
    let results = Results::new(&bench.disks, &systems, bench.measured, bench_bounds(options)?);
    results.write(&bench.work)?;
    println!("{}", results.markdown());
    Ok(())
}

/// The bounds, measured by a process of their own.
fn bench_bounds(options: &Options) -> Result<Bounds> {
    eprintln!("bounds");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bounds").arg("--disks").arg(&options.disks).arg("--work").arg(&options.work);
    if !options.vms.is_empty() {
        command.arg("--vms").arg(options.vms.join(","));
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

struct Bench {
    disks: Disks,
    work: PathBuf,
    measured: BTreeMap<(Workload, &'static str), Measured>,
}

impl Bench {
    /// Writes a map of each disk's last day.
    fn prepare(&self) -> Result<BTreeMap<String, PathBuf>> {
        let mut maps = BTreeMap::new();
        for machine in &self.disks.machines {
            let (old, new) = self.last_days(machine);
            let map = self.work.join(format!("{machine}.changed.json"));
            write_map(&old, &new, &map)?;
            maps.insert(machine.clone(), map);
        }
        Ok(maps)
    }

    fn last_days(&self, machine: &str) -> (PathBuf, PathBuf) {
        let last = self.disks.last();
        (self.disks.path(machine, last - 1), self.disks.path(machine, last))
    }

    fn place(&self, system: &dyn System) -> Place {
        let folder = self.work.join(system.name().replace(' ', "-"));
        Place { repository: folder.join("repository"), home: folder.join("home") }
    }

    fn init(&self, system: &dyn System) -> Result<()> {
        let folder = self.work.join(system.name().replace(' ', "-"));
        remove(&folder)?;
        let place = self.place(system);
        std::fs::create_dir_all(&place.home)?;
        system.init(&place).iter().try_for_each(|call| call.run().map(drop))
    }

    /// Runs one workload of one system for all disks.
    fn step(
        &mut self,
        system: &dyn System,
        workload: Workload,
        maps: &BTreeMap<String, PathBuf>,
    ) -> Result<()> {
        let place = self.place(system);
        if workload >= Workload::Restore {
            warm_all(&place.repository)?;
        }
        let before = stored(&place.repository)?;
        let total = self.cost(system, workload, &place, maps)?;
        let after = stored(&place.repository)?;
        let measured = self.measured.entry((workload, system.name())).or_default();
        measured.repository_bytes = after.0;
        if let Some(mut cost) = total {
            cost.written_bytes = after.0.saturating_sub(before.0);
            cost.written_objects = after.1.saturating_sub(before.1);
            measured.runs.push(cost);
        }
        Ok(())
    }

    /// What a workload takes with all disks, at once or one after the other.
    fn cost(
        &self,
        system: &dyn System,
        workload: Workload,
        place: &Place,
        maps: &BTreeMap<String, PathBuf>,
    ) -> Result<Option<Cost>> {
        if workload == Workload::Check {
            return timed(Some(system.check(place)));
        }
        let day = match workload {
            Workload::First => 0,
            // With two days only, the map's day is the next day again.
            Workload::Next => 1,
            _ => self.disks.last(),
        };
        let machines = &self.disks.machines;
        let paths = machines.iter().map(|machine| self.present(machine, day));
        let paths = paths.collect::<Result<Vec<_>>>()?;
        // Before every step, since what ran before may have filled the page cache with holes.
        paths.iter().try_for_each(|path| warm(path))?;
        let disks = machines.iter().zip(&paths).map(|(machine, path)| Disk { machine, day, path });
        let disks: Vec<_> = disks.collect();
        let at_once = if system.takes_all(workload) { disks.len() } else { 1 };
        let mut total = Some(Cost::default());
        for disks in disks.chunks(at_once) {
            let cost = self.step_of(system, workload, place, disks, maps)?;
            total = total.zip(cost).map(|(total, cost)| total.and(cost));
        }
        Ok(total)
    }

    fn step_of(
        &self,
        system: &dyn System,
        workload: Workload,
        place: &Place,
        disks: &[Disk<'_>],
        maps: &BTreeMap<String, PathBuf>,
    ) -> Result<Option<Cost>> {
        let backup = |reading| system.backup(place, disks, reading);
        match workload {
            Workload::First | Workload::Next => timed(backup(Reading::Usual)?),
            Workload::Unchanged => {
                let again = disks.iter().map(|disk| Disk { day: disk.day + 1, ..*disk });
                timed(system.backup(place, &again.collect::<Vec<_>>(), Reading::Everything)?)
            }
            Workload::Map => {
                let map = disks.first().and_then(|disk| maps.get(disk.machine));
                let call = map.map_or(Ok(None), |map| backup(Reading::Changed(map)))?;
                if call.is_none() && self.disks.last() > 1 {
                    // A system without maps takes the day as it does any other, for what follows.
                    timed(backup(Reading::Usual)?)?;
                }
                timed(call)
            }
            Workload::Restore => self.restore(system, place, disks),
            Workload::InPlace => self.restore_in_place(system, place, disks),
            Workload::Ranges => {
                disks.first().map_or(Ok(None), |disk| self.restore_ranges(system, place, disk))
            }
            Workload::Check => Ok(None),
        }
    }

    /// Makes a day's disk appear under a path that is the same every day.
    fn present(&self, machine: &str, day: usize) -> Result<PathBuf> {
        let folder = self.work.join("disks");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{machine}.raw"));
        remove(&path)?;
        std::fs::hard_link(self.disks.path(machine, day), &path).map_err(|error| {
            format!("{}: {error}; --work must be on the disks' file system", path.display())
        })?;
        Ok(path)
    }

    fn restore(
        &self,
        system: &dyn System,
        place: &Place,
        disks: &[Disk<'_>],
    ) -> Result<Option<Cost>> {
        let target = self.fresh_target()?;
        let (call, files) = system.restore(place, disks, &target);
        let cost = written(&call, &target)?;
        self.compare(system, disks, &files)?;
        remove(&target)?;
        Ok(Some(cost))
    }

    fn restore_in_place(
        &self,
        system: &dyn System,
        place: &Place,
        disks: &[Disk<'_>],
    ) -> Result<Option<Cost>> {
        let target = self.fresh_target()?;
        let Some((call, files)) = system.restore_in_place(place, disks, &target) else {
            return Ok(None);
        };
        for (disk, file) in disks.iter().zip(&files) {
            file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            let (old, _) = self.last_days(disk.machine);
            Call::new("cp").args(&["--sparse=always"]).arg(old).arg(file).run()?;
        }
        let cost = written(&call, &target)?;
        self.compare(system, disks, &files)?;
        remove(&target)?;
        Ok(Some(cost))
    }

    fn restore_ranges(
        &self,
        system: &dyn System,
        place: &Place,
        disk: &Disk,
    ) -> Result<Option<Cost>> {
        let target = self.fresh_target()?;
        let file = target.join("range.raw");
        let bytes = std::fs::metadata(disk.path)?.len();
        let mut total = Some(Cost::default());
        let mut random = 1_u64;
        for _ in 0..RANGES {
            // Knuth's MMIX generator: the same places in every run.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let places = bytes.saturating_sub(RANGE_BYTES) / 4096 + 1;
            let start = (random >> 16) % places * 4096;
            let range = (start, (start + RANGE_BYTES).min(bytes));
            let cost = timed(system.restore_range(place, disk, range, &file))?;
            total = total.zip(cost).map(|(total, cost)| total.and(cost));
        }
        remove(&target)?;
        Ok(total)
    }

    fn fresh_target(&self) -> Result<PathBuf> {
        let target = self.work.join("restored");
        remove(&target)?;
        std::fs::create_dir_all(&target)?;
        Ok(target)
    }

    fn compare(&self, system: &dyn System, disks: &[Disk<'_>], files: &[PathBuf]) -> Result<()> {
        for (disk, file) in disks.iter().zip(files) {
            if !same(&self.disks.path(disk.machine, disk.day), file)? {
                let text = format!("{} restored {} wrongly", system.name(), disk.machine);
                return Err(text.into());
            }
        }
        Ok(())
    }
}

/// Runs a call that writes below `target`, until all that it has written is on the disk.
fn written(call: &Call, target: &Path) -> Result<Cost> {
    rustix::fs::sync();
    let mut cost = call.run()?;
    let begin = Instant::now();
    rustix::fs::syncfs(std::fs::File::open(target)?)?;
    cost.wall_s += begin.elapsed().as_secs_f64();
    Ok(cost)
}

/// Runs a call after the disk has come to rest.
fn timed(call: Option<Call>) -> Result<Option<Cost>> {
    rustix::fs::sync();
    call.map(|call| call.run()).transpose()
}

fn remove(path: &Path) -> Result<()> {
    let removed =
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()).into())
        }
        _ => Ok(()),
    }
}

/// Reads all of a disk that is not holes into the page cache.
pub fn warm(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path)?;
    let source = open_source(path, &SourceOptions::default())?;
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < source.info().size.unwrap_or(0) {
        let extent = source.extent_at(offset)?;
        let end = extent.offset + extent.length;
        while extent.kind == ExtentKind::Data && offset < end {
            let length = usize::try_from(end - offset)?.min(buffer.len());
            offset += file.read_at(&mut buffer[..length], offset)? as u64;
        }
        offset = end;
    }
    Ok(())
}

/// Reads all files below a folder into the page cache.
fn warm_all(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            warm_all(&path)?;
        } else {
            std::io::copy(&mut std::fs::File::open(&path)?, &mut std::io::sink())?;
        }
    }
    Ok(())
}

/// Bytes and number of the files below a folder.
fn stored(folder: &Path) -> Result<(u64, u64)> {
    let mut total = (0, 0);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let data = entry.metadata()?;
        let (bytes, files) = if data.is_dir() { stored(&entry.path())? } else { (data.len(), 1) };
        total = (total.0 + bytes, total.1 + files);
    }
    Ok(total)
}
