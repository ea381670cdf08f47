//! Replicas: what the configuration file says of them, and what this machine knows of them.

mod phases;
mod record;
mod settings;
mod status;

pub use phases::phases;
pub use record::{Attempt, Records};
pub use settings::{ReplicaSettings, Target, of_profile, targets};
pub use status::{explain, print, statuses};
