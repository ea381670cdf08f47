//! Measures backups and restores of silt and its peers on the same disks, by turns, and the bounds
//! that the machine sets.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a benchmark reads the clock and the environment, prints, and computes ratios"
)]

mod boot;
mod bounds;
mod bucket;
mod changes;
mod cpus;
mod deletion;
mod deltas;
mod disks;
mod export;
mod ext4;
mod far;
mod histories;
mod hosts;
mod index;
mod join;
mod line;
mod link;
mod many;
mod memory;
mod mount;
mod node_memory;
mod nodes;
mod numbers;
mod peers;
mod plot;
mod process;
mod replicate;
mod replicate_memory;
mod report;
mod rounds;
mod run;
mod scan;
mod schedule;
mod sharing;
mod system;
mod throttle;
mod trees;
mod turns;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

// The bounds are read with buffers as the program's.
#[global_allocator]
static ALLOCATOR: silt_source::LargeAligned = silt_source::LargeAligned;

/// Errors end the program with their text; nobody tells them apart.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "silt-bench", about = "Measure silt against its peers and the machine's bounds")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the workloads and write DIR/results.json, results.md and results.svg
    #[command(after_help = "Examples:
  silt-bench run --disks /vm/fleet --work /vm/bench
  silt-bench run --disks /vm/fleet --work /vm/bench --vms web1,db1 --systems silt,restic --runs 5")]
    Run(Options),
    /// Measure the bounds alone, and print them as JSON
    Bounds(BoundsOptions),
    /// Measure deletion: each method's cost, and what it leaks
    #[command(
        after_help = "Examples:\n  silt-bench deletion --work /vm/bench\n  silt-bench deletion \
                      --work /vm/bench --gib 4 --series 10"
    )]
    Deletion(DeletionOptions),
    /// Measure what sharing across series saves, against the best possible on the same disks
    #[command(after_help = "Examples:\n  silt-bench sharing --disks /vm/fleet --work /vm/bench")]
    Sharing(SharingOptions),
    /// Measure rounds against backing the same disks up one by one
    #[command(
        after_help = "Examples:\n  silt-bench rounds --disks /vm/fleet --work /vm/bench --vms \
                      web1,db1,mail1"
    )]
    Rounds(RoundsOptions),
    /// Measure backups to a bucket of a MinIO that is started here, against a folder and against
    /// peers
    #[command(after_help = "Examples:\n  silt-bench bucket --disks /vm/fleet --work /vm/bench\n  \
                      silt-bench bucket --disks /vm/fleet --work /vm/bench --server-cpus 1")]
    Bucket(BucketOptions),
    /// Measure comparing requests with an index of any size
    #[command(
        after_help = "Examples:\n  silt-bench join --work /vm/bench --entries 250000000 --requests \
                      25000000"
    )]
    Join(JoinOptions),
    /// Measure the memory of a storage node's process, with generated containers; needs nats-server
    #[command(after_help = "Example:\n  silt-bench node-memory --work /vm/bench --gb 1000")]
    NodeMemory(NodeMemoryOptions),
    /// Measure the memory of both ends of `silt replicate`, with generated snapshots and indexes
    #[command(
        after_help = "Example:\n  silt-bench replicate-memory --work /vm/bench --gb 1000 --silt \
                      target/release/silt"
    )]
    ReplicateMemory(replicate_memory::ReplicateMemoryOptions),
    /// Measure the NBD server against qemu-nbd on the same disk
    #[command(after_help = "Example:\n  silt-bench export --work /vm/bench --mib 512 --runs 5")]
    Export(ExportOptions),
    /// Measure how soon the NBD server reads from a bucket far away, or how long a restore takes
    #[command(after_help = "Examples:\n  silt-bench far --work /vm/bench --round-trip-ms 30\n  \
                      silt-bench far --work /vm/bench --restore /vm/fleet/web1.day0.raw")]
    Far(FarOptions),
    /// Measure backups of a large disk of which a share has changed, against the machine's bounds
    #[command(after_help = "Example:\n  silt-bench scan --work /vm/bench --gib 8")]
    Scan(ScanOptions),
    /// Measure storage nodes in buckets: several clients at once, with and without processes beside
    /// the nodes; needs minio and nats-server
    #[command(
        after_help = "Example:\n  silt-bench nodes --disks /vm/fleet --work /vm/bench --clients 7 \
                      --round-trip-ms 30"
    )]
    Nodes(nodes::Options),
    /// Measure commands over many small series, in a bucket far away or in a folder
    #[command(
        after_help = "Examples:\n  silt-bench many --work /dev/shm/bench --series 300 --silt \
                      target/release/silt\n  silt-bench many --work /dev/shm/bench --series 10000 \
                      --folder"
    )]
    Many(ManyOptions),
    /// Measure booting a guest from a snapshot over NBD against booting it from a local qcow2 image
    #[command(
        after_help = "Example:\n  scripts/boot-disk.sh /vm/guest\n  silt-bench boot --guest \
                      /vm/guest --work /vm/bench --runs 5"
    )]
    Boot(BootOptions),
    /// Measure the memory that a large disk takes, which comes as a stream and is nowhere whole
    #[command(after_help = "Example:\n  silt-bench memory --work /vm/bench --gib 64")]
    Memory(MemoryOptions),
    /// Measure the mounted folder and files inside disks, as root or with the package fuse3
    #[command(after_help = "Example:\n  silt-bench mount --work /vm/bench --snapshots 10000")]
    Mount(MountOptions),
    /// Measure file trees against restic, rustic, borg and Kopia: backups, a restore, many small
    /// files
    #[command(
        after_help = "Example:\n  silt-bench trees --work /srv/bench --source linux-6.1.187 \
                      --source linux-6.1.192 --restic restic --rustic rustic --borg borg \
                      --kopia kopia --small-files 1000000"
    )]
    Trees(TreesOptions),
    /// Measure replication over a thin line, as root, against restic and rsync, and inside one
    /// machine
    #[command(after_help = "Example:\n  silt-bench replicate --disks /vm/fleet --work /srv/bench
The far site is a network namespace. Needs iproute2 and rsync; for --restic, socat and
openssh-sftp-server.")]
    Replicate(ReplicateOptions),
    /// Replicate day by day over a thin line, as root: effective throughput, processor time
    #[command(after_help = "Example:\n  silt-bench line --disks /vm/fleet --work /srv/bench
Needs iproute2 and rsync.")]
    Line(line::Options),
    /// Measure what deltas save, and how fast similar chunks are found, by schemes and coders
    #[command(after_help = "Examples:\n  silt-bench deltas web1.day0.raw web1.day1.raw\n  \
                      silt-bench deltas --cdc-bytes 8192 old.tar new.tar")]
    Deltas(DeltasOptions),
    /// Measure a round across hosts, as root, against one host's round and perfect deduplication
    #[command(after_help = "Example:\n  silt-bench hosts --disks /vm/fleet --work /srv/bench
Each host is a network namespace. Needs iproute2 and nats-server.")]
    Hosts(HostsOptions),
    /// Measure the shared index in the memory of hosts, through a NATS server
    #[command(after_help = "Example:\n  silt-bench index --work /srv/bench --gib 2")]
    Index(IndexOptions),
    /// Measure how many series a minute a director hands out to agents, through a NATS server
    #[command(after_help = "Example:\n  silt-bench schedule --agents 100 --series 10
Needs nats-server.")]
    Schedule(ScheduleOptions),
    /// Run random histories of agents with faults on a MinIO and a NATS server, and look for losses
    #[command(
        after_help = "Example:\n  silt-bench histories --work /srv/bench --seed 1 --count 50"
    )]
    Histories(histories::Options),
    /// Measure several backups at once with a limit on reading, and without
    #[command(
        after_help = "Example:\n  silt-bench throttle --disks /vm/fleet --work /srv/bench --fio fio"
    )]
    Throttle(throttle::Options),
}

#[derive(clap::Args)]
struct DeltasOptions {
    /// What both ends have.
    old: PathBuf,
    /// What one end has.
    new: PathBuf,
    /// Mean size of content-defined chunks, in bytes; without, chunks have 4096 bytes.
    #[arg(long)]
    cdc_bytes: Option<u32>,
    /// Size of the chunks of one delta, in bytes.
    #[arg(long, default_value_t = 256 << 10)]
    group_bytes: usize,
    /// The zstd level.
    #[arg(long, default_value_t = 3)]
    level: i32,
}

#[derive(clap::Args)]
struct HostsOptions {
    /// A folder with raw disks, each of which is a machine
    #[arg(long)]
    disks: PathBuf,
    /// A folder for repositories; it is emptied
    #[arg(long)]
    work: PathBuf,
    /// The program to measure
    #[arg(long, default_value = "silt")]
    silt: PathBuf,
    /// How many hosts
    #[arg(long, default_value_t = 4)]
    hosts: usize,
}

#[derive(clap::Args)]
struct IndexOptions {
    /// A folder for repositories and disks; takes about eight times --gib
    #[arg(long)]
    work: PathBuf,
    /// How much is shared, in GiB
    #[arg(long, default_value_t = 2)]
    gib: u64,
    /// Backups of each kind
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The round trip to the far bucket and bus, in milliseconds
    #[arg(long, default_value_t = 30)]
    round_trip_ms: u64,
}

#[derive(clap::Args)]
struct ScheduleOptions {
    /// Agents, each with a connection of its own
    #[arg(long, default_value_t = 100)]
    agents: usize,
    /// Series of each agent, all due at the same time
    #[arg(long, default_value_t = 20)]
    series: usize,
    /// Runs that an agent has at once
    #[arg(long, default_value_t = 2)]
    parallel: usize,
    /// How long a run takes, in milliseconds
    #[arg(long, default_value_t = 1000)]
    run_ms: u64,
    /// Threads that look after the agents
    #[arg(long, default_value_t = 25)]
    threads: usize,
    /// How long to wait until all have ended, in seconds
    #[arg(long, default_value_t = 300)]
    limit_s: u64,
}

#[derive(clap::Args)]
struct TreesOptions {
    /// A folder for the tree, repositories and restored files; it must have room for all.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// A directory; the second one is its next version.
    #[arg(long, value_name = "DIR")]
    source: Vec<PathBuf>,
    /// The restic program.
    #[arg(long, value_name = "FILE")]
    restic: Option<PathBuf>,
    /// The rustic program.
    #[arg(long, value_name = "FILE")]
    rustic: Option<PathBuf>,
    /// The borg program.
    #[arg(long, value_name = "FILE")]
    borg: Option<PathBuf>,
    /// The Kopia program.
    #[arg(long, value_name = "FILE")]
    kopia: Option<PathBuf>,
    /// Also measure a tree of this many small and empty files.
    #[arg(long, default_value_t = 0, value_name = "N")]
    small_files: u64,
    /// How many rounds. Each begins with another program.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Restore to an ext4 of this many GiB that is made anew for each restore; as root.
    #[arg(long, value_name = "GIB")]
    ext4: Option<u64>,
    /// Also measure `silt optimize`, after all else.
    #[arg(long)]
    optimize: bool,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct MountOptions {
    /// A folder for the repository and the mounted folder.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// How large the volume is that is read.
    #[arg(long, default_value_t = 2048)]
    mib: u64,
    /// How many snapshots are listed.
    #[arg(long, default_value_t = 10_000)]
    snapshots: u64,
    /// How many times each is measured.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct BucketOptions {
    /// A folder with disks called VM.dayN.raw.
    #[arg(long, value_name = "DIR")]
    disks: PathBuf,
    /// A folder for the server and repositories, on the file system of the disks.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Only these machines; by default the first three.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    vms: Vec<String>,
    /// How many rounds.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Empty the page cache before each step, as root: disks are read from the drive, as those of
    /// machines that nobody has just read are.
    #[arg(long)]
    cold: bool,
    /// How many drives the server has; with more than one it adds parity, and writes past the page
    /// cache.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    drives: u16,
    /// How many processors are the server's alone, as on a machine of its own; the programs have
    /// the others. With 0 all share all.
    #[arg(long, default_value_t = 0, value_name = "N")]
    server_cpus: usize,
    /// What else the server is started with; MinIO hashes no bodies with MD5 after
    /// `--server-arg=--no-compat`.
    #[arg(long = "server-arg", value_name = "ARG", allow_hyphen_values = true)]
    server_args: Vec<String>,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct RoundsOptions {
    #[command(flatten)]
    disks: SharingOptions,
    /// Also measure restic, one process a day.
    #[arg(long)]
    restic: bool,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct ReplicateOptions {
    #[command(flatten)]
    disks: SharingOptions,
    /// The line's rate each way, as `tc` writes it.
    #[arg(long, default_value = "2mbit")]
    rate: String,
    /// Round trips of the line; none, to leave the thin line out.
    #[arg(long, default_values_t = [12, 30, 100], value_delimiter = ',', num_args = 0..)]
    #[arg(value_name = "MS")]
    round_trips: Vec<u64>,
    /// The round trip at which rsync and restic are measured.
    #[arg(long, default_value_t = 30, value_name = "MS")]
    peers_round_trip: u64,
    /// The restic program.
    #[arg(long, value_name = "FILE")]
    restic: Option<PathBuf>,
    /// How many times inside one machine.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only count the bytes with and without deltas, through a pipe: takes seconds.
    #[arg(long)]
    count: bool,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct ExportOptions {
    /// A folder for the disk, its copy as qcow2 and a repository.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// How large the disk is.
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// In how much of it hot reads are.
    #[arg(long, default_value_t = 32)]
    hot_mib: u64,
    /// How many rounds.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct FarOptions {
    /// A folder for the server, disks and caches.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// How long the way to the bucket and back takes.
    #[arg(long, default_value_t = 30, value_name = "MS")]
    round_trip_ms: u64,
    /// How many times each is measured.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Measure restores of this disk instead, from the server itself and from far away.
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct ManyOptions {
    /// A folder for the server, disks and caches; it is emptied. In memory, since small disks cost
    /// little but syncs.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// How many series.
    #[arg(long, default_value_t = 300, value_name = "N")]
    series: usize,
    /// Measure a folder instead of a bucket.
    #[arg(long)]
    folder: bool,
    /// How long the way to the bucket and back takes.
    #[arg(long, default_value_t = 30, value_name = "MS")]
    round_trip_ms: u64,
    /// Options of every measured call, such as `--connections=1`.
    #[arg(long = "option", value_name = "OPTION", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Only the steps whose names contain one of these.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    steps: Vec<String>,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct BootOptions {
    /// A folder with disk.raw, vmlinuz and initrd.img, as scripts/boot-disk.sh makes them.
    #[arg(long, value_name = "DIR")]
    guest: PathBuf,
    /// A folder for a copy of the disk as qcow2, and a repository.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// How many times it is booted from each.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Empty the page cache before each boot, as root.
    #[arg(long)]
    cold: bool,
    /// How many seconds a boot may take.
    #[arg(long, default_value_t = 300)]
    limit_s: u64,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct MemoryOptions {
    /// A folder for the repository, which takes a tenth of the disk.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// How large the disk is.
    #[arg(long, default_value_t = 64)]
    gib: u64,
    /// Write the disk of this day to standard output instead.
    #[arg(long, hide = true)]
    day: Option<u64>,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct NodeMemoryOptions {
    /// A folder for the index, of 6 bytes for each 1,000 of chunks.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Different chunks of the node.
    #[arg(long, default_value_t = 1000, value_name = "GB")]
    gb: u64,
    /// Memory for parts of the node's index, as `silt node run` has.
    #[arg(long, default_value_t = 32, value_name = "MIB")]
    index_mib: u32,
    /// Leave the index where it is.
    #[arg(long)]
    keep: bool,
    /// Measure only: the index is there.
    #[arg(long)]
    measure: bool,
}

#[derive(clap::Args)]
struct JoinOptions {
    /// A folder for the index.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Entries of the index.
    #[arg(long, default_value_t = 250_000_000)]
    entries: u64,
    /// Requests, of which three in four are in the index.
    #[arg(long, default_value_t = 25_000_000)]
    requests: u64,
    /// Runs that the index is divided into, as the requests of a round are by their hosts.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Memory to sort the requests in.
    #[arg(long, default_value_t = 16, value_name = "MIB")]
    sort: usize,
    /// The runs that are there, each by its id, partition bits, content hash and records.
    #[arg(long, hide = true, num_args = 4)]
    run: Vec<String>,
}

#[derive(clap::Args)]
struct SharingOptions {
    /// A folder with disks called VM.dayN.raw.
    #[arg(long, value_name = "DIR")]
    disks: PathBuf,
    /// A folder for the repository and temporary files.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Only these machines; by default the first three.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    vms: Vec<String>,
}

#[derive(clap::Args)]
struct DeletionOptions {
    /// A folder for repositories.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// The volume's size.
    #[arg(long, default_value_t = 40, value_name = "GIB")]
    gib: u64,
    /// How many chunks that follow each other change together.
    #[arg(long, default_value_t = 64, value_name = "CHUNKS")]
    run: u64,
    /// How many series of 1 GiB the repository has that is swept as a whole.
    #[arg(long, default_value_t = 50, value_name = "N")]
    series: u64,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
    /// Instead of --gib, and for each of the series.
    #[arg(long, hide = true)]
    mib: Option<u64>,
    /// Make the large series and measure nothing.
    #[arg(long, hide = true)]
    only_series: bool,
}

#[derive(clap::Args)]
struct Options {
    /// A folder with disks called VM.dayN.raw.
    #[arg(long, value_name = "DIR")]
    disks: PathBuf,
    /// A folder for repositories and restored disks, on the file system of the disks.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Only these machines; by default the first three.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    vms: Vec<String>,
    /// Only these systems; by default silt and every peer on the PATH.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    systems: Vec<String>,
    /// Only these workloads and those that they need.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    workloads: Vec<String>,
    /// How many rounds.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct ScanOptions {
    /// A folder for the disk and its repository.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// The size of the disk, which should fit into the page cache twice.
    #[arg(long, default_value_t = 4)]
    gib: u64,
    /// How many backups of each share.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

#[derive(clap::Args)]
struct BoundsOptions {
    /// A folder with disks called VM.dayN.raw.
    #[arg(long, value_name = "DIR")]
    disks: PathBuf,
    /// A folder for the file that is written, on the file system of the disks.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Only these machines; by default the first three.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    vms: Vec<String>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Scan(options) => scan::run(&options),
        Command::Bounds(options) => bounds::print(&options),
        Command::Deletion(options) => deletion::run(&options),
        Command::Sharing(options) => sharing::run(&options),
        Command::Rounds(options) => rounds::run(&options),
        Command::Bucket(options) => bucket::run(&options),
        Command::Join(options) => join::run(&options),
        Command::NodeMemory(options) => node_memory::run(&options),
        Command::Export(options) => export::run(&options),
        Command::Far(options) => far::run(&options),
        Command::Nodes(options) => nodes::run(&options),
        Command::Many(options) => many::run(&options),
        Command::Boot(options) => boot::run(&options),
        Command::Memory(options) => memory::run(&options),
        Command::Mount(options) => mount::run(&options),
        Command::Trees(options) => trees::run(&options),
        Command::Replicate(options) => replicate::run(&options),
        Command::Line(options) => line::run(&options),
        Command::ReplicateMemory(options) => replicate_memory::run(&options),
        Command::Deltas(options) => deltas::run(&options),
        Command::Hosts(options) => hosts::run(&options),
        Command::Index(options) => index::run(&options),
        Command::Schedule(options) => schedule::run(&options),
        Command::Histories(options) => histories::run(&options),
        Command::Throttle(options) => throttle::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("silt-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
