//! A page with tables and plots, and their files.

use std::path::{Path, PathBuf};

use crate::tables::Table;

/// Collects tables and figures, and writes each as it comes.
pub struct Page {
    folder: PathBuf,
    name: &'static str,
    text: String,
}

impl Page {
    /// A page of this name between a head and a method, that says how it was made: the arguments,
    /// and the date and machine if they are given.
    pub fn new(
        folder: &Path,
        name: &'static str,
        (head, method): (&str, &str),
        machine: Option<&str>,
    ) -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let mut text = format!("{head}\n```sh\nsilt-eval {}\n```\n\n", arguments.join(" "));
        if let Some(machine) = machine {
            text.extend(["Run on ", machine, ".\n\n"]);
        }
        text.push_str(method);
        Self { folder: folder.to_owned(), name, text }
    }

    /// Adds a table.
    pub fn table(&mut self, name: &str, table: &Table) -> crate::Result<()> {
        println!("{}", table.markdown());
        self.text.push_str(&table.markdown());
        table.write_csv(&self.folder, name)
    }

    /// Adds a table and its plot.
    pub fn figure(&mut self, name: &str, (table, svg): (Table, String)) -> crate::Result<()> {
        self.table(name, &table)?;
        self.plot(name, &table.title, &svg)
    }

    /// Adds a plot.
    pub fn plot(&mut self, name: &str, title: &str, svg: &str) -> crate::Result<()> {
        self.text.extend(["![", title, "](", name, ".svg)\n\n"]);
        Ok(std::fs::write(self.folder.join(format!("{name}.svg")), svg)?)
    }

    /// Writes the page.
    pub fn write(&self) -> crate::Result<()> {
        Ok(std::fs::write(self.folder.join(self.name), &self.text)?)
    }
}
