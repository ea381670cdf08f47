//! File trees: writing the pages of directories, and reading them.

mod cursor;
mod pages;
mod reader;
mod volume;
mod writer;

pub use cursor::Cursor;
pub use reader::TreeReader;
pub use volume::TreeVolume;
pub use writer::TreeWriter;
