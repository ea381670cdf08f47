//! The files in which the programs of AWS keep credentials and settings.

use std::collections::BTreeMap;

/// The settings of one profile.
pub(crate) type Profile = BTreeMap<String, String>;

/// The settings of `profile` in the text of `credentials` or `config`; the latter calls all but the
/// default profile `[profile NAME]`.
pub(crate) fn profile(text: &str, profile: &str) -> Profile {
    let mut found = Profile::new();
    let mut is_wanted = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name = name.trim();
            is_wanted = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_wanted) {
            found.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::profile;

    #[test]
    fn a_profile_is_found_in_either_file() {
        let credentials =
            "# keys\n[default]\naws_access_key_id = A\n\n[backup]\naws_access_key_id=B\n";
        assert_eq!(profile(credentials, "default")["aws_access_key_id"], "A");
        assert_eq!(profile(credentials, "backup")["aws_access_key_id"], "B");
        let config = "[default]\nregion = eu-central-1\n[profile backup]\nregion=us-east-2\n; end";
        assert_eq!(profile(config, "backup")["region"], "us-east-2");
        assert!(profile(config, "other").is_empty());
    }
}
