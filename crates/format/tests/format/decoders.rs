//! The decoder of every layout that has golden bytes.

use silt_format::replica::{
    HELLO_BYTES, Hello, InitMessage, ReplicaMessage, ReplicaRole, SourceMessage,
};
use silt_format::tree::TreePage;
use silt_format::{
    BlockReader, CheckRecord, Config, Directory, Footer, HEADER_BYTES, Head, Header, Keyring,
    Lease, MasterKey, Page, Recipe, SeriesRecord, Snapshot, WrappedKey, decode_blocks,
};

/// The key that the golden files were made with.
fn master() -> Keyring {
    MasterKey::new([42; 32]).into()
}

/// Runs the decoder of a layout; any result is fine, as long as there is one.
pub fn decode(name: &str, bytes: &[u8]) -> Result<(), silt_format::Error> {
    match name {
        "header" => Header::decode(bytes).map(drop),
        "footer" | "footer-after-header" => Footer::decode(bytes).map(drop),
        "run-directory" => silt_format::RunDirectory::decode(bytes).map(drop),
        "run-records" => silt_format::decode_records(bytes, &mut Vec::new()),
        "container-directory"
        | "container-links"
        | "container-deltas"
        | "container-applications" => Directory::decode(bytes).map(|directory| {
            directory.slots().for_each(drop);
        }),
        "block-directory" => decode_blocks(bytes).map(drop),
        "recipe-fixed" | "recipe-fastcdc" => Recipe::decode(bytes).map(drop),
        "page-leaf" => Page::decode(bytes, 0).map(drop),
        "page-branch" => Page::decode(bytes, 1).map(drop),
        "tree-leaf" => TreePage::decode(bytes, 0).map(drop),
        "tree-branch" => TreePage::decode(bytes, 1).map(drop),
        "snapshot" | "snapshot-tree" | "snapshot-copied" => Snapshot::decode(bytes).map(drop),
        "head" | "head-deletions" | "head-sharing" | "head-reserved" | "head-files"
        | "head-node" => {
            Head::decode(bytes).map(|head| {
                // What a reader asks first; none of it follows the numbers of a range.
                let _ = (head.containers.len(), head.packs.tag(0), head.seen(1));
            })
        }
        "dead-list" => silt_format::decode_dead_ranges(bytes).map(drop),
        "config" | "config-append-only" => Config::decode(bytes).map(drop),
        "series" => SeriesRecord::decode(bytes).map(drop),
        "lease" => Lease::decode(bytes).map(drop),
        "mark" => silt_format::Mark::decode(bytes).map(drop),
        "places" | "places-nodes" => silt_format::Places::decode(bytes).map(drop),
        "writers" => silt_format::Writers::decode(bytes).map(drop),
        "signed" => {
            let header =
                Header::decode(include_bytes!("../../../../testdata/format/v1/header.bin"))?;
            let signed = silt_format::Signed::split(&header, bytes)?;
            let seed = silt_format::SigningSeed::new([43; 32]);
            let public = silt_format::Signer::new(silt_format::Id(77), seed).public()?;
            let wrong = || silt_format::Error::corrupt("the signature is wrong");
            signed.is_by(&public).then_some(()).ok_or_else(wrong)
        }
        "check" => CheckRecord::decode(bytes).map(drop),
        "sealed-aes256gcm" | "sealed-checksum" => {
            let mut raw = Vec::new();
            BlockReader::default().decode(bytes, &mut raw)
        }
        "sealed-to-key" => {
            let header = Header::decode(bytes)?;
            let sealed = bytes.get(HEADER_BYTES..).unwrap_or_default();
            master().sealer(&header).open(5, &mut sealed.to_vec()).map(drop)
        }
        // The label alone: unwrapping runs Argon2id each time.
        "key" | "key-write-only" | "key-one-series" | "key-alone" => {
            WrappedKey::label(bytes, &master()).map(drop)
        }
        "hello" => {
            let short = || silt_format::Error::corrupt("a hello has 80 bytes");
            let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| short())?;
            Hello::decode(bytes, ReplicaRole::Source).map(drop)
        }
        "message-ask" | "message-begin" | "message-segments" | "message-chunks"
        | "message-data" | "message-frame" | "message-delta" | "message-steps" | "message-end"
        | "message-commit" | "message-abort" | "message-bye" => {
            SourceMessage::decode(bytes).map(drop)
        }
        "message-known" | "message-ready" | "message-need" | "message-want" | "message-placed"
        | "message-committed" | "message-failed" => ReplicaMessage::decode(bytes).map(drop),
        "init-ask" | "init-empty" | "init-exists" | "init-objects" | "init-made"
        | "init-failed" => InitMessage::decode(bytes).map(drop),
        "summary-partition" | "ids" => Ok(()),
        other => panic!("no decoder for {other}"),
    }
}
