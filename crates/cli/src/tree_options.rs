//! How file trees are backed up, as the command line says.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use silt_format::{Error, ErrorKind, ResultExt};
use silt_terminal::failure::Failure;
use silt_terminal::snapshot_name;
use silt_tree::{Marker, PathList, Rules, Trust};
use siltstone::TreeOptions;

use crate::trees::TreeArgs;
use crate::volume_args::is_stdin;

impl TreeArgs {
    /// The options for the backup of these directories. Reads the files that the options name. A
    /// dry run reports what is left out.
    pub fn options(&self, roots: &[&Path], dry_run: bool) -> Result<TreeOptions, Failure> {
        let mut rules = Rules::default();
        let usage = |error: Error| Failure::Usage(error.to_string());
        for pattern in &self.exclude {
            rules.exclude(pattern, false).map_err(usage)?;
        }
        for pattern in &self.iexclude {
            rules.exclude(pattern, true).map_err(usage)?;
        }
        for path in &self.exclude_file {
            let shown = path.display();
            let text = std::fs::read(path)
                .map_err(|error| Error::io(format!("read the patterns of {shown}"), error))?;
            let named = |error: Error| Failure::Usage(format!("{shown}: {error}"));
            rules.exclude_lines(&text, false).map_err(named)?;
        }
        for text in &self.exclude_if_present {
            rules.markers.push(Marker::parse(text).map_err(usage)?);
        }
        rules.caches = self.exclude_caches;
        let largest = self.exclude_larger_than.as_deref();
        rules.larger_than = largest.map(snapshot_name::parse_bytes).transpose()?;
        rules.nodump = self.exclude_nodump;
        rules.one_file_system = self.one_file_system;
        rules.only = self.listed(roots)?;
        let trust = Trust { ignore_inode: self.ignore_inode, ignore_changed: self.ignore_ctime };
        Ok(TreeOptions { rules, trust, reread: self.reread, name_left_out: dry_run })
    }

    /// All files with lists of paths.
    pub fn lists(&self) -> impl Iterator<Item = &PathBuf> {
        self.files_from.iter().chain(&self.files_from_raw)
    }

    /// All files that the options name.
    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.exclude_file.iter_mut().chain(&mut self.files_from).chain(&mut self.files_from_raw)
    }

    /// The listed paths; `None` without lists.
    fn listed(&self, roots: &[&Path]) -> Result<Option<Arc<PathList>>, Failure> {
        if self.lists().next().is_none() {
            return Ok(None);
        }
        if roots.is_empty() {
            let message = "--files-from is for directories, and none of the volumes is one";
            return Err(Failure::Usage(message.to_owned()));
        }
        let mut list = PathList::default();
        let refused = |error: Error| match error.kind() {
            ErrorKind::Invalid => Failure::Usage(error.to_string()),
            _ => error.into(),
        };
        for file in &self.files_from {
            let added = list.add_lines(open(file)?);
            added.context(|| file.display().to_string()).map_err(refused)?;
        }
        for file in &self.files_from_raw {
            let added = list.add_zero_terminated(open(file)?);
            added.context(|| file.display().to_string()).map_err(refused)?;
        }
        // What makes the list may have failed. A backup of nothing would pass for one of all.
        if list.is_empty() {
            let message = "the files of --files-from list no path, so nothing would be backed up";
            return Err(Failure::Usage(message.to_owned()));
        }
        if roots.len() > 1 && list.has_relative() {
            let message = "--files-from lists a relative path, but there are several directories; \
                           list absolute paths";
            return Err(Failure::Usage(message.to_owned()));
        }
        if let Some(path) = list.outside(roots)?.next() {
            return Err(Failure::Usage(format!(
                "--files-from lists '{}', which is in none of the directories to back up",
                String::from_utf8_lossy(path)
            )));
        }
        Ok(Some(Arc::new(list)))
    }
}

/// Opens a list; `-` is standard input.
fn open(file: &Path) -> Result<Box<dyn std::io::BufRead>, Error> {
    if is_stdin(file) {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let opened = std::fs::File::open(file);
    let failed = |error| Error::io(format!("open the list {}", file.display()), error);
    Ok(Box::new(BufReader::new(opened.map_err(failed)?)))
}
