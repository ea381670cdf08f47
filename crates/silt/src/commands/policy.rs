//! `silt policy`.

use serde_json::{Value, json};
use silt_format::{Period, RetentionPolicy};

use super::{Failure, Session};
use crate::cli::{Policy, SetPolicy};
use crate::{output, snapshot_name};

pub fn run(session: &Session<'_>, args: &Policy) -> Result<u8, Failure> {
    match args {
        Policy::Show { series } => {
            let repository = session.repository()?;
            for found in repository.policies(series)? {
                if session.global.json {
                    let policy = found.policy.as_ref().map(to_json);
                    let value = json!({"series": found.series, "policy": policy});
                    output::message("policy", value);
                } else {
                    let text = found.policy.as_ref().map_or("no policy".to_owned(), to_text);
                    output::line(&format!("{}: {text}", found.series));
                }
            }
        }
        Policy::Set(set) => {
            let policy = policy(set)?;
            let text = to_text(&policy);
            let repository = session.repository_to_change(false)?;
            repository.set_policy(&repository.own_name(&set.series)?, Some(policy))?;
            done(session, &set.series, &text);
        }
        Policy::Remove { series } => {
            let repository = session.repository_to_change(false)?;
            repository.set_policy(&repository.own_name(series)?, None)?;
            done(session, series, "no policy");
        }
    }
    Ok(0)
}

fn policy(set: &SetPolicy) -> Result<RetentionPolicy, Failure> {
    let keep = set.keep_deleted.as_deref().map(snapshot_name::parse_seconds).transpose()?;
    let Some(mut policy) = set.keep.policy()? else {
        let message = "the policy would keep nothing; pass a rule such as --keep-daily 7";
        return Err(Failure::Usage(message.to_owned()));
    };
    policy.keep_deleted_s = keep.unwrap_or(0);
    Ok(policy)
}

fn done(session: &Session<'_>, series: &str, text: &str) {
    if session.global.json {
        output::message("policy", json!({"series": series, "text": text}));
    } else {
        output::done(&format!("{series}: {text}"));
    }
}

fn counts(policy: &RetentionPolicy) -> [(&'static str, u32); 6] {
    [
        ("last", policy.last),
        ("hourly", policy.hourly),
        ("daily", policy.daily),
        ("weekly", policy.weekly),
        ("monthly", policy.monthly),
        ("yearly", policy.yearly),
    ]
}

fn period(period: Period) -> String {
    let parts =
        [(period.years, 'y'), (period.months, 'm'), (period.days, 'd'), (period.hours, 'h')];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    parts.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().concat()
}

fn hours(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds % 86_400 / 3600);
    match (days, hours) {
        (0, hours) => format!("{hours}h"),
        (days, 0) => format!("{days}d"),
        (days, hours) => format!("{days}d{hours}h"),
    }
}

fn to_text(policy: &RetentionPolicy) -> String {
    let kept = counts(policy).into_iter().filter(|(_, count)| *count > 0);
    let mut parts: Vec<String> = kept
        .map(|(name, count)| match count {
            u32::MAX => format!("{name} all"),
            count => format!("{name} {count}"),
        })
        .collect();
    if !policy.within.is_zero() {
        parts.push(format!("within {}", period(policy.within)));
    }
    parts.extend(policy.tags.iter().map(|tag| format!("tag {tag}")));
    let mut text = format!("keep {}", parts.join(", "));
    if policy.age_min_s > 0 {
        text = format!("{text}; delete nothing younger than {}", hours(policy.age_min_s));
    }
    if policy.keep_deleted_s > 0 {
        text = format!(
            "{text}; deleted snapshots can be brought back for {}",
            hours(policy.keep_deleted_s)
        );
    }
    text
}

fn to_json(policy: &RetentionPolicy) -> Value {
    let mut value = json!({
        "within": period(policy.within),
        "tags": policy.tags,
        "min_age_s": policy.age_min_s,
        "keep_deleted_s": policy.keep_deleted_s,
    });
    for (name, count) in counts(policy) {
        value[name] = if count == u32::MAX { json!(-1) } else { json!(count) };
    }
    value
}
