//! What holds for every value.

use proptest::prelude::*;
use silt_format::tree::FileChunking;
use silt_format::{
    BlockReader, BlockWriter, Chunking, Directory, Fingerprint, Frame, Head, Header, Id,
    ObjectKind, ObjectSet, ObjectTag, Recipe, RecipeChunk, Reference, SealScheme, SeriesId, Signed,
    Signer, SigningSeed, SnapshotEntry, StoreEntry, SummaryGeometry, names, root_level,
    segment_count,
};

use crate::values;

proptest! {
    #[test]
    fn references_keep_their_parts(store: u16, container: u32, slot: u16) {
        let reference = Reference::new(store, container, slot);
        prop_assert_eq!(
            (reference.store(), reference.container(), reference.slot()),
            (store, container, slot)
        );
        prop_assert_eq!(Reference::from_bits(reference.bits()), reference);
    }

    #[test]
    fn blocks_come_back(raw: Vec<u8>, level in -3..10_i32, position: u64, encrypted: bool) {
        let scheme = if encrypted { SealScheme::Aes256Gcm } else { SealScheme::Checksum };
        let sealer = values::master().sealer(&values::header(ObjectKind::Recipes, scheme));
        let mut sealed = vec![1, 2, 3];
        let length = BlockWriter::new(level).unwrap().append(&sealer, position, &raw, &mut sealed);
        prop_assert_eq!(length, sealed.len() - 3);
        let mut back = Vec::new();
        let mut reader = BlockReader::default();
        reader.read(&sealer, position, &mut sealed[3..], &mut back).unwrap();
        prop_assert_eq!(back, raw);
    }

    #[test]
    fn recipes_come_back(
        kinds in prop::collection::vec((0..4_u8, 0..3_u32, any::<u16>()), 1..512),
    ) {
        let chunks: Vec<RecipeChunk> = kinds
            .iter()
            .map(|(kind, container, slot)| {
                let zero = *kind == 0;
                let reference = Reference::new(0, *container, *slot);
                let [low, high] = slot.to_le_bytes();
                RecipeChunk {
                    reference: if zero { Reference::ZERO } else { reference },
                    length: 4096,
                    fingerprint: Fingerprint(if zero { [0; 20] } else { [low ^ high; 20] }),
                }
            })
            .collect();
        let recipe = Recipe { chunks };
        let encoded = recipe.encode(Chunking::Fixed { bytes: 4096 });
        prop_assert_eq!(Recipe::decode(&encoded).unwrap(), recipe);
    }

    #[test]
    fn directories_find_every_slot(
        lengths in prop::collection::vec(1..9000_u32, 1..300),
        gap in 1..5_u16,
    ) {
        let mut directory = Directory::default();
        let (mut expected, mut slot, mut raw) = (Vec::new(), 0_u16, 0);
        directory.frames.push(Frame { offset: 96, sealed_bytes: 1, raw_bytes: u32::MAX });
        for (number, length) in lengths.iter().enumerate() {
            let frame = u16::try_from(directory.frames.len() - 1).unwrap();
            let byte = u8::try_from(number % 256).unwrap();
            directory.push(slot, frame, *length, Fingerprint([byte; 20]));
            expected.push((slot, frame, raw, *length, byte));
            raw += length;
            slot += if number % 7 == 0 { gap } else { 1 };
            if raw > 60_000 {
                directory.frames.last_mut().unwrap().raw_bytes = raw;
                let offset = 97 + u32::from(frame);
                directory.frames.push(Frame { offset, sealed_bytes: 1, raw_bytes: u32::MAX });
                raw = 0;
            }
        }
        for directory in [Directory::decode(&directory.encode()).unwrap(), directory] {
            for (slot, frame, offset, length, byte) in &expected {
                let found = directory.slot(*slot).unwrap();
                prop_assert_eq!((found.frame, found.offset, found.length), (*frame, *offset,
                *length));
                let print = directory.fingerprints[found.index as usize];
                prop_assert_eq!(print, Fingerprint([*byte; 20]));
            }
            prop_assert_eq!(directory.slots().count(), expected.len());
            prop_assert!(directory.slot(u16::MAX).is_none());
        }
    }

    #[test]
    fn sets_know_what_they_hold(
        numbers in prop::collection::btree_map(0..500_u32, 0..3_u64, 0..100),
    ) {
        let mut set = ObjectSet::default();
        let numbers: std::collections::BTreeMap<u32, ObjectTag> =
            numbers.into_iter().map(|(number, bits)| (number,
            ObjectTag::from_bits(bits))).collect();
        numbers.iter().for_each(|(number, tag)| set.push(*number, *tag));
        for number in 0..500 {
            prop_assert_eq!(set.tag(number), numbers.get(&number).copied());
        }
        prop_assert_eq!(set.len(), numbers.len() as u64);
        let all: Vec<(u32, ObjectTag)> = set.iter().collect();
        let expected: Vec<(u32, ObjectTag)> = numbers.into_iter().collect();
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn a_set_has_all_of_another_or_lacks_one(
        mine in prop::collection::btree_map(0..40_u32, 0..2_u64, 0..40),
        theirs in prop::collection::btree_map(0..40_u32, 0..2_u64, 0..6),
    ) {
        let set = |numbers: &std::collections::BTreeMap<u32, u64>| {
            let mut set = ObjectSet::default();
            numbers.iter().for_each(|(number, bits)| set.push(*number,
            ObjectTag::from_bits(*bits)));
            set
        };
        let expected = theirs.iter().all(|(number, tag)| mine.get(number) == Some(tag));
        prop_assert_eq!(set(&mine).has_all_of(&set(&theirs)), expected);
        prop_assert!(set(&mine).has_all_of(&set(&mine)));
    }

    #[test]
    fn a_summary_never_forgets(seed: u64, count in 1..2000_u64) {
        let geometry = SummaryGeometry::for_references(count);
        let bytes = usize::try_from(geometry.bytes()).unwrap();
        let mut vector = vec![0; bytes];
        let size = geometry.partition_bytes as usize;
        let references = (0..count).map(|i| Reference::from_bits(seed.wrapping_add(i * 77)));
        for reference in references.clone() {
            let (partition, drawn) = geometry.place(reference);
            geometry.insert(drawn, &mut vector[partition as usize * size..][..size]);
        }
        for reference in references {
            let (partition, drawn) = geometry.place(reference);
            prop_assert!(geometry.contains(drawn, &vector[partition as usize * size..][..size]));
        }
    }
}

#[test]
fn a_full_summary_errs_as_rarely_as_the_formula_says() {
    let held = 300_000_u64;
    let geometry = SummaryGeometry::for_references(held * 100 / 125);
    assert!(geometry.capacity() >= held - 1 && geometry.capacity() < held * 102 / 100);
    let size = geometry.partition_bytes as usize;
    let mut vector = vec![0; usize::try_from(geometry.bytes()).unwrap()];
    let at = |i: u64| {
        let slot = u16::try_from(i % 4096).unwrap();
        Reference::new(0, u32::try_from(i / 4096).unwrap(), slot)
    };
    for i in 0..held {
        let (partition, drawn) = geometry.place(at(i));
        geometry.insert(drawn, &mut vector[partition as usize * size..][..size]);
    }
    let wrong = (held..held * 2).filter(|i| {
        let (partition, drawn) = geometry.place(at(*i));
        geometry.contains(drawn, &vector[partition as usize * size..][..size])
    });
    // 1 % by the formula; a partitioned filter is a little worse.
    let wrong = wrong.count() as u64;
    assert!(wrong * 1000 < held * 13, "{wrong} of {held}");
    assert!(wrong * 1000 > held * 5, "{wrong} of {held}: suspiciously few");
}

#[test]
fn the_summary_of_forty_gibibytes_is_bounded_and_comes_in_parts() {
    let geometry = SummaryGeometry::for_references(10_000_000);
    assert!(geometry.bytes() < 15 << 20, "{}", geometry.bytes());
    assert_eq!(geometry.parts(), geometry.partitions.div_ceil(4));
    let last = geometry.partitions_of(geometry.parts() - 1);
    assert_eq!(last.end, geometry.partitions);
}

#[test]
fn the_map_of_every_size_has_a_root() {
    for (bytes, level) in
        [(0, 0), (1, 0), (2 << 30, 0), ((2 << 30) + 1, 1), (2 << 40, 1), (u64::MAX, 4)]
    {
        assert_eq!(root_level(segment_count(bytes)), level, "{bytes}");
    }
}

/// Caches of decoded frames count what buffers hold.
#[test]
fn a_buffer_that_is_too_small_becomes_as_large_as_the_block() {
    let packed = |bytes: usize| {
        let mut packed = Vec::new();
        BlockWriter::new(3).unwrap().pack(&vec![7; bytes], &mut packed);
        packed
    };
    let (mut reader, mut raw) = (BlockReader::default(), Vec::new());
    for (bytes, capacity) in [(200_000, 200_000), (262_144, 262_144), (1000, 262_144)] {
        reader.decode(&packed(bytes), &mut raw).unwrap();
        assert_eq!((raw.len(), raw.capacity()), (bytes, capacity));
    }
}

#[test]
fn long_blocks_are_stored_if_random_and_compressed_if_not() {
    let sealer =
        values::master().sealer(&values::header(ObjectKind::Recipes, SealScheme::Checksum));
    let mut state = 1_u64;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    })
    .take(256 << 10)
    .collect();
    // Text, random bytes as hexadecimal digits, and random lines each of which comes twice.
    let text: Vec<u8> = b"a line of a log\n".iter().copied().cycle().take(256 << 10).collect();
    let hex = random.iter().map(|byte| b"0123456789abcdef"[usize::from(byte >> 4)]).collect();
    let twice = random.chunks(64).flat_map(|line| [line, line].concat()).take(256 << 10).collect();
    let mut writer = BlockWriter::new(1).unwrap();
    for (raw, is_stored) in [(random, true), (text, false), (hex, false), (twice, false)] {
        let mut sealed = Vec::new();
        let length = writer.append(&sealer, 0, &raw, &mut sealed);
        assert_eq!(length >= raw.len(), is_stored, "{length} of {} bytes", raw.len());
        let mut back = Vec::new();
        BlockReader::default().read(&sealer, 0, &mut sealed, &mut back).unwrap();
        assert!(back == raw);
    }
}

#[test]
fn a_writer_whose_level_changes_writes_what_a_new_one_does() {
    // Lines that no level compresses alike, and noise that none makes smaller.
    let line = |number: u64| format!("{} {}\n", number * number % 1009, number * 77 % 4093);
    let text: Vec<u8> = (0..20_000).flat_map(|number| line(number).into_bytes()).collect();
    let mut state = 5_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    });
    // Too short to be sampled, and long enough.
    let short: Vec<u8> = noise.take(100_000).collect();
    let mut changing = BlockWriter::new(3).unwrap();
    let mut lengths = std::collections::BTreeSet::new();
    for level in [1, 2, 3, 9, 2, 1, -2, 2, 2, 6] {
        for raw in [&short[..40_000], &text, &short] {
            changing.set_level(level).unwrap();
            let (mut block, mut expected) = (Vec::new(), Vec::new());
            changing.pack(raw, &mut block);
            BlockWriter::new(level).unwrap().pack(raw, &mut expected);
            assert!(block == expected, "level {level}, {} bytes", raw.len());
            lengths.insert(block.len());
        }
        let mut ended = Vec::new();
        changing.pack(&short[..40_000], &mut ended);
    }
    assert!(lengths.len() > 5, "{lengths:?}");
}

#[test]
fn signatures_hold_for_one_object_and_one_key() {
    let header = values::header(ObjectKind::Head, SealScheme::Aes256Gcm);
    let (bytes, public) = (values::signed(), values::signer().public().unwrap());
    let is_by = |header: &Header, bytes: &[u8], public: &[u8; 32]| {
        Signed::split(header, bytes).is_ok_and(|signed| signed.is_by(public))
    };
    assert!(is_by(&header, &bytes, &public));
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_by(&header, &changed, &public), "bit {bit}");
    }
    assert!((0..bytes.len()).all(|length| !is_by(&header, &bytes[..length], &public)));
    // What is signed for one name can be put under no other.
    let mut encoded = header.encode();
    for byte in [11, 16, 32, 44, 48, 56, 64] {
        encoded[byte] ^= 1;
        let other = Header::decode(&encoded);
        assert!(other.is_err() || !is_by(&other.unwrap(), &bytes, &public), "byte {byte}");
        encoded[byte] ^= 1;
    }
    let other = Signer::new(Id(77), SigningSeed::new([1; 32]));
    assert!(!is_by(&header, &bytes, &other.public().unwrap()));
}

#[test]
fn writers_write_the_series_that_they_are_given() {
    let writers = values::writers();
    let covers = |name: &str| writers.all[..2].iter().map(|w| w.covers(name)).collect::<Vec<_>>();
    assert_eq!(covers("web1"), [true, true]);
    assert_eq!(covers("db-"), [true, true]);
    assert_eq!(covers("db-7"), [true, true]);
    for name in ["web", "web11", "xdb-7", "db", "", "*"] {
        assert_eq!(covers(name), [true, false], "{name}");
    }
    let [removed, host, _] = &writers.all[..] else { panic!() };
    assert!(removed.reaches(values::SERIES, 9) && !removed.reaches(values::SERIES, 10));
    assert!(!removed.reaches(SeriesId([6; 12]), 1) && host.reaches(SeriesId([6; 12]), u64::MAX));
}

/// A head with something in every field, and what a backup may make of it.
fn before_and_after() -> (Head, Head) {
    let shared = StoreEntry { seen: 4, ..StoreEntry::new(1, 1, SeriesId([4; 12])) };
    let reserved = values::head_reserved();
    let sharing = values::head_sharing();
    let before = Head {
        stores: vec![StoreEntry::new(0, 0, values::SERIES), shared],
        delta_bases: reserved.delta_bases,
        users: sharing.users,
        alias: reserved.alias,
        file_chunking: values::head_files().file_chunking,
        runs: sharing.runs,
        condemned: sharing.condemned,
        condemned_in: sharing.condemned_in,
        ..values::head_after_deletions()
    };
    let mut after = Head {
        generation: 8,
        writer: [8; 16],
        next_container: 12,
        next_pack: 3,
        summary: None,
        ..before.clone()
    };
    after.containers.push(10, ObjectTag::first(5));
    after.packs.push(1, ObjectTag::first(5));
    after.snapshots.push(values::entry(5, 7, 0, &[]));
    after.stores[1].seen = 9;
    (before, after)
}

/// The set without its first number, or with another tag for it.
fn first_changed(set: &ObjectSet, tag: Option<ObjectTag>) -> ObjectSet {
    let mut changed = ObjectSet::default();
    for (place, (number, old)) in set.iter().enumerate() {
        match (place, tag) {
            (0, None) => {}
            (0, Some(tag)) => changed.push(number, tag),
            _ => changed.push(number, old),
        }
    }
    changed
}

type Change = fn(&mut Head);

/// A field that is not named here does not compile: give it its changes below.
fn all_fields_are_known(head: &Head) {
    #[rustfmt::skip]
    let Head {
        generation: _, series: _, domain: _, name: _, writer: _, next_container: _, next_pack: _,
        stores: _, containers: _, packs: _, snapshots: _, summary: _, deleted: _, dead: _, leak: _,
        policy: _, runs: _, condemned: _, condemned_in: _, delta_bases: _, alias: _, writers: _,
        users: _, file_chunking: _, store_writers: _, applications: _,
    } = head;
    for StoreEntry { number: _, kind: _, id: _, seen: _, places: _ } in &head.stores {}
    for SnapshotEntry { id: _, time_ns: _, flags: _, hash: _, labels: _ } in &head.snapshots {}
}

/// Changes that no backup makes, of the fields that say what there is.
fn changes_of_contents() -> Vec<Change> {
    vec![
        |head| head.generation -= 1,
        |head| head.generation += 1,
        |head| head.series.0[0] ^= 1,
        |head| head.domain += 1,
        |head| head.name.push('x'),
        |head| head.writers -= 1,
        |head| head.next_container = 9,
        |head| head.next_container = 10,
        |head| head.next_pack = 0,
        |head| head.next_pack = 1,
        |head| head.stores.clear(),
        |head| drop(head.stores.pop()),
        |head| head.stores.swap(0, 1),
        |head| head.stores.push(StoreEntry::new(1, 1, values::SERIES)),
        |head| head.stores.push(StoreEntry::new(2, 1, values::SERIES)),
        |head| head.stores[0].seen = 1,
        |head| head.stores[1].seen = 3,
        |head| head.stores[1].number = 2,
        |head| head.stores[1].kind = 2,
        |head| head.stores[1].id.0[0] ^= 1,
        |head| head.stores[1].places.push("/elsewhere".to_owned()),
        |head| head.containers = ObjectSet::default(),
        |head| head.containers = first_changed(&head.containers, None),
        |head| head.containers = first_changed(&head.containers, Some(ObjectTag::first(0xbad))),
        |head| head.containers.push(12, ObjectTag::first(5)),
        |head| {
            let mut more = ObjectSet::default();
            for (number, tag) in head.containers.iter() {
                if number == 9 {
                    more.push(8, ObjectTag::first(5));
                }
                more.push(number, tag);
            }
            head.containers = more;
        },
        |head| head.packs = ObjectSet::default(),
        |head| head.packs = first_changed(&head.packs, Some(ObjectTag::first(0xbad))),
        |head| head.packs.push(3, ObjectTag::first(5)),
        |head| head.snapshots.clear(),
        |head| drop(head.snapshots.remove(0)),
        |head| head.snapshots[0].id.0 ^= 1,
        |head| head.snapshots[0].time_ns += 1,
        |head| head.snapshots[0].flags ^= SnapshotEntry::PROTECTED,
        |head| head.snapshots[0].hash.0[0] ^= 1,
        |head| head.snapshots[0].labels.clear(),
        |head| head.snapshots[1].flags = SnapshotEntry::PROTECTED,
        |head| head.snapshots[1].id = head.snapshots[0].id,
        |head| head.snapshots[1] = head.deleted[0].entry.clone(),
    ]
}

/// The same of all other fields.
fn changes_of_deletions() -> Vec<Change> {
    vec![
        |head| head.deleted.clear(),
        |head| head.deleted.push(head.deleted[0].clone()),
        |head| head.deleted[0].deleted_ns += 1,
        |head| head.deleted[0].entry.time_ns += 1,
        |head| head.dead.clear(),
        |head| head.dead[0].id.0 ^= 1,
        |head| head.dead[0].parts -= 1,
        |head| head.dead[0].slots += 1,
        |head| head.dead.push(head.dead[0]),
        |head| head.leak.deletions += 1,
        |head| head.leak.leaked_millichunks = 0,
        |head| head.leak.stored_chunks = 0,
        |head| head.policy = None,
        |head| head.policy.as_mut().unwrap().last = 0,
        |head| head.policy.as_mut().unwrap().keep_deleted_s = 0,
        |head| head.runs.clear(),
        |head| head.runs[0].records += 1,
        |head| head.condemned.clear(),
        |head| head.condemned[0].slots += 1,
        |head| head.condemned_in += 1,
        |head| head.delta_bases.clear(),
        |head| head.users.clear(),
        |head| head.users.push(values::SERIES),
        |head| head.delta_bases.push(head.delta_bases[0]),
        |head| head.alias = None,
        |head| head.file_chunking = None,
        |head| head.file_chunking = Some(FileChunking::default()),
        |head| head.alias = Some("renamed".to_owned()),
        |head| head.store_writers.push(values::head_node().store_writers[0]),
        |head| head.applications.push(1),
    ]
}

#[test]
fn a_head_keeps_all_of_another_only_if_it_does() {
    let (before, after) = before_and_after();
    assert!(after.keeps_all_of(&before) && !before.keeps_all_of(&after));
    assert!(!before.keeps_all_of(&before), "it is not the one after itself");
    all_fields_are_known(&before);
    let changes = changes_of_contents().into_iter().chain(changes_of_deletions());
    for (place, change) in changes.enumerate() {
        let mut changed = after.clone();
        change(&mut changed);
        assert!(changed != after, "change {place} does nothing");
        assert!(!changed.keeps_all_of(&before), "change {place}");
    }
    // The first view of the shared store is added, nothing else.
    let without = |head: &Head| Head { stores: head.stores[..1].to_vec(), ..head.clone() };
    assert!(after.keeps_all_of(&without(&before)));
    let mut elsewhere = after.clone();
    elsewhere.stores[1].places.push("/elsewhere".to_owned());
    assert!(!elsewhere.keeps_all_of(&without(&before)));
    elsewhere.stores[1] = StoreEntry::new(2, 1, values::SERIES);
    assert!(!elsewhere.keeps_all_of(&without(&before)));
    // A backup that begins to use nodes names them, each once.
    let mut with_nodes = after.clone();
    with_nodes.stores.extend([2, 3].map(|number| StoreEntry::new(number, 2, values::SERIES)));
    assert!(with_nodes.keeps_all_of(&before));
    with_nodes.stores[3].number = 2;
    assert!(!with_nodes.keeps_all_of(&before));
}

#[test]
fn names_say_numbers_and_tags() {
    for tag in [ObjectTag::first(0xfedc_ba98_7654_3211), ObjectTag::rewritten(0x10)] {
        assert_eq!(ObjectTag::from_bits(tag.bits()), tag);
        for name in
            [names::container(values::SERIES, 0xab, tag), names::pack(values::SERIES, 0xab, tag)]
        {
            assert!(name.ends_with(&format!("/000000ab.{:016x}", tag.bits())), "{name}");
            assert_eq!(names::number_and_tag(&name), Some((0xab, tag)));
            for bad in
                [&name[..name.len() - 1], &name.replace('.', ".0"), &name.replace("ab", "+b")]
            {
                assert_eq!(names::number_and_tag(bad), None, "{bad}");
            }
        }
    }
    assert!(!ObjectTag::first(u64::MAX).is_rewritten() && ObjectTag::rewritten(0).is_rewritten());
}

#[test]
fn an_object_is_called_what_its_header_says() {
    let tag = ObjectTag::rewritten(9);
    let header = |kind, number, part, tag| {
        let header = values::header(kind, SealScheme::Checksum);
        names::of_header(&Header { number, part, tag, ..header }).unwrap()
    };
    let (series, id) = (values::SERIES, Id(7));
    let none = ObjectTag::NONE;
    assert_eq!(header(ObjectKind::Container, 7, 0, tag), names::container(series, 7, tag));
    assert_eq!(header(ObjectKind::Recipes, 7, 0, tag), names::pack(series, 7, tag));
    assert_eq!(header(ObjectKind::Summary, 7, 3, none), names::summary(series, id, 3));
    assert_eq!(header(ObjectKind::DeadList, 7, 3, none), names::dead_list(series, id, 3));
    assert_eq!(header(ObjectKind::Run, 7, 3, none), names::run(series, id, 3));
}

#[test]
fn sets_reach_the_last_number() {
    let mut set = ObjectSet::default();
    let tag = ObjectTag::first(1);
    for number in [5, u32::MAX - 1, u32::MAX] {
        set.push(number, tag);
    }
    assert_eq!((set.len(), set.ranges().len()), (3, 2));
    assert_eq!(set.iter().map(|(number, _)| number).last(), Some(u32::MAX));
    let head = Head { containers: set.clone(), ..values::head() };
    assert_eq!(Head::decode(&head.encode()).unwrap().containers, set);
}
