//! What is done before anything goes wrong.

use silt_format::{Config, ErrorKind, KdfCost, KeyLabel, Result};
use siltstone::{Administrator, KeyAccess, Protection, Repository};

use super::{Here, act, one_of};
use crate::caches;
use crate::model::Told;
use crate::plan::{Action, Role};
use crate::stage::{READS, SIGNS, Stage, WRITES, open};
use crate::world::{Place, minutes_ns};

/// Size of a container in bytes: the minimum.
const CONTAINER_BYTES: u32 = 64 << 10;

/// The lowest cost that the format allows.
pub(super) const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };

/// Creates the repository and runs the prelude.
pub fn begin(stage: &Stage) -> Result<()> {
    let auditor = stage.plan.auditor();
    let process = stage.process(auditor, 0);
    // The compression level has no influence on the faults, so use the fastest.
    let config = Config {
        container_bytes: CONTAINER_BYTES,
        frame_bytes: 8 << 10,
        zstd_level: -7,
        ..Config::default()
    };
    let (protection, administrator) = if stage.plan.guarded {
        let (password, label) = (READS.to_vec(), KeyLabel::default());
        let signs =
            Administrator { password: SIGNS.to_vec(), cost: COST, label: KeyLabel::default() };
        (Protection::Password { password, cost: COST, label }, Some(signs))
    } else {
        (Protection::None, None)
    };
    let (place, context) = (process.place(0), process.context());
    let mut repository =
        Repository::init(place, context, config, &protection, administrator.as_ref())?;
    if stage.plan.guarded {
        repository.authorize(SIGNS)?;
        repository.add_key(WRITES, COST, &KeyLabel::default(), &KeyAccess::write_only(&["*"]))?;
    }
    stage.model().sites.push(repository.id());
    for site in 1..=stage.plan.replicas {
        let (place, context) = (process.place(stage.places_of(site).start), process.context());
        let replica = repository.init_replica(place, context, &Protection::None, None)?;
        stage.model().sites.push(replica.id());
    }
    process.end();
    let mut before = Vec::new();
    for (number, action) in stage.plan.prelude.iter().enumerate() {
        if let Action::RollBack(which) = action {
            roll_back(stage, &before, *which);
        } else {
            before.push((stage.world.state().places.clone(), stage.model().told()));
            prepare(stage, number, *action)?;
        }
        stage.world.pass(auditor, minutes_ns(30));
    }
    Ok(())
}

/// Does something before anything goes wrong, on the machine of one of the hosts, so that these
/// have something in their caches.
fn prepare(stage: &Stage, number: usize, action: Action) -> Result<()> {
    let (auditor, machines) = (stage.plan.auditor(), stage.plan.hosts.len());
    let machine = number.checked_rem(machines).unwrap_or(auditor);
    let process = stage.process_on((auditor, format!("host{machine}")), 0);
    stage.lend_caches(&process, caches::policy(action));
    let repository = open(stage, &process, 0, Role::Administrator)?;
    let here = Here { stage, host: auditor, site: 0, process: &process, there: &[] };
    let done = act(&here, repository, action).1;
    process.end();
    match done {
        Err(error) if !is_refusal(error.kind()) => Err(error),
        // Nothing goes wrong yet, and nobody has removed a place.
        Err(error) if matches!(action, Action::Backup(_)) && stage.plan.places <= 1 => {
            Err(error.context("a backup is refused"))
        }
        _ => Ok(()),
    }
}

/// All places become what they were before one of the actions.
fn roll_back(stage: &Stage, before: &[(Vec<Place>, Told)], which: u64) {
    if before.is_empty() {
        return;
    }
    let number = one_of(which, before.len());
    stage.note(format_args!("all places are what they were before action {number}"));
    let (places, told) = &before[number];
    stage.world.state().places.clone_from(places);
    stage.model().roll_back(told.clone());
}

/// Returns whether an error means only that the operation had nothing to work on.
pub(super) fn is_refusal(kind: ErrorKind) -> bool {
    use ErrorKind::{AlreadyExists, Denied, Invalid, NoRepository, NotFound};
    matches!(kind, AlreadyExists | Denied | Invalid | NoRepository | NotFound)
}
