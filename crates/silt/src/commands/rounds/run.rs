//! Backing up a fleet in rounds.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde_json::json;
use silt_format::Error;
use silt_tree::{LocalTree, TreeOrigin};
use siltstone::{
    Activity, BackupOptions, BackupReport, Repository, RoundMember, RoundOptions, RoundReport,
    RoundVolume, Throttled,
};

use super::file::{self, Fleet, Series, run_hook};
use super::forecast::{self, Plan};
use super::{expected_line, planned_json};
use crate::advice::with_advice;
use crate::cli::Backup;
use crate::commands::backup::{
    conclude, lookups, open, options, repository, taken_now, warn_of_mount,
};
use crate::commands::made_here::MadeHere;
use crate::commands::volume_args::PathText;
use crate::commands::{Failure, Session, due, exit_code, forget, temporary_folder, trees};
use crate::{output, snapshot_name};

/// A volume's name and the open volume.
type NamedVolume<'v> = (String, RoundVolume<'v>);

/// State that all rounds of a command share.
pub struct Rounds<'s> {
    pub(super) session: &'s Session<'s>,
    pub(super) args: &'s Backup,
    pub(super) fleet: &'s Fleet,
    options: BackupOptions,
    pub(super) repository: Repository,
    made_here: MadeHere,
    /// The exit status of the first series that failed.
    pub(super) code: Cell<u8>,
}

pub fn run(session: &Session<'_>, args: &Backup) -> Result<u8, Failure> {
    if args.dry_run {
        let message = "--dry-run cannot be used with rounds; use `silt rounds plan`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let chunking = args.chunking.as_deref().map(snapshot_name::parse_chunking).transpose()?;
    // An invalid file is reported before anything is opened.
    let listed = match &args.fleet {
        Some(file) => Some(file::read(file)?),
        None if args.all => None,
        None => Some(of_profile(session, args)?),
    };
    let since_ns = due::since(args)?;
    let repository = repository(session, args)?;
    let fleet = match listed {
        Some(fleet) => fleet,
        None => file::made_here(&MadeHere::new(session, &repository))?,
    };
    let made_here = MadeHere::new(session, &repository);
    let mut fleet = fleet.with_own_names(|name| made_here.own_name(&repository, name))?;
    if let Some(since_ns) = since_ns {
        let mut due = BTreeMap::new();
        for (name, series) in std::mem::take(&mut fleet.series) {
            if !due::is_done(session, &repository, &name, since_ns)? {
                due.insert(name, series);
            }
        }
        fleet.series = due;
    }
    let mut options = options(session, args, chunking);
    let asked = lookups(session, args, &repository);
    (options.places, options.node_answers) = (asked.places, asked.nodes);
    options.tags.extend(fleet.tags.iter().cloned());
    options.due_since_ns = since_ns;
    let code = Cell::new(0);
    let rounds = Rounds { session, args, fleet: &fleet, options, repository, made_here, code };
    if let Some(round) = &args.join_round {
        return rounds.join(round);
    }
    if !fleet.series.is_empty() {
        rounds.run_all()?;
    }
    Ok(rounds.code.get())
}

/// The series of the profile, or the one that is named.
fn of_profile(session: &Session<'_>, args: &Backup) -> Result<Fleet, Failure> {
    let profile = &session.chosen.profile;
    if !args.changed.is_empty() || args.stdin_command.is_some() || args.no_share {
        let message = "--changed, --stdin-command and --no-share need a series and its volumes";
        return Err(Failure::Usage(message.to_owned()));
    }
    let mut series = profile.series.clone();
    if let Some(name) = &args.series {
        series.retain(|known, _| known == name);
    }
    if series.is_empty() {
        let message = match &args.series {
            Some(name) => format!(
                "name the volumes of '{name}', as in `silt backup {name} PATH`; no profile lists \
                 them"
            ),
            None => "name a series and its volumes, or pass --fleet FILE or --all; no profile \
                     lists series"
                .to_owned(),
        };
        return Err(Failure::Usage(message));
    }
    Ok(Fleet { tags: profile.tags.clone(), series })
}

impl Rounds<'_> {
    /// Backs up all series, round after round.
    fn run_all(&self) -> Result<(), Failure> {
        let plan = forecast::plan(&self.repository, self.fleet, &self.args.rounds)?;
        // Each volume is scanned, and then stored.
        let stages = [Activity::Scan, Activity::Backup];
        let reporter = &self.session.reporter;
        stages.iter().for_each(|stage| reporter.expect(*stage, &plan.sizes_from(0)));
        for number in 0..plan.schedule.rounds.len() {
            self.run(&plan, number)?;
            let left = plan.sizes_from(number + 1).len();
            stages.iter().for_each(|stage| reporter.end_parts(*stage, left));
        }
        Ok(())
    }

    fn run(&self, plan: &Plan, number: usize) -> Result<(), Failure> {
        let mut members = Vec::new();
        for name in plan.members(number) {
            let series = &self.fleet.series[name];
            // A disk that cannot be opened fails only its own series.
            match self.open_member(name, series) {
                Ok(member) => members.push(member),
                Err(error) => self.failed(name, &error),
            }
        }
        let names: Vec<String> = members.iter().map(|member| member.series.clone()).collect();
        let options = RoundOptions {
            folder: self.args.rounds.temp.clone().unwrap_or_else(temporary_folder),
            memory_bytes: self.session.global.memory << 20,
            spool: self.args.rounds.spool,
        };
        let report = self.repository.backup_round(members, &options)?;
        self.session.reporter.finish();
        for (name, backup) in names.iter().zip(&report.backups) {
            match backup {
                Ok(backup) => {
                    self.note_code(conclude(self.session, self.args, backup));
                    let id = self.repository.series_id(name);
                    self.made_here.note(id, name, &self.fleet.series[name]);
                }
                Err(error) => self.failed(name, error),
            }
        }
        self.print(plan, number, &report);
        if self.args.forget {
            let made = names.iter().zip(&report.backups).filter(|(_, backup)| backup.is_ok());
            for (name, _) in made {
                self.forget(name)?;
            }
        }
        Ok(())
    }

    /// Opens a member of a round, after its command.
    pub(super) fn open_member<'a>(
        &'a self,
        name: &'a str,
        series: &'a Series,
    ) -> Result<RoundMember<'a>, Error> {
        let taken = taken_now(self.session);
        if let Some(command) = &series.before {
            run_hook(series.given.as_deref().unwrap_or(name), "before", command)?;
        }
        let volumes = self.open_volumes(series).inspect_err(|_| self.after(name, series))?;
        Ok(RoundMember {
            series: name.to_owned(),
            volumes,
            options: BackupOptions { taken, ..self.options.clone() },
            on_released: Some(Box::new(|| self.after(name, series))),
        })
    }

    fn open_volumes<'v>(&self, series: &Series) -> Result<Vec<NamedVolume<'v>>, Error> {
        let limit = self.session.read_limit();
        let paths = series.volumes.values().map(|PathText(path)| path.as_path());
        let roots: Vec<_> = paths.filter(|path| trees::is_tree(path)).collect();
        let tree = series.tree.as_ref().unwrap_or(&self.args.tree);
        let tree_options = tree.options(&roots, self.args.dry_run);
        let tree_options = tree_options.map_err(|failure| Error::invalid(failure.to_string()))?;
        let open = |(name, PathText(path)): (&String, &PathText)| {
            let volume = if trees::is_tree(path) {
                let tree: Box<dyn TreeOrigin> = Box::new(LocalTree::new(path, &tree_options.rules));
                let tree = Throttled::new(tree).reads(limit.clone());
                RoundVolume::Tree(Box::new(tree), tree_options.clone())
            } else {
                warn_of_mount(self.session, path);
                let disk = Throttled::new(open(path, self.args)?).reads(limit.clone());
                RoundVolume::Disk(Box::new(disk))
            };
            Ok((name.clone(), volume))
        };
        series.volumes.iter().map(open).collect()
    }

    /// Runs the command for volumes that are no longer needed.
    fn after(&self, name: &str, series: &Series) {
        let Some(command) = &series.after else { return };
        if let Err(error) = run_hook(series.given.as_deref().unwrap_or(name), "after", command) {
            let code = exit_code(&error);
            output::error(self.session.global.json, &Failure::from(error).to_string(), code);
            self.note_code(code);
        }
    }

    fn forget(&self, name: &str) -> Result<(), Failure> {
        self.note_code(forget::after_backup(self.session, &self.repository, name)?);
        Ok(())
    }

    /// Says that a series was backed up, and does what follows.
    pub(super) fn made(&self, name: &str, report: &BackupReport) {
        self.note_code(conclude(self.session, self.args, report));
        if let Some(series) = self.fleet.series.get(name) {
            self.made_here.note(self.repository.series_id(name), name, series);
        }
        if self.args.forget
            && let Err(failure) = self.forget(name)
        {
            let code = failure.exit_code();
            output::error(self.session.global.json, &failure.to_string(), code);
            self.note_code(code);
        }
    }

    fn note_code(&self, of_series: u8) {
        if self.code.get() == 0 {
            self.code.set(of_series);
        }
    }

    /// Says that a series was not backed up.
    pub(super) fn failed(&self, series: &str, error: &Error) {
        if due::is_done_meanwhile(self.session, (&self.repository, self.args), series, error) {
            return;
        }
        let code = exit_code(error);
        let message = format!("series '{series}' was not backed up: {error}");
        let message = with_advice(&message, error.advice());
        output::error(self.session.global.json, &message, code);
        self.note_code(code);
    }

    fn print(&self, plan: &Plan, number: usize, report: &RoundReport) {
        if self.session.global.json {
            let failed = report.backups.iter().filter(|backup| backup.is_err()).count();
            let value = json!({
                "expected": planned_json(plan, number),
                "series": report.backups.len(),
                "failed": failed,
                "requested_chunks": report.requested_chunks,
                "shared_chunks": report.shared_chunks,
                "shared_bytes": report.shared_bytes,
                "stored_bytes": report.stored_bytes,
                "spooled_bytes": report.spooled_bytes,
                "scan_ms": report.scan_ms,
                "compare_ms": report.compare_ms,
                "share_ms": report.share_ms,
                "backup_ms": report.backup_ms,
                "held_ms": report.held_ms,
            });
            output::message("round", value);
            return;
        }
        if self.session.global.quiet {
            return;
        }
        let spooled = if report.spooled_bytes > 0 {
            format!(", {} spooled", output::bytes(report.spooled_bytes))
        } else {
            String::new()
        };
        output::line(&format!(
            "Round of {} series: {}, {} shared by several ({} in {} stored){spooled}",
            report.backups.len(),
            output::count(report.requested_chunks, "new chunk"),
            report.shared_chunks,
            output::bytes(report.shared_bytes),
            output::bytes(report.stored_bytes)
        ));
        let held = report.held_ms.iter().sum::<u64>() / report.held_ms.len().max(1) as u64;
        output::line(&format!(
            "  took: scan {}, compare {}, store {}; volumes needed for {} on average",
            seconds(report.scan_ms),
            seconds(report.compare_ms),
            seconds(report.share_ms + report.backup_ms),
            seconds(held),
        ));
        output::line(&format!("  {}", expected_line(plan, number)));
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{:02} s", ms / 1000, ms % 1000 / 10)
}
