//! What happens in a history, as data: who does what, and where it goes wrong. Plans are drawn from
//! a seed, printed, shrunk, and kept as tests.

use crate::random::Random;

/// A history: a quiet beginning, then several hosts at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What disks and small decisions are drawn from.
    pub seed: u64,
    /// How many places there are; the repository begins in the first.
    pub places: usize,
    /// Whether places are folders, whose renames may be lost with the power, or buckets, whose
    /// requests may be repeated late.
    pub folders: bool,
    /// Whether the repository is encrypted and append-only.
    pub guarded: bool,
    /// What each series is backed up from, in the order of [`Series::ALL`].
    pub shapes: [Shape; 2],
    /// If this is not 0, files are stamped by the clock of the host that changes them, rounded down
    /// to so many milliseconds, and trees change during backups, too. All hosts must have the same
    /// clock then. If it is 0, another machine stamps the files, whose clock is right, and each
    /// change has a time of its own.
    pub tick_ms: u32,
    /// What is done before anything goes wrong.
    pub prelude: Vec<Action>,
    /// What the hosts do.
    pub hosts: Vec<Host>,
}

/// What a series is backed up from.
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
    /// By how many minutes its clock is ahead.
    pub skew_minutes: i64,
    /// Whether one process does everything, as an agent would, and opens the repository once.
    pub stays_open: bool,
    /// What it may do in a guarded repository.
    pub role: Role,
    /// What it does.
    pub work: Vec<Work>,
}

/// Which keys a host of a guarded repository has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// One that reads, and the one that signs.
    #[default]
    Administrator,
    /// One that reads.
    Host,
    /// One that only writes.
    WriteOnly,
}

/// One operation of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// How many minutes the host waits before it.
    pub after_minutes: u64,
    /// What it does.
    pub action: Action,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// An operation on the repository. Numbers choose among what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Changes a disk or file tree and backs it up.
    Backup(Series),
    /// Backs the disks of all series up together.
    Round,
    /// Deletes one snapshot.
    Delete(Series, u64, Exact),
    /// Brings a deleted snapshot back.
    Undelete(Series, u64),
    /// Protects a snapshot, or ends that, so many times; each is a commit.
    Protect(Series, u64),
    /// Finds out exactly what is dead.
    SweepSeries(Series),
    /// Gives space back.
    Reclaim(Series, Keep),
    /// Lets the files of a series be cut in another way, or in the usual one.
    Tune(Series, u64),
    /// Copies to the shared store what several series have.
    Popular,
    /// Replaces private copies by links.
    Repoint(Series),
    /// Deletes from the shared store.
    Sweep,
    /// Checks everything.
    Check,
    /// Restores a snapshot.
    Restore(Series, u64),
    /// Makes places alike.
    Heal,
    /// Adds a place that the repository does not have.
    AddPlace(u64),
    /// Gives the shared store a place of its own, or one more.
    AddSharedPlace(u64),
    /// Goes on without one of the places.
    RemovePlace(u64),
    /// Adds a password, one that only writes if so wished.
    AddKey(bool),
    /// Removes a password.
    RemoveKey(u64),
    /// Undoes what heads did that were not signed and had to be; there is none.
    Recover(Series),
}

/// Which series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// Called `vm`.
    Vm,
    /// Called `other`; its disk begins as the first one's.
    Other,
}

impl Series {
    /// All series.
    pub const ALL: [Self; 2] = [Self::Vm, Self::Other];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Other => "other",
        }
    }
}

/// How it is found out what a deletion leaves dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exact {
    /// By reading all recipes.
    Yes,
    /// By summary vectors.
    No,
}

/// What a reclaim keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing that nobody needs.
    Nothing,
    /// Containers of which little is dead, and what was left a short time ago.
    Usual,
    /// Deleted snapshots.
    Deleted,
}

/// Something that goes wrong at a storage operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// At which operation of the action.
    pub at: Point,
    /// What.
    pub what: Wrong,
}

/// A storage operation, by its kind and how many of them came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The method.
    pub kind: Kind,
    /// Which objects; all if none is said.
    pub class: Option<Class>,
    /// How many such operations of the action come before.
    pub nth: u64,
}

/// A method of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Creating.
    Put,
    /// Deleting.
    Delete,
    /// Reading.
    Get,
    /// Looking at one.
    Head,
    /// Listing.
    List,
}

/// The kinds of objects that matter, by the beginnings of their names.
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
    /// All others.
    Others,
}

impl Class {
    /// The class of an object or of a listing, by its name or prefix.
    pub fn of(name: &str) -> Self {
        let mut parts = name.split('/');
        match (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default()) {
            ("series", _) => Self::Series,
            ("state", "heads") => Self::Heads,
            ("state", "leases") => Self::Leases,
            ("snapshots", _) => Self::Snapshots,
            ("recipes", _) => Self::Recipes,
            ("containers", _) => Self::Containers,
            ("dead", _) => Self::Dead,
            ("root", _) if name.starts_with("root/places") => Self::Places,
            _ => Self::Others,
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The host stands still right before the operation, for so many minutes.
    Sleep(u64),
    /// The process dies before the operation takes effect.
    Kill,
    /// The process dies after the operation took effect.
    KillAfter,
    /// The process dies when the object is visible and not durable, and so many minutes later the
    /// power fails. In a bucket, as [`KillAfter`](Self::KillAfter).
    LosePower(u64),
    /// The operation takes effect, and its answer is lost.
    LoseAnswer,
    /// The response is lost, and the operation takes effect this many minutes later.
    Late(u64),
    /// The operation is repeated so many minutes later, unseen.
    Repeat(u64),
    /// The place can't be reached from now on, for so many minutes.
    Away(u64),
}

const MINUTES: [u64; 5] = [1, 7, 60, 600, 2000];

impl Plan {
    /// The plan of a seed.
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

    /// The plan of a seed for a guarded repository, whose passwords take long to try.
    pub fn draw_guarded(seed: u64) -> Self {
        Self::draw_with(Theme::Guarded, seed, Random(seed))
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
        // Drawn apart: the rest of a seed's plan does not depend on it.
        let mut random = Random(seed ^ 0x0005_4a9e);
        let shapes = [Shape::Disk, Shape::Disk, Shape::Tree, Shape::Tree, Shape::Both];
        let shapes = [random.of(&shapes), random.of(&shapes)];
        let mut plan = Self { seed, places, folders, guarded, shapes, tick_ms: 0, prelude, hosts };
        plan.draw_trees(&mut Random(seed ^ 0x0007_12ee));
        plan
    }

    /// Adds what concerns file trees alone.
    fn draw_trees(&mut self, random: &mut Random) {
        for shape in &mut self.shapes {
            *shape = match *shape {
                Shape::Both if random.once_in(2) => Shape::Varied,
                Shape::Tree if random.once_in(4) => Shape::Trees,
                shape => shape,
            };
        }
        if self.shapes.iter().all(|shape| shape.trees() == 0) {
            return;
        }
        if random.once_in(3) {
            self.tick_ms = random.of(&[4, 10, 1000, 2000]);
            let skew_minutes = self.hosts.first().map_or(0, |host| host.skew_minutes);
            self.hosts.iter_mut().for_each(|host| host.skew_minutes = skew_minutes);
        }
        for host in &mut self.hosts {
            if random.once_in(4) {
                let after_minutes = random.of(&[0, 0, 1, 10]);
                let action = Action::Tune(series(random), random.bits());
                let faults = (0..random.below(2)).map(|_| fault(self.folders, random)).collect();
                let place = random.below(host.work.len() + 1);
                host.work.insert(place, Work { after_minutes, action, faults });
            }
        }
    }
}

/// What a history is about: rare combinations come more often where few operations are drawn from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Series,
    Reclaim,
    Places,
    Sharing,
    /// One sleeps in the middle of writing to places that others add and remove meanwhile.
    Moves,
    /// One sleeps through so many commits of one series that the numbers of heads are free again.
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

/// What commits to one series, often.
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

/// What is done while places come and go.
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

/// What is done to one series.
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

/// What is done in a guarded repository.
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

fn series(random: &mut Random) -> Series {
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
        Work { after_minutes, action, faults }
    });
    Host { skew_minutes, stays_open, role, work: work.collect() }
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

fn fault(folders: bool, random: &mut Random) -> Fault {
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
