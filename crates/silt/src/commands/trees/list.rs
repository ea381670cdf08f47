//! `silt ls` and `silt cat` of file trees.

use std::io::Write;

use silt_format::tree::{Entry, EntryKind, Metadata, OwnerName, State, Timestamp, Tree};
use silt_format::{Error, ErrorKind};
use silt_tree::{ACCESS_ACL, AclOwner, DEFAULT_ACL, acl_text};
use siltstone::TreeVolume;

use super::tree;
use crate::cli::{Cat, Ls};
use crate::commands::listing::{self, Listed};
use crate::commands::restore::warn_of_future;
use crate::commands::{Failure, Session, Traffic};
use crate::{output, snapshot_name};

/// Bytes of a file that are read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Lists a directory of a file tree, or one of its other files.
pub fn ls(session: &Session<'_>, args: &Ls) -> Result<u8, Failure> {
    let named = snapshot_name::parse_with_path(&args.snapshot)?;
    let repository = session.open(Traffic::Restore, false)?;
    let found = repository.find(&named.selector)?;
    warn_of_future(session, &found);
    let of = tree(&found, named.volume.as_deref())?;
    let volume = TreeVolume::open(&repository, of, session.global.memory << 20)?;
    let path = named.path.unwrap_or_default();
    let entry = volume.find(&path)?;
    let mut lister = Lister { session, args, volume: &volume, rows: Rows::new() };
    if entry.metadata.kind == EntryKind::Directory {
        lister.directory(&entry)?;
    } else {
        lister.show(&entry, &entry.name);
        lister.rows.print();
    }
    Ok(0)
}

/// Rows that are printed together, with columns of one width.
const ROWS_MAX: usize = 1000;

/// Rows of a long listing, which are printed a thousand at a time.
pub struct Rows {
    rows: Vec<Vec<String>>,
}

impl Rows {
    pub fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a row of [`listing::HEADER`]; before it the row may have a snapshot and its time.
    pub fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
        if self.rows.len() >= ROWS_MAX {
            self.print();
        }
    }

    /// Prints what was added since the last time.
    pub fn print(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        let Some(columns) = rows.first().map(Vec::len) else { return };
        let before = columns - listing::HEADER.len();
        let header = [&["SNAPSHOT", "TIME"][..before], &listing::HEADER[..]].concat();
        output::table(&header, &rows, &listing::RIGHT.map(|column| column + before));
    }
}

/// An entry as it is shown under the name `path`.
pub fn listed<'e>(tree: &Tree, path: &'e [u8], entry: &'e Entry) -> Listed<'e> {
    let metadata = &entry.metadata;
    Listed {
        name: path,
        kind: metadata.kind,
        mode: metadata.mode,
        inode: metadata.inode,
        links: metadata.links,
        uid: metadata.uid,
        gid: metadata.gid,
        user: name(&tree.users, metadata.uid),
        group: name(&tree.groups, metadata.gid),
        bytes: metadata.size,
        modified_ns: nanoseconds(metadata.modified),
        accessed_ns: None,
        target: (metadata.kind == EntryKind::Symlink).then_some(&metadata.target),
        xattrs: &metadata.xattrs,
        acl: acl(tree, metadata, ACCESS_ACL),
        default_acl: acl(tree, metadata, DEFAULT_ACL),
    }
}

/// An ACL of an entry, with the names of users and groups where they are known.
fn acl(tree: &Tree, metadata: &Metadata, xattr: &[u8]) -> Option<Vec<String>> {
    let shown = |of| match of {
        AclOwner::User(id) => name(&tree.users, id).unwrap_or_else(|| id.to_string()),
        AclOwner::Group(id) => name(&tree.groups, id).unwrap_or_else(|| id.to_string()),
    };
    let found = metadata.xattrs.iter().find(|it| it.name == xattr)?;
    acl_text(&found.value, &shown)
}

struct Lister<'a> {
    session: &'a Session<'a>,
    args: &'a Ls,
    volume: &'a TreeVolume,
    rows: Rows,
}

impl Lister<'_> {
    fn directory(&mut self, root: &Entry) -> Result<(), Failure> {
        let mut open = vec![(self.volume.entries(root), Vec::new())];
        while let Some((entries, prefix)) = open.last_mut() {
            let Some(entry) = self.volume.next(entries)? else {
                open.pop();
                continue;
            };
            let path = [prefix.as_slice(), &entry.name].concat();
            self.show(&entry, &path);
            if self.args.recursive && entry.metadata.kind == EntryKind::Directory {
                let below = [&path, &b"/"[..]].concat();
                open.push((self.volume.entries(&entry), below));
            }
        }
        self.rows.print();
        Ok(())
    }

    fn show(&mut self, entry: &Entry, path: &[u8]) {
        let listed = listed(self.volume.tree(), path, entry);
        if self.session.global.json {
            let mut value = listed.json();
            value["state"] = state(entry.state).into();
            output::message("file", value);
        } else if self.args.acl {
            if entry.metadata.kind != EntryKind::Symlink {
                listed.acl_lines().iter().chain([&String::new()]).for_each(|it| output::line(it));
            }
        } else if self.args.long {
            self.rows.add(listed.row());
        } else {
            output::line(&String::from_utf8_lossy(path));
        }
    }
}

/// How well an entry was read.
pub fn state(state: State) -> &'static str {
    match state {
        State::Whole | State::Fresh => "whole",
        State::Changed => "changed",
        State::Unreadable => "unreadable",
    }
}

/// The name of an owner or a group.
fn name(names: &[OwnerName], id: u32) -> Option<String> {
    let place = names.binary_search_by_key(&id, |owner| owner.id).ok()?;
    Some(String::from_utf8_lossy(&names[place].name).into_owned())
}

/// A time of a file, as far as 64 bits of nanoseconds go.
pub fn nanoseconds(time: Timestamp) -> i64 {
    let seconds = time.seconds.saturating_mul(1_000_000_000);
    seconds.saturating_add(i64::from(time.nanoseconds))
}

/// Writes files to standard output.
pub fn cat(session: &Session<'_>, args: &Cat) -> Result<u8, Failure> {
    let repository = session.open(Traffic::Restore, false)?;
    repository.require_all_keys()?;
    for text in &args.files {
        let named = snapshot_name::parse_with_path(text)?;
        let Some(path) = named.path else {
            let shown = text.display();
            let message = format!("'{shown}' does not name a file; use SNAPSHOT:/PATH");
            return Err(Failure::Usage(message));
        };
        let found = repository.find(&named.selector)?;
        warn_of_future(session, &found);
        let of = tree(&found, named.volume.as_deref())?;
        let volume = TreeVolume::open(&repository, of, session.global.memory << 20)?;
        let entry = volume.find(&path)?;
        if entry.metadata.kind != EntryKind::File {
            let kind = listing::kind_name(entry.metadata.kind);
            let shown = String::from_utf8_lossy(&path);
            let message = format!("'{shown}' is a {kind}, not a regular file");
            return Err(Error::new(ErrorKind::Invalid, message).into());
        }
        copy(&volume, &entry)?;
    }
    Ok(0)
}

fn copy(volume: &TreeVolume, entry: &Entry) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = 0;
    loop {
        let read = volume.read_at(entry, at, &mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..read])
            .map_err(|error| Error::io("write to standard output", error))?;
        at += silt_format::number::to_u64(read);
    }
}
