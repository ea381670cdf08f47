//! The command line.

mod copies;
mod deletion;
mod popular;
mod rounds;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use copies::{Copies, CopiesCommand};
pub use deletion::{
    Delete, Forget, Group, Policy, Reclaim, RetentionRules, SetPolicy, SomeSnapshots, Sweep,
    Undelete,
};
pub use popular::{Build as PopularBuild, Choice as PopularChoice, Popular};
pub use rounds::{Choice as RoundsChoice, Plan as PlanRounds, Rounds};

const AFTER_HELP: &str = "\
Environment:
  SILT_REPOSITORY         the repository, instead of --repo
  SILT_PASSWORD           the password; or its file or a command that prints it:
  SILT_PASSWORD_FILE, SILT_PASSWORD_COMMAND
                          only one of the three, or --password-file, may be set
  SILT_NEW_PASSWORD, SILT_NEW_PASSWORD_FILE, SILT_NEW_PASSWORD_COMMAND
                          likewise for key add and key passwd
  SILT_ADMIN_PASSWORD, SILT_ADMIN_PASSWORD_FILE, SILT_ADMIN_PASSWORD_COMMAND
                          likewise for whoever may delete from an append-only repository
  TZ                      the time zone of times that are read and printed

Exit status:
  0  done                          5  damage found
  1  failed                       10  no repository there
  2  wrong usage                  11  another backup of the series is running
  3  backup made, but a source    12  wrong password
     was partly unreadable        13  refused: rights, keys, safety checks
                                 130  interrupted
  4  backup made, but the changed-blocks map was wrong (everything was read)

Examples:
  silt init -r /backup/silt
  export SILT_REPOSITORY=/backup/silt SILT_PASSWORD_FILE=/root/.silt-password
  silt backup web1 root=/vm/web1.qcow2 data=/dev/vg/web1-data
  silt snapshots
  silt restore web1@latest:root /vm/web1-restored.raw";

/// Back up virtual machine disks, deduplicated at 4 KiB grain, and restore them.
#[derive(Parser)]
#[command(name = "silt", version, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// The repository: a folder, or s3://BUCKET/PREFIX.
    #[arg(short, long, global = true, env = "SILT_REPOSITORY", value_name = "PATH")]
    pub repo: Option<String>,
    /// Read the password from the first line of this file.
    #[arg(long, global = true, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Read the administrator's password of an append-only repository from the first line of this
    /// file.
    #[arg(long, global = true, value_name = "FILE")]
    pub admin_password_file: Option<PathBuf>,
    /// Print JSON lines, each with a "message_type".
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no progress and no summary of what was done: warnings, errors and what was asked for
    /// alone.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// How many threads to work with; 0 for one a core, and more where they wait for disks.
    /// --memory bounds them: four at 64 MiB, one more for each 12 MiB.
    #[arg(short, long, global = true, default_value_t = 0, value_name = "N")]
    pub jobs: usize,
    /// Memory for a backup's or restore's buffers, in MiB, at least 24. What a try of the password
    /// takes comes before, and is given back.
    #[arg(long, global = true, default_value_t = 64, value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(24..=1 << 20))]
    pub memory: u64,
    /// Read at most so many MiB a second: from sources in a backup, else from the repository.
    #[arg(long, global = true, value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub limit_read: Option<u64>,
    /// Write at most so many MiB a second: to the repository in a backup, to the target in a
    /// restore.
    #[arg(long, global = true, value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub limit_write: Option<u64>,
    /// Upload at most so many objects at once to a store that is far away, 4 unless told otherwise;
    /// more than two take more memory (`--memory`).
    #[arg(long, global = true, env = "SILT_S3_CONNECTIONS", value_name = "COUNT")]
    pub connections: Option<usize>,
    /// Say what the requests to buckets cost at these prices, in dollars for a million requests and
    /// for a GB received, such as put=5,list=5,get=0.4,received=0.09.
    #[arg(long, global = true, env = "SILT_S3_PRICES", value_name = "PRICES")]
    pub s3_prices: Option<String>,
    /// Keep what is read often of a repository in an object store in this folder; by default
    /// `silt` in the user's folder of caches. It can be deleted at any time.
    #[arg(long, global = true, env = "SILT_CACHE_DIR", value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// At most so many MiB of each repository.
    #[arg(long, global = true, env = "SILT_CACHE_SIZE", value_name = "MIB")]
    pub cache_size: Option<u64>,
    /// Keep nothing.
    #[arg(long, global = true)]
    pub no_cache: bool,
    /// Go on though the repository is older than what this machine has seen of it, because you have
    /// put it back.
    ///
    /// The machine notes the newest commit of each series below $XDG_STATE_HOME/silt; a storage
    /// that shows less serves an old state, or somebody has rolled it back.
    #[arg(long, global = true)]
    pub accept_older: bool,
    #[arg(long, global = true, hide = true, env = "XDG_CACHE_HOME")]
    pub cache_home: Option<PathBuf>,
    #[arg(long, global = true, hide = true, env = "XDG_STATE_HOME")]
    pub state_home: Option<PathBuf>,
    #[arg(long, global = true, hide = true, env = "HOME")]
    pub home: Option<PathBuf>,
    /// Wait so long, such as 10m or 2h, for whoever is backing up or changing the same series.
    #[arg(long, global = true, value_name = "TIME", value_parser = crate::snapshot_name::wait)]
    pub wait: Option<u64>,
    /// Lower the program's priority by so many steps, up to 19; reclaim, sweep and popular do by 19
    /// unless told otherwise.
    #[arg(long, global = true, value_name = "STEPS",
        value_parser = clap::value_parser!(i32).range(0..=19))]
    pub nice: Option<i32>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Make a repository in an empty folder, or in a part of a bucket
    #[command(after_help = "Examples:
  silt init -r /backup/silt
  silt init -r /backup/silt --compression 3 --chunking fastcdc:1024/4096/16384
  silt init -r /backup/silt --append-only
  silt init -r s3://bucket/vms")]
    Init(Init),
    /// Back up volumes as a new snapshot of a series
    #[command(after_help = "Examples:
  silt backup web1 /vm/web1.qcow2
  silt backup web1 root=/vm/web1.qcow2 data=/dev/vg/web1-data --tag nightly
  qemu-img map --output=json overlay.qcow2 | silt backup web1 overlay.qcow2 --changed -
  silt backup db1 dump=- --stdin-command pg_dumpall
  silt backup --fleet fleet.toml
  silt backup --fleet fleet.toml --spool --rounds 4
  silt backup --all

A fleet file lists series and their volumes. Commands make and remove what is to be read,
if need be:
  tags = [\"nightly\"]
  [series.web1]
  before = \"lvcreate --snapshot --size 5G --name web1-backup vg/web1\"
  volumes = { root = \"/dev/vg/web1-backup\" }
  after = \"lvremove --yes vg/web1-backup\"
  [series.db1]
  volumes = { root = \"/vm/db1.raw\" }")]
    Backup(Backup),
    /// List snapshots
    #[command(after_help = "Examples:
  silt snapshots
  silt snapshots web1 --json
  silt snapshots --deleted")]
    Snapshots(ListSnapshots),
    /// Show one snapshot: volumes, and which level saved how much
    #[command(after_help = "Examples:\n  silt show web1@latest\n  silt show 3f9a01bc")]
    Show(OneSnapshot),
    /// List a snapshot's volumes
    #[command(after_help = "Examples:\n  silt ls web1@2026-11-20")]
    Ls(OneSnapshot),
    /// Write a volume of a snapshot to a file, a device or standard output
    #[command(after_help = "Examples:
  silt restore web1@latest /vm/web1.raw
  silt restore web1@latest:data /dev/vg/web1-data --force
  silt restore web1@2026-11-20:root /vm/web1.qcow2 --format qcow2
  silt restore web1@latest:root /vm/web1.raw --in-place
  silt restore web1@latest:root - --range 1MiB+4KiB | xxd")]
    Restore(Restore),
    /// Verify the repository
    #[command(after_help = "Examples:
  silt check
  silt check --read-data
  silt check web1 --read-data-subset 5%")]
    Check(Check),
    /// Try out a place for a repository, or bring one in a bucket back to a time
    #[command(subcommand)]
    Repo(Repo),
    /// List the places of the repository, add and remove copies, and make them alike again
    #[command(after_help = "Examples:
  silt copies
  silt copies add /mnt/second/silt
  silt copies add --shared /mnt/fast/silt-shared
  silt copies heal --read-data
  silt copies remove /mnt/second/silt")]
    Copies(Copies),
    /// Show which ranges of volumes differ between two snapshots
    #[command(after_help = "Examples:\n  silt diff web1@2026-11-19 web1@latest")]
    Diff(Diff),
    /// Show what the repository holds, in numbers
    #[command(after_help = "Examples:\n  silt stats\n  silt stats web1 --json")]
    Stats(Snapshots),
    /// Delete snapshots by a retention policy: the one given, or the one that each series stores
    #[command(after_help = "Examples:
  silt forget --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run
  silt forget web1 --keep-last 10 --keep-within 30d
  silt forget --reclaim

Times count in the local time zone. Snapshots of the future and protected ones are kept. With
--keep-within, and with --min-age, a host that can only add snapshots pushes no good one out.")]
    Forget(Forget),
    /// Delete snapshots, at once; their space comes back with reclaim
    #[command(after_help = "Examples:
  silt delete 3f9a01bc
  silt delete web1@2026-11-20 web1@2026-11-21 --dry-run")]
    Delete(Delete),
    /// Bring deleted snapshots back, until reclaim has run
    #[command(after_help = "Examples:\n  silt snapshots --deleted\n  silt undelete 3f9a01bc")]
    Undelete(Undelete),
    /// Keep snapshots from being deleted, by hand or by a policy
    #[command(after_help = "Examples:\n  silt protect web1@latest")]
    Protect(SomeSnapshots),
    /// Let snapshots be deleted again
    #[command(after_help = "Examples:\n  silt unprotect 3f9a01bc")]
    Unprotect(SomeSnapshots),
    /// Give the space of deleted snapshots back, while other series are backed up and restored
    #[command(after_help = "Examples:
  silt reclaim
  silt reclaim web1 --min-dead 0 --sweep
  silt reclaim --keep-deleted 7d --limit-read 50 --limit-write 50
  silt reclaim --dry-run --json")]
    Reclaim(Reclaim),
    /// Find out exactly which chunks are dead, by mark and sweep; reclaim does it when it pays
    #[command(
        alias = "repair",
        after_help = "Examples:\n  silt sweep\n  silt sweep web1 --dry-run --json"
    )]
    Sweep(Sweep),
    /// Share what several series have in common
    #[command(subcommand)]
    Popular(Popular),
    /// Say how a fleet would be backed up in rounds
    #[command(subcommand)]
    Rounds(Rounds),
    /// List again what a head dropped from an append-only repository without leave
    #[command(after_help = "Examples:\n  silt recover web1")]
    Recover {
        /// The series, by its name, or as id: and its id where no name leads to it.
        series: String,
    },
    /// Store with a series which of its snapshots are kept
    #[command(
        subcommand,
        after_help = "Examples:\n  silt policy show\n  silt policy set web1 --keep-daily 7 \
                      --keep-weekly 4"
    )]
    Policy(Policy),
    /// Manage the passwords of a repository
    #[command(
        subcommand,
        after_help = "Examples:\n  silt key list\n  silt key add --new-password-file /root/second"
    )]
    Key(Key),
    /// Print a shell completion script
    #[command(after_help = "Examples:
  silt completion bash > /etc/bash_completion.d/silt
  silt completion zsh > /usr/local/share/zsh/site-functions/_silt
  silt completion fish > ~/.config/fish/completions/silt.fish")]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version
    #[command(after_help = "Examples:\n  silt version\n  silt version --json")]
    Version,
}

#[derive(Args)]
pub struct Init {
    /// zstd level of stored data, -7 to 19.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_name = "LEVEL")]
    pub compression: i32,
    /// How disks are cut: fixed:BYTES or fastcdc:MIN/AVG/MAX.
    #[arg(long, default_value = "fixed:4096", value_name = "HOW")]
    pub chunking: String,
    /// Let nothing be taken away without a second password, the administrator's, which the hosts
    /// that back up need not have.
    #[arg(long)]
    pub append_only: bool,
    /// Do not encrypt. Whoever can read the storage can then read the backups.
    #[arg(long)]
    pub no_encryption: bool,
    #[command(flatten)]
    pub cost: Cost,
}

#[derive(Args)]
pub struct Cost {
    /// Memory that a try of the password takes (Argon2id), in MiB, 8 to 1024.
    #[arg(long, default_value_t = 32, value_name = "MIB")]
    pub kdf_memory: u32,
    /// Passes over that memory, 1 to 64.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub kdf_passes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChangedForm {
    /// `qemu-img map --output=json`
    Qemu,
    /// `nbdinfo --map=qemu:dirty-bitmap:NAME --json`
    Nbd,
    /// `rbd diff --format json`
    Rbd,
}

#[derive(Args)]
pub struct Backup {
    /// The series: the name of the virtual machine.
    #[arg(required_unless_present_any = ["fleet", "all"])]
    pub series: Option<String>,
    /// Volumes: PATH or NAME=PATH; raw file, qcow2, block device, or - for standard input.
    #[arg(required_unless_present_any = ["fleet", "all"], value_name = "[NAME=]PATH")]
    pub volumes: Vec<OsString>,
    /// Back up all series that this TOML file lists, in rounds: what they have in common is stored
    /// once. See below for its form.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["series", "changed"])]
    pub fleet: Option<PathBuf>,
    /// Back up all series that this machine has backed up before, in rounds, each from the files of
    /// last time.
    #[arg(long, conflicts_with_all = ["fleet", "series", "changed"])]
    pub all: bool,
    #[command(flatten)]
    pub rounds: RoundsChoice,
    /// What `-` reads is the standard output of this shell command; if it fails, so does the
    /// backup. A pipe into this program can't tell a dump that has failed from a short one.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["fleet", "all"])]
    pub stdin_command: Option<String>,
    /// What changed since the last snapshot, as JSON of `qemu-img map`, `nbdinfo --map` or `rbd
    /// diff`; a hint that is checked. With several volumes: NAME=FILE. - for standard input.
    #[arg(long, value_name = "[NAME=]FILE")]
    pub changed: Vec<OsString>,
    /// Which program wrote the maps; seen from what they hold unless they are empty, as `rbd
    /// diff`'s are when nothing has changed.
    #[arg(long, value_enum, value_name = "PROGRAM", requires = "changed")]
    pub changed_form: Option<ChangedForm>,
    /// A label of the snapshot; may be given several times.
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// What the sources are.
    #[arg(long, value_enum, default_value_t = SourceFormat::Auto)]
    pub format: SourceFormat,
    /// How to cut this snapshot's volumes: fixed:BYTES or fastcdc:MIN/AVG/MAX.
    #[arg(long, value_name = "HOW")]
    pub chunking: Option<String>,
    /// Back up images that another program has open for writing.
    #[arg(long)]
    pub allow_in_use: bool,
    /// A folder or device that backing files of qcow2 images may lie in, beside the image's own
    /// folder.
    #[arg(long, value_name = "PATH")]
    pub allow_backing: Vec<PathBuf>,
    /// Compare with no earlier snapshot: read and deduplicate as if it were the first.
    #[arg(long)]
    pub no_parent: bool,
    /// Make a new series one that shares nothing with others: nobody who may write these can tell
    /// what it holds.
    #[arg(long, conflicts_with = "fleet")]
    pub no_share: bool,
    /// Apply the series' retention policy afterwards.
    #[arg(long)]
    pub forget: bool,
    /// Do everything but write to the repository.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct Snapshots {
    /// Only these series.
    pub series: Vec<String>,
}

#[derive(Args)]
pub struct ListSnapshots {
    /// Only these series.
    pub series: Vec<String>,
    /// Those that were deleted and can still be brought back.
    #[arg(long)]
    pub deleted: bool,
}

#[derive(Args)]
pub struct OneSnapshot {
    /// An id, latest, SERIES@latest or SERIES@2026-11-20.
    pub snapshot: String,
}

#[derive(Args)]
pub struct Restore {
    /// SNAPSHOT, or SNAPSHOT:VOLUME where the snapshot has several volumes.
    pub snapshot: String,
    /// A file, a block device, or - for standard output.
    pub target: PathBuf,
    /// What to write: by default a qcow2 image where the target is called .qcow2, else a raw one.
    #[arg(long, value_enum)]
    pub format: Option<TargetFormat>,
    /// Only this part: START-END, START+LENGTH or START-, in bytes or with KiB, MiB, GiB.
    #[arg(long, value_name = "RANGE")]
    pub range: Option<String>,
    /// Replace an existing target; write to a block device.
    #[arg(long)]
    pub force: bool,
    /// Read the target and rewrite only what differs.
    #[arg(long, conflicts_with_all = ["range", "force"])]
    pub in_place: bool,
    /// Where stored data is damaged, write zeros and go on; exit status 5.
    #[arg(long)]
    pub salvage: bool,
    /// Say what would be written, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct Check {
    /// Only these series.
    pub series: Vec<String>,
    /// Read and verify every byte; goes on where an interrupted pass was.
    #[arg(long)]
    pub read_data: bool,
    /// Read and verify about this share of the bytes, those first that were verified longest ago.
    #[arg(long, value_name = "PERCENT", conflicts_with = "read_data")]
    pub read_data_subset: Option<String>,
    /// Begin a pass over all data anew.
    #[arg(long, requires = "read_data")]
    pub restart: bool,
}

#[derive(Args)]
pub struct Diff {
    /// The older snapshot.
    pub old: String,
    /// The newer snapshot.
    pub new: String,
}

#[derive(Subcommand)]
pub enum Repo {
    /// Try whether a folder or bucket does all that a repository needs
    ///
    /// About 2,300 small objects are made there and removed again.
    #[command(
        after_help = "Examples:\n  silt repo probe s3://bucket/prefix\n  silt repo probe /mnt/nas"
    )]
    Probe {
        /// A folder, or s3://BUCKET/PREFIX.
        location: String,
    },
    /// Bring a repository in a bucket with versions back to what it was at a time
    ///
    /// Objects that were deleted or overwritten since are made current again, and heads that are
    /// newer are deleted; their versions stay. Snapshots made since are gone from listings, and
    /// what they stored is used by the next backup. Stop all backups first. Interrupted, it can be
    /// run again with the same time.
    ///
    /// Passwords stay as they are now: one that was removed since then may have been stolen. Those
    /// that differ are listed, and --keys brings them back, too.
    #[command(after_help = "Examples:
  silt repo rollback --at '2026-11-20 18:30' --dry-run
  silt repo rollback --at '2026-11-20 18:30' --keys
  silt repo rollback --at 2026-11-20T17:30:00Z")]
    Rollback(Rollback),
}

#[derive(Args)]
pub struct Rollback {
    /// The time: a day, which means its end, a local date and time, or an RFC 3339 time.
    #[arg(long, value_name = "TIME")]
    pub at: String,
    /// Bring back passwords that were removed or overwritten since, too.
    #[arg(long)]
    pub keys: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand)]
pub enum Key {
    /// List the repository's keys; * marks the one that opened it now
    #[command(after_help = "Examples:\n  silt key list\n  silt key list --json")]
    List,
    /// Add a password, or one for a host that only backs up
    #[command(after_help = "Examples:
  silt key add
  silt key add --new-password-file /root/second
  silt key add --write-only --series web1 --new-password-file web1.password
  silt key add --write-only --series 'db-*,web1' --new-password-file db.password")]
    Add(NewKey),
    /// Remove a key, and with it its password
    #[command(after_help = "Examples:\n  silt key remove 3f9a01bc")]
    Remove {
        /// The first digits of the key's id.
        id: String,
    },
    /// Replace the password that opens the repository now
    #[command(after_help = "Examples:
  silt key passwd
  silt key passwd --new-password-file /root/next")]
    Passwd(NewPassword),
}

#[derive(Args)]
pub struct NewKey {
    /// Make a key that backs up and deduplicates, and can neither read data nor delete anything.
    #[arg(long)]
    pub write_only: bool,
    /// The series that the key may write: names, or beginnings of names and '*', with commas
    /// between.
    ///
    /// With --write-only it must be given; '*' means every series. What the key signs of others is
    /// refused by everybody.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub series: Vec<String>,
    /// Make a write-only key whose series share nothing with others, and which can't tell what they
    /// have.
    #[arg(long, requires = "write_only")]
    pub no_share: bool,
    #[command(flatten)]
    pub password: NewPassword,
}

#[derive(Args)]
pub struct NewPassword {
    /// Read the new password from the first line of this file (or SILT_NEW_PASSWORD, or a prompt).
    #[arg(long, value_name = "FILE")]
    pub new_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub cost: Cost,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceFormat {
    /// By the file's name, checked against its content
    Auto,
    /// The bytes as they are
    Raw,
    /// A qcow2 image with its backing files
    Qcow2,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TargetFormat {
    /// A raw image, sparse
    Raw,
    /// A qcow2 image
    Qcow2,
}
