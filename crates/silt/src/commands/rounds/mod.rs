//! `silt backup --fleet` and `silt rounds plan`.

mod file;
mod forecast;
mod join;
mod run;

pub use file::{Series, run_hook, shell, toml_error};
pub use run::run;

use serde_json::json;

use self::forecast::{Plan, visible_stages, whole};
use super::{Failure, Session};
use crate::cli::PlanRounds;
use crate::output;

pub fn plan(session: &Session<'_>, args: &PlanRounds) -> Result<u8, Failure> {
    let fleet = file::read(&args.fleet)?;
    let repository = session.repository()?;
    let fleet = fleet.with_own_names(|name| repository.own_name(name))?;
    let plan = forecast::plan(&repository, &fleet, &args.choice)?;
    session.reporter.finish();
    if session.global.json {
        for number in 0..plan.schedule.rounds.len() {
            output::message("planned_round", planned_json(&plan, number));
        }
        let held = plan.schedule.mean_held_s(&plan.model, &plan.vms);
        let value = json!({
            "rounds": plan.schedule.rounds.len(),
            "total_s": plan.schedule.total_s(),
            "mean_held_s": held,
        });
        output::message("plan", value);
        return Ok(0);
    }
    let rounds = plan.schedule.rounds.len();
    output::line(&format!(
        "{} of {} series, {:.1} s expected; each volume is needed for {:.1} s on average",
        output::count(rounds, "round"),
        plan.names.len(),
        plan.schedule.total_s(),
        plan.schedule.mean_held_s(&plan.model, &plan.vms),
    ));
    for number in 0..rounds {
        let (scan, new) = plan.bytes(number);
        output::line(&format!(
            "round {}: {} to scan, {} of it expected to be new",
            number + 1,
            output::bytes(whole(scan)),
            output::bytes(whole(new))
        ));
        output::line(&format!("  {}", plan.members(number).join(" ")));
        output::line(&format!("  {}", expected_line(&plan, number)));
    }
    Ok(0)
}

fn expected_line(plan: &Plan, number: usize) -> String {
    let stages = &plan.schedule.stages[number];
    let [scan, compare, store] = visible_stages(stages);
    let held = plan.model.held_s(stages);
    format!(
        "expected: scan {scan:.2} s, compare {compare:.2} s, store {store:.2} s; needed for \
         {held:.2} s"
    )
}

fn planned_json(plan: &Plan, number: usize) -> serde_json::Value {
    let stages = &plan.schedule.stages[number];
    let [scan, compare, store] = visible_stages(stages);
    let (scan_bytes, new_bytes) = plan.bytes(number);
    json!({
        "round": number + 1,
        "series": plan.members(number),
        "scan_bytes": whole(scan_bytes),
        "expected_new_bytes": whole(new_bytes),
        "scan_s": scan,
        "compare_s": compare,
        "store_s": store,
        "held_s": plan.model.held_s(stages),
    })
}
