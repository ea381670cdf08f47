//! Reading tar archives: of POSIX (ustar and pax), GNU tar, star, and V7.
//!
//! Written here and not by a library, as the writer in `silt-tree` is: the library at hand reads no
//! sparse files of the pax format, and takes memory for a header as large as the archive says.

mod entry;
mod header;
mod pax;
mod sparse;

pub use entry::TarEntry;
pub use reader::{Item, TarReader};

mod reader;
