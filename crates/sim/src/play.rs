//! Playing a plan, and verifying its result.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use silt_format::Error;

use crate::history::{Stage, begin, run_hosts, text};
use crate::model::Model;
use crate::plan::Plan;
use crate::world::World;
use crate::{agents, caches, verify, verify_sites};

/// The result of a history.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The violations; empty if all is well.
    pub violations: Vec<String>,
    /// A digest of all events: the same for the same plan and the same code.
    pub digest: String,
    /// All events, if they were kept.
    pub events: Vec<String>,
}

/// Plays a plan, and verifies the repository at the end.
pub fn play(plan: &Plan, keeps_events: bool) -> Outcome {
    let hosts = plan.auditor();
    let world = World::new(
        plan.seed,
        (plan.places.max(1) + plan.replicas, plan.nodes),
        hosts,
        keeps_events,
    );
    let model = Arc::new(Mutex::new(Model::new(plan)));
    let mut stage = Stage { plan: plan.clone(), world, caches: None, model };
    let begun = catch_unwind(AssertUnwindSafe(|| {
        if plan.caches && !plan.folders {
            stage.caches = Some(caches::folder()?);
        }
        begin(&stage)?;
        run_hosts(&stage, |scope| agents::spawn(&stage, scope));
        Ok(())
    }));
    match begun {
        Ok(Ok(())) => {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| match plan.replicas {
                0 => verify::verify(&stage),
                _ => verify_sites::verify(&stage),
            })) {
                stage.violated(format!("the end panicked: {}", text(&*panic)));
            }
        }
        Ok(Err(error)) => {
            let error: Error = error;
            stage.violated(format!("the beginning failed: {error}"));
        }
        Err(panic) => stage.violated(format!("the beginning panicked: {}", text(&*panic))),
    }
    let digest = stage.world.digest();
    let events = stage.world.state().events.take().unwrap_or_default();
    let violations = std::mem::take(&mut stage.model().violations);
    Outcome { violations, digest, events }
}
