//! One fixed message of every kind.

use silt_format::replica::{
    Begin, ChunkDelta, DeltaBase, Described, Hello, InitMessage, KnownSnapshot, Origin,
    ReplicaMessage, ReplicaRole, SourceMessage, Span, TreeStep,
};
use silt_format::tree::TreePage;
use silt_format::{ErrorKind, Id, MasterKey, RepositoryId, SegmentDigest, Signatures, Snapshot};

use crate::values;

pub fn origin() -> Origin {
    Origin { repository: RepositoryId([9; 16]), snapshot: Id(0x1122_3344) }
}

/// A snapshot that is a copy.
pub fn copied_snapshot() -> Snapshot {
    Snapshot { origin: Some(origin()), ..values::snapshot() }
}

fn delta() -> ChunkDelta {
    let bases =
        vec![DeltaBase { offset: 1 << 33, length: 4096 }, DeltaBase { offset: 7, length: 1 }];
    ChunkDelta { bytes: 5000, bases, frame: vec![1, 2, 3] }
}

pub fn hello() -> Hello {
    let master = MasterKey::new([42; 32]);
    Hello::new(ReplicaRole::Source, RepositoryId([9; 16]), &master, [7; 32])
}

pub fn of_source() -> Vec<(&'static str, SourceMessage)> {
    let digest = SegmentDigest { kind: SegmentDigest::OF_BLOCKS, bytes: [3; 16] };
    let (recipe, chunking) = values::fixed_recipe();
    let TreePage::Leaf(mut entries) = values::tree_leaf() else { panic!("a leaf") };
    entries.iter_mut().for_each(|entry| entry.subtree = None);
    let root = entries[4].clone();
    vec![
        ("message-ask", SourceMessage::Ask { series: "web1".to_owned() }),
        (
            "message-begin",
            SourceMessage::Begin(Box::new(Begin {
                series: "a-web1".to_owned(),
                domain: 0,
                labels: vec!["nightly".to_owned()],
                origin: origin(),
                snapshot: values::snapshot(),
            })),
        ),
        (
            "message-segments",
            SourceMessage::Segments(vec![
                Described::Zeros(3),
                Described::Parent(1024),
                Described::Segment(digest, Signatures([1, 2, 3, 4, 5, 6, 7, 8])),
            ]),
        ),
        ("message-chunks", SourceMessage::Chunks { segment: 5, recipe: recipe.encode(chunking) }),
        ("message-data", SourceMessage::Data(vec![1, 2, 3])),
        ("message-frame", SourceMessage::Frame(vec![0, 3, 0, 0, 0, 1, 2, 3])),
        ("message-delta", SourceMessage::Delta(delta())),
        (
            "message-steps",
            SourceMessage::Steps(vec![
                TreeStep::Enter(Box::new(root)),
                TreeStep::Entry(Box::new(entries[1].clone())),
                TreeStep::Same(b"same".to_vec()),
                TreeStep::SameRange(b"t".to_vec(), b"u".to_vec()),
                TreeStep::Leave,
            ]),
        ),
        ("message-end", SourceMessage::End),
        ("message-commit", SourceMessage::Commit),
        ("message-abort", SourceMessage::Abort),
        ("message-bye", SourceMessage::Bye),
    ]
}

pub fn of_replica() -> Vec<(&'static str, ReplicaMessage)> {
    let known = KnownSnapshot { origin: origin(), time_ns: -5, is_deleted: true };
    let spans = vec![Span { first: 1, count: 2 }, Span { first: 9, count: 1 }];
    vec![
        ("message-known", ReplicaMessage::Known(vec![known])),
        ("message-ready", ReplicaMessage::Ready { parent: Some(origin()) }),
        ("message-need", ReplicaMessage::Need(spans.clone())),
        ("message-want", ReplicaMessage::Want { segment: 7, chunks: spans }),
        ("message-placed", ReplicaMessage::Placed { end: 1000 }),
        (
            "message-committed",
            ReplicaMessage::Committed { snapshot: Id(77), generation: 3, stored_bytes: 1 << 40 },
        ),
        (
            "message-failed",
            ReplicaMessage::Failed { kind: ErrorKind::Busy, message: "busy".to_owned() },
        ),
    ]
}

pub fn of_init() -> Vec<(&'static str, InitMessage)> {
    let objects = vec![("root/keys/0000000000000009".to_owned(), vec![1, 2, 3])];
    let message = "the folder is not empty".to_owned();
    vec![
        ("init-ask", InitMessage::Ask),
        ("init-empty", InitMessage::Empty),
        ("init-exists", InitMessage::Exists),
        ("init-objects", InitMessage::Objects(objects)),
        ("init-made", InitMessage::Made),
        ("init-failed", InitMessage::Failed { kind: ErrorKind::AlreadyExists, message }),
    ]
}
