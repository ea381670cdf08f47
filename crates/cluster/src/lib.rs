//! Many hosts as one: when backups are due, and who makes them.

mod bus;
mod calendar;
mod hostile;
mod local;
mod nats;

pub use bus::{
    ATTEMPTS_MAX, Answering, Bus, Delivery, Job, JobState, Lease, Listener, MESSAGE_BYTES_MAX,
    Member, Name, Offer, REPEATS, Respond, SIGN_OF_LIFE,
};
pub use calendar::Calendar;
pub use hostile::HostileBus;
pub use local::LocalBus;
pub use nats::{NatsBus, NatsOptions};
