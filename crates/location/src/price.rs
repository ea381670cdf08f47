//! What requests cost at a store's list prices.

use silt_format::{Error, Result};
use silt_storage::Usage;

/// US dollars for a million requests, and for a GB (10^9 bytes) that is received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    put: f64,
    list: f64,
    get: f64,
    received: f64,
}

impl Prices {
    /// From `put=5,list=5,get=0.4,received=0.09`; what is left out costs nothing.
    pub fn parse(text: &str) -> Result<Self> {
        let mut prices = Self { put: 0.0, list: 0.0, get: 0.0, received: 0.0 };
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let wrong = || {
                let message = format!(
                    "'{item}' is not a price; use put, list and get in dollars per million \
                     requests, and received in dollars per GB, such as \
                     put=5,list=5,get=0.4,received=0.09"
                );
                Error::invalid(message)
            };
            let (name, price) = item.split_once('=').ok_or_else(wrong)?;
            let price = price.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
            let place = match name {
                "put" => &mut prices.put,
                "list" => &mut prices.list,
                "get" => &mut prices.get,
                "received" => &mut prices.received,
                _ => return Err(wrong()),
            };
            *place = price.ok_or_else(wrong)?;
        }
        Ok(prices)
    }

    /// What these requests cost, in dollars. Deleting costs nothing anywhere.
    #[expect(clippy::cast_precision_loss, reason = "costs are rounded")]
    pub fn of(&self, requests: &Usage) -> f64 {
        let millions = self.put * requests.puts as f64
            + self.list * requests.lists as f64
            + self.get * (requests.gets + requests.heads) as f64;
        millions / 1e6 + self.received * requests.received_bytes as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_a_price() {
        let prices = Prices::parse("put=5, list=5,get=0.4,received=0.09").unwrap();
        let requests = Usage {
            puts: 100_000,
            gets: 900_000,
            heads: 100_000,
            lists: 100_000,
            deletes: 7,
            received_bytes: 10_000_000_000,
            ..Usage::default()
        };
        assert!((prices.of(&requests) - 2.3).abs() < 1e-9);
        for wrong in ["put", "put=-1", "put=x", "cost=1"] {
            assert!(Prices::parse(wrong).is_err(), "{wrong}");
        }
    }
}
