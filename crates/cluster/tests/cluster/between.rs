//! A bus in front of another one, which decides what becomes of questions.

use std::sync::Arc;
use std::time::Duration;

use silt_cluster::{
    Answering, Bus, Delivery, Job, JobState, Lease, Listener, Member, Name, Offer, Respond,
};
use silt_format::Result;

/// Carries a question on the bus that it is given, or does something else.
pub trait Ask: Send + Sync {
    fn ask(
        &self,
        bus: &dyn Bus,
        service: &Name,
        question: &[u8],
        patience: Duration,
    ) -> Result<Option<Vec<u8>>>;
}

/// A bus that carries everything but questions as it should.
pub struct Between<A> {
    pub bus: Arc<dyn Bus>,
    pub ask: A,
}

impl<A: Ask> Bus for Between<A> {
    fn ask(&self, service: &Name, question: &[u8], patience: Duration) -> Result<Option<Vec<u8>>> {
        self.ask.ask(&*self.bus, service, question, patience)
    }
    fn offer(&self, job: &Job) -> Result<Offer> {
        self.bus.offer(job)
    }
    fn take(&self, pool: &Name, patience: Duration) -> Result<Option<Delivery>> {
        self.bus.take(pool, patience)
    }
    fn settle(&self, delivery: &Delivery, state: JobState) -> Result<()> {
        self.bus.settle(delivery, state)
    }
    fn acquire(&self, name: &Name, term: Duration) -> Result<Option<Lease>> {
        self.bus.acquire(name, term)
    }
    fn renew(&self, lease: &mut Lease, term: Duration) -> Result<bool> {
        self.bus.renew(lease, term)
    }
    fn release(&self, lease: Lease) -> Result<()> {
        self.bus.release(lease)
    }
    fn announce(&self, member: &Name, about: &[u8], term: Duration) -> Result<()> {
        self.bus.announce(member, about, term)
    }
    fn members(&self) -> Result<Vec<Member>> {
        self.bus.members()
    }
    fn find_member(&self, name: &Name) -> Result<Option<Member>> {
        self.bus.find_member(name)
    }
    fn describe(&self, member: &Name, details: &[u8], term: Duration) -> Result<()> {
        self.bus.describe(member, details, term)
    }
    fn details(&self, members: &[Name]) -> Result<Vec<Member>> {
        self.bus.details(members)
    }
    fn answer(&self, service: &Name, respond: Respond) -> Result<Box<dyn Answering>> {
        self.bus.answer(service, respond)
    }
    fn tell(&self, topic: &Name, message: &[u8]) -> Result<()> {
        self.bus.tell(topic, message)
    }
    fn listen(&self, topic: &Name) -> Result<Box<dyn Listener>> {
        self.bus.listen(topic)
    }
}
