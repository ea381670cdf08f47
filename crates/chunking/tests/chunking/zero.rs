use silt_chunking::is_zero;

#[test]
fn one_bit_anywhere_is_seen() {
    let mut data = vec![0; 1100];
    for length in (0..=70).chain(250..=260).chain(505..=520).chain([1024, 1099]) {
        for begin in 0..2 {
            let range = begin..(begin + length).min(data.len());
            assert!(is_zero(&data[range.clone()]), "{range:?}");
            for place in range.clone() {
                data[place] = 1 << (place % 8);
                assert!(!is_zero(&data[range.clone()]), "{place} in {range:?}");
                data[place] = 0;
            }
        }
    }
}

#[test]
fn bytes_outside_do_not_matter() {
    let mut data = vec![1; 4098];
    data[1..4097].fill(0);
    assert!(is_zero(&data[1..4097]));
    assert!(!is_zero(&data[..4097]));
    assert!(!is_zero(&data[1..]));
}
