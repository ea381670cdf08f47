//! File trees: writing the pages of directories, and reading them.

mod cursor;
mod reader;
mod writer;

pub use cursor::Cursor;
pub use reader::TreeReader;
pub use writer::TreeWriter;
