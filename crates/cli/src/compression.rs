//! The names of zstd levels.

/// The names and what they stand for, from the fastest on.
pub const NAMES: [(&str, i32); 5] =
    [("fastest", -7), ("fast", -3), ("default", 1), ("better", 6), ("best", 19)];

/// The levels that a repository may have.
const LEVELS: std::ops::RangeInclusive<i32> = -7..=19;

/// Returns the zstd level of a name or a number.
pub fn level(text: &str) -> Result<i32, String> {
    if let Some((_, level)) = NAMES.iter().find(|(name, _)| *name == text) {
        return Ok(*level);
    }
    text.parse().ok().filter(|level| LEVELS.contains(level)).ok_or_else(|| {
        let names = NAMES.map(|(name, _)| name).join(", ");
        format!("use {names}, or a zstd level from -7 to 19")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_levels() {
        for (text, expected) in [("fastest", -7), ("default", 1), ("-3", -3), ("19", 19)] {
            assert_eq!(level(text), Ok(expected), "{text}");
        }
        for text in ["", "20", "-8", "zstd", "1.5", "Best"] {
            assert!(level(text).unwrap_err().contains("fastest"), "{text}");
        }
        assert!(NAMES.is_sorted_by_key(|(_, level)| *level));
        assert!(NAMES.iter().all(|(_, level)| LEVELS.contains(level)));
    }
}
