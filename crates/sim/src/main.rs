//! Plays histories until one goes wrong, or replays one.

#![expect(clippy::print_stdout, reason = "a program says what it finds")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Parser, Subcommand};
use silt_sim::{Plan, play, shrink};

/// Plays histories of many hosts on one repository.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plays histories, and shrinks the first that loses something.
    Run {
        /// Number of histories.
        #[arg(long, default_value_t = 2000)]
        histories: u64,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Number of histories that are played at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Continue after a failure, and count failures.
        #[arg(long)]
        all: bool,
        /// Play histories of encrypted append-only repositories with write-only hosts; slower.
        #[arg(long)]
        guarded: bool,
        /// Play histories of several sites with replications between them.
        #[arg(long, conflicts_with = "guarded")]
        sites: bool,
        /// Play histories of agents that back up when it is due, beside other hosts.
        #[arg(long, conflicts_with_all = ["guarded", "sites"])]
        agents: bool,
        /// Play histories of storage nodes. Every third one of the others has nodes, too.
        #[arg(long, conflicts_with_all = ["guarded", "sites", "agents"])]
        nodes: bool,
        /// Play histories in which every series has file trees. Most of the others have some, too.
        #[arg(long, conflicts_with_all = ["guarded", "sites", "agents", "nodes"])]
        trees: bool,
        /// Do not shrink the first failure.
        #[arg(long)]
        no_shrink: bool,
    },
    /// Plays one history and prints every event.
    Replay {
        /// Its seed.
        seed: u64,
        /// Shrink it first.
        #[arg(long)]
        shrink: bool,
        /// The seed is of a guarded history.
        #[arg(long)]
        guarded: bool,
        /// The seed is of a history of several sites.
        #[arg(long, conflicts_with = "guarded")]
        sites: bool,
        /// The seed is of a history of agents.
        #[arg(long, conflicts_with_all = ["guarded", "sites"])]
        agents: bool,
        /// The seed is of a history of storage nodes.
        #[arg(long, conflicts_with_all = ["guarded", "sites", "agents"])]
        nodes: bool,
        /// The seed is of a history of file trees.
        #[arg(long, conflicts_with_all = ["guarded", "sites", "agents", "nodes"])]
        trees: bool,
    },
}

#[expect(
    clippy::disallowed_methods,
    reason = "the rate is printed for the user and has no influence on histories"
)]
fn main() -> ExitCode {
    // Panics are reported as violations of their history.
    std::panic::set_hook(Box::new(|_| {}));
    match Arguments::parse().command {
        Command::Run {
            histories,
            seed,
            jobs,
            all,
            guarded,
            sites,
            agents,
            nodes,
            trees,
            no_shrink,
        } => {
            let draw = drawing([guarded, sites, agents, nodes, trees]);
            let begun = std::time::Instant::now();
            let failed = run(histories, seed, jobs, all, draw);
            let seconds = begun.elapsed().as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let rate = histories as f64 / seconds;
            if failed.is_empty() {
                println!("{histories} histories lost nothing ({rate:.0} a second)");
                return ExitCode::SUCCESS;
            }
            println!("{} histories failed ({rate:.0} a second)", failed.len());
            if no_shrink {
                return ExitCode::FAILURE;
            }
            let (plan, violations) = shrink(&draw(failed[0]));
            println!("seed {}: {violations:#?}\nshrunk to {plan:#?}", failed[0]);
            ExitCode::FAILURE
        }
        Command::Replay { seed, shrink: wanted, guarded, sites, agents, nodes, trees } => {
            let mut plan = drawing([guarded, sites, agents, nodes, trees])(seed);
            if wanted {
                plan = shrink(&plan).0;
            }
            println!("{plan:#?}");
            let outcome = play(&plan, true);
            outcome.events.iter().for_each(|event| println!("{event}"));
            println!("digest {}\n{:#?}", outcome.digest, outcome.violations);
            if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

fn drawing(of: [bool; 5]) -> fn(u64) -> Plan {
    match of {
        [true, ..] => Plan::draw_guarded,
        [_, true, ..] => Plan::draw_sites,
        [_, _, true, ..] => Plan::draw_agents,
        [_, _, _, true, _] => Plan::draw_with_nodes,
        [.., true] => Plan::draw_with_trees,
        _ => Plan::draw,
    }
}

/// Plays histories on several threads. Returns the seeds of those that failed, in ascending order.
fn run(histories: u64, first: u64, jobs: usize, all: bool, draw: fn(u64) -> Plan) -> Vec<u64> {
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let seen = failed
                        .lock()
                        .map_or(1, |failed: std::sync::MutexGuard<'_, Vec<u64>>| failed.len());
                    if seed >= first + histories || (seen > 0 && !all) {
                        return;
                    }
                    let outcome = play(&draw(seed), false);
                    if let Some(violation) = outcome.violations.first() {
                        println!("seed {seed}: {violation}");
                        if let Ok(mut failed) = failed.lock() {
                            failed.push(seed);
                        }
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_default();
    failed.sort_unstable();
    failed
}
