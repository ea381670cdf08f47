//! What a backup tells of a tree while it walks it.

use silt_repository::env::Context;
use silt_repository::event::Event;
use silt_tree::{LeftOut, Reason, TreeSource, Unreliable};

use super::options::TreeOptions;

/// Reports entries that are left out, and file systems that are not trusted.
#[derive(Default)]
pub(crate) struct Told {
    /// Number of file systems that were looked at.
    file_systems: usize,
}

impl Told {
    /// Reports an entry of the current directory that is left out, if the options ask for it; with
    /// an empty name, the content of the directory.
    pub(crate) fn left_out(
        context: &Context,
        options: &TreeOptions,
        walk: &dyn TreeSource,
        (name, reason): (&[u8], Reason),
    ) {
        if !options.name_left_out {
            return;
        }
        let (mut path, is_content) = (walk.directory_path(), name.is_empty());
        if !is_content {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        let why = options.rules.explain(reason);
        let left_out = LeftOut { path: &path, is_content, why };
        context.observer.event(context.id, &Event::LeftOut(&left_out));
    }

    /// Reports the file system of the current directory if metadata is ignored on it that the
    /// options do not ignore; once for each file system.
    pub(crate) fn directory(
        &mut self,
        context: &Context,
        options: &TreeOptions,
        walk: &dyn TreeSource,
        file_system: u16,
    ) {
        // Numbers are given in the order of the walk.
        if usize::from(file_system) < self.file_systems {
            return;
        }
        self.file_systems = usize::from(file_system) + 1;
        let traits = walk.traits(file_system);
        let trust = options.trust.on(traits);
        let Some(name) = traits.name.filter(|_| trust != options.trust && !options.reread) else {
            return;
        };
        let unreliable = Unreliable {
            path: &walk.directory_path(),
            file_system: name,
            ignores_inode: trust.ignore_inode,
            ignores_changed: trust.ignore_changed,
        };
        context.observer.event(context.id, &Event::Unreliable(&unreliable));
    }
}
