//! What series are called, and the domain that they belong to.

/// The domain that series belong to until several can be made.
pub const DEFAULT_DOMAIN: u32 = 0;
/// What the shared store is called in messages.
pub const SHARED_NAME: &str = "shared store";
/// What precedes a series' id where a name is asked for; no name can have it.
pub const ID_PREFIX: &str = "id:";
/// The pattern of a key that may write every series.
pub const EVERY_SERIES: &str = "*";

/// Whether the program's own syntax can name this again.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| !c.is_control() && !matches!(c, '@' | ':' | '=' | '/');
    (1..=255).contains(&name.len()) && name.chars().all(allowed) && name != "latest"
}
