use super::{ELEMENT_BYTES, GROUP_BYTES, HashWay, SegmentHasher, portable};

fn element(hex: &str) -> [u8; ELEMENT_BYTES] {
    u128::from_str_radix(hex, 16).unwrap().to_be_bytes()
}

fn ways(key: [u8; ELEMENT_BYTES]) -> impl Iterator<Item = SegmentHasher> {
    let supported = HashWay::ALL.into_iter().filter(|way| way.is_supported());
    supported.map(move |way| SegmentHasher::by(way, key))
}

/// RFC 8452, appendix A.
#[test]
fn products_are_those_of_the_rfc() {
    let [a, b] = ["66e94bd4ef8a2c3b884cfa59ca342b2e", "ff000000000000000000000000000000"]
        .map(|hex| u128::from_le_bytes(element(hex)));
    let expected = element("ebe563401e7e91ea3ad6426b8140c394");
    assert_eq!(portable::multiply(a, b).to_le_bytes(), expected);
    assert_eq!(portable::multiply(b, a).to_le_bytes(), expected);
}

/// RFC 8452, appendix A: two blocks at the end of a group of zeros.
#[test]
fn sums_are_those_of_the_rfc() {
    for hasher in ways(element("25629347589242761d31f826ba4b757b")) {
        let mut group = [0; GROUP_BYTES];
        let blocks = ["4f4f95668c83dfb6401762bb2d01a262", "d1a24ddd2721d006bbe45f20d3c9f362"];
        group[GROUP_BYTES - 2 * ELEMENT_BYTES..].copy_from_slice(&blocks.map(element).concat());
        let sum = hasher.add(0, &[[0; GROUP_BYTES], group]);
        let expected = element("f7a3b47b846119fae5b7866cf5e5b77e");
        assert_eq!(sum.to_le_bytes(), expected, "{:?}", hasher.way);
    }
}

/// A sum is continued in the first block of a group, and in no other.
#[test]
fn groups_continue_each_other() {
    let bytes: Vec<u8> = (0..251).cycle().take(2 * GROUP_BYTES).collect();
    let (groups, _) = bytes.as_chunks::<GROUP_BYTES>();
    let key = element("0123456789abcdef0123456789abcdef");
    let expected = portable::add(&SegmentHasher::new(key).powers, 5, groups);
    for hasher in ways(key) {
        assert_eq!(hasher.add(5, groups), expected, "{:?}", hasher.way);
        let one_by_one = groups.iter().fold(5, |sum, group| hasher.add(sum, &[*group]));
        assert_eq!(one_by_one, expected, "{:?}", hasher.way);
    }
}
