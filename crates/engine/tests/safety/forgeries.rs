//! Random objects that a thief makes with exactly the keys of one host: other series are backed up,
//! restored, checked, reclaimed and swept as if they were not there, or that is refused.

use std::sync::Arc;

use silt_format::{
    ErrorKind, HEADER_BYTES, Header, Id, KdfCost, KeyLabel, ObjectKind, ObjectTag, SIGNATURE_BYTES,
    SeriesId, Signer, names,
};
use silt_storage::{Key, MemoryStorage, PutMode, Storage};
use siltstone::{
    Administrator, CheckOptions, DeleteMethod, KeyAccess, Protection, Repository, Selector,
    SharePolicy,
};

use crate::forger::{self, Forger};
use crate::kit::{self, Random, World};
use crate::shared;

const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
/// Forgeries that are put before the others go on.
const AT_ONCE: usize = 20;
const SERIES: [&str; 3] = ["web1", "db-1", "fs"];

/// A repository with a host that only writes one series, one that writes some, and one with a full
/// key.
struct Base {
    is_append_only: bool,
    world: Arc<World>,
    storage: MemoryStorage,
    living: Vec<(&'static str, Id, Vec<u8>)>,
}

fn image(seed: u64) -> Vec<u8> {
    [kit::image(77, 40), kit::image(500 + seed, 15)].concat()
}

fn open(
    storage: &Arc<MemoryStorage>,
    world: &Arc<World>,
    password: &[u8],
) -> silt_format::Result<Repository> {
    world.pass_seconds(600);
    let password = password.to_vec();
    let mut opened =
        Repository::open(storage.clone(), world.context(), move || Ok(password.clone()))?;
    let elsewhere = |_: &str| Ok(Arc::new(MemoryStorage::new()) as Arc<dyn Storage>);
    if opened.is_append_only() && !opened.is_write_only() {
        opened.authorize(b"admin")?;
    }
    opened.with_places("here", &elsewhere)
}

impl Base {
    fn new(is_append_only: bool) -> Self {
        let (world, storage) = (World::new(5), Arc::new(MemoryStorage::new()));
        let label = KeyLabel::default();
        let (password, cost) = (b"all".to_vec(), COST);
        let protection = Protection::Password { password, cost, label: label.clone() };
        let admin = Administrator { password: b"admin".to_vec(), cost, label: label.clone() };
        let admin = is_append_only.then_some(admin);
        let context = world.context();
        Repository::init(storage.clone(), context, kit::config(), &protection, admin.as_ref())
            .unwrap();
        let all = open(&storage, &world, b"all").unwrap();
        for (password, access) in [
            (&b"web"[..], KeyAccess::write_only(&["web1"])),
            (b"db", KeyAccess::write_only(&["db-*"])),
            (b"fs", KeyAccess::full()),
        ] {
            all.add_key(password, COST, &label, &access).unwrap();
        }
        let mut living = Vec::new();
        for (round, (password, series)) in [(&b"web"[..], "web1"), (b"db", "db-1"), (b"fs", "fs")]
            .repeat(3)
            .into_iter()
            .enumerate()
        {
            let image = image(round as u64);
            let host = open(&storage, &world, password).unwrap();
            let id = kit::backup(&host, series, &image).unwrap().snapshot.id;
            living.push((series, id, image));
            if round == 5 {
                shared::build(&all, SharePolicy::Duplicates).unwrap();
                all.repoint("fs", &shared::spool()).unwrap();
                let (series, id, _) = living.remove(1);
                all.delete(series, &[id], DeleteMethod::Exact).unwrap();
            }
        }
        assert!(shared::check(&all).damage.is_empty());
        Self { is_append_only, world, storage: storage.snapshot(), living }
    }
}

/// Changes what an object holds.
fn mutate(plain: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        if plain.is_empty() {
            return;
        }
        let at = random.below(plain.len());
        let length = (random.below(16) + 1).min(plain.len() - at);
        match random.below(8) {
            0 => plain[at] ^= 1 << random.below(8),
            1 => plain[at] = random.next().to_le_bytes()[0],
            2 => plain[at..at + length].fill([0, 0xff][random.below(2)]),
            3 => plain.truncate(at),
            4 => {
                let from = random.below(plain.len() - length + 1);
                plain.copy_within(from..from + length, at);
            }
            5 => drop(plain.drain(at..at + length)),
            6 => {
                let bytes = random.next().to_le_bytes();
                plain[at..].iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            }
            _ => {
                let small = (random.below(20) as u64).to_le_bytes();
                plain[at..].iter_mut().zip(small).for_each(|(to, from)| *to = from);
            }
        }
    }
}

/// The kinds that are forged together: what keeps others from opening the repository is tried
/// apart.
const GROUPS: [&[ObjectKind]; 5] = [
    &[ObjectKind::Head],
    &[
        ObjectKind::Head,
        ObjectKind::Snapshot,
        ObjectKind::Series,
        ObjectKind::Check,
        ObjectKind::Lease,
    ],
    &[
        ObjectKind::Recipes,
        ObjectKind::Container,
        ObjectKind::Summary,
        ObjectKind::DeadList,
        ObjectKind::Run,
    ],
    &[ObjectKind::Places, ObjectKind::Writers, ObjectKind::Mark],
    &[ObjectKind::Key, ObjectKind::WriteKey, ObjectKind::Authority, ObjectKind::Config],
];

/// A forged object and a name that it may have.
fn forge(
    storage: &MemoryStorage,
    forger: &Forger,
    ids: &[Id],
    series: &[SeriesId],
    kinds: &[ObjectKind],
    random: &mut Random,
) -> Option<(String, Vec<u8>)> {
    let all = forger::all_names(storage, "");
    let model = all[random.below(all.len())].clone();
    let bytes = forger::read(storage, &model)?;
    let (header, mut plain) = match forger.open(&bytes) {
        Some((header, mut plain)) => {
            if header.kind.is_signed() {
                plain.truncate(plain.len() - SIGNATURE_BYTES);
            }
            (header, plain)
        }
        None => (Header::decode(&bytes).ok()?, bytes[HEADER_BYTES..].to_vec()),
    };
    if random.below(4) > 0 {
        mutate(&mut plain, random);
    }
    let kind = kinds[random.below(kinds.len())];
    if header.kind != kind && random.below(3) > 0 {
        return None;
    }
    let series = match random.below(3) {
        0 => header.series,
        _ => series[random.below(series.len())],
    };
    let number = match random.below(4) {
        0 => header.number,
        1 => header.number.wrapping_add(1 + random.below(3) as u64),
        2 => random.below(40) as u64,
        _ => random.next(),
    };
    let number = if matches!(kind, ObjectKind::Recipes | ObjectKind::Container) {
        number & 0xff
    } else {
        number
    };
    let tag = match kind {
        ObjectKind::Recipes | ObjectKind::Container => ObjectTag::from_bits(random.next()),
        _ => ObjectTag::NONE,
    };
    let none = matches!(
        kind,
        ObjectKind::Places
            | ObjectKind::Writers
            | ObjectKind::Key
            | ObjectKind::WriteKey
            | ObjectKind::Authority
            | ObjectKind::Config
    );
    let series = if none { SeriesId::NONE } else { series };
    let address = Header { tag, part: header.part, ..forger.address(kind, series, number) };
    let name = match kind {
        ObjectKind::Writers => names::writers(number),
        ObjectKind::Key | ObjectKind::WriteKey => names::key(Id(number)),
        _ => names::of_header(&address).unwrap_or(model),
    };
    if Key::new(&name).is_err() {
        return None;
    }
    let claims = match random.below(4) {
        0 | 1 => forger.id,
        2 => ids[random.below(ids.len())],
        _ => Signer::ADMINISTRATOR,
    };
    // A container's blocks can't be sealed by who only writes, but any bytes can be put there.
    let opens = forger.host.keys.opens(series);
    let way = if kind == ObjectKind::Container || !opens { 1 } else { random.below(8) };
    let object = match way {
        0 => forger.unsigned(&address, &plain),
        1 => [&address.encode()[..], &plain].concat(),
        _ => forger.object(&address, &plain, claims),
    };
    Some((name, object))
}

/// Whether what was committed restores to what it was, or fails.
fn restores(
    repository: &Repository,
    base: &Base,
    of: impl Fn(&str) -> bool,
    must: bool,
    what: &str,
) {
    for (series, id, image) in base.living.iter().filter(|(series, ..)| of(series)) {
        let restored = kit::find(repository, &Selector::Id(id.to_string()))
            .and_then(|found| kit::restore(repository, &found));
        match restored {
            Ok(restored) => assert!(restored == *image, "{what}: wrong data of {series}, {id}"),
            Err(error) => assert!(!must, "{what}: {series}, {id}: {error}"),
        }
    }
}

fn one_round(base: &Base, seed: u64) -> usize {
    let mut random = Random(seed);
    let storage = Arc::new(base.storage.snapshot());
    // Where the repository is not append-only, whoever has a full key may remove everything.
    let roles = if base.is_append_only { 3 } else { 2 };
    let (password, own): (&[u8], &str) =
        [(&b"web"[..], "web1"), (b"db", "db-1"), (b"fs", "fs")][random.below(roles)];
    let forger = Forger::steal(&storage, password);
    let group = GROUPS[random.below(GROUPS.len())];
    let what = format!("seed {seed}, keys of {own}, {group:?}");
    let keys = &forger.host.keys;
    let all_ids = ["web1", "db-1", "fs", "new", "\0shared"].map(|name| keys.series_id(0, name));
    let ids: Vec<Id> = forger::all_names(&storage, names::KEYS)
        .iter()
        .filter_map(|name| names::key_id(name))
        .collect();
    let mut put = Vec::new();
    for _ in 0..AT_ONCE * 8 {
        if put.len() == AT_ONCE {
            break;
        }
        let made = forge(&base.storage, &forger, &ids, &all_ids, group, &mut random);
        let Some((name, object)) = made else { continue };
        let key = Key::new(&name).unwrap();
        if storage.put(&key, &[&object], PutMode::Create).is_ok() {
            put.push(key);
        }
    }
    let others = |series: &str| series != own;
    // The others go on, or are refused.
    let mut later = Vec::new();
    for (password, series) in [(&b"web"[..], "web1"), (b"db", "db-1"), (b"fs", "fs")] {
        if series == own {
            continue;
        }
        let Ok(host) = open(&storage, &base.world, password) else { continue };
        let image = image(seed);
        match kit::backup(&host, series, &image) {
            Ok(report) => later.push((report.snapshot.id, image)),
            Err(error) => assert_ne!(error.kind(), ErrorKind::Invalid, "{what}: {error}"),
        }
    }
    if let Ok(all) = open(&storage, &base.world, b"all") {
        restores(&all, base, |_| true, false, &what);
        for (id, image) in &later {
            let found = kit::find(&all, &Selector::Id(id.to_string()))
                .and_then(|found| kit::restore(&all, &found));
            let found = found.unwrap_or_else(|error| panic!("{what}: told as done: {error}"));
            assert!(found == *image, "{what}: wrong data of what was told as done");
        }
        for series in SERIES {
            let _ = all.recover(series);
            let _ = all.reclaim(series, &kit::THOROUGH);
        }
        let _ = shared::sweep(&all);
        let _ = all.check(&CheckOptions::default());
    }
    // What was forged is taken away again; nothing else has gone.
    let left: Vec<Key> = put.iter().filter(|key| storage.head(key).is_ok()).cloned().collect();
    storage.delete(&left).unwrap();
    let all = open(&storage, &base.world, b"all").unwrap_or_else(|error| panic!("{what}: {error}"));
    for series in SERIES {
        let _ = all.recover(series);
    }
    restores(&all, base, others, true, &what);
    put.len()
}

#[expect(clippy::disallowed_methods, reason = "how much is tried is said from outside")]
#[test]
fn nobody_else_is_hurt_by_what_a_stolen_host_makes_up() {
    let wanted = std::env::var("SILT_FORGERIES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2000_usize);
    let bases = [Base::new(false), Base::new(true)];
    let (mut forged, mut seed) = (0, 0);
    while forged < wanted {
        let base = &bases[usize::try_from(seed % 2).unwrap()];
        forged += one_round(base, seed);
        seed += 1;
    }
}
