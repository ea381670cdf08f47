//! Random histories of agents on real servers, in which everything may fail that fails in practice.
//! Nothing is measured: at the end of each history nothing may be lost, damaged or left behind.

mod disk;
mod draw;
mod host;
mod line;
mod story;
mod verdict;

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use silt_remote::server::Server;

use crate::Result;
use story::Story;

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
    /// How many seconds things happen in a history.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// How many seconds agents have to back everything up again after the last fault.
    #[arg(long, default_value_t = 200, value_name = "SECONDS")]
    patience: u64,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

/// Runs histories; fails if one of them did.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.work)?;
    let work = options.work.canonicalize()?;
    let silt = options.silt.canonicalize()?;
    let list = work.join("histories.txt");
    let listed = std::fs::read_to_string(&list).unwrap_or_default();
    let is_listed =
        |seed: &u64| listed.lines().any(|line| line.starts_with(&format!("seed {seed}:")));
    let seeds = (options.seed..options.seed + options.count).filter(|seed| !is_listed(seed));
    let server = Server::start_in(&[work.join("server")], &[]).ok_or("minio is missing")?;
    let mut list = File::options().create(true).append(true).open(list)?;
    let mut failed = 0;
    for seed in seeds {
        let folder = work.join(seed.to_string());
        drop(std::fs::remove_dir_all(&folder));
        let begin = Instant::now();
        let mut story = Story::begin(seed, folder.clone(), &server, &silt)?;
        let went = story.go_on(Duration::from_secs(options.seconds));
        let patience = Duration::from_secs(options.patience);
        let judged = went.and_then(|()| verdict::judge(&mut story, patience));
        let found = match &judged {
            Ok(verdict) => format!(
                "ok, {} snapshots, {} of them reported, settled in {:.1} s",
                verdict.snapshots,
                verdict.reported,
                verdict.settled.as_secs_f64()
            ),
            Err(error) => format!("FAILED: {error}"),
        };
        let done: Vec<_> =
            story.done.iter().map(|(step, times)| format!("{step} {times}")).collect();
        let seconds = begin.elapsed().as_secs_f64();
        let what = format!("{} hosts, {} series", story.agents(), story.disks.len());
        let line = format!("seed {seed}: {found}; {what}; {}; {seconds:.1} s", done.join(", "));
        println!("{line}");
        writeln!(list, "{}", line.replace('\n', " "))?;
        drop(story);
        match judged {
            Ok(_) => std::fs::remove_dir_all(&folder)?,
            Err(_) => failed += 1,
        }
    }
    if failed > 0 {
        return Err(format!(
            "{failed} histories failed; their folders are below {}",
            work.display()
        )
        .into());
    }
    Ok(())
}
