//! What the process of a node knows of each application, by containers that are made for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use silt_backup::print_of;
use silt_cluster::nodes::{NodeClient, NodeServer, NodeServerOptions};
use silt_cluster::{Bus, Messages, Respond};
use silt_format::{Compression, Fingerprint, Head, ObjectTag, Reference, RunUse};
use silt_repository::draft::ContainerDraft;
use silt_repository::heads;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_repository::stores::store_name;
use silt_repository::system::SystemEnv;
use silt_routing::{
    Application, Chunk, Lookup, Node, NodeOptions, Piece, SuperChunks, handprint, mix,
};
use silt_runs::RunWriter;
use silt_runs::shared_record::SharedRecord;
use silt_storage::{Fault, FaultStorage, LocalStorage, Operation, OperationKind, Storage};
use siltstone::{Error, NodeAnswers, Repository, Wanted};

use crate::conformance::name;
use crate::nodes::{Place, local};

/// Photos, disks and mail.
const APPLICATIONS: [u16; 3] = [6, 1, 5];
/// Streams of an application; each fills a container.
const STREAMS: u32 = 2;
const STREAM_CHUNKS: u64 = 1500;
const CHUNK_BYTES: u32 = 4096;

/// Chunk `number` of a stream.
fn fingerprint(application: u16, stream: u32, number: u64) -> Fingerprint {
    let first = mix(number | u64::from(stream) << 20 | u64::from(application) << 40);
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..16].copy_from_slice(&mix(!first).to_le_bytes());
    Fingerprint(bytes)
}

fn chunk_of(fingerprint: &Fingerprint) -> Chunk {
    Chunk { print: print_of(fingerprint), bytes: CHUNK_BYTES }
}

/// The super-chunks of a stream.
fn super_chunks(application: u16, stream: u32) -> Vec<Vec<Fingerprint>> {
    cut((0..STREAM_CHUNKS).map(|number| fingerprint(application, stream, number)))
}

fn cut(chunks: impl Iterator<Item = Fingerprint>) -> Vec<Vec<Fingerprint>> {
    let (mut cutter, mut all) = (SuperChunks::default(), vec![Vec::new()]);
    for one in chunks {
        all.last_mut().unwrap().push(one);
        if cutter.ends_with(chunk_of(&one)) {
            all.push(Vec::new());
        }
    }
    all.retain(|chunks| !chunks.is_empty());
    all
}

fn streams() -> impl Iterator<Item = (u16, u32)> {
    APPLICATIONS.into_iter().flat_map(|it| (0..STREAMS).map(move |stream| (it, stream)))
}

fn piece(application: u16, stream: u32, chunks: &[Fingerprint]) -> Piece {
    let chunks = chunks.iter().map(chunk_of).collect();
    Piece { application: Application(application), stream, chunks }
}

/// Writes all streams to a node, each into a container that names its application if it `is_named`.
fn fill(repository: &Repository, node: u16, is_named: impl Fn(u16) -> bool) {
    let (objects, config) = (&repository.objects, &repository.config);
    let store = objects.keys.store_id(DEFAULT_DOMAIN, node);
    let tag = ObjectTag::first(77 << 8);
    let compression = Compression::of_disk(config.zstd_level);
    let mut head = Head::empty(store, DEFAULT_DOMAIN, &store_name(node));
    let mut records = Vec::new();
    for (number, (application, stream)) in (0..).zip(streams()) {
        let draft = ContainerDraft::new(objects, config, store, (number, tag), compression);
        let mut draft = draft.unwrap();
        for (slot, chunk) in (0..).zip(super_chunks(application, stream).concat()) {
            if is_named(application) {
                draft.begin_application(slot, application);
            }
            draft.push(slot, &[0; CHUNK_BYTES as usize], chunk, CHUNK_BYTES).unwrap();
            let reference = Reference::new(node, number, slot);
            records.push(SharedRecord { reference, chunk_bytes: CHUNK_BYTES }.encode(chunk));
        }
        draft.finish(objects).unwrap();
        head.containers.push(number, tag);
        head.next_container = number + 1;
    }
    records.sort_unstable();
    let count = records.len() as u64;
    let mut run = RunWriter::new(objects, store, RunUse::Shared, count).unwrap();
    records.into_iter().for_each(|record| run.push(record).unwrap());
    head.runs = vec![run.finish().unwrap().run];
    heads::commit(objects, &mut head, objects.context.random(), None).unwrap();
}

fn serve(bus: &dyn Bus, messages: &Messages, node: u16, is_exact: bool) -> NodeServer {
    let options = NodeServerOptions { is_exact, ..NodeServerOptions::default() };
    let server = NodeServer::start(bus, messages, node, options).unwrap();
    assert_eq!(server.refresh().unwrap().unreadable, 0);
    server
}

/// Asks one node.
struct Asking(NodeClient, u16);

impl Asking {
    fn new(bus: Arc<dyn Bus>, messages: &Messages, node: u16) -> Self {
        let context = SystemEnv::context();
        Self(NodeClient::new(bus, messages.clone(), context, &[node]).unwrap(), node)
    }

    fn similar(&self, application: u16, chunks: &[Fingerprint]) -> usize {
        let handprint = handprint(chunks.iter().map(print_of), 8);
        let asked = [(self.1, vec![handprint])];
        self.0.similar(application, &asked).remove(0).unwrap()[0]
    }

    fn find(&self, application: u16, chunks: &[Fingerprint]) -> usize {
        let wanted: Vec<Wanted> = chunks.iter().map(|it| (*it, CHUNK_BYTES)).collect();
        let found = self.0.find(application, &[(self.1, wanted)]).remove(0).unwrap();
        found.into_iter().flatten().count()
    }
}

/// A node of the evaluation with the same containers.
fn node_of_evaluation(lookup: Lookup) -> Node {
    let container_chunks = usize::try_from(STREAM_CHUNKS).unwrap();
    let node =
        Node::new(NodeOptions { lookup, handprint: 4, container_chunks, ..NodeOptions::default() });
    for (application, stream) in streams() {
        for chunks in super_chunks(application, stream) {
            let stored = node.store(&piece(application, stream, &chunks));
            assert_eq!(stored.new_chunks, chunks.len() as u64);
        }
    }
    node.forget_caches();
    node
}

/// Super-chunks that are asked for: whole ones, changed ones, and those of which little is left.
fn questions() -> Vec<Vec<Fingerprint>> {
    let mut all = Vec::new();
    for (application, stream) in streams() {
        for (number, chunks) in (0_u64..).zip(super_chunks(application, stream)).step_by(3) {
            let changed = |every: u64| {
                let new = |place: u64| fingerprint(99, stream, place | number << 12);
                let places = (0..).zip(&chunks);
                places
                    .map(|(place, old)| if place % every == 0 { *old } else { new(place) })
                    .collect::<Vec<_>>()
            };
            all.extend([chunks.clone(), changed(2), changed(9), changed(1 << 11)]);
        }
    }
    all
}

/// The node of the evaluation and the process of a node say the same of the same containers.
#[test]
fn the_evaluation_has_the_node_of_the_product() {
    let place = Place::new();
    let node = place.numbers()[0];
    fill(&place.open(), node, |_| true);
    let (messages, bus) = (place.messages(), local());
    let (mut resembling, mut known) = (BTreeMap::new(), BTreeMap::new());
    for question in questions() {
        for application in APPLICATIONS {
            for (lookup, is_exact) in [(Lookup::Approximate, false), (Lookup::Exact, true)] {
                // New ones for each: a look-up leaves containers in the caches.
                let evaluated = node_of_evaluation(lookup);
                let server = serve(&bus, &messages, node, is_exact);
                let asking = Asking::new(Arc::new(bus.clone()), &messages, node);
                let whole = piece(application, STREAMS, &question);
                let similar = evaluated.similar(whole.application, &whole.handprint(8));
                assert_eq!(asking.similar(application, &question), similar);
                *resembling.entry(similar).or_insert(0) += 1;
                // A changed super-chunk may have become several, which the process cuts anew.
                let parts = cut(question.iter().copied());
                let stored =
                    parts.iter().map(|it| evaluated.store(&piece(application, STREAMS, it)));
                let new: u64 = stored.map(|stored| stored.new_chunks).sum();
                let old = question.len() - usize::try_from(new).unwrap();
                let found = asking.find(application, &question);
                if is_exact {
                    // The node's index in the storage is one for all applications.
                    assert!(found >= old && (similar == 0 || found == old), "{found} {old}");
                } else {
                    assert_eq!(found, old);
                }
                *known.entry(old * 4 / question.len()).or_insert(0) += 1;
                drop(server);
            }
        }
    }
    assert!(resembling.len() > 3 && known.len() > 2, "{resembling:?} {known:?}");
}

#[test]
fn a_representative_of_one_application_is_not_found_for_another() {
    let place = Place::new();
    let node = place.numbers()[0];
    fill(&place.open(), node, |application| application != 5);
    let (messages, bus) = (place.messages(), local());
    let asking = Asking::new(Arc::new(bus.clone()), &messages, node);
    for of in APPLICATIONS {
        let chunks = super_chunks(of, 0).remove(1);
        for application in [6, 1, 5, 77] {
            // Nobody has said of which application the mail is.
            let is_known = of == application || of == 5;
            let expected = if is_known { (4, chunks.len()) } else { (0, 0) };
            // A process looks in all containers that it holds, so each is asked once.
            let server = serve(&bus, &messages, node, false);
            assert_eq!(server.holds().applications, 2);
            let similar = asking.similar(application, &chunks);
            let found = asking.find(application, &chunks);
            assert_eq!((similar, found), expected, "{of} for {application}");
        }
    }
    // Programs that know of no applications ask about all.
    let _server = serve(&bus, &messages, node, false);
    let old = |chunks: &[Fingerprint]| {
        let handprint = handprint(chunks.iter().map(print_of), 8);
        let nonce = 12_345_u64;
        let mut question = [&[0][..], &nonce.to_le_bytes(), &[8]].concat();
        handprint.iter().for_each(|print| question.extend_from_slice(&print.to_le_bytes()));
        let number = 0x5349_4c54_4e4f_0000 | u64::from(node);
        let (to, sealed) = (name(&format!("node-{node}")), messages.seal(number, &question));
        let answer = bus.ask(&to, &sealed.unwrap(), std::time::Duration::from_secs(5));
        messages.open(nonce, &answer.unwrap().unwrap()).unwrap().plain
    };
    for of in APPLICATIONS {
        assert_eq!(old(&super_chunks(of, 1)[2]), [4]);
    }
}

/// A process of before there were questions about applications.
#[test]
fn an_old_process_is_asked_about_all_applications() {
    let place = Place::new();
    let (node, messages, bus) = (place.numbers()[0], place.messages(), local());
    let (asked, opened) = (Arc::new(AtomicUsize::new(0)), messages.clone());
    let count = Arc::clone(&asked);
    let respond: Respond = Arc::new(move |question: &[u8]| {
        count.fetch_add(1, Ordering::SeqCst);
        let number = 0x5349_4c54_4e4f_0000 | u64::from(node);
        let question = opened.open(number, question).unwrap().plain;
        if question[0] > 1 {
            return Vec::new();
        }
        let nonce = u64::from_le_bytes(question[1..9].try_into().unwrap());
        opened.seal(nonce, &[3]).unwrap()
    });
    let answering = bus.answer(&name(&format!("node-{node}")), respond).unwrap();
    let asking = Asking::new(Arc::new(bus.clone()), &messages, node);
    let chunks = super_chunks(1, 0).remove(0);
    for questions in [2, 3, 4] {
        assert_eq!(asking.similar(1, &chunks), 3);
        assert_eq!(asked.load(Ordering::SeqCst), questions);
    }
    drop(answering);
}

/// The first read after it was armed waits until it is released.
struct Gate {
    is_armed: AtomicBool,
    reached: Mutex<Sender<()>>,
    released: Mutex<Receiver<()>>,
}

impl Gate {
    fn pass(&self, operation: &Operation) -> Fault {
        let is_read = operation.kind() == OperationKind::Get;
        if is_read && self.is_armed.swap(false, Ordering::SeqCst) {
            self.reached.lock().unwrap().send(()).unwrap();
            self.released.lock().unwrap().recv().unwrap();
        }
        Fault::Pass
    }
}

#[test]
fn an_application_does_not_wait_for_another() {
    let place = Place::new();
    let node = place.numbers()[0];
    fill(&place.open(), node, |_| true);
    let ((reached, is_reached), (release, released)) = (channel(), channel());
    let gate = Arc::new(Gate {
        is_armed: AtomicBool::new(false),
        reached: Mutex::new(reached),
        released: Mutex::new(released),
    });
    let open = |name: &str| -> Result<Arc<dyn Storage>, Error> {
        let (folder, gate) = (LocalStorage::open(place.path(name))?, Arc::clone(&gate));
        let rule = move |operation: &Operation, _: u64| gate.pass(operation);
        Ok(Arc::new(FaultStorage::new(folder, rule)))
    };
    let opened = Repository::open(open("main").unwrap(), SystemEnv::context(), || Ok(Vec::new()));
    let repository = opened.unwrap().with_places("main", &open).unwrap();
    let (messages, bus) = (Messages::new(&repository.objects), local());
    let _server = serve(&bus, &messages, node, true);
    let [photos, disks] = [6, 1].map(|application| super_chunks(application, 0).remove(0));
    let asking = Asking::new(Arc::new(bus), &messages, node);
    std::thread::scope(|scope| {
        gate.is_armed.store(true, Ordering::SeqCst);
        let waits = scope.spawn(|| asking.find(6, &photos));
        is_reached.recv().unwrap();
        let waits_too = scope.spawn(|| asking.find(6, &photos));
        assert_eq!(asking.similar(1, &disks), 4);
        assert_eq!(asking.find(1, &disks), disks.len());
        // The table of the one is not locked either.
        assert_eq!(asking.similar(6, &photos), 4);
        assert!(!waits.is_finished() && !waits_too.is_finished());
        release.send(()).unwrap();
        assert_eq!(waits.join().unwrap(), photos.len());
        assert_eq!(waits_too.join().unwrap(), photos.len());
    });
}
