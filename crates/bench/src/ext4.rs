//! A file system that is made anew for each measurement.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::process::Call;

/// An ext4 in an image file. Unmounted when dropped, and the image removed.
///
/// What making files takes depends on what was in a file system before: for minutes, ext4 gives
/// nobody the inodes of files that were just removed, and searching for others takes longer than a
/// restore.
pub struct Ext4 {
    image: PathBuf,
    /// Where it is mounted.
    pub folder: PathBuf,
}

impl Ext4 {
    /// Makes and mounts one of so many GiB below `work`. Needs root.
    ///
    /// The image is read and written past the page cache, as a disk is.
    pub fn make(work: &Path, gib: u64) -> Result<Self> {
        let this = Self { image: work.join("ext4.img"), folder: work.join("ext4") };
        std::fs::create_dir_all(&this.folder)?;
        this.clear();
        let size = format!("{gib}G");
        Call::new("fallocate").args(&["--length", &size]).arg(&this.image).run()?;
        let attach = ["--find", "--show", "--direct-io=on"];
        let attached = Command::new("losetup").args(attach).arg(&this.image).output()?;
        if !attached.status.success() {
            let why = String::from_utf8_lossy(&attached.stderr).into_owned();
            return Err(format!("losetup: {why} (--ext4 needs root)").into());
        }
        let device = String::from_utf8_lossy(&attached.stdout).trim().to_owned();
        let whole = "lazy_itable_init=0,lazy_journal_init=0";
        let made = Call::new("mkfs.ext4").args(&["-q", "-E", whole, &device]).run();
        let made = made.and_then(|_| Call::new("mount").arg(&*device).arg(&this.folder).run());
        // The kernel detaches it as soon as nothing uses it.
        Call::new("losetup").args(&["--detach", &device]).run()?;
        made?;
        Ok(this)
    }

    /// Removes what an interrupted run has left.
    fn clear(&self) {
        let _ = Call::new("umount").arg(&self.folder).run();
        let _ = std::fs::remove_file(&self.image);
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        self.clear();
    }
}
