use super::*;

fn tuned(content: &[u8]) -> TunedKind {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("disk.raw"), content).unwrap();
    let context = silt_repository::system::SystemEnv::context();
    tune(&context, folder.path(), &TuneOptions::default()).unwrap().kinds.remove(0)
}

#[test]
fn segments_of_zeros_are_not_measured() {
    let data: Vec<u8> = (1..=251).cycle().take(SEGMENT_BYTES / 2).collect();
    let zeros = vec![0; SEGMENT_BYTES];
    let segment = [&data[..], &zeros[..SEGMENT_BYTES / 2]].concat();
    let content = [&zeros, &segment, &segment, &zeros, &zeros, &data[..]].concat();
    let kind = tuned(&content);
    assert_eq!(kind.bytes, to_u64(content.len()));
    assert_eq!(kind.measured_bytes, to_u64(2 * SEGMENT_BYTES + SEGMENT_BYTES / 2));
    let alone = tuned(&[&segment, &segment, &data[..]].concat());
    let found = |kind: &TunedKind| -> Vec<(u64, u64)> {
        kind.measures.iter().map(|measure| (measure.chunks, measure.unique_bytes)).collect()
    };
    let fixed = FIXED_KIB.len();
    assert_eq!(found(&kind)[..fixed], found(&alone)[..fixed]);
    assert_eq!(tuned(&zeros).measured_bytes, 0);
}
