//! Limits of bytes per second, as users write them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The least limit in bytes per second. Below it, one container takes hours.
const BYTES_PER_S_MIN: u64 = 1 << 10;
/// How finely fractions count: `1.5m` is 1,500,000 millionths.
const PARTS: u128 = 1_000_000;

/// A limit of bytes per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The limit.
    pub bytes_per_s: u64,
    /// The limit as it was written.
    text: String,
}

/// Parses a rate: `50` or `1.5m` in MiB per second, `200k` in KiB per second, `1g` in GiB per
/// second, `10mbit` or `500kbit` in millions or thousands of bits per second.
///
/// Fails if the rate is less than 1 KiB per second.
pub fn parse(text: &str) -> Result<Rate, String> {
    let lower = text.to_ascii_lowercase();
    let lower = lower.strip_suffix("/s").unwrap_or(&lower);
    let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    let unit_bytes: u128 = match unit {
        "k" | "kib" => 1 << 10,
        "" | "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kbit" => 125,
        "mbit" => 125_000,
        "gbit" => 125_000_000,
        _ => 0,
    };
    let parts = millionths(number).filter(|_| unit_bytes > 0);
    let bytes = parts.and_then(|parts| parts.checked_mul(unit_bytes)).map(|all| all / PARTS);
    let Some(bytes_per_s) = bytes.and_then(|bytes| u64::try_from(bytes).ok()) else {
        return Err(format!("'{text}' is not a rate; use MiB/s as in 50 or 1.5, 200k or 10mbit"));
    };
    if bytes_per_s < BYTES_PER_S_MIN {
        return Err(format!("'{text}' is less than the least limit, 1k (1 KiB/s)"));
    }
    Ok(Rate { bytes_per_s, text: text.to_owned() })
}

/// A decimal number with at most six digits behind the point, in millionths.
fn millionths(number: &str) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !is_number(part) || part.len() > 6 || whole.len() > 18 {
        return None;
    }
    let part: u128 = format!("{part:0<6}").parse().ok()?;
    whole.parse::<u128>().ok()?.checked_mul(PARTS)?.checked_add(part)
}

impl Serialize for Rate {
    /// A number of MiB per second if it was written so, otherwise the text.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.text.parse::<u64>() {
            Ok(mib) => mib.serialize(to),
            Err(_) => self.text.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Whole(u64),
            Part(f64),
            Text(String),
        }
        let text = match Written::deserialize(from)? {
            Written::Whole(mib) => mib.to_string(),
            Written::Part(mib) => mib.to_string(),
            Written::Text(text) => text,
        };
        parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_rate_has_a_unit_or_is_in_mib() {
        let rates = [
            ("50", 50 << 20),
            ("1", 1 << 20),
            ("1.5", 3 << 19),
            ("1.5m", 3 << 19),
            ("200k", 200 << 10),
            ("200 KiB/s", 0),
            ("200KiB/s", 200 << 10),
            ("2G", 2 << 30),
            ("2mbit", 250_000),
            ("500kbit/s", 62_500),
            ("0.25mbit", 31_250),
            ("0.001", 1048),
        ];
        for (text, bytes_per_s) in rates {
            let parsed = parse(text).map_or(0, |rate| rate.bytes_per_s);
            assert_eq!(parsed, bytes_per_s, "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        let huge = "9".repeat(40);
        for text in ["", "0", "k", "-1", "1.2.3", "1,5", "10b", "1000t", "0.5k", "1e3", ".5", &huge]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("18446744073709551615g").is_err());
    }
}
