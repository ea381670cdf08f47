//! Random histories of agents on real servers, in which everything may fail that fails in practice.
//! Nothing is measured: at the end of each history nothing may be lost, damaged or left behind.

mod disk;
mod draw;
mod host;
mod line;
mod story;
mod summary;
mod verdict;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use silt_remote::server::Server;

use crate::Result;
use story::Story;
use summary::Summary;

#[derive(clap::Args)]
pub struct Options {
    /// A folder for servers, disks and histories.txt. Histories that are listed there are not
    /// repeated; the folder of one that fails is kept.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// The seed of the first history; the next one has the next number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many histories.
    #[arg(long, default_value_t = 10)]
    count: u64,
    /// How many histories at a time, each with servers of its own.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// How many seconds things happen in a history.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    #[command(flatten)]
    times: Times,
    /// How many seconds agents have to back everything up again after the last fault: more than the
    /// ten minutes that an agent waits for the coordinator of a round that was killed.
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    patience: u64,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

/// How long faults last, and what is between them.
#[derive(Clone, Copy, clap::Args)]
pub struct Times {
    /// The shortest fault, in milliseconds.
    #[arg(long, default_value_t = 300, value_name = "MS")]
    fault_min: u64,
    /// The longest fault, in milliseconds.
    #[arg(long, default_value_t = 4000, value_name = "MS")]
    fault_max: u64,
    /// The longest time in which nothing happens, in milliseconds.
    #[arg(long, default_value_t = 700, value_name = "MS")]
    pause_max: u64,
    /// About how many seconds are between the due times of a series' backups. Most of the time of a
    /// history goes into backups, and restoring each of them in the end.
    #[arg(long, default_value_t = 4, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(3..=29))]
    every: u64,
}

/// What all histories have in common.
struct Histories<'o> {
    options: &'o Options,
    work: PathBuf,
    silt: PathBuf,
    /// The seeds that are left.
    seeds: Mutex<Vec<u64>>,
    list: Mutex<File>,
    failed: AtomicUsize,
}

/// Runs histories; fails if one of them did.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.work)?;
    let work = options.work.canonicalize()?;
    let silt = options.silt.canonicalize()?;
    let list = work.join("histories.txt");
    let listed = std::fs::read_to_string(&list).unwrap_or_default();
    let listed: BTreeSet<u64> = listed.lines().filter_map(summary::seed).collect();
    let wanted = options.seed..options.seed + options.count;
    let seeds = wanted.clone().filter(|seed| !listed.contains(seed));
    let histories = Histories {
        options,
        work,
        silt,
        seeds: Mutex::new(seeds.rev().collect()),
        list: Mutex::new(File::options().create(true).append(true).open(&list)?),
        failed: AtomicUsize::new(0),
    };
    let jobs: Vec<Result<()>> = std::thread::scope(|scope| {
        let start = |job| {
            let histories = &histories;
            scope.spawn(move || histories.job(job).map_err(|error| error.to_string()))
        };
        let jobs: Vec<_> = (0..options.jobs.max(1)).map(start).collect();
        let ended = jobs.into_iter().map(|job| match job.join() {
            Ok(ended) => ended.map_err(Into::into),
            Err(_) => Err("a history panicked".into()),
        });
        ended.collect()
    });
    println!("{}", Summary::of(&std::fs::read_to_string(&list)?, &wanted));
    jobs.into_iter().collect::<Result<()>>()?;
    match histories.failed.into_inner() {
        0 => Ok(()),
        failed => {
            let work = histories.work.display();
            Err(format!("{failed} histories failed; their folders are below {work}").into())
        }
    }
}

impl Histories<'_> {
    /// Runs one history after the other, until none is left.
    fn job(&self, job: usize) -> Result<()> {
        let folder = self.work.join(format!("server{job}"));
        let server = Server::start_in(&[folder], &[]).ok_or("minio is missing")?;
        loop {
            let seed = self.seeds.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(seed) = seed else { return Ok(()) };
            self.history(seed, &server)?;
        }
    }

    fn history(&self, seed: u64, server: &Server) -> Result<()> {
        let Options { seconds, times, patience, .. } = self.options;
        let folder = self.work.join(seed.to_string());
        drop(std::fs::remove_dir_all(&folder));
        let begin = Instant::now();
        let mut story = Story::begin(seed, folder.clone(), server, &self.silt, *times)?;
        let went = story.go_on(Duration::from_secs(*seconds));
        let patience = Duration::from_secs(*patience);
        let judged = went.and_then(|()| verdict::judge(&mut story, patience));
        let found = match &judged {
            Ok(verdict) => format!(
                "ok, {} snapshots, {} of them reported, settled in {:.1} s",
                verdict.snapshots,
                verdict.reported,
                verdict.settled.as_secs_f64()
            ),
            Err(error) => verdict::shown(&**error),
        };
        let done: Vec<_> =
            story.done.iter().map(|(step, times)| format!("{step} {times}")).collect();
        let seconds = begin.elapsed().as_secs_f64();
        let what = format!("{} hosts, {} series", story.agents(), story.disks.len());
        let line = format!("seed {seed}: {found}; {what}; {}; {seconds:.1} s", done.join(", "));
        println!("{line}");
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(list, "{}", line.replace('\n', " "))?;
        drop((list, story));
        match judged {
            Ok(_) => std::fs::remove_dir_all(&folder)?,
            Err(_) => _ = self.failed.fetch_add(1, Ordering::Relaxed),
        }
        Ok(())
    }
}
