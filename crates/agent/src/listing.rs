//! What an agent would do, for people and as JSON.

use jiff::tz::TimeZone;
use serde_json::{Value, json};
use silt_cluster::Calendar;
use silt_format::ErrorKind;
use silt_terminal::failure::Failure;
use silt_terminal::output;

use crate::plan::{Plan, next_times};
use crate::settings::BusSettings;
use crate::tell;

/// Times of a task that are shown.
const TIMES: usize = 3;

/// Prints what an agent would do.
pub fn plan(plan: &Plan, profile: Option<&str>, now_ns: i64, as_json: bool) {
    if as_json {
        output::message("agent_config", settings_json(plan, profile));
    } else {
        print_settings(plan, profile);
    }
    let mut rows = Vec::new();
    for task in &plan.tasks {
        let schedule = task.when.as_ref();
        let times = schedule.map(|calendar| next_times(calendar, &plan.zone, now_ns, TIMES));
        let times = times.unwrap_or_default();
        if as_json {
            let (work, series) = tell::work(&task.work);
            let next: Vec<String> = times.iter().copied().map(output::rfc3339).collect();
            let schedule = schedule.map(ToString::to_string);
            let value = json!({"work": work, "series": series, "schedule": schedule, "next": next});
            output::message("agent_task", value);
            continue;
        }
        let schedule = schedule.map_or_else(|| "on command".to_owned(), ToString::to_string);
        let mut row = vec![task.work.to_string(), schedule];
        row.extend((0..TIMES).map(|at| {
            times.get(at).map_or_else(|| "-".to_owned(), |time_ns| output::time(*time_ns))
        }));
        rows.push(row);
    }
    if !as_json {
        output::table(&["TASK", "SCHEDULE", "NEXT", "THEN", "THEN"], &rows, &[]);
    }
}

/// A name of the time zone.
fn zone_name(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or("local")
}

fn settings_json(plan: &Plan, profile: Option<&str>) -> Value {
    let settings = &plan.settings;
    let bus = settings.bus.as_ref().map(|bus: &BusSettings| {
        json!({
            "servers": bus.servers,
            "user": bus.user,
            "tls_first": bus.tls_first,
            "replicas": bus.replicas.unwrap_or(1),
        })
    });
    json!({
        "agent": plan.name.as_str(),
        "profile": profile,
        "zone": zone_name(&plan.zone),
        "parallel": plan.parallel(),
        "spread_s": settings.spread.unwrap_or(0),
        "alone_after_s": plan.alone_after_s(),
        "leads": plan.leads(),
        "limit": settings.limit.unwrap_or(0),
        "allow": plan.obeyed(),
        "forget_after_backup": settings.forget_after_backup,
        "index_memory_bytes": settings.index_memory,
        "check_data": settings.check_data,
        "bus": bus,
    })
}

fn print_settings(plan: &Plan, profile: Option<&str>) {
    let settings = &plan.settings;
    let line = |key: &str, value: &str| output::line(&format!("{key:<9} {value}"));
    line("Agent", plan.name.as_str());
    line("Profile", profile.unwrap_or("none"));
    line("Zone", zone_name(&plan.zone));
    let spread = settings.spread.unwrap_or(0);
    let spread = if spread == 0 { String::new() } else { format!(", put off by up to {spread} s") };
    line("Runs", &format!("{} at once{spread}", plan.parallel()));
    match &settings.bus {
        None => line("Bus", "none; this host works alone"),
        Some(bus) => {
            let user = bus.user.as_ref().map(|user| format!(" as {user}")).unwrap_or_default();
            line("Bus", &format!("{}{user}", bus.servers.join(", ")));
            line("Alone", &format!("{} s without a director", plan.alone_after_s()));
            let limit = match settings.limit.unwrap_or(0) {
                0 => "no limit".to_owned(),
                limit => format!("at most {limit} runs of all hosts at once"),
            };
            line("Directs", if plan.leads() { &limit } else { "never" });
            let obeyed = plan.obeyed();
            let obeyed: Vec<_> = obeyed.iter().map(|it| format!("{it:?}").to_lowercase()).collect();
            line("Obeys", &if obeyed.is_empty() { "none".to_owned() } else { obeyed.join(", ") });
        }
    }
    output::line("");
}

/// Prints the next times of calendar expressions.
pub fn calendars(
    expressions: &[String],
    count: usize,
    now_ns: i64,
    as_json: bool,
) -> Result<u8, Failure> {
    let zone = TimeZone::system();
    let parse = |text: &String| {
        let calendar: Result<Calendar, silt_format::Error> = text.parse();
        calendar.map_err(|error| match error.kind() {
            ErrorKind::Invalid => Failure::Usage(error.to_string()),
            _ => error.into(),
        })
    };
    let calendars = expressions.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    for calendar in calendars {
        let times = next_times(&calendar, &zone, now_ns, count);
        if as_json {
            let times: Vec<String> = times.into_iter().map(output::rfc3339).collect();
            let value = json!({"expression": calendar.to_string(), "next": times});
            output::message("calendar", value);
            continue;
        }
        output::line(&calendar.to_string());
        if times.is_empty() {
            output::line("  never");
        }
        times.into_iter().for_each(|time_ns| output::line(&format!("  {}", output::time(time_ns))));
    }
    Ok(0)
}
