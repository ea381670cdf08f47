//! How well series are protected: which snapshot counts, what was verified, what is damaged.

use silt_format::{ByteSpan, names};
use silt_storage::{Storage, list_all};
use siltstone::{CheckOptions, DataCheck, SeriesStatus};

use crate::deletion::Series;
use crate::kit::{self, MemorySource};

fn status(series: &Series) -> SeriesStatus {
    let mut all = series.repository.status(&[]).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn only_a_whole_snapshot_of_the_past_counts() {
    let series = Series::new(2);
    let good = status(&series);
    assert_eq!((good.series.as_str(), good.snapshots, good.newer_bad), ("vm", 2, 0));
    assert_eq!(good.newest_good.unwrap().id, series.ids[1]);
    // A source that can't be read in full.
    let source = MemorySource::new(&series.images[1]);
    *source.failing.lock().unwrap() = vec![ByteSpan { offset: 4096, length: 4096 }];
    kit::backup_with(&series.repository, "vm", &source, kit::options()).unwrap();
    let partial = status(&series);
    assert_eq!((partial.newer_bad, partial.unreadable_bytes), (1, 4096));
    assert!(partial.missing_volumes.is_empty());
    // A host whose clock is a day ahead.
    series.world.pass_seconds(86_400);
    kit::backup(&series.repository, "vm", &series.images[1]).unwrap();
    series.world.pass_seconds(-86_400);
    let after = status(&series);
    assert_eq!((after.newest_good, after.newer_bad, after.snapshots), (good.newest_good, 2, 4));
    series.world.pass_seconds(86_400);
    assert_ne!(status(&series).newest_good, good.newest_good, "its time has come");
}

#[test]
fn a_status_says_since_when_all_was_verified_and_what_is_damaged() {
    let series = Series::new(2);
    assert_eq!(status(&series).verified_since_s, None);
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    series.repository.check(&all).unwrap();
    let verified = status(&series).verified_since_s.unwrap();
    series.world.pass_seconds(1000);
    series.repository.check(&CheckOptions::default()).unwrap();
    assert_eq!(status(&series).verified_since_s, Some(verified), "no data was read");
    series.world.pass_seconds(1000);
    series.repository.check(&all).unwrap();
    assert!(status(&series).verified_since_s.unwrap() >= verified + 2000);
    // A container that nobody has read yet.
    kit::backup(&series.repository, "vm", &kit::image(77, 300)).unwrap();
    assert_eq!(status(&series).verified_since_s, None);
    let containers = names::containers(series.repository.series_id("vm"));
    let container = series.names(&containers)[0].clone();
    let middle = |bytes: &mut Vec<u8>| {
        let at = bytes.len() / 3;
        bytes[at] ^= 1;
    };
    series.storage.damage(&container, middle).unwrap();
    assert_eq!(status(&series).damaged_objects, 0, "nobody has looked");
    assert!(!series.repository.check(&all).unwrap().damage.is_empty());
    assert_eq!(status(&series).damaged_objects, 1);
}

#[test]
fn of_a_damaged_head_the_one_before_it_is_told() {
    let series = Series::new(3);
    let heads = names::Numbered::Head.prefix(series.repository.series_id("vm"));
    let newest = list_all(&*series.storage, &heads, None).next().unwrap().unwrap().0;
    let mut bytes = Vec::new();
    series.storage.get(&newest, silt_storage::ByteRange::Full, &mut bytes).unwrap();
    series.storage.damage(&newest, |bytes| bytes[60] ^= 1).unwrap();
    let repository = kit::open(series.storage.clone(), &series.world).unwrap();
    let found = repository.status(&["vm".to_owned()]).unwrap();
    assert!(found[0].damage.is_some());
    assert_eq!(found[0].newest_good.unwrap().id, series.ids[1]);
}
