//! Rounds of several hosts, which exchange requests and answers through the shared store.

use std::collections::HashSet;
use std::sync::Arc;

use silt_format::{ErrorKind, Result, RunRef};
use silt_sharing::exchange::{
    Answers, HostRound, Placed, SharedAdditions, Workspace, join_claims, keys_of, write_owners,
};
use silt_storage::{MemoryStorage, list_all};
use siltstone::{Repository, RoundOptions, RoundReport};

use crate::kit::{self, World};
use crate::rounds::{assert_latest, fleet, image_member, rescan};
use crate::shared;

/// Tasks that a round's fingerprints are divided into.
const TASKS: u32 = 5;

/// What a host was granted, and what it has stored.
type Granted = (std::ops::Range<u32>, Placed);
/// Something that a host claims wrongly.
type Change = fn(&mut Vec<Granted>);

/// Which process does a host's part, and the images of its series.
type Host<'a> = (&'a Repository, Vec<(&'static str, &'a [u8])>);

fn workspace() -> Workspace {
    Workspace { folder: shared::spool(), memory_bytes: 0 }
}

fn count_of<T>(hosts: &[T]) -> u16 {
    u16::try_from(hosts.len()).unwrap()
}

/// The processes of hosts.
fn processes<'a>(hosts: &[Host<'a>]) -> Vec<&'a Repository> {
    hosts.iter().map(|(repository, _)| *repository).collect()
}

fn scan<'a>(hosts: &[Host<'a>], options: &'a RoundOptions) -> Result<Vec<HostRound<'a, 'a>>> {
    let scan = |(repository, images): &Host<'a>| {
        let members = images.iter().map(|(name, image)| image_member(name, image)).collect();
        HostRound::scan(repository, members, options)
    };
    hosts.iter().map(scan).collect()
}

/// A fleet that has so much in common that each host stores a part of it.
fn large_fleet() -> Vec<(&'static str, Vec<u8>)> {
    let common = kit::image(77, 3000);
    let own = |seed| [common.as_slice(), &kit::image(seed, 200)].concat();
    vec![("a", own(1)), ("b", own(2)), ("c", own(3))]
}

/// The answers of all tasks, each done by another host, and all runs that were written for them.
fn answers(
    hosts: &[&Repository],
    rounds: &[HostRound<'_, '_>],
) -> Result<(Vec<Answers>, Vec<RunRef>)> {
    let numbered = (0..).zip(rounds);
    let requests = numbered.map(|(number, round)| round.write_requests(number).map(|it| it.run));
    let requests = requests.collect::<Result<Vec<_>>>()?;
    // Whose chunks are counted by whom makes no difference.
    let ids = hosts[0].series_ids()?;
    let parts = ids.chunks(ids.len().div_ceil(hosts.len()).max(1)).zip(hosts.iter().cycle());
    let owners = parts.map(|(ids, repository)| {
        write_owners(repository, ids, &workspace(), &mut || Ok(())).map(|it| it.run)
    });
    let owners = owners.collect::<Result<Vec<_>>>()?;
    let tasks = (0..TASKS).zip(hosts.iter().cycle());
    let answers = tasks.map(|(task, repository)| {
        let keys = keys_of(task, TASKS);
        join_claims(repository, &keys, &requests, &owners, count_of(hosts), &workspace())
    });
    let answers = answers.collect::<Result<Vec<_>>>()?;
    let runs =
        requests.into_iter().chain(owners).chain(answers.iter().map(|it| it.run.run)).collect();
    Ok((answers, runs))
}

/// A round of several hosts by the first of them; `between` runs before its commit.
fn round_with(
    hosts: &[Host<'_>],
    between: &mut dyn FnMut(&mut Vec<Granted>),
) -> Result<Vec<RoundReport>> {
    let options = rescan();
    exchange(&processes(hosts), scan(hosts, &options)?, between)
}

/// Does what follows the scans of hosts, by the first of them.
pub fn exchange(
    hosts: &[&Repository],
    mut rounds: Vec<HostRound<'_, '_>>,
    between: &mut dyn FnMut(&mut Vec<Granted>),
) -> Result<Vec<RoundReport>> {
    let mut additions = SharedAdditions::begin(hosts[0])?;
    let (answers, mut runs) = answers(hosts, &rounds)?;
    let answer_runs: Vec<RunRef> = answers.iter().map(|answers| answers.run.run).collect();
    let mut placed = Vec::new();
    for (number, round) in (0..).zip(&mut rounds) {
        let chunks = answers.iter().map(|it| it.chunks[usize::from(number)]).sum();
        let numbers = additions.grant(chunks, 4096)?;
        let host = (number, count_of(hosts));
        placed.push((numbers.clone(), round.store(&answer_runs, host, numbers)?));
    }
    between(&mut placed);
    runs.extend(placed.iter().map(|(_, placed)| placed.run));
    additions.commit(&placed, &workspace())?;
    additions.finish(&runs)?;
    rounds.into_iter().map(HostRound::back_up).collect()
}

fn round(hosts: &[Host<'_>]) -> Result<Vec<RoundReport>> {
    round_with(hosts, &mut |_| {})
}

/// A host for each of the images.
fn one_each<'a>(
    repositories: &'a [Repository],
    images: &'a [(&'static str, Vec<u8>)],
) -> Vec<Host<'a>> {
    let pairs = repositories.iter().zip(images);
    pairs.map(|(repository, (name, image))| (repository, vec![(*name, &image[..])])).collect()
}

pub fn several(count: u64) -> (Arc<MemoryStorage>, Arc<World>, Vec<Repository>) {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let mut repositories = vec![kit::init(storage.clone(), &world).unwrap()];
    for host in 1..count {
        let world = World::new(100 + host);
        repositories.push(kit::open(storage.clone(), &world).unwrap());
    }
    (storage, world, repositories)
}

fn unique(images: &[(&'static str, Vec<u8>)]) -> u64 {
    let chunks = images.iter().flat_map(|(_, image)| image.chunks(4096));
    let unique: HashSet<&[u8]> = chunks.filter(|it| it.iter().any(|byte| *byte != 0)).collect();
    unique.len() as u64
}

#[test]
fn hosts_store_together_what_exact_deduplication_leaves() {
    let (storage, world, repositories) = several(3);
    let mut images = large_fleet();
    // Twice in one volume, and in no other: stored once, and not shared.
    let own = kit::image(9, 100);
    images[0].1.extend([own.as_slice(), &own].concat());
    let reports = round(&one_each(&repositories, &images)).unwrap();
    let shared: Vec<u64> = reports.iter().map(|report| report.shared_chunks).collect();
    // Each has the common chunks, and each stores the regions of them that fall to it.
    assert!(shared.iter().all(|chunks| *chunks > 0), "{shared:?}");
    assert_latest(&repositories[2], &images);
    let counted = shared::build(&repositories[1], siltstone::SharePolicy::Duplicates).unwrap();
    assert_eq!((counted.copied_chunks, counted.unique_chunks), (0, unique(&images)));
    assert_eq!(counted.private_slots + counted.shared_slots, unique(&images), "each once");
    let check = shared::check(&repositories[0]);
    assert!(check.damage.is_empty() && check.unreferenced == 0, "{check:?}");
    let runs = list_all(&*storage, "", None)
        .filter(|item| item.as_ref().unwrap().0.as_str().starts_with("runs/"));
    assert_eq!(runs.count(), 1, "the index, and none of what was exchanged");

    // The next day hosts have other numbers, one has two series, and there is a newcomer.
    world.pass_seconds(86_400);
    let update = kit::image(500, 100);
    for (_, image) in &mut images[..2] {
        image[..update.len()].copy_from_slice(&update);
    }
    images.push(("d", [&images[2].1[..], &kit::image(70, 30)].concat()));
    let of = |place: usize| (images[place].0, &images[place].1[..]);
    let hosts = [(&repositories[1], vec![of(0), of(3)]), (&repositories[0], vec![of(1), of(2)])];
    round(&hosts).unwrap();
    assert_latest(&repositories[2], &images);
    let check = shared::check(&repositories[0]);
    assert!(check.damage.is_empty() && check.unreferenced == 0, "{check:?}");
}

#[test]
fn whoever_does_a_task_comes_to_the_same_answers() {
    let (_, _, repositories) = several(2);
    let images = fleet();
    kit::backup(&repositories[0], images[2].0, &images[2].1).unwrap();
    let (hosts, options) = (one_each(&repositories, &images[..2]), rescan());
    let rounds = scan(&hosts, &options).unwrap();
    let (first, _) = answers(&processes(&hosts), &rounds).unwrap();
    let (second, _) = answers(&processes(&hosts), &rounds).unwrap();
    let counts = |all: &[Answers]| all.iter().map(|it| it.chunks.clone()).collect::<Vec<_>>();
    assert_eq!(counts(&first), counts(&second));
    assert!(first.iter().map(|it| it.run.run.hash).eq(second.iter().map(|it| it.run.run.hash)));
    assert!(first.iter().map(|it| it.run.run.records).sum::<u64>() > 100);
}

#[test]
fn more_hosts_than_memory_holds_come_to_the_same_answers() {
    let (_, _, repositories) = several(1);
    let repository = &repositories[0];
    let image = |chunks: Vec<u64>| -> Vec<u8> {
        chunks.iter().flat_map(|chunk| (chunk + 1).to_le_bytes().repeat(512)).collect()
    };
    // All have a part in common, every second one another; each has one that a neighbour has, too,
    // and one that nobody else has.
    let chunks = |number: u64| {
        let own = 10_000 + 100 * number;
        let (second, neighbour) = (1000 + number % 2 * 100, 2000 + number / 2 * 100);
        let parts = [0..300, second..second + 30, neighbour..neighbour + 40, own..own + 20];
        parts.into_iter().flatten().collect::<Vec<u64>>()
    };
    let images: Vec<Vec<u8>> = (0..22).map(|number| image(chunks(number))).collect();
    let wanted = (11..22)
        .flat_map(chunks)
        .collect::<HashSet<u64>>()
        .into_iter()
        .filter(|chunk| (0..22).filter(|number| chunks(*number).contains(chunk)).count() > 1);
    let wanted = wanted.count() as u64;
    let names: Vec<String> = (0..22).map(|number| format!("series{number}")).collect();
    // Half of them have been backed up: what they have is found in runs of owners.
    for (name, image) in names.iter().zip(&images).take(11) {
        kit::backup(repository, name, image).unwrap();
    }
    let members = |number: usize| vec![image_member(&names[number], &images[number])];
    let options = RoundOptions { memory_bytes: 1, ..rescan() };
    let scans = (11..22).map(|it| HostRound::scan(repository, members(it), &options));
    let mut rounds = scans.collect::<Result<Vec<_>>>().unwrap();
    let requests = (0..).zip(&rounds).map(|(it, round)| round.write_requests(it).unwrap().run);
    let requests: Vec<RunRef> = requests.collect();
    let ids = repository.series_ids().unwrap();
    let owners = ids
        .chunks(2)
        .map(|ids| write_owners(repository, ids, &workspace(), &mut || Ok(())).unwrap().run);
    let owners: Vec<RunRef> = owners.collect();
    let answers = |memory_bytes: u64| {
        let workspace = Workspace { memory_bytes, ..workspace() };
        let join = |task| {
            let keys = keys_of(task, TASKS);
            join_claims(repository, &keys, &requests, &owners, 11, &workspace).unwrap()
        };
        (0..TASKS).map(join).collect::<Vec<_>>()
    };
    let (few, many) = (answers(1), answers(1 << 30));
    assert!(few.iter().map(|it| &it.chunks).eq(many.iter().map(|it| &it.chunks)));
    assert!(few.iter().map(|it| it.run.run.hash).eq(many.iter().map(|it| it.run.run.hash)));
    let of_all: u64 = few.iter().flat_map(|it| &it.chunks).sum();
    assert!(of_all == wanted && wanted > 500, "{of_all} {wanted}");

    let mut additions = SharedAdditions::begin(repository).unwrap();
    let runs: Vec<RunRef> = few.iter().map(|answers| answers.run.run).collect();
    let mut placed = Vec::new();
    for (number, round) in (0..).zip(&mut rounds) {
        let numbers = additions.grant(of_all, 4096).unwrap();
        placed.push((numbers.clone(), round.store(&runs, (number, 11), numbers).unwrap()));
    }
    assert_eq!(placed.iter().map(|(_, placed)| placed.chunks).sum::<u64>(), of_all);
    let workspace = Workspace { memory_bytes: 1, ..workspace() };
    // Whatever the number of runs, they are looked at as closely.
    let mut wrong = placed.clone();
    wrong[9].1.containers.clear();
    let error = additions.commit(&wrong, &workspace).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    additions.commit(&placed, &workspace).unwrap();
    additions.finish(&[requests, owners, runs].concat()).unwrap();
    for round in rounds {
        round.back_up().unwrap().backups.into_iter().for_each(|it| drop(it.unwrap()));
    }
    for (name, image) in names.iter().zip(&images) {
        let found = kit::latest(repository, name).unwrap();
        assert!(kit::restore(repository, &found).unwrap() == *image, "{name}");
    }
    assert!(shared::check(repository).damage.is_empty());
}

#[test]
fn what_other_series_have_is_shared_with_a_host_that_is_alone() {
    let (_, _, repositories) = several(2);
    let images = fleet();
    kit::backup(&repositories[0], images[0].0, &images[0].1).unwrap();
    let reports = round(&one_each(&repositories[1..], &images[1..2])).unwrap();
    assert!(reports[0].shared_chunks > 100, "{reports:?}");
    assert_latest(&repositories[0], &images[..2]);
}

#[test]
fn a_host_that_is_left_out_of_the_commit_costs_space_only() {
    let (_, world, repositories) = several(3);
    let images = fleet();
    // It had stored its chunks, and was not heard of any more.
    round_with(&one_each(&repositories, &images), &mut |placed| drop(placed.remove(1))).unwrap();
    assert_latest(&repositories[2], &images);
    assert!(shared::check(&repositories[0]).damage.is_empty());
    world.pass_seconds(2 * 86_400);
    shared::sweep(&repositories[0]).unwrap();
    let check = shared::check(&repositories[0]);
    assert!(check.damage.is_empty() && check.unreferenced == 0, "{check:?}");
    assert_latest(&repositories[2], &images);
    // Another round finds what is stored twice by now, and shares nothing wrong.
    round(&one_each(&repositories, &images)).unwrap();
    assert_latest(&repositories[2], &images);
}

#[test]
fn a_host_names_only_containers_that_it_was_granted() {
    let images = large_fleet();
    let changes: [Change; 4] = [
        |placed| placed[1].1.containers[0].0 = 0,
        |placed| placed[1].0.end += 100,
        // Chunks in containers that it does not name.
        |placed| placed[1].1.containers.clear(),
        |placed| placed[1].1.run = placed[0].1.run,
    ];
    for change in changes {
        let (_, _, repositories) = several(2);
        let hosts = one_each(&repositories, &images[..2]);
        let error = round_with(&hosts, &mut |placed| change(placed)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(shared::check(&repositories[0]).damage.is_empty());
    }
}

#[test]
fn a_host_that_names_the_index_as_its_own_run_does_not_get_it_removed() {
    let (_, _, repositories) = several(2);
    let images = fleet();
    let hosts = one_each(&repositories, &images[..2]);
    round(&hosts).unwrap();
    let repository = &repositories[0];
    let store = repository.objects.keys.shared_store_id(0);
    let index = repository.head(store).unwrap().unwrap().runs;
    assert_eq!(index.len(), 1);
    SharedAdditions::begin(repository).unwrap().finish(&index).unwrap();
    let check = shared::check(repository);
    assert!(check.damage.is_empty(), "{check:?}");
}

#[test]
fn numbers_that_do_not_suffice_share_less() {
    let (_, _, repositories) = several(2);
    let images = fleet();
    let (hosts, options) = (one_each(&repositories, &images[..2]), rescan());
    let mut rounds = scan(&hosts, &options).unwrap();
    let mut additions = SharedAdditions::begin(&repositories[0]).unwrap();
    let (answers, _) = answers(&processes(&hosts), &rounds).unwrap();
    let runs: Vec<RunRef> = answers.iter().map(|answers| answers.run.run).collect();
    let numbers = additions.grant(1, 1).unwrap();
    let one = numbers.start..numbers.start + 1;
    let placed = rounds[0].store(&runs, (0, 2), one).unwrap();
    assert!(placed.chunks < answers.iter().map(|it| it.chunks[0]).sum(), "{placed:?}");
    additions.commit(&[(numbers, placed)], &workspace()).unwrap();
    additions.finish(&runs).unwrap();
    rounds.into_iter().for_each(|round| drop(round.back_up().unwrap()));
    assert_latest(&repositories[0], &images[..2]);
    assert!(shared::check(&repositories[0]).damage.is_empty());
}

#[test]
fn if_the_process_that_commits_sleeps_its_round_shares_nothing() {
    let (_, world, repositories) = several(3);
    let images = fleet();
    let hosts = one_each(&repositories[..2], &images[..2]);
    kit::backup(&repositories[2], "c", &images[2].1).unwrap();
    kit::backup(&repositories[2], "d", &images[2].1).unwrap();
    let error = round_with(&hosts, &mut |_| {
        // An hour later its lease is over. Others fill the shared store and sweep it.
        world.pass_seconds(3600);
        let later = World::new(900);
        later.pass_seconds(3 * 86_400);
        let storage = Arc::clone(&repositories[2].objects.storage);
        let other = kit::open(storage, &later).unwrap();
        shared::build(&other, siltstone::SharePolicy::Duplicates).unwrap();
        shared::sweep(&other).unwrap();
    });
    // What it would have committed was swept away.
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    let check = shared::check(&repositories[2]);
    assert!(check.damage.is_empty(), "{check:?}");
    round(&hosts).unwrap();
    assert_latest(&repositories[2], &images[..2]);
    let check = shared::check(&repositories[2]);
    assert!(check.damage.is_empty(), "{check:?}");
}

#[test]
fn a_round_of_hosts_may_stop_anywhere() {
    let (storage, world, repositories) = several(1);
    let mut images = fleet();
    kit::backup(&repositories[0], "a", &images[0].1).unwrap();
    let before = images.clone();
    world.pass_seconds(3600);
    images[0].1 = kit::changed(&images[0].1, 5);
    let of = |place: usize| (images[place].0, &images[place].1[..]);
    let crashes = kit::each_crash(
        &storage,
        864_000,
        &|repository| {
            // All hosts end at once.
            round(&[(repository, vec![of(0), of(1)]), (repository, vec![of(2)])]).map(drop)
        },
        &mut |repository| {
            let found = kit::latest(repository, "a").unwrap();
            let restored = kit::restore(repository, &found).unwrap();
            assert!(restored == before[0].1 || restored == images[0].1);
            assert!(shared::check(repository).damage.is_empty());
            round(&[(repository, vec![of(2)]), (repository, vec![of(1), of(0)])]).unwrap();
            assert_latest(repository, &images);
            shared::sweep(repository).unwrap();
            for (name, _) in &images {
                repository.reclaim(name, &kit::THOROUGH).unwrap();
            }
            assert_latest(repository, &images);
            let report = shared::check(repository);
            assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
        },
    );
    assert!(crashes > 60, "{crashes}");
}
