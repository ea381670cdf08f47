//! Names of series, and their domain.

/// The domain of all series, until there can be several.
pub const DEFAULT_DOMAIN: u32 = 0;
/// The shared store's name in messages.
pub const SHARED_NAME: &str = "shared store";
/// The prefix of a series' id in place of a name; no name can begin with it.
pub const ID_PREFIX: &str = "id:";
/// The pattern of a key that may write every series.
pub const EVERY_SERIES: &str = "*";

/// Whether the program's syntax can express this name.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| !c.is_control() && !matches!(c, '@' | ':' | '=' | '/');
    (1..=255).contains(&name.len()) && name.chars().all(allowed) && name != "latest"
}
