//! The program's command line: every command, and the arguments of most.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::agent::{Agent, Cluster};
use crate::completion::{Complete, Manual};
use crate::compression;
use crate::config::ConfigCommand;
use crate::copies::Copies;
use crate::deletion::{Delete, Forget, Optimize, Policy, Reclaim, SomeSnapshots, Sweep, Undelete};
use crate::files::Files;
use crate::global::Global;
use crate::import::Import;
use crate::key::{Cost, Key};
use crate::mount::{Mount, Unmount};
use crate::node::Node;
use crate::popular::Popular;
use crate::replicate::Replicate;
use crate::rounds::{Choice as RoundsChoice, Rounds};
use crate::series::{Remove, Rename, Tag};
use crate::serve::Serve;
use crate::trees::{Cat, Dump, Find, Ls, TreeArgs, TreeRestoreArgs, Versions};
use crate::tune::Tune;

const AFTER_HELP: &str = "Exit status:
    0  done
    1  failed
    2  wrong usage
    3  backup made, but a source was partly unreadable
    4  backup made, but the changed-blocks map was wrong (everything was read)
    5  damage found
    6  backup made, but --forget failed
    7  `silt replicate`: the rest follows in the next --window
   10  no repository there
   11  another process works on the series
   12  wrong password
   13  refused: rights, keys, an existing target, safety checks
   20  `silt status`: a series is too old or damaged, or a replica is behind;
       `silt cluster status`: a task is overdue, or a series has no agent
  130  interrupted

Examples:
  silt init -r /backup/silt
  export SILT_REPOSITORY=/backup/silt SILT_PASSWORD_FILE=/root/.silt-password
  silt backup web1 root=/vm/web1.qcow2 data=/dev/vg/web1-data
  silt snapshots
  silt restore web1@latest:root /vm/web1-restored.raw";

/// Back up disks of virtual machines, and directories, with deduplication, and restore them.
#[derive(Parser)]
#[command(name = "silt", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Make a repository in an empty folder or under a prefix of a bucket
    #[command(after_help = "Examples:
  silt init -r /backup/silt
  silt init -r /backup/silt --compression 3 --chunking fastcdc:1024/4096/16384
  silt init -r /backup/silt --append-only
  silt init -r s3://bucket/vms
  silt init -r /backup/silt --nodes n1=/mnt/disk1/silt,n2=s3://node2/silt")]
    Init(Init),
    /// Back up volumes as a new snapshot of a series
    #[command(after_help = "Examples:
  silt backup web1 /vm/web1.qcow2
  silt backup web1 root=/vm/web1.qcow2 data=/dev/vg/web1-data --tag nightly
  qemu-img map --output=json overlay.qcow2 | silt backup web1 overlay.qcow2 --changed -
  silt backup db1 dump=- --stdin-command pg_dumpall
  silt backup home /srv/home etc=/etc --exclude '*.tmp' --exclude-caches
  find /srv -newer stamp -print0 | silt backup srv /srv --files-from-raw -
  silt backup web1 'root=nbd+unix:///?socket=/run/x.sock' --changed qemu:dirty-bitmap:monday
  silt backup web1 --due-since '2026-11-20 01:00'
  silt backup --fleet fleet.toml --spool --rounds 4
  silt backup --all")]
    Backup(Box<Backup>),
    /// Import tar archives, and the snapshots of restic and Borg
    #[command(subcommand)]
    Import(Import),
    /// List snapshots
    #[command(after_help = "Examples:
  silt snapshots
  silt snapshots web1 --json
  silt snapshots --tag nightly --newer-than 7d
  silt snapshots --latest 1
  silt snapshots --deleted")]
    Snapshots(ListSnapshots),
    /// Show one snapshot: its volumes, and how much each level of deduplication saved
    #[command(after_help = "Examples:\n  silt show web1@latest\n  silt show 3f9a01bc")]
    Show(OneSnapshot),
    /// List a snapshot's volumes, or the files of a file tree
    #[command(after_help = "Examples:
  silt ls web1@2026-11-20
  silt ls home@latest:etc/ssh -l
  silt ls home@latest:home/alice -lR --json
  silt ls home@latest:home/alice -R --acl")]
    Ls(Ls),
    /// Print files of a file tree to standard output
    #[command(after_help = "Examples:
  silt cat home@latest:etc/fstab
  silt cat home@2026-11-20:etc/hosts > hosts")]
    Cat(Cat),
    /// Find files in a snapshot, or in all snapshots of a series
    #[command(after_help = "Examples:
  silt find home@latest --name '*.conf' --newer-than 7d
  silt find home@latest:home/alice --type f --larger-than 1GiB -l
  silt find home --name lost.txt
  silt find home --iname '*invoice*' --owner alice --json

Without conditions, all entries are listed. In a series, the snapshots are searched from the oldest
to the newest, and each state of an entry is listed once, with the first snapshot that has it.")]
    Find(Find),
    /// Write a file tree to standard output as an archive
    #[command(after_help = "Examples:
  silt dump home@latest:etc | tar -t
  silt dump home@latest:home | ssh web2 tar -C /srv/home -x --acls --xattrs --xattrs-include='*'
  silt dump home@latest:home/alice --format zip -o alice.zip

If files cannot be read, they are named, and the exit status is 5. Those above 1 MiB are in the
archive, with zeros in place of damaged parts; the others are left out.")]
    Dump(Dump),
    /// List the versions of a file in the snapshots of its series
    #[command(after_help = "Examples:
  silt versions home:etc/fstab
  silt versions home:etc/ssh/sshd_config --attributes
  silt cat home@2026-11-20:etc/fstab

Consecutive snapshots with the same content are one version. TIME is that of its first snapshot.")]
    Versions(Versions),
    /// Restore a volume to a file, a device or standard output, or files to a folder
    #[command(after_help = "Examples:
  silt restore web1@latest /vm/web1.raw
  silt restore web1@latest /vm/web1/
  silt restore web1@latest:data /dev/vg/web1-data --force
  silt restore web1@2026-11-20:root /vm/web1.qcow2 --format qcow2
  silt restore home@latest:etc /srv/restored --include '*.conf'
  silt restore home@latest:home/alice/mail /srv/home/alice/mail --in-place --delete
  silt restore web1@latest:root - --range 1MiB+4KiB | xxd")]
    Restore(Restore),
    /// List and copy single files of a disk that was backed up, without restoring it
    #[command(after_help = "Examples:
  silt files web1@latest:root ls
  silt files web1@latest:root ls /etc
  silt files web1@latest:root cat /etc/fstab
  silt files web1@2026-11-20:root get /var/www /tmp/restored
  silt files web1@latest:root --partition 3 ls /home

Reads ext2, ext3 and ext4, on the disk itself or in a partition (MBR, GPT). The journal of a disk
that was not unmounted cleanly is replayed in memory. `get` writes nothing outside its folder,
whatever the image says. For other file systems, LVM and encrypted disks see `silt help mount`.")]
    Files(Files),
    /// Show all snapshots as a read-only folder, without restoring them
    #[command(after_help = "Examples:
  silt mount /mnt/backups
  silt mount /mnt/backups --background
  ls /mnt/backups/web1/latest/
  cmp /vm/web1.raw /mnt/backups/web1/2026-11-20T18-30-05Z/root.raw
  silt umount /mnt/backups

The folder holds SERIES/DATE/VOLUME.raw for disks, SERIES/DATE/VOLUME/ for file trees, links
SERIES/latest, and links by-id/ID for the ids that `silt snapshots` lists. DATE is in UTC. New
snapshots appear while it is mounted. Every byte is verified before a program gets it: reads of a
damaged range fail, all others work.

To open what is inside a disk:
  losetup --read-only --partscan --find --show /mnt/backups/web1/latest/root.raw
  guestfish --ro --format=raw -i -a /mnt/backups/web1/latest/root.raw
  qemu-img convert -O qcow2 /mnt/backups/web1/latest/root.raw web1.qcow2
For single files of ext2, ext3 and ext4 `silt files` is simpler. Users other than root need the
package fuse3.")]
    Mount(Mount),
    /// Unmount a folder that `silt mount` has mounted
    #[command(after_help = "Examples:
  silt umount /mnt/backups
  silt umount --force /mnt/backups

`fusermount3 -u FOLDER` and `umount FOLDER` do the same.")]
    Umount(Unmount),
    /// Verify the repository
    #[command(after_help = "Examples:
  silt check
  silt check --read-data
  silt check web1 --read-data-subset 5%")]
    Check(Check),
    /// Test a location for a repository, or roll back a repository in a bucket
    #[command(subcommand)]
    Repo(Repo),
    /// List, add, remove and repair copies of the repository
    #[command(after_help = "Examples:
  silt copies
  silt copies add /mnt/second/silt
  silt copies add --shared /mnt/fast/silt-shared
  silt copies heal --read-data
  silt copies remove /mnt/second/silt")]
    Copies(Copies),
    /// List, add, move and close storage nodes, to which backups write new chunks
    #[command(after_help = "Examples:
  silt node
  silt node add n1 /mnt/disk1/silt
  silt node add n2 s3://node2/silt
  silt node drain n1 s3://node4/silt

With nodes, each backup sends a piece of 1 MiB to the node that holds most of it already, or has
most room. Series share the chunks of a node.")]
    Node(Node),
    /// Show what differs between two snapshots: files of file trees, ranges of disks
    #[command(after_help = "Examples:
  silt diff web1@2026-11-19 web1@latest
  silt diff home@2026-11-19:etc/ssh home@latest:etc/ssh
  silt diff home@2026-11-19 home@latest --json

File trees: + added, - removed, M content differs, U only attributes differ, T type differs,
R renamed. Content is compared, not times; equal stored data is not read.")]
    Diff(Diff),
    /// Show statistics: snapshots, sizes and stored bytes per series
    #[command(after_help = "Examples:\n  silt stats\n  silt stats web1 --json")]
    Stats(Snapshots),
    /// Show the age and state of each series and replica, for monitoring
    #[command(after_help = "Examples:
  silt status
  silt status --max-age 26h
  silt status web1 db1 --max-age 26h --json

Exit status 20 if a series is damaged, has no good snapshot, or none younger than --max-age, or if a
replica lacks a snapshot older than --max-lag, was never replicated to, or the last attempt failed.
WAITING: snapshots that the next `silt replicate` sends, as far as this machine knows.
A snapshot is good if it can be read, its source was read in full, and it is not dated in the
future. VERIFIED: `silt check --read-data` has read all data of the series since this time. MAP:
every segment was read or compared since this time; - without changed-blocks maps.")]
    Status(Status),
    /// Delete snapshots by retention rules: those given, the profile's, or each series' stored ones
    #[command(after_help = "Examples:
  silt forget --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run
  silt forget web1 --keep-last 10 --keep-within 30d
  silt forget --reclaim

Times are in the local time zone. Snapshots dated in the future and protected ones are kept. To stop
a stolen host from pushing out good snapshots with new ones, use --keep-within and --min-age.")]
    Forget(Forget),
    /// Delete snapshots; `silt reclaim` frees their space
    #[command(after_help = "Examples:
  silt delete 3f9a01bc
  silt delete web1@2026-11-20 web1@2026-11-21 --dry-run")]
    Delete(Delete),
    /// Bring back deleted snapshots; possible until a reclaim frees their space
    #[command(after_help = "Examples:\n  silt snapshots --deleted\n  silt undelete 3f9a01bc")]
    Undelete(Undelete),
    /// Protect snapshots, so that no command and no retention rule deletes them
    #[command(after_help = "Examples:\n  silt protect web1@latest")]
    Protect(SomeSnapshots),
    /// Allow snapshots to be deleted again
    #[command(after_help = "Examples:\n  silt unprotect 3f9a01bc")]
    Unprotect(SomeSnapshots),
    /// Show a series under another name
    #[command(after_help = "Examples:
  silt rename web1 www

Nothing that is stored moves. Hosts that back up under the old name still reach the series, and no
other series can take that name. Renaming it back is possible at any time.")]
    Rename(Rename),
    /// Delete all snapshots of a series
    #[command(after_help = "Examples:
  silt remove web1 --dry-run
  silt remove web1

They can be brought back with `silt undelete` until a reclaim frees their space.")]
    Remove(Remove),
    /// Add or remove tags of snapshots
    #[command(subcommand)]
    Tag(Tag),
    /// Free the space of deleted snapshots; other series can be backed up meanwhile
    #[command(after_help = "Examples:
  silt reclaim
  silt reclaim web1 --min-dead 0 --sweep
  silt reclaim --keep-deleted 7d --limit-read 50 --limit-write 50
  silt reclaim --dry-run --json")]
    Reclaim(Reclaim),
    /// Find dead chunks exactly, by mark and sweep; `silt reclaim` does so if it is worthwhile
    #[command(
        alias = "repair",
        after_help = "Examples:\n  silt sweep\n  silt sweep web1 --dry-run --json"
    )]
    Sweep(Sweep),
    /// Store similar chunks as their differences, and compress more; needs time and saves space
    #[command(after_help = "Examples:
  silt optimize
  silt optimize web1 --dry-run
  silt optimize db1 --min-saved 50 --memory 512
  silt optimize db1 --compression best
  silt optimize web1 --deltas-only

Snapshots stay as they are. A chunk is read from at most two containers afterwards. Chunks that
others are stored as differences from stay until a sweep finds that none needs them. Older versions
of the program cannot read these chunks.")]
    Optimize(Optimize),
    /// Store once the chunks that several series have in common
    #[command(subcommand)]
    Popular(Popular),
    /// Plan the backup of a fleet in rounds
    #[command(subcommand)]
    Rounds(Rounds),
    /// Show snapshots to other programs without restoring them
    #[command(subcommand)]
    Serve(Serve),
    /// Bring snapshots to a replica of the repository at another site
    #[command(after_help = "Examples:
  silt replicate --to /mnt/second --init --append-only
  silt replicate --to ssh://backup@offsite/backup/replica --limit-write 2mbit
  silt replicate --to tcp://offsite:7420 web1 db1 --newest 1
  silt replicate --to s3://bucket/backup --foreign --dry-run

A replica is a repository with the same secret and a password of its own. Only what it lacks is
sent, but no snapshots older than the newest one in both. An interrupted replication goes on.")]
    Replicate(Replicate),
    /// Back up the series of this host when they are due, by itself and with other hosts
    #[command(subcommand)]
    Agent(Agent),
    /// Show what the agents of all hosts do, and give them commands
    #[command(subcommand)]
    Cluster(Cluster),
    /// Repair a series with a damaged newest head, and bring back snapshots dropped by force
    #[command(after_help = "Examples:\n  silt recover web1")]
    Recover {
        /// The name of the series, or `id:` and its id if its name cannot be read.
        series: String,
    },
    /// Measure which chunk sizes suit the files of a directory, and use them
    #[command(after_help = "Examples:
  silt tune /srv/home
  silt tune /srv/home --plot home.svg --json
  silt tune /srv/home --apply home
  silt tune /srv/home --reset home

Prints, for each kind of files and each chunking, how much deduplication saves, and how much of it
per second of one core. Stored files keep their chunks until they change.")]
    Tune(Tune),
    /// Show, set or remove the stored retention policies of series
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
    /// Check and show the configuration file with its profiles of settings
    #[command(
        subcommand,
        after_help = "Examples:\n  silt config check\n  silt config show\n\nThe file is \
                      described in `silt help profiles`."
    )]
    Config(ConfigCommand),
    /// Print a shell completion script
    #[command(after_help = "Examples:
  silt completion bash > /etc/bash_completion.d/silt
  silt completion zsh > /usr/local/share/zsh/site-functions/_silt
  silt completion fish > ~/.config/fish/completions/silt.fish

The scripts for bash, zsh and fish also complete the names of series, snapshots, volumes and
profiles, if the password is in a file or a variable.")]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the candidates for a word of a command line, for the scripts of `completion`
    #[command(hide = true)]
    Complete(Complete),
    /// Write the manual pages to a folder, for packages
    #[command(hide = true)]
    Manual(Manual),
    /// Print the help of a command, or one of the topics options, agents, buckets, environment,
    /// fleet, profiles and trees
    #[command(after_help = "Examples:
  silt help backup
  silt help key add
  silt help options
  silt help agents
  silt help buckets
  silt help environment
  silt help fleet
  silt help profiles
  silt help trees")]
    Help {
        /// A command, or a topic.
        #[arg(value_name = "COMMAND|TOPIC")]
        words: Vec<String>,
    },
    /// Print the version
    #[command(after_help = "Examples:\n  silt version\n  silt version --json")]
    Version,
}

#[derive(Args)]
pub struct Init {
    /// How much to compress: fastest, fast, default, better, best, or a zstd level from -7 to 19.
    #[arg(long, default_value = "default", allow_negative_numbers = true, value_name = "LEVEL",
        value_parser = compression::level)]
    pub compression: i32,
    /// How volumes are cut into chunks: fixed:BYTES or fastcdc:MIN/AVG/MAX.
    #[arg(long, default_value = "fixed:4096", value_name = "HOW")]
    pub chunking: String,
    /// Require a second password, the administrator's, to delete anything. Hosts that back up do
    /// not need it.
    #[arg(long)]
    pub append_only: bool,
    /// Do not encrypt. Everyone who can read the storage can then read the backups.
    #[arg(long)]
    pub no_encryption: bool,
    /// Storage nodes, separated by commas: backups write new chunks to them. See `silt node`.
    #[arg(long, value_name = "NAME=LOCATION,…", value_delimiter = ',')]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub cost: Cost,
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
    /// The series: one name per machine, the same every time. By default all series of the profile.
    pub series: Option<String>,
    /// Volumes: PATH or NAME=PATH; raw file, qcow2, block device, directory, URI of an NBD export,
    /// or - for standard input. By default those of the profile.
    #[arg(value_name = "[NAME=]PATH")]
    pub volumes: Vec<OsString>,
    /// Back up all series that this TOML file lists, in rounds: chunks that they have in common are
    /// stored once. See `silt help fleet`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["series", "changed"])]
    pub fleet: Option<PathBuf>,
    /// Back up all series that this machine has backed up before, in rounds, each from the same
    /// files as last time.
    #[arg(long, conflicts_with_all = ["fleet", "series", "changed"])]
    pub all: bool,
    /// Run this shell command and back up its standard output as the volume `-`. If the command
    /// fails, so does the backup; with a pipe, a failed dump looks like a short one.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["fleet", "all"])]
    pub stdin_command: Option<String>,
    /// A map of the blocks that changed since the last snapshot, as JSON of `qemu-img map`,
    /// `nbdinfo --map` or `rbd diff`; samples verify it. FILE may be - for standard input, or for
    /// an NBD export the server's own qemu:dirty-bitmap:BITMAP. With several volumes: NAME=FILE.
    #[arg(long, value_name = "[NAME=]FILE")]
    pub changed: Vec<OsString>,
    /// The program that wrote the maps; by default it is recognized by their content. An empty map,
    /// as `rbd diff` writes it if nothing has changed, needs this option.
    #[arg(long, value_enum, value_name = "PROGRAM", requires = "changed")]
    pub changed_form: Option<ChangedForm>,
    /// Tag the snapshot; may be given several times.
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Format of the sources.
    #[arg(long, value_enum, default_value_t = SourceFormat::Auto)]
    pub format: SourceFormat,
    /// How to cut this snapshot's volumes into chunks: fixed:BYTES or fastcdc:MIN/AVG/MAX.
    #[arg(long, value_name = "HOW")]
    pub chunking: Option<String>,
    /// How much to compress: fastest, fast, default, better, best, or a zstd level from -7 to 19.
    #[arg(long, allow_negative_numbers = true, value_name = "LEVEL",
        value_parser = compression::level)]
    pub compression: Option<i32>,
    /// Back up images that another program has open for writing.
    #[arg(long)]
    pub allow_in_use: bool,
    /// Allow backing files of qcow2 images in this folder or device, besides the image's own
    /// folder.
    #[arg(long, value_name = "PATH")]
    pub allow_backing: Vec<PathBuf>,
    /// Do not compare with an earlier snapshot: read and deduplicate as for a first backup.
    #[arg(long)]
    pub no_parent: bool,
    /// Create the series as one that shares no chunks with others, so that hosts with keys for
    /// other series cannot test what it holds.
    #[arg(long, conflicts_with = "fleet")]
    pub no_share: bool,
    /// Run this shell command before the volumes are opened, such as one that makes a snapshot of
    /// them; if it fails, nothing is backed up. SILT_SERIES holds the series.
    #[arg(long, value_name = "COMMAND", requires = "volumes",
        conflicts_with_all = ["fleet", "all"])]
    pub before: Option<String>,
    /// Run this shell command once the backup has ended, even if it failed.
    #[arg(long, value_name = "COMMAND", requires = "volumes",
        conflicts_with_all = ["fleet", "all"])]
    pub after: Option<String>,
    /// Do nothing if the series has a snapshot from this time or later: a day, a local date and
    /// time, or an RFC 3339 time. So a job that runs twice makes one snapshot.
    #[arg(long, value_name = "TIME")]
    pub due_since: Option<String>,
    /// Take part in the round of hosts with this id, with the series of the profile.
    #[arg(long, value_name = "ID", hide = true, conflicts_with_all = ["series", "fleet", "all"])]
    pub join_round: Option<String>,
    /// Ask these agents, by the bus of `[agent.bus]`, where chunks of the shared store are.
    #[arg(long, value_name = "NAMES", hide = true, value_delimiter = ',')]
    pub index_hosts: Vec<String>,
    /// Apply the series' stored retention policy afterwards (`silt policy set`).
    #[arg(long)]
    pub forget: bool,
    /// Do everything but write to the repository.
    #[arg(long)]
    pub dry_run: bool,
    // Last: the heading of a group stays that of what follows.
    #[command(flatten)]
    pub rounds: RoundsChoice,
    #[command(flatten)]
    pub tree: TreeArgs,
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
    /// Only snapshots that were deleted and can still be brought back.
    #[arg(long)]
    pub deleted: bool,
    /// Only snapshots with this tag, or with one of several.
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Only snapshots made by this host, or by one of several.
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,
    /// Only snapshots older than this, such as 30d.
    #[arg(long, value_name = "PERIOD")]
    pub older_than: Option<String>,
    /// Only snapshots younger than this, such as 12h.
    #[arg(long, value_name = "PERIOD")]
    pub newer_than: Option<String>,
    /// Only the N newest of these snapshots of each series.
    #[arg(long, value_name = "N")]
    pub latest: Option<usize>,
}

#[derive(Args)]
pub struct OneSnapshot {
    /// An id, latest, SERIES@latest or SERIES@2026-11-20.
    pub snapshot: String,
}

#[derive(Args)]
pub struct Restore {
    /// SNAPSHOT or SNAPSHOT:VOLUME; for a part of a file tree also SNAPSHOT:[VOLUME]/PATH.
    pub snapshot: OsString,
    /// A file, a block device, - for standard output, or a folder for one file per volume. For a
    /// file tree: the folder for its files.
    pub target: PathBuf,
    /// Format of the target: by default qcow2 if its name ends in .qcow2, otherwise raw.
    #[arg(long, value_enum)]
    pub format: Option<TargetFormat>,
    /// Only this part: START-END, START+LENGTH or START-, such as 1MiB+4KiB.
    #[arg(long, value_name = "RANGE")]
    pub range: Option<String>,
    /// Replace an existing target; write to a block device.
    #[arg(long)]
    pub force: bool,
    /// Read the target and rewrite only what differs.
    #[arg(long, conflicts_with_all = ["range", "force"])]
    pub in_place: bool,
    /// Do not stop at damaged data: write zeros for it and list it. Exit status 5.
    #[arg(long)]
    pub salvage: bool,
    /// Print what would be written, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub tree: TreeRestoreArgs,
}

#[derive(Args)]
pub struct Status {
    /// Only these series.
    pub series: Vec<String>,
    /// Exit with 20 if a series' newest good snapshot is older than this, such as 26h.
    #[arg(long, value_name = "PERIOD")]
    pub max_age: Option<String>,
    /// Exit with 20 if a snapshot older than this, such as 3d, is not at a replica that should have
    /// it; otherwise the replica's max-lag in the profile counts.
    #[arg(long, value_name = "PERIOD")]
    pub max_lag: Option<String>,
}

#[derive(Args)]
pub struct Check {
    /// Only these series.
    pub series: Vec<String>,
    /// Read and verify every byte; an interrupted pass is continued.
    #[arg(long)]
    pub read_data: bool,
    /// Read and verify about this share of the bytes, starting with those verified longest ago.
    #[arg(long, value_name = "PERCENT", conflicts_with = "read_data")]
    pub read_data_subset: Option<String>,
    /// Start a new pass over all data.
    #[arg(long, requires = "read_data")]
    pub restart: bool,
}

#[derive(Args)]
pub struct Diff {
    /// The older snapshot: SNAPSHOT, SNAPSHOT:VOLUME, SNAPSHOT:/PATH or SNAPSHOT:VOLUME/PATH.
    pub old: OsString,
    /// The newer snapshot.
    pub new: OsString,
}

#[derive(Subcommand)]
pub enum Repo {
    /// Test whether a folder or bucket can hold a repository
    ///
    /// This creates about 2,300 small objects there and removes them again.
    #[command(
        after_help = "Examples:\n  silt repo probe s3://bucket/prefix\n  silt repo probe /mnt/nas"
    )]
    Probe {
        /// A folder, or s3://BUCKET/PREFIX.
        location: String,
    },
    /// Roll back a repository in a bucket with versions to a point in time
    ///
    /// Objects that were deleted or overwritten since become current again. Newer heads are
    /// deleted, but their versions stay. Snapshots made since then disappear from listings; the
    /// next backup uses what they stored. Stop all backups first. If it is interrupted, run it
    /// again with the same time.
    ///
    /// Passwords stay as they are now, because one that was removed may have been stolen. Those
    /// that differ are listed, and --keys brings them back.
    #[command(after_help = "Examples:
  silt repo rollback --at '2026-11-20 18:30' --dry-run
  silt repo rollback --at '2026-11-20 18:30' --keys
  silt repo rollback --at 2026-11-20T17:30:00Z")]
    Rollback(Rollback),
}

#[derive(Args)]
pub struct Rollback {
    /// The point in time: a day (its end), a local date and time, or an RFC 3339 time.
    #[arg(long, value_name = "TIME")]
    pub at: String,
    /// Also bring back passwords that were removed or overwritten since.
    #[arg(long)]
    pub keys: bool,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceFormat {
    /// By the file's name, checked against its content
    Auto,
    /// The file's bytes, unchanged
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
