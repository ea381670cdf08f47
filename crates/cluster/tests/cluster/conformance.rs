//! What every bus does, as long as nothing goes wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use silt_cluster::{ATTEMPTS_MAX, Bus, Job, JobState, Name, Offer, REPEATS, SIGN_OF_LIFE};
use silt_format::ErrorKind;

use crate::nats::eventually;

pub const SHORT: Duration = Duration::from_millis(300);
pub const SECOND: Duration = Duration::from_secs(1);

/// A bus under test.
pub trait Site {
    /// The bus as a new member sees it.
    fn member(&self) -> Arc<dyn Bus>;
    /// Lets so much time pass.
    fn pass(&self, time: Duration);
    /// How long a job is left alone.
    fn sign_of_life(&self) -> Duration {
        SIGN_OF_LIFE
    }
    /// How long the id of a job is known.
    fn repeats(&self) -> Duration {
        REPEATS
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn job(key: &str, id: &str) -> Job {
    let body = format!("work of {id}").into_bytes();
    Job { pool: name("backup"), key: name(key), id: name(id), body }
}

/// All of it.
pub fn conforms(site: &dyn Site) {
    jobs_come_in_order_and_once(site);
    a_key_has_one_job(site);
    an_abandoned_job_is_delivered_again(site);
    a_job_is_put_back_for_a_while(site);
    a_hopeless_job_is_dropped(site);
    a_lease_has_one_holder(site);
    members_are_those_that_said_so_lately(site);
    questions_are_answered(site);
    what_is_told_is_heard_by_all(site);
    what_is_too_large_is_refused(site);
}

fn drain(bus: &dyn Bus, pool: &str) {
    while let Some(left) = bus.take(&name(pool), SHORT).unwrap() {
        bus.settle(&left, JobState::Done).unwrap();
    }
}

/// Offers a job whose key's last job is over: servers that agree among themselves free it a moment
/// later.
fn offer_to_free_key(bus: &dyn Bus, job: &Job) {
    let offered = || Some(bus.offer(job).unwrap()).filter(|offered| *offered != Offer::Present);
    assert_eq!(eventually(offered), Offer::Added);
}

fn jobs_come_in_order_and_once(site: &dyn Site) {
    let (one, two) = (site.member(), site.member());
    for number in 0..3 {
        let offered = one.offer(&job(&format!("s{number}"), &format!("order-{number}"))).unwrap();
        assert_eq!(offered, Offer::Added);
    }
    let taken = [&one, &two, &one].map(|bus| bus.take(&name("backup"), SECOND).unwrap().unwrap());
    let expected = [0, 1, 2].map(|number| job(&format!("s{number}"), &format!("order-{number}")));
    assert_eq!(taken.clone().map(|delivery| delivery.job), expected);
    assert!(taken.iter().all(|delivery| delivery.attempt == 1));
    assert!(two.take(&name("backup"), SHORT).unwrap().is_none());
    assert!(two.take(&name("check"), SHORT).unwrap().is_none(), "another pool has no job");
    for delivery in &taken {
        two.settle(delivery, JobState::Done).unwrap();
        two.settle(delivery, JobState::Done).unwrap();
    }
    assert!(one.take(&name("backup"), SHORT).unwrap().is_none());
}

fn a_key_has_one_job(site: &dyn Site) {
    let bus = site.member();
    assert_eq!(bus.offer(&job("web1", "monday")).unwrap(), Offer::Added);
    assert_eq!(bus.offer(&job("web1", "monday")).unwrap(), Offer::Repeated);
    assert_eq!(bus.offer(&job("web1", "tuesday")).unwrap(), Offer::Present, "it waits");
    let running = bus.take(&name("backup"), SECOND).unwrap().unwrap();
    assert_eq!(bus.offer(&job("web1", "tuesday")).unwrap(), Offer::Present, "it runs");
    bus.settle(&running, JobState::Done).unwrap();
    assert_eq!(bus.offer(&job("web1", "monday")).unwrap(), Offer::Repeated, "it is done");
    offer_to_free_key(&*bus, &job("web1", "tuesday"));
    drain(&*bus, "backup");
    site.pass(site.repeats() + SECOND);
    assert_eq!(bus.offer(&job("web1", "monday")).unwrap(), Offer::Added, "nobody remembers");
    drain(&*bus, "backup");
}

fn an_abandoned_job_is_delivered_again(site: &dyn Site) {
    let (one, two) = (site.member(), site.member());
    one.offer(&job("web2", "abandoned")).unwrap();
    let first = one.take(&name("backup"), SECOND).unwrap().unwrap();
    site.pass(site.sign_of_life() / 2);
    one.settle(&first, JobState::Running).unwrap();
    site.pass(site.sign_of_life() * 3 / 4);
    assert!(two.take(&name("backup"), SHORT).unwrap().is_none(), "there was a sign of life");
    site.pass(site.sign_of_life() / 2);
    let second = two.take(&name("backup"), SECOND).unwrap().unwrap();
    assert_eq!((&second.job, second.attempt), (&first.job, 2));
    // It wakes up: the job is not its own any more.
    one.settle(&first, JobState::Again(Duration::ZERO)).unwrap();
    assert!(one.take(&name("backup"), SHORT).unwrap().is_none());
    two.settle(&second, JobState::Done).unwrap();
    assert!(one.take(&name("backup"), SHORT).unwrap().is_none());
}

fn a_job_is_put_back_for_a_while(site: &dyn Site) {
    let bus = site.member();
    bus.offer(&job("web3", "later")).unwrap();
    let taken = bus.take(&name("backup"), SECOND).unwrap().unwrap();
    bus.settle(&taken, JobState::Again(2 * SECOND)).unwrap();
    assert!(bus.take(&name("backup"), SHORT).unwrap().is_none());
    site.pass(2 * SECOND);
    let again = bus.take(&name("backup"), SECOND).unwrap().unwrap();
    assert_eq!(again.attempt, 2);
    bus.settle(&again, JobState::Done).unwrap();
}

fn a_hopeless_job_is_dropped(site: &dyn Site) {
    let bus = site.member();
    bus.offer(&job("web4", "hopeless")).unwrap();
    for attempt in 1..=ATTEMPTS_MAX {
        let taken = bus.take(&name("backup"), SECOND).unwrap().unwrap();
        assert_eq!(taken.attempt, attempt);
        bus.settle(&taken, JobState::Again(Duration::ZERO)).unwrap();
    }
    assert!(bus.take(&name("backup"), SHORT).unwrap().is_none());
    offer_to_free_key(&*bus, &job("web4", "another"));
    drain(&*bus, "backup");
}

fn a_lease_has_one_holder(site: &dyn Site) {
    let (one, two) = (site.member(), site.member());
    let director = name("director");
    let term = 3 * SECOND;
    let mut held = one.acquire(&director, term).unwrap().unwrap();
    let first = held.number;
    assert!(two.acquire(&director, term).unwrap().is_none());
    let other = two.acquire(&name("archivist"), term).unwrap().unwrap();
    two.release(other).unwrap();
    site.pass(2 * SECOND);
    assert!(one.renew(&mut held, term).unwrap());
    assert!(held.number > first);
    site.pass(2 * SECOND);
    assert!(two.acquire(&director, term).unwrap().is_none(), "it was renewed");
    site.pass(2 * SECOND);
    // Its term is over, and so is that of its successor: leases end although nobody gives them up.
    let next = two.acquire(&director, term).unwrap().unwrap();
    assert!(next.number > held.number);
    assert!(!one.renew(&mut held, term).unwrap(), "it is somebody else's");
    one.release(held).unwrap();
    assert!(one.acquire(&director, term).unwrap().is_none(), "it was not released");
    site.pass(4 * SECOND);
    let third = one.acquire(&director, term).unwrap().unwrap();
    one.release(third).unwrap();
    let fourth = two.acquire(&director, term).unwrap().unwrap();
    two.release(fourth).unwrap();
}

fn members_are_those_that_said_so_lately(site: &dyn Site) {
    let (one, two) = (site.member(), site.member());
    one.announce(&name("host-b"), b"old", 3 * SECOND).unwrap();
    one.announce(&name("host-b"), b"two volumes", 3 * SECOND).unwrap();
    two.announce(&name("host-a"), b"", 20 * SECOND).unwrap();
    let seen = |bus: &dyn Bus| {
        let members = bus.members().unwrap().into_iter();
        members.map(|member| (member.name.to_string(), member.about)).collect::<Vec<_>>()
    };
    let both = [("host-a".to_owned(), vec![]), ("host-b".to_owned(), b"two volumes".to_vec())];
    assert_eq!(seen(&*two), both);
    assert_eq!(two.details(&[name("host-a"), name("host-b")]).unwrap(), []);
    one.describe(&name("host-b"), b"old", 3 * SECOND).unwrap();
    one.describe(&name("host-b"), b"a list", 3 * SECOND).unwrap();
    one.describe(&name("host-c"), b"kept", 20 * SECOND).unwrap();
    let details = |bus: &dyn Bus| {
        let asked = ["host-a", "host-b", "host-c"].map(name);
        let details = bus.details(&asked).unwrap().into_iter();
        details.map(|member| (member.name.to_string(), member.about)).collect::<Vec<_>>()
    };
    let described =
        [("host-b".to_owned(), b"a list".to_vec()), ("host-c".to_owned(), b"kept".to_vec())];
    assert_eq!(details(&*two), described);
    assert_eq!(seen(&*two), both, "details make no member");
    let alone = |bus: &dyn Bus, it| bus.find_member(&name(it)).unwrap().map(|member| member.about);
    assert_eq!(alone(&*two, "host-b"), Some(b"two volumes".to_vec()));
    assert_eq!(alone(&*two, "host-c"), None);
    site.pass(4 * SECOND);
    assert_eq!(seen(&*one), both[..1]);
    assert_eq!(details(&*one), described[1..]);
    assert_eq!(alone(&*one, "host-b"), None);
}

fn questions_are_answered(site: &dyn Site) {
    let (asker, one, two) = (site.member(), site.member(), site.member());
    let echo = name("echo");
    assert_eq!(asker.ask(&echo, b"anybody?", SHORT).unwrap(), None);
    let asked = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let respond = |counter: &Arc<AtomicU64>| {
        let counter = Arc::clone(counter);
        Arc::new(move |question: &[u8]| {
            counter.fetch_add(1, Ordering::Relaxed);
            question.iter().rev().copied().collect::<Vec<u8>>()
        })
    };
    let first = one.answer(&echo, respond(&asked[0])).unwrap();
    // Members of another server hear of those that answer or listen a moment later.
    let answered = eventually(|| asker.ask(&echo, b"abc", 5 * SECOND).unwrap());
    assert_eq!(answered, b"cba");
    let second = two.answer(&echo, respond(&asked[1])).unwrap();
    let large: Vec<u8> = (0..160 << 10).map(|at: u32| at.to_le_bytes()[1]).collect();
    let mirrored: Vec<u8> = large.iter().rev().copied().collect();
    for _ in 0..40 {
        assert_eq!(asker.ask(&echo, &large, 5 * SECOND).unwrap().unwrap(), mirrored);
    }
    let counts = asked.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    assert_eq!(counts[0] + counts[1], 41, "each goes to one");
    assert!(counts[0] > 1 && counts[1] > 0, "{counts:?}: both answer");
    drop((first, second));
    assert_eq!(asker.ask(&echo, b"still?", SHORT).unwrap(), None);
}

fn what_is_told_is_heard_by_all(site: &dyn Site) {
    let (teller, one, two) = (site.member(), site.member(), site.member());
    let topic = name("progress");
    teller.tell(&topic, b"nobody listens").unwrap();
    let mut listeners = [one.listen(&topic).unwrap(), two.listen(&topic).unwrap()];
    let mut elsewhere = two.listen(&name("events")).unwrap();
    for listener in &mut listeners {
        eventually(|| {
            teller.tell(&topic, b"first").unwrap();
            listener.next(SHORT).unwrap()
        });
    }
    for number in 0..5_u8 {
        teller.tell(&topic, &[number]).unwrap();
    }
    for listener in &mut listeners {
        let mut later = || loop {
            let told = listener.next(5 * SECOND).unwrap().unwrap();
            if told != b"first" {
                return told;
            }
        };
        for number in 0..5_u8 {
            assert_eq!(later(), [number]);
        }
        assert_eq!(listener.next(SHORT).unwrap(), None);
    }
    assert_eq!(elsewhere.next(SHORT).unwrap(), None);
}

fn what_is_too_large_is_refused(site: &dyn Site) {
    let bus = site.member();
    let large = vec![0; silt_cluster::MESSAGE_BYTES_MAX + 1];
    let errors = [
        bus.tell(&name("progress"), &large).unwrap_err(),
        bus.ask(&name("echo"), &large, SHORT).unwrap_err(),
        bus.announce(&name("host-a"), &large, SECOND).unwrap_err(),
        bus.offer(&Job { body: large.clone(), ..job("large", "large") }).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
