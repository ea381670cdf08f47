//! Shrinking a failing plan: removing every part that is not needed for the failure.

use crate::plan::{Action, Plan, Role, Shape};
use crate::play::play;

/// Returns the smallest plan found that still fails, and its violations.
pub fn shrink(plan: &Plan) -> (Plan, Vec<String>) {
    let mut best = plan.clone();
    let mut violations = play(&best, false).violations;
    loop {
        let smaller = smaller(&best).into_iter().find_map(|plan| {
            let found = play(&plan, false).violations;
            (!found.is_empty()).then_some((plan, found))
        });
        match smaller {
            Some((plan, found)) => (best, violations) = (plan, found),
            None => return (best, violations),
        }
    }
}

/// Returns all plans with one part removed or simplified, those with the largest part first.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut without = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        if smaller != *plan {
            plans.push(smaller);
        }
    };
    for host in 0..plan.hosts.len() {
        without(&|plan| drop(plan.hosts.remove(host)));
    }
    for (host, all) in plan.hosts.iter().enumerate() {
        for work in 0..all.work.len() {
            without(&|plan| drop(plan.hosts[host].work.remove(work)));
        }
    }
    for action in 0..plan.prelude.len() {
        without(&|plan| {
            plan.prelude.remove(action);
        });
    }
    for (host, all) in plan.hosts.iter().enumerate() {
        if plan.tick_ms == 0 {
            without(&|plan| plan.hosts[host].skew_minutes = 0);
        }
        without(&|plan| plan.hosts[host].stays_open = false);
        without(&|plan| plan.hosts[host].role = Role::Administrator);
        for (work, one) in all.work.iter().enumerate() {
            without(&|plan| plan.hosts[host].work[work].after_minutes = 0);
            for fault in 0..one.faults.len() {
                without(&|plan| {
                    plan.hosts[host].work[work].faults.remove(fault);
                });
            }
            for fault in 0..one.faults_there.len() {
                without(&|plan| {
                    plan.hosts[host].work[work].faults_there.remove(fault);
                });
            }
            without(&|plan| {
                if let Action::Replicate(one) = &mut plan.hosts[host].work[work].action {
                    (one.skew_minutes, one.only_newest) = (0, false);
                }
            });
        }
    }
    shrink_agents(plan, &mut without);
    for series in 0..plan.shapes.len() {
        without(&|plan| plan.shapes[series] = Shape::Disk);
        if plan.shapes[series] != Shape::Disk {
            without(&|plan| plan.shapes[series] = Shape::Tree);
        }
    }
    // One clock stamps the files and is read by all hosts.
    without(&|plan| plan.hosts.iter_mut().for_each(|host| host.skew_minutes = 0));
    without(&|plan| plan.tick_ms = 0);
    without(&|plan| plan.caches = false);
    without(&|plan| plan.places = 1);
    without(&|plan| plan.nodes = 0);
    without(&|plan| plan.nodes = plan.nodes.saturating_sub(1));
    without(&|plan| plan.guarded = false);
    plans
}

/// Changes a plan.
type Change<'c> = &'c dyn Fn(&mut Plan);

fn shrink_agents(plan: &Plan, without: &mut dyn FnMut(Change<'_>)) {
    for (agent, all) in plan.agents.iter().enumerate() {
        without(&|plan| drop(plan.agents.remove(agent)));
        without(&|plan| plan.agents[agent].bus_faults = 0);
        without(&|plan| plan.agents[agent].limit = 0);
        without(&|plan| plan.agents[agent].skew_minutes = 0);
        without(&|plan| plan.agents[agent].reclaims = None);
        for task in 0..all.tasks.len() {
            without(&|plan| {
                plan.agents[agent].tasks.remove(task);
            });
        }
        for trouble in 0..all.troubles.len() {
            without(&|plan| {
                plan.agents[agent].troubles.remove(trouble);
            });
        }
        for run in 0..all.runs.len() {
            without(&|plan| plan.agents[agent].runs[run].clear());
        }
    }
}
