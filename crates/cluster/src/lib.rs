//! Many hosts as one: when backups are due, and who makes them.

mod agent;
mod bus;
mod calendar;
mod director;
mod hostile;
pub mod index;
mod local;
mod messages;
mod nats;
pub mod nodes;
mod notes;
mod presence;
mod remote;
mod respondent;
pub mod round;
mod side;
mod status;
mod work;

pub use agent::{Agent, AgentOptions, Event, Step};
pub use bus::{
    ATTEMPTS_MAX, Answering, Bus, Delivery, Job, JobState, Lease, Listener, MESSAGE_BYTES_MAX,
    Member, Name, Offer, REPEATS, Respond, SIGN_OF_LIFE,
};
pub use calendar::Calendar;
pub use hostile::HostileBus;
pub use local::LocalBus;
pub use messages::{Message, Messages};
pub use nats::{NatsBus, NatsOptions};
pub use notes::{FileNotes, NoNotes, Notes, TaskNotes};
pub use remote::{Fleet, Remote, Watch, fleet, watch};
pub use side::side_by_side;
pub use status::{
    Accepted, AgentStatus, Allowed, DirectorStatus, IndexStatus, Issue, LastRun, Refusal,
    RunStatus, TaskStatus, Telling, Told,
};
pub use work::{End, News, Run, Task, Work, Worker};
