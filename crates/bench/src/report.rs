//! The results as JSON, Markdown and a plot.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::Result;
use crate::bounds::Bounds;
use crate::disks::Disks;
use crate::peers::program;
use crate::plot;
use crate::process::{Call, Cost};
use crate::system::System;
use crate::workload::Workload;

/// What one workload took one system, run after run.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub runs: Vec<Cost>,
    /// The repository after the last run.
    pub repository_bytes: u64,
}

impl Measured {
    /// The median of one of the figures, `None` if the system can't do the workload.
    pub fn median(&self, figure: impl Fn(&Cost) -> f64) -> Option<f64> {
        let mut figures: Vec<f64> = self.runs.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        let (low, high) = (figures.len().checked_sub(1)? / 2, figures.len() / 2);
        Some(f64::midpoint(figures[low], figures[high]))
    }
}

/// The first line of what a program prints.
pub fn first_line(call: &Call) -> String {
    let output = Command::new(&call.program).args(&call.arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

/// All that was measured.
pub struct Results {
    /// The day on which it was measured.
    date: String,
    disks: Vec<String>,
    days: usize,
    logical_bytes: u64,
    versions: Vec<(&'static str, String)>,
    measured: BTreeMap<(Workload, &'static str), Measured>,
    bounds: Bounds,
}

impl Results {
    pub fn new(
        disks: &Disks,
        systems: &[Box<dyn System>],
        measured: BTreeMap<(Workload, &'static str), Measured>,
        bounds: Bounds,
    ) -> Self {
        let versions = systems.iter().map(|s| (s.name(), first_line(&s.version()))).collect();
        let date = first_line(&Call::new("date").args(&["--iso-8601"]));
        let sizes = disks.machines.iter().map(|vm| std::fs::metadata(disks.path(vm, 0)));
        let logical_bytes = sizes.flatten().map(|data| data.len()).sum();
        let (days, disks) = (disks.days, disks.machines.clone());
        Self { date, disks, days, logical_bytes, versions, measured, bounds }
    }

    fn wall(&self, workload: Workload, system: &str) -> Option<f64> {
        let mut measured = self.measured.iter();
        let found = measured.find(|(key, _)| key.0 == workload && key.1 == system)?;
        found.1.median(|cost| cost.wall_s)
    }

    /// The unavoidable seconds of a workload.
    fn bound(&self, workload: Workload) -> Option<(f64, &'static str)> {
        match workload {
            Workload::First => Some((self.bounds.zstd_s, "zstd of the unique bytes")),
            Workload::Next | Workload::Unchanged => Some((self.bounds.digest_s, "read and digest")),
            Workload::Restore => Some((self.bounds.restore_s, "decode, verify, write, sync")),
            _ => None,
        }
    }

    /// Writes `results.json`, `results.md` and `results.svg` into a folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(&self.json())?;
        std::fs::write(folder.join("results.json"), json)?;
        std::fs::write(folder.join("results.md"), self.markdown())?;
        std::fs::write(folder.join("results.svg"), self.svg())?;
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let measured = self.measured.iter().map(|((workload, system), measured)| {
            json!({
                "workload": workload.name(),
                "system": system,
                "runs": measured.runs,
                "median_wall_s": measured.median(|cost| cost.wall_s),
                "repository_bytes": measured.repository_bytes,
            })
        });
        json!({
            "date": self.date,
            "disks": self.disks,
            "days": self.days,
            "logical_bytes": self.logical_bytes,
            "versions": self.versions,
            "bounds": self.bounds,
            "measured": measured.collect::<Vec<_>>(),
        })
    }

    /// The table that is printed.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let names = self.disks.join(", ");
        let _ = writeln!(
            text,
            "{}. Disks {names}, {} days, {:.1} GiB a day, {:.2} GiB of it not holes. Medians of {} \
             runs by turns; restores end when everything is on the disk.\n",
            self.date,
            self.days,
            self.logical_bytes as f64 / f64::from(1 << 30),
            self.bounds.data_bytes as f64 / f64::from(1 << 30),
            self.measured.values().map(|measured| measured.runs.len()).max().unwrap_or(0),
        );
        for (name, version) in &self.versions {
            let _ = writeln!(text, "- {name}: {version}");
        }
        text.push_str(
            "\n| workload | system | wall s | silt's ratio | CPU s | peak RSS MiB | \
                       written MB | objects |\n",
        );
        text.push_str("|---|---|---:|---:|---:|---:|---:|---:|\n");
        for ((workload, system), measured) in &self.measured {
            let Some(wall) = measured.median(|cost| cost.wall_s) else { continue };
            let silt = self.wall(*workload, "silt");
            let ratio = silt.map_or("-".to_owned(), |silt| format!("{:.3}", silt / wall));
            let median = |figure: fn(&Cost) -> f64| measured.median(figure).unwrap_or(0.0);
            let _ = writeln!(
                text,
                "| {} | {system} | {wall:.2} | {ratio} | {:.2} | {:.0} | {:.1} | {:.0} |",
                workload.text(),
                median(|cost| cost.cpu_s),
                median(|cost| cost.rss_bytes as f64) / f64::from(1 << 20),
                median(|cost| cost.written_bytes as f64) / 1e6,
                median(|cost| cost.written_objects as f64),
            );
        }
        self.add_best_ways(&mut text);
        text.push_str("\n| repository after all | MB |\n|---|---:|\n");
        for (name, _) in &self.versions {
            let _ = writeln!(text, "| {name} | {:.0} |", self.repository_bytes(name) as f64 / 1e6);
        }
        text.push_str("\n| workload | bound | s | reached by silt |\n|---|---|---:|---:|\n");
        for workload in Workload::ALL {
            let (Some((bound, what)), Some(wall)) =
                (self.bound(workload), self.wall(workload, "silt"))
            else {
                continue;
            };
            let (text_of, share) = (workload.text(), 100.0 * bound / wall);
            let _ = writeln!(text, "| {text_of} | {what} | {bound:.2} | {share:.0} % |");
        }
        if let Some(wall) = self.wall(Workload::Map, "silt") {
            let rate = self.logical_bytes as f64 / wall / 1e9;
            let _ = writeln!(text, "\nWith a changed map: {rate:.1} GB/s of logical bytes.");
        }
        text
    }

    fn repository_bytes(&self, system: &str) -> u64 {
        let of = self.measured.iter().filter(|(key, _)| key.1 == system);
        of.map(|(_, measured)| measured.repository_bytes).max().unwrap_or(0)
    }

    /// Silt's share of each peer's time and space, in the way in which that peer takes least.
    fn add_best_ways(&self, text: &mut String) {
        let mut peers: Vec<&str> = self.versions.iter().map(|(name, _)| program(name)).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.retain(|name| *name != "silt");
        if peers.is_empty() {
            return;
        }
        let best = |peer: &str, figure: &dyn Fn(&str) -> Option<f64>| {
            let ways = self.versions.iter().filter(|(name, _)| program(name) == peer);
            ways.filter_map(|(name, _)| figure(name)).min_by(f64::total_cmp)
        };
        text.push_str("\n| of a peer's better way | peer | silt one by one | silt in rounds |\n");
        text.push_str("|---|---|---:|---:|\n");
        let mut add = |what: &str, figure: &dyn Fn(&str) -> Option<f64>| {
            for peer in &peers {
                let Some(least) = best(peer, figure) else { continue };
                let share = |way| figure(way).map_or("-".into(), |it| format!("{:.3}", it / least));
                let (one, round) = (share("silt"), share("silt round"));
                let _ = writeln!(text, "| {what} | {peer} | {one} | {round} |");
            }
        };
        for workload in Workload::ALL {
            add(workload.text(), &|system| self.wall(workload, system));
        }
        add("repository", &|system| Some(self.repository_bytes(system) as f64));
    }

    fn svg(&self) -> String {
        let systems: Vec<&str> = self.versions.iter().map(|(name, _)| *name).collect();
        let groups = Workload::ALL.iter().map(|workload| {
            let bars = systems.iter().map(|system| self.wall(*workload, system)).collect();
            plot::Group {
                title: workload.text(),
                bars,
                mark: self.bound(*workload).map(|bound| bound.0),
            }
        });
        plot::bars(
            "Seconds for all disks (median), and the bound",
            &systems,
            &groups.collect::<Vec<_>>(),
        )
    }
}
