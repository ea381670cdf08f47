//! What whoever may overwrite objects, and has the keys of a series or of the shared store, puts in
//! the place of a list, a vector or an index: whole objects that say something else. Nothing is
//! deleted by what they say.

use std::sync::Arc;

use silt_format::{
    BlockKind, BlockReader, BlockWriter, DIRECTORY_POSITION, DeadRange, ErrorKind, FOOTER_BYTES,
    Footer, HEADER_BYTES, Hashed, Header, KdfCost, KeyLabel, Record, RunBlock, RunDirectory,
    SummaryGeometry, decode_dead_ranges, decode_records, encode_dead_ranges, encode_records, names,
    number,
};
use silt_storage::{Key, MemoryStorage, Storage};
use siltstone::{CheckOptions, DeleteMethod, KeyAccess, Protection, Repository, SharePolicy};

use crate::forger::{self, Forger};
use crate::kit::{self, World};
use crate::shared;

const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };

/// Two series that have half of their chunks in common; the first has several snapshots.
struct Case {
    storage: Arc<MemoryStorage>,
    repository: Repository,
    forger: Forger,
    living: Vec<(&'static str, silt_format::Id, Vec<u8>)>,
}

impl Case {
    fn new() -> Self {
        let (world, storage) = (World::new(3), Arc::new(MemoryStorage::new()));
        let (password, cost) = (kit::PASSWORD.to_vec(), COST);
        let protection = Protection::Password { password, cost, label: KeyLabel::default() };
        let context = world.context();
        let repository =
            Repository::init(storage.clone(), context, kit::config(), &protection, None).unwrap();
        let mut living = Vec::new();
        let mut image = [kit::image(77, 400), kit::image(5, 400)].concat();
        for day in 0..4 {
            world.pass_seconds(86_400);
            image = kit::changed(&image, day);
            let id = kit::backup(&repository, "vm", &image).unwrap().snapshot.id;
            living.push(("vm", id, image.clone()));
        }
        let other = [kit::image(77, 400), kit::image(6, 400)].concat();
        let id = kit::backup(&repository, "other", &other).unwrap().snapshot.id;
        living.push(("other", id, other));
        let forger = Forger::steal(&storage, kit::PASSWORD);
        Self { storage, repository, forger, living }
    }

    /// Deletes the oldest snapshot but one.
    fn delete(&mut self, method: DeleteMethod) -> silt_format::Result<()> {
        let (series, id, _) = self.living.remove(1);
        self.repository.delete(series, &[id], method).map(drop)
    }

    fn assert_whole(&self) {
        for (series, id, image) in &self.living {
            let selector = siltstone::Selector::Id(id.to_string());
            let found = kit::find(&self.repository, &selector).unwrap();
            assert!(kit::restore(&self.repository, &found).unwrap() == *image, "{series} {id}");
        }
    }

    /// Replaces every object below `prefix` by what `forge` makes of it.
    fn replace_all(&self, prefix: &str, forge: impl Fn(&Forger, &[u8]) -> Vec<u8>) -> usize {
        let all = forger::all_names(&self.storage, prefix);
        for name in &all {
            let forged = forge(&self.forger, &forger::read(&self.storage, name).unwrap());
            forger::replace(&self.storage, name, &forged);
        }
        all.len()
    }
}

/// A dead list that says that everything is dead.
fn all_dead(forger: &Forger, object: &[u8]) -> Vec<u8> {
    let (header, plain) = forger.open(object).unwrap();
    let last = decode_dead_ranges(&plain).unwrap().last().unwrap().container;
    let all: Vec<_> = (0..=last + 1).map(DeadRange::whole).collect();
    forger.unsigned(&header, &encode_dead_ranges(&all))
}

/// A summary vector that holds nothing.
fn no_references(forger: &Forger, object: &[u8], geometry: SummaryGeometry) -> Vec<u8> {
    let header = Header::decode(object).unwrap();
    let nothing = (BlockKind::Partition, vec![0; geometry.partition_bytes as usize]);
    forger.pack(&header, &vec![nothing; geometry.partitions as usize]).0
}

/// A partition of an index that leads every fingerprint to the place of the next one. What it says
/// of itself is true.
fn led_astray(forger: &Forger, object: &[u8]) -> Vec<u8> {
    let header = Header::decode(object).unwrap();
    let (keys, sealer) = (&forger.host.keys, forger.host.keys.sealer(&header));
    let mut reader = BlockReader::default();
    let mut open = |position, range: std::ops::Range<usize>| {
        let (mut sealed, mut raw) = (object[range].to_vec(), Vec::new());
        reader.read(&sealer, position, &mut sealed, &mut raw).unwrap();
        raw
    };
    let footer = Footer::decode(&object[object.len() - FOOTER_BYTES..]).unwrap();
    let from = usize::try_from(footer.directory_offset).unwrap();
    let directory = open(DIRECTORY_POSITION, from..object.len() - footer.end_bytes());
    let directory = RunDirectory::decode(&directory).unwrap();
    let mut records: Vec<Record> = Vec::new();
    for block in &directory.blocks {
        let from = block.offset as usize;
        let raw = open(u64::from(block.offset), from..from + block.sealed_bytes as usize);
        decode_records(&raw, &mut records).unwrap();
    }
    let payloads: Vec<_> = records.iter().map(|record| record.payload).collect();
    for (record, payload) in records.iter_mut().zip(payloads.iter().cycle().skip(1)) {
        record.payload = *payload;
    }
    let (mut forged, mut writer) = (header.encode().to_vec(), BlockWriter::new(1).unwrap());
    let mut blocks = Vec::new();
    for records in records.chunks(2000) {
        let (offset, mut raw) = (number::to_u32(forged.len()), Vec::new());
        encode_records(records, &mut raw);
        let sealed_bytes = writer.append(&sealer, u64::from(offset), &raw, &mut forged);
        blocks.push(RunBlock {
            offset,
            sealed_bytes: number::to_u32(sealed_bytes),
            first: records[0].fingerprint,
            hash: keys.content_hash(Hashed::RunBlock, &raw),
        });
    }
    let directory = RunDirectory { blocks, filter: None, before: directory.before }.encode();
    let directory_offset = number::to_u64(forged.len());
    let sealed = writer.append(&sealer, DIRECTORY_POSITION, &directory, &mut forged);
    let directory_bytes = number::to_u32(sealed);
    // As older programs wrote it, without a copy of the header.
    let has_header = false;
    forged.extend_from_slice(&Footer { directory_offset, directory_bytes, has_header }.encode());
    assert!(forged.len() > HEADER_BYTES);
    forged
}

#[test]
fn a_dead_list_that_names_the_living_frees_nothing() {
    let mut case = Case::new();
    case.delete(DeleteMethod::Exact).unwrap();
    assert!(case.replace_all("dead/", all_dead) > 0);
    let damage = shared::check(&case.repository).damage;
    assert!(damage.iter().any(|damage| damage.object.starts_with("dead/")), "{damage:?}");
    case.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    case.assert_whole();
    assert!(shared::check(&case.repository).damage.is_empty());
}

#[test]
fn a_summary_vector_without_references_frees_nothing() {
    for method in [DeleteMethod::Approximate, DeleteMethod::Exact] {
        let mut case = Case::new();
        let found = kit::latest(&case.repository, "vm").unwrap();
        let geometry = found.snapshot.summary.unwrap().geometry;
        let forge = |forger: &Forger, object: &[u8]| no_references(forger, object, geometry);
        assert!(case.replace_all("summaries/", forge) > 0);
        let damage = shared::check(&case.repository).damage;
        assert!(damage.iter().any(|damage| damage.object.starts_with("summaries/")));
        match case.delete(method) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            Ok(()) => drop(case.repository.reclaim("vm", &kit::THOROUGH).unwrap()),
        }
        case.assert_whole();
    }
}

#[test]
fn an_index_that_leads_astray_is_not_followed() {
    let mut case = Case::new();
    shared::build(&case.repository, SharePolicy::Duplicates).unwrap();
    assert!(case.replace_all("runs/", led_astray) > 0);
    let damage = shared::check(&case.repository).damage;
    assert!(damage.iter().any(|damage| damage.object.starts_with("runs/")), "{damage:?}");
    for series in ["vm", "other"] {
        let refused = case.repository.repoint(series, &shared::spool()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        case.repository.reclaim(series, &kit::THOROUGH).unwrap();
    }
    let image = [kit::image(77, 400), kit::image(9, 400)].concat();
    let id = kit::backup(&case.repository, "new", &image).unwrap().snapshot.id;
    case.living.push(("new", id, image));
    case.assert_whole();
}

#[test]
fn damage_to_what_is_shared_is_not_called_harmless_by_who_sees_some_series_alone() {
    let case = Case::new();
    shared::build(&case.repository, SharePolicy::Duplicates).unwrap();
    case.repository.repoint("vm", &shared::spool()).unwrap();
    let (label, access) = (KeyLabel::default(), KeyAccess::write_only(&["third"]));
    case.repository.add_key(b"third", COST, &label, &access).unwrap();
    let world = World::new(9);
    world.pass_seconds(30 * 86_400);
    let open = || Repository::open(case.storage.clone(), world.context(), || Ok(b"third".to_vec()));
    kit::backup(&open().unwrap(), "third", &kit::image(123, 40)).unwrap();
    let store = case.forger.host.keys.shared_store_id(0);
    let gone = forger::all_names(&case.storage, &names::containers(store)).swap_remove(0);
    case.storage.delete(&[Key::new(gone.as_str()).unwrap()]).unwrap();
    let found = |repository: &Repository| {
        let report = repository.check(&CheckOptions::default()).unwrap();
        report.damage.into_iter().find(|damage| damage.object == gone).unwrap()
    };
    let seen = found(&open().unwrap());
    assert!(seen.affected.is_empty() && !seen.is_harmless, "{seen:?}");
    let seen = found(&case.repository);
    assert!(!seen.affected.is_empty() && !seen.is_harmless, "{seen:?}");
}
