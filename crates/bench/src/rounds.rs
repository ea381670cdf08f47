//! Rounds against backing the same disks up one by one, day by day, by turns.

use std::fmt::Write as _;
use std::path::Path;

use crate::disks::Disks;
use crate::process::{Call, Cost};
use crate::{Result, RoundsOptions, sharing};

/// At most so many days are backed up.
const DAYS_MAX: usize = 30;

/// A way to back up all machines of a day.
struct Way<'o> {
    name: &'static str,
    options: &'o RoundsOptions,
    /// What each day has taken.
    costs: Vec<Cost>,
}

impl Way<'_> {
    fn folder(&self) -> std::path::PathBuf {
        self.options.disks.work.join(self.name.replace(' ', "-"))
    }

    fn silt(&self) -> Call {
        Call::new(&self.options.silt)
            .env("SILT_REPOSITORY", self.folder())
            .env("SILT_PASSWORD", "bench")
            .args(&["--quiet"])
    }

    fn restic(&self) -> Call {
        Call::new("restic")
            .env("RESTIC_REPOSITORY", self.folder())
            .env("RESTIC_PASSWORD", "bench")
            .args(&["--quiet", "--no-cache"])
    }

    fn init(&self) -> Result<()> {
        if self.folder().exists() {
            std::fs::remove_dir_all(self.folder())?;
        }
        let call = if self.name == "restic" { self.restic() } else { self.silt() };
        call.args(&["init"]).run()?;
        Ok(())
    }

    fn back_up(&mut self, disks: &Disks, day: usize) -> Result<()> {
        warm(disks, day)?;
        let cost = match self.name {
            "one by one" => {
                let mut all = Cost::default();
                for machine in &disks.machines {
                    let call = self.silt().args(&["backup", machine, "--"]);
                    let disk = format!("disk={}", disks.path(machine, day).display());
                    all = all.and(call.arg(disk).run()?);
                }
                all
            }
            "restic" => {
                let files = disks.machines.iter().map(|machine| disks.path(machine, day));
                files.fold(self.restic().args(&["backup"]), Call::arg).run()?
            }
            _ => {
                let fleet = self.options.disks.work.join("fleet.toml");
                write_fleet(&fleet, disks, day)?;
                let call = self.silt().args(&["backup", "--fleet"]).arg(&fleet);
                let call = call.args(&["--temp"]).arg(&self.options.disks.work);
                if self.name == "round with spool" { call.args(&["--spool"]) } else { call }
                    .run()?
            }
        };
        self.costs.push(cost);
        Ok(())
    }
}

pub fn write_fleet(file: &Path, disks: &Disks, day: usize) -> Result<()> {
    let mut text = String::new();
    for machine in &disks.machines {
        let path = disks.path(machine, day);
        writeln!(text, "[series.{machine}]\nvolumes = {{ disk = \"{}\" }}", path.display())?;
    }
    Ok(std::fs::write(file, text)?)
}

/// Reads the disks, so that all find them in the page cache.
pub fn warm(disks: &Disks, day: usize) -> Result<()> {
    for machine in &disks.machines {
        let mut file = std::fs::File::open(disks.path(machine, day))?;
        std::io::copy(&mut file, &mut std::io::sink())?;
    }
    Ok(())
}

/// Measures, and prints a table.
pub fn run(options: &RoundsOptions) -> Result<()> {
    std::fs::create_dir_all(&options.disks.work)?;
    let disks = Disks::find(&options.disks.disks, &options.disks.vms, DAYS_MAX)?;
    let mut names = vec!["one by one", "round", "round with spool"];
    names.extend(options.restic.then_some("restic"));
    let ways = names.into_iter().map(|name| Way { name, options, costs: Vec::new() });
    let mut ways: Vec<Way<'_>> = ways.collect();
    ways.iter().try_for_each(Way::init)?;
    for day in 0..=disks.last() {
        for way in &mut ways {
            eprintln!("day {day}: {}", way.name);
            way.back_up(&disks, day)?;
        }
    }
    let days = disks.last() + 1;
    print!("| {} machines, wall s |", disks.machines.len());
    (0..days).for_each(|day| print!(" day {day} |"));
    println!(" all | of one by one | CPU s | MiB at most | repository MB |");
    println!("|---|{}---:|---:|---:|---:|---:|", "---:|".repeat(days));
    let total = |way: &Way<'_>| way.costs.iter().map(|cost| cost.wall_s).sum::<f64>();
    let base = total(&ways[0]);
    for way in &ways {
        print!("| {} |", way.name);
        way.costs.iter().for_each(|cost| print!(" {:.2} |", cost.wall_s));
        let all = way.costs.iter().fold(Cost::default(), |all, cost| all.and(*cost));
        println!(
            " {:.2} | {:.2} | {:.1} | {:.0} | {} |",
            all.wall_s,
            all.wall_s / base,
            all.cpu_s,
            all.rss_bytes as f64 / f64::from(1 << 20),
            sharing::folder_bytes(&way.folder())? / 1_000_000
        );
        std::fs::remove_dir_all(way.folder())?;
    }
    Ok(())
}
