//! A history as data: the operations of each host, and the faults. Plans are drawn from a seed,
//! printed, shrunk, and kept as tests.

use crate::random::Random;
use crate::site::Replication;

/// A history: a prelude without faults, then several hosts at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The seed of disks and small decisions.
    pub seed: u64,
    /// Number of places. The repository is created in the first.
    pub places: usize,
    /// Whether places are folders, which can lose renames with the power, or buckets, which can
    /// repeat requests late.
    pub folders: bool,
    /// Whether the repository is encrypted and append-only.
    pub guarded: bool,
    /// Number of replicas, each with one place of its own.
    pub replicas: usize,
    /// Number of places for storage nodes; 0 in most histories. There are no nodes at first.
    pub nodes: usize,
    /// Whether each machine has a cache of what it has read of buckets.
    pub caches: bool,
    /// The sources of each series, in the order of [`Series::ALL`].
    pub shapes: [Shape; 2],
    /// If this is not 0, files are stamped by the clock of the host that changes them, rounded down
    /// to so many milliseconds, and trees change during backups, too. All hosts must have the same
    /// clock then. If it is 0, another machine stamps the files, whose clock is right, and each
    /// change has a time of its own.
    pub tick_ms: u32,
    /// What is done before anything goes wrong.
    pub prelude: Vec<Action>,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Hosts with agents, which back up when it is due.
    pub agents: Vec<AgentHost>,
}

impl Plan {
    /// The number of the auditor, who comes after the hosts, all agents together, and the worker of
    /// each.
    pub fn auditor(&self) -> usize {
        let of_agents = if self.agents.is_empty() { 0 } else { 1 + self.agents.len() };
        self.hosts.len() + of_agents
    }
}

/// A host with an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentHost {
    /// By how many minutes its clock is ahead.
    pub skew_minutes: i64,
    /// What it backs up, and when.
    pub tasks: Vec<(Series, &'static str)>,
    /// When it reclaims space.
    pub reclaims: Option<&'static str>,
    /// As the director: how many runs the whole group has at once; 0 for no limit.
    pub limit: usize,
    /// Of a thousand calls of the bus, how many go wrong.
    pub bus_faults: u64,
    /// What happens to it.
    pub troubles: Vec<Trouble>,
    /// The faults of its runs, in their order; later ones have none.
    pub runs: Vec<Vec<Fault>>,
}

/// What happens to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// So many minutes after the one before.
    pub after_minutes: u64,
    /// Whether everything that the bus knew is lost; otherwise the agent ends, and its run.
    pub loses_bus: bool,
    /// Whether its notes are lost, too.
    pub forgets: bool,
    /// For how long it is down.
    pub down_minutes: u64,
}

/// The sources of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// A disk.
    #[default]
    Disk,
    /// A file tree.
    Tree,
    /// A disk and a file tree.
    Both,
    /// Two file trees.
    Trees,
    /// A disk and two file trees, of which some are left out at times, and which may take each
    /// other's names.
    Varied,
}

impl Shape {
    /// Whether there is a disk.
    pub fn has_disk(self) -> bool {
        matches!(self, Self::Disk | Self::Both | Self::Varied)
    }

    /// How many file trees there are.
    pub fn trees(self) -> usize {
        match self {
            Self::Disk => 0,
            Self::Tree | Self::Both => 1,
            Self::Trees | Self::Varied => 2,
        }
    }

    /// Whether snapshots have different volumes.
    pub fn varies(self) -> bool {
        self == Self::Varied
    }
}

/// One host: its processes, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Number of minutes that its clock is ahead.
    pub skew_minutes: i64,
    /// Whether a single process runs all operations, like an agent, and opens the repository once.
    pub stays_open: bool,
    /// Its keys in a guarded repository.
    pub role: Role,
    /// The site whose repository it uses: 0 for the first one, otherwise the number of a replica.
    pub site: usize,
    /// Its operations.
    pub work: Vec<Work>,
}

/// The keys of a host of a guarded repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// A full key and the administrator's key.
    #[default]
    Administrator,
    /// A full key.
    Host,
    /// A write-only key.
    WriteOnly,
}

/// One operation of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Number of minutes that the host waits before it.
    pub after_minutes: u64,
    /// The operation.
    pub action: Action,
    /// The faults during it.
    pub faults: Vec<Fault>,
    /// During a replication, the faults of the process at the other site.
    pub faults_there: Vec<Fault>,
}

/// An operation on the repository. A number chooses one of the existing snapshots, keys or places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Changes the sources of a series and backs them up.
    Backup(Series),
    /// Backs up the disks of all series together.
    Round,
    /// Deletes a snapshot.
    Delete(Series, u64, Exact),
    /// Brings back a deleted snapshot.
    Undelete(Series, u64),
    /// Protects and unprotects a snapshot in turns. The number is that of the commits.
    Protect(Series, u64),
    /// Finds all dead chunks of a series by mark and sweep.
    SweepSeries(Series),
    /// Reclaims a series.
    Reclaim(Series, Keep),
    /// Stores similar chunks of a series as deltas.
    Optimize(Series),
    /// Lets the files of a series be cut in another way, or in the usual one.
    Tune(Series, u64),
    /// Copies to the shared store what several series have.
    Popular,
    /// Replaces private copies by links.
    Repoint(Series),
    /// Deletes dead chunks from the shared store.
    Sweep,
    /// Checks everything.
    Check,
    /// Restores a snapshot.
    Restore(Series, u64),
    /// Compares all places and repairs them.
    Heal,
    /// Adds a place to the repository.
    AddPlace(u64),
    /// Adds a place to the shared store.
    AddSharedPlace(u64),
    /// Removes a place.
    RemovePlace(u64),
    /// Adds a storage node.
    AddNode(u64),
    /// Lets backups write no new chunks to a node, or lets them again.
    CloseNode(u64),
    /// Moves a node to another place.
    MoveNode(u64),
    /// Takes a node out that has no chunks.
    RemoveNode(u64),
    /// Cuts a place of nodes off for a while.
    CutNode(u64),
    /// Puts the disk of a node back to what it was when one of the actions before this one began.
    RestoreNode(u64),
    /// Deletes what is dead or left over in all nodes.
    SweepNodes,
    /// Adds a key: a write-only one if `true`, otherwise a full one.
    AddKey(bool),
    /// Removes a key.
    RemoveKey(u64),
    /// Recovers a series. There is no tampering in a history, so this must do nothing.
    Recover(Series),
    /// Shows a series under another name, or under its own.
    Rename(Series, u64),
    /// Replicates snapshots between two sites.
    Replicate(Replication),
    /// In a prelude: all places become what they were before one of its actions, as after an error
    /// of an administrator. Caches stay as they are.
    RollBack(u64),
}

/// A series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// Called `vm`.
    Vm,
    /// Called `other`. Its first disk and tree are the same as those of `vm`.
    Other,
}

impl Series {
    /// All series.
    pub const ALL: [Self; 2] = [Self::Vm, Self::Other];

    /// Returns the name of the series.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Other => "other",
        }
    }
}

/// How a deletion finds the chunks that become dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exact {
    /// By reading all recipes.
    Yes,
    /// By summary vectors.
    No,
}

/// Dead data that a reclaim keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// As by default: containers with few dead chunks, recently deleted snapshots, recent orphans.
    Usual,
    /// Deleted snapshots.
    Deleted,
}

/// A fault at a storage operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The storage operation.
    pub at: Point,
    /// The fault.
    pub what: Wrong,
}

/// A storage operation of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The method.
    pub kind: Kind,
    /// The class of the object; `None` for any.
    pub class: Option<Class>,
    /// Number of such operations of the action before it.
    pub nth: u64,
}

/// A method of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Creates an object.
    Put,
    /// Deletes an object.
    Delete,
    /// Reads an object.
    Get,
    /// Reads the size of an object, or makes it durable.
    Head,
    /// Lists objects.
    List,
    /// Sends a message to the other site. A fault that is not a sleep or a death cuts the line.
    Message,
}

/// A class of objects, by the beginning of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Series records.
    Series,
    /// Heads.
    Heads,
    /// Leases.
    Leases,
    /// Snapshots.
    Snapshots,
    /// Recipe packs.
    Recipes,
    /// Containers.
    Containers,
    /// Dead lists.
    Dead,
    /// Lists of places.
    Places,
    /// Heads of a storage node.
    NodeHeads,
    /// Leases of a storage node.
    NodeLeases,
    /// Containers of a storage node.
    NodeContainers,
    /// Index runs of a storage node.
    NodeRuns,
    /// All others.
    Others,
}

/// A kind of fault. The numbers are minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The host sleeps this long right before the operation.
    Sleep(u64),
    /// The process dies before the operation takes effect.
    Kill,
    /// The process dies after the operation took effect.
    KillAfter,
    /// The process dies when the object is visible but not durable, and the power fails this much
    /// later. In a bucket, the same as [`KillAfter`](Self::KillAfter).
    LosePower(u64),
    /// The operation takes effect, but its response is lost.
    LoseAnswer,
    /// The response is lost, and the operation takes effect this much later.
    Late(u64),
    /// The operation takes effect, and once more this much later, unseen.
    Repeat(u64),
    /// The place is unreachable for this long, from this operation on.
    Away(u64),
}

pub(crate) const MINUTES: [u64; 5] = [1, 7, 60, 600, 2000];

impl Plan {
    /// Draws the plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random(seed);
        let theme = random.of(&[
            Theme::Series,
            Theme::Moves,
            Theme::Reclaim,
            Theme::Places,
            Theme::Sharing,
            Theme::Commits,
            Theme::All,
        ]);
        Self::draw_with(theme, seed, random)
    }

    /// Draws the plan of a seed for a guarded repository. Playing it is slower, as each password
    /// takes long to try.
    pub fn draw_guarded(seed: u64) -> Self {
        Self::draw_with(Theme::Guarded, seed, Random(seed))
    }

    /// Draws the plan of a seed for agents that back up, and hosts that work beside them.
    pub fn draw_agents(seed: u64) -> Self {
        let mut random = Random(seed ^ 0xa_9e47);
        let theme = random.of(&[Theme::Series, Theme::Reclaim, Theme::Commits]);
        let mut plan = Self::draw_with(theme, seed, random.clone());
        plan.add_agents(&mut Random(seed ^ 0xa_9e48));
        plan
    }

    fn draw_with(theme: Theme, seed: u64, mut random: Random) -> Self {
        let places = match theme {
            Theme::Places | Theme::Moves => 2 + random.below(2),
            Theme::All => 1 + random.below(3),
            Theme::Guarded => 1 + random.below(2),
            _ => 1,
        };
        let folders = random.once_in(2);
        let mut prelude = Vec::new();
        for _ in 0..random.below(5) {
            prelude.push(if random.once_in(2) {
                Action::Backup(series(&mut random))
            } else {
                theme.action(&mut random)
            });
        }
        if places > 1 && !random.once_in(4) {
            prelude.push(Action::AddPlace(random.bits()));
        }
        let hosts = 2 + random.below(3);
        let hosts: Vec<Host> = (0..hosts).map(|_| host(theme, folders, &mut random)).collect();
        let guarded = theme == Theme::Guarded;
        // Drawn separately, so that the rest of a seed's plan does not depend on it.
        let mut random = Random(seed ^ 0x0005_4a9e);
        let shapes = [Shape::Disk, Shape::Disk, Shape::Tree, Shape::Tree, Shape::Both];
        let shapes = [random.of(&shapes), random.of(&shapes)];
        let base = Self { seed, places, folders, guarded, shapes, ..Self::default() };
        let mut plan = Self { prelude, hosts, ..base };
        plan.draw_trees(&mut Random(seed ^ 0x0007_12ee));
        plan.draw_deltas(&mut Random(seed ^ 0x000d_e17a));
        plan.draw_nodes(&mut Random(seed ^ 0x000d_0de5));
        plan.draw_caches(&mut Random(seed ^ 0x000c_ac4e));
        plan
    }
}

/// The set of operations from which a history is drawn. With few different operations, rare
/// combinations are more frequent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Series,
    Reclaim,
    Places,
    Sharing,
    /// A host sleeps while it writes to places that others add and remove meanwhile.
    Moves,
    /// A host sleeps during many commits of one series, until numbers of heads are free again.
    Commits,
    All,
    Guarded,
}

impl Theme {
    fn action(self, random: &mut Random) -> Action {
        let one = series(random);
        let number = random.bits();
        let keep = random.of(&[Keep::Nothing, Keep::Nothing, Keep::Usual, Keep::Deleted]);
        let exact = random.of(&[Exact::Yes, Exact::No]);
        let (backup, reclaim) = (Action::Backup(one), Action::Reclaim(one, keep));
        let delete = Action::Delete(one, number, exact);
        match self {
            Self::Series => random.of(&of_one_series(one, number, [backup, delete, reclaim])),
            Self::Reclaim => random.of(&[
                backup,
                delete,
                delete,
                Action::Reclaim(Series::Vm, Keep::Nothing),
                Action::Reclaim(Series::Vm, Keep::Nothing),
                reclaim,
                Action::Backup(Series::Vm),
                Action::Delete(Series::Vm, number, exact),
            ]),
            Self::Places => random.of(&[
                backup,
                backup,
                backup,
                Action::AddPlace(number),
                Action::RemovePlace(number),
                Action::RemovePlace(number),
                Action::Heal,
                Action::Heal,
                reclaim,
                delete,
                Action::Check,
                Action::Restore(one, number),
                Action::AddSharedPlace(number),
                Action::Popular,
            ]),
            Self::Moves => random.of(&of_places(number)),
            Self::Sharing => random.of(&[
                backup,
                backup,
                Action::Round,
                Action::Round,
                Action::Popular,
                Action::Popular,
                Action::Repoint(one),
                Action::Sweep,
                Action::Sweep,
                Action::Sweep,
                delete,
                delete,
                reclaim,
                Action::Undelete(one, number),
                Action::Restore(one, number),
            ]),
            Self::Commits => random.of(&many_commits(number, exact, keep)),
            Self::Guarded => random.of(&guarded(one, number, [backup, delete, reclaim])),
            Self::All => {
                let themes = [Self::Series, Self::Reclaim, Self::Places, Self::Sharing];
                random.of(&themes).action(random)
            }
        }
    }
}

/// Returns operations that often commit to one series.
fn many_commits(number: u64, exact: Exact, keep: Keep) -> [Action; 8] {
    [
        Action::Backup(Series::Vm),
        Action::Backup(Series::Vm),
        Action::Delete(Series::Vm, number, exact),
        Action::Protect(Series::Vm, 16 + number % 16),
        Action::Protect(Series::Vm, 16 + number % 16),
        Action::Reclaim(Series::Vm, keep),
        Action::Reclaim(Series::Vm, keep),
        Action::Undelete(Series::Vm, number),
    ]
}

/// Returns operations while places are added and removed.
fn of_places(number: u64) -> [Action; 7] {
    [
        Action::Backup(Series::Vm),
        Action::Backup(Series::Vm),
        Action::Backup(Series::Vm),
        Action::RemovePlace(number),
        Action::RemovePlace(number),
        Action::AddPlace(number),
        Action::Heal,
    ]
}

/// Returns operations on one series.
fn of_one_series(one: Series, number: u64, [backup, delete, reclaim]: [Action; 3]) -> [Action; 12] {
    [
        backup,
        backup,
        backup,
        delete,
        delete,
        reclaim,
        reclaim,
        Action::Undelete(one, number),
        Action::Protect(one, 1 + number % 24),
        Action::SweepSeries(one),
        Action::Check,
        Action::Restore(one, number),
    ]
}

/// Returns operations on a guarded repository.
fn guarded(one: Series, number: u64, usual: [Action; 3]) -> Vec<Action> {
    let mut actions = usual.repeat(2);
    actions.extend([
        usual[0],
        Action::Round,
        Action::Undelete(one, number),
        Action::Protect(one, 1 + number % 24),
        Action::AddKey(number.is_multiple_of(4)),
        Action::RemoveKey(number),
        Action::RemoveKey(number),
        Action::Recover(one),
        Action::Popular,
        Action::Sweep,
        Action::Heal,
        Action::Check,
    ]);
    actions
}

pub(crate) fn series(random: &mut Random) -> Series {
    random.of(&[Series::Vm, Series::Vm, Series::Vm, Series::Other])
}

fn host(theme: Theme, folders: bool, random: &mut Random) -> Host {
    let skew_minutes = random.of(&[0, 0, 0, 3, -3, 1440, -1440]);
    let stays_open = random.once_in(4);
    let role = match theme {
        Theme::Guarded => {
            random.of(&[Role::Administrator, Role::Administrator, Role::Host, Role::WriteOnly])
        }
        _ => Role::Administrator,
    };
    let work = (0..=random.below(4)).map(|_| {
        let after_minutes = random.of(&[0, 0, 1, 10, 100, 1500]);
        let action = theme.action(random);
        let faults =
            (0..random.of(&[0, 0, 1, 1, 1, 2])).map(|_| theme.fault(folders, random)).collect();
        Work { after_minutes, action, faults, faults_there: Vec::new() }
    });
    Host { skew_minutes, stays_open, role, site: 0, work: work.collect() }
}

impl Theme {
    fn fault(self, folders: bool, random: &mut Random) -> Fault {
        if self != Self::Moves || random.once_in(4) {
            return fault(folders, random);
        }
        let class = random.of(&[Class::Heads, Class::Heads, Class::Snapshots, Class::Containers]);
        let at = Point { kind: Kind::Put, class: Some(class), nth: random.bits() % 2 };
        Fault { at, what: Wrong::Sleep(random.of(&MINUTES)) }
    }
}

pub(crate) fn fault(folders: bool, random: &mut Random) -> Fault {
    let kind = random.of(&[
        Kind::Put,
        Kind::Put,
        Kind::Put,
        Kind::Put,
        Kind::Delete,
        Kind::Delete,
        Kind::List,
        Kind::Get,
        Kind::Head,
    ]);
    let class = random.of(&[
        None,
        None,
        Some(Class::Heads),
        Some(Class::Heads),
        Some(Class::Heads),
        Some(Class::Leases),
        Some(Class::Snapshots),
        Some(Class::Recipes),
        Some(Class::Containers),
        Some(Class::Containers),
        Some(Class::Dead),
        Some(Class::Series),
        Some(Class::Places),
        Some(Class::Others),
    ]);
    let nth = match random.below(4) {
        0 | 1 => 0,
        2 => 1,
        _ => random.bits() % 12,
    };
    let minutes = random.of(&MINUTES);
    let what = match random.below(12) {
        0..=4 => Wrong::Sleep(minutes),
        5 => Wrong::Kill,
        6 => Wrong::KillAfter,
        7 => Wrong::Away(random.of(&[1, 30])),
        8 | 9 if folders => Wrong::LosePower(minutes),
        10 | 11 if folders => Wrong::Sleep(minutes),
        8 => Wrong::LoseAnswer,
        9 => Wrong::Late(minutes),
        _ => Wrong::Repeat(minutes),
    };
    Fault { at: Point { kind, class, nth }, what }
}
