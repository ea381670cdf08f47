//! `silt find` and `silt versions`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};
use silt_format::tree::{Entry, EntryKind, Timestamp};
use silt_format::{Error, ErrorKind, Head, SnapshotEntry, VolumeKind};
use siltstone::{
    FileQuery, FileVersion, Found, FoundVolume, OwnerQuery, Repository, TreePath, VersionsBy,
};

use super::list::{Rows, listed, nanoseconds, state};
use super::restore::failed;
use super::{is_tree_volume, tree};
use crate::cli::{Find, Versions};
use crate::commands::restore::warn_of_future;
use crate::commands::{Failure, Session, Traffic, listing, short};
use crate::{output, snapshot_name};

/// A place in the file trees of a series.
struct SeriesPlace {
    head: Head,
    volume: Option<String>,
    path: Vec<u8>,
}

/// The series that `SERIES`, `SERIES:/PATH` or `SERIES:VOLUME/PATH` names; `None` if it is the name
/// of a snapshot.
fn series_place(repository: &Repository, text: &OsStr) -> Result<Option<SeriesPlace>, Failure> {
    let (before, path) = snapshot_name::split_path(text)?;
    let path = path.unwrap_or_default();
    let (name, volume) = before.split_once(':').unwrap_or((before, ""));
    if name.contains('@') || name == "latest" {
        return Ok(None);
    }
    let is_snapshot = snapshot_name::parse(name).is_ok();
    match repository.heads(&[name.to_owned()]) {
        Ok(heads) => {
            let volume = (!volume.is_empty()).then(|| volume.to_owned());
            let place = |head| SeriesPlace { head, volume, path: path.to_vec() };
            Ok(heads.into_iter().next().map(place))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && is_snapshot => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn query(session: &Session<'_>, args: &Find) -> Result<FileQuery, Failure> {
    let mut query = FileQuery::default();
    let usage = |error: Error| Failure::Usage(error.to_string());
    for (globs, ignores_case) in [(&args.name, false), (&args.iname, true)] {
        for glob in globs {
            // A comment or a negation in .gitignore, but a name here.
            let glob = glob.as_bytes();
            let escape: &[u8] =
                if glob.starts_with(b"#") || glob.starts_with(b"!") { b"\\" } else { b"" };
            query.names.include([escape, glob].concat(), ignores_case).map_err(usage)?;
        }
    }
    for letter in &args.types {
        query.kinds.push(match letter {
            'f' => EntryKind::File,
            'd' => EntryKind::Directory,
            'l' => EntryKind::Symlink,
            'p' => EntryKind::Fifo,
            's' => EntryKind::Socket,
            'c' => EntryKind::CharDevice,
            'b' => EntryKind::BlockDevice,
            other => {
                let message = format!("'{other}' is not a type; use f, d, l, p, s, c or b");
                return Err(Failure::Usage(message));
            }
        });
    }
    let time = |text: &Option<String>| text.as_deref().map(|text| time(session, text)).transpose();
    (query.modified_from, query.modified_before) =
        (time(&args.newer_than)?, time(&args.older_than)?);
    let size = |text: &Option<String>| text.as_deref().map(snapshot_name::parse_bytes).transpose();
    (query.larger_than, query.smaller_than) = (size(&args.larger_than)?, size(&args.smaller_than)?);
    query.owner = args.owner.as_ref().map(|owner| match owner.parse() {
        Ok(number) => OwnerQuery::Number(number),
        Err(_) => OwnerQuery::Name(owner.clone().into_bytes()),
    });
    Ok(query)
}

/// A point in time, or one that is a period ago.
fn time(session: &Session<'_>, text: &str) -> Result<Timestamp, Failure> {
    let now_ns = session.context.env.now_ns();
    let ago = |seconds: u64| {
        let ns = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
        now_ns.saturating_sub(ns)
    };
    let time_ns = match snapshot_name::parse_seconds(text) {
        Ok(seconds) => ago(seconds),
        Err(_) => snapshot_name::parse_nanoseconds(text).map_err(|_| {
            Failure::Usage(format!(
                "'{text}' is neither a time nor a period; use 2026-11-20, '2026-11-20 18:30' or 7d"
            ))
        })?,
    };
    let nanoseconds = u32::try_from(time_ns.rem_euclid(1_000_000_000)).unwrap_or(0);
    Ok(Timestamp { seconds: time_ns.div_euclid(1_000_000_000), nanoseconds })
}

pub fn find(session: &Session<'_>, args: &Find) -> Result<u8, Failure> {
    let query = query(session, args)?;
    let repository = session.open(Traffic::Restore, false)?;
    let mut finder = Finder {
        session,
        args,
        repository: &repository,
        query,
        rows: Rows::new(),
        failed: 0,
        is_series: false,
        searched: false,
    };
    if let Some(place) = series_place(&repository, &args.place)? {
        finder.is_series = true;
        finder.series(&place)?;
    } else {
        let named = snapshot_name::parse_with_path(&args.place)?;
        let found = repository.find(&named.selector)?;
        warn_of_future(session, &found);
        let path = named.path.unwrap_or_default();
        if let Some(name) = &named.volume {
            tree(&found, Some(name))?;
        }
        finder.snapshot(&found, None, named.volume.as_deref(), &path)?;
    }
    finder.rows.print();
    if !finder.searched {
        let message = format!("no file tree has '{}'", args.place.display());
        return Err(Error::new(ErrorKind::NotFound, message).into());
    }
    Ok(if finder.failed > 0 { 5 } else { 0 })
}

struct Finder<'a> {
    session: &'a Session<'a>,
    args: &'a Find,
    repository: &'a Repository,
    query: FileQuery,
    rows: Rows,
    failed: u64,
    /// Whether each entry comes with its snapshot.
    is_series: bool,
    /// Whether there was a tree with the path.
    searched: bool,
}

impl Finder<'_> {
    /// Searches all snapshots of a series, oldest first, each beside the one before.
    fn series(&mut self, place: &SeriesPlace) -> Result<(), Failure> {
        let mut before: Option<Found> = None;
        for entry in &place.head.snapshots {
            let (snapshot, key) = match self.repository.snapshot_and_key(place.head.series, entry) {
                Ok(read) => read,
                Err(error) => {
                    self.session.context.warn(&error);
                    self.failed += 1;
                    continue;
                }
            };
            let found = Found { head: place.head.clone(), snapshot, entry: entry.clone(), key };
            self.snapshot(&found, before.as_ref(), place.volume.as_deref(), &place.path)?;
            before = Some(found);
        }
        Ok(())
    }

    /// Searches the trees of a snapshot, or one of them.
    fn snapshot<'f>(
        &mut self,
        found: &'f Found,
        before: Option<&'f Found>,
        volume: Option<&str>,
        path: &[u8],
    ) -> Result<(), Failure> {
        let trees: Vec<_> = found.volumes().filter(is_tree_volume).collect();
        let names_volume = trees.len() > 1;
        if names_volume && volume.is_none() && !path.is_empty() {
            // Says that there are several.
            tree(found, None)?;
        }
        let of_name = |found: &'f Found, name: &str| {
            found.volumes().filter(is_tree_volume).find(|of| of.volume().name == name)
        };
        for of in trees {
            let name = of.volume().name.as_str();
            if volume.is_some_and(|volume| volume != name) {
                continue;
            }
            let old = before.and_then(|before| of_name(before, name));
            let mut prefix = if names_volume { name.as_bytes().to_vec() } else { Vec::new() };
            for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
                prefix.extend([b"/", part].concat());
            }
            prefix.push(b'/');
            self.tree(of, old, path, &prefix)?;
        }
        Ok(())
    }

    fn tree(
        &mut self,
        of: FoundVolume<'_>,
        old: Option<FoundVolume<'_>>,
        path: &[u8],
        prefix: &[u8],
    ) -> Result<(), Failure> {
        let memory = self.session.global.memory << 20;
        let (repository, query) = (self.repository, self.query.clone());
        let mut sink = |below: &[u8], entry: &Entry| {
            self.show(of, &[prefix, below].concat(), entry);
            Ok(())
        };
        let failures = match old {
            Some(old) => repository.find_new_files(old, of, path, &query, memory, &mut sink)?,
            None => repository.find_files(of, path, &query, memory, &mut sink)?,
        };
        if let Some(failures) = failures {
            self.searched = true;
            self.failed += failures.count;
            failed(&failures.first, failures.count, "NOT searched");
        }
        Ok(())
    }

    fn show(&mut self, of: FoundVolume<'_>, path: &[u8], entry: &Entry) {
        let found = of.found();
        let VolumeKind::Tree(tree) = &of.volume().kind else { return };
        let listed = listed(tree, path, entry);
        if self.session.global.json {
            let mut value = listed.json();
            value["state"] = state(entry.state).into();
            value["series"] = found.head.shown().into();
            value["snapshot"] = found.snapshot.id.to_string().into();
            value["time"] = output::rfc3339(found.snapshot.time_ns).into();
            value["volume"] = of.volume().name.as_str().into();
            output::message("file", value);
            return;
        }
        let (id, time) = (short(found.snapshot.id), output::time(found.snapshot.time_ns));
        if self.args.long {
            let mut row = listed.row();
            if self.is_series {
                row.splice(0..0, [id, time]);
            }
            self.rows.add(row);
        } else if self.is_series {
            output::line(&format!("{id}  {time}  {}", String::from_utf8_lossy(path)));
        } else {
            output::line(&String::from_utf8_lossy(path));
        }
    }
}

/// The versions of a file.
pub fn versions(session: &Session<'_>, args: &Versions) -> Result<u8, Failure> {
    let repository = session.open(Traffic::Restore, false)?;
    let place = series_place(&repository, &args.place)?.filter(|place| !place.path.is_empty());
    let Some(place) = place else {
        let shown = args.place.display();
        let message = format!("'{shown}' is not a path in a series; use SERIES:/PATH");
        return Err(Failure::Usage(message));
    };
    let at = TreePath { volume: place.volume.as_deref(), path: &place.path };
    let by = if args.attributes { VersionsBy::Attributes } else { VersionsBy::Content };
    let mut rows = Vec::new();
    let mut count = 0;
    let mut sink = |version: &FileVersion| {
        count += 1;
        if session.global.json {
            output::message("version", version_json(&place.head, version));
        } else {
            rows.push(version_row(version));
        }
        Ok(())
    };
    let memory = session.global.memory << 20;
    let failures = repository.file_versions(&place.head, at, by, memory, &mut sink)?;
    if !rows.is_empty() {
        let header = ["FIRST", "TIME", "LAST", "SNAPSHOTS", "SIZE", "MODIFIED", "CHANGED"];
        output::table(&header, &rows, &[3, 4]);
    }
    let code = failed(&failures.first, failures.count, "NOT read");
    if count == 0 && code == 0 {
        let series = place.head.shown();
        let path = String::from_utf8_lossy(&place.path);
        let message = format!("no snapshot of series '{series}' has '{path}'");
        return Err(Error::new(ErrorKind::NotFound, message).into());
    }
    Ok(code)
}

fn version_row(version: &FileVersion) -> Vec<String> {
    let (size, modified) = match &version.metadata {
        Some(metadata) => {
            (output::bytes(metadata.size), output::time(nanoseconds(metadata.modified)))
        }
        None => ("-".to_owned(), "-".to_owned()),
    };
    let changed = match &version.metadata {
        None => "removed".to_owned(),
        Some(_) => version.changes.join(", "),
    };
    vec![
        short(version.first.id),
        output::time(version.first.time_ns),
        short(version.last.id),
        version.snapshots.to_string(),
        size,
        modified,
        changed,
    ]
}

fn version_json(head: &Head, version: &FileVersion) -> Value {
    let snapshot = |entry: &SnapshotEntry| {
        json!({
            "id": entry.id.to_string(),
            "time": output::rfc3339(entry.time_ns),
        })
    };
    let metadata = version.metadata.as_deref();
    json!({
        "series": head.shown(),
        "first": snapshot(&version.first),
        "last": snapshot(&version.last),
        "snapshots": version.snapshots,
        "exists": metadata.is_some(),
        "type": metadata.map(|it| listing::kind_name(it.kind)),
        "bytes": metadata.map(|it| it.size),
        "modified": metadata.map(|it| output::rfc3339(nanoseconds(it.modified))),
        "changes": version.changes,
    })
}
