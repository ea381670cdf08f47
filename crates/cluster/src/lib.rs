//! Many hosts as one: when backups are due, and who makes them.

mod bus;
mod calendar;
mod hostile;
pub mod index;
mod local;
mod messages;
mod nats;
pub mod round;
mod work;

pub use bus::{
    ATTEMPTS_MAX, Answering, Bus, Delivery, Job, JobState, Lease, Listener, MESSAGE_BYTES_MAX,
    Member, Name, Offer, REPEATS, Respond, SIGN_OF_LIFE,
};
pub use calendar::Calendar;
pub use hostile::HostileBus;
pub use local::LocalBus;
pub use messages::{Message, Messages};
pub use nats::{NatsBus, NatsOptions};
pub use work::{End, News, Run, Task, Work, Worker};
