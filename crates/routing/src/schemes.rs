//! The schemes, each as a [`crate::Router`].

mod extreme;
mod produck;
mod similar;
mod stateful;
mod stateless;

pub use extreme::{ExactDht, ExtremeBinning};
pub use produck::Produck;
pub use similar::{AppDedupe, Sigma};
pub use stateful::Stateful;
pub use stateless::{AppAware, Feature, Stateless};

/// The super-chunks of all schemes but Produck's: 1 MiB (AppDedupe, section 5).
pub(crate) const SUPER_CHUNK_BYTES: u64 = 1 << 20;
