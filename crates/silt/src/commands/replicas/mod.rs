//! Replicas: what the configuration file says of them, and what this machine knows of them.

mod record;
mod settings;
mod status;

pub use record::{Attempt, Records};
pub use settings::{ReplicaSettings, Target, of_profile, targets};
pub use status::{explain, print, statuses};
