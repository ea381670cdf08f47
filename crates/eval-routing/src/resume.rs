//! What an interrupted run has finished, which the next one does not repeat.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use silt_report::{Result, Table};
use silt_routing::Questions;

use super::ways::{Outcome, Way};

/// Between the cells of a stored table, between its rows, and in place of ends of lines in cells.
const CELL: char = '\u{1f}';
const ROW: char = '\u{1e}';
const LINE: char = '\u{1d}';

/// Outcomes and tables by what was run. The file is removed at the end of a run.
pub struct Resumed {
    path: PathBuf,
    file: File,
    known: BTreeMap<String, String>,
}

impl Resumed {
    /// Reads the file of a run with these options, if there is one.
    pub fn open(folder: &Path, options: &str) -> Result<Self> {
        let path = folder.join("appdedupe.resume");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut known = BTreeMap::new();
        let mut lines = text.split_inclusive('\n');
        let is_same = lines.next().is_some_and(|line| line.trim_end() == options);
        // The last line may have been cut off.
        for line in lines.take_while(|line| is_same && line.ends_with('\n')) {
            let (name, value) =
                line.trim_end_matches('\n').split_once('\t').ok_or("a line without a name")?;
            known.insert(name.to_owned(), value.to_owned());
        }
        let mut file = File::create(&path)?;
        writeln!(file, "{options}")?;
        let mut resumed = Self { path, file, known };
        for (name, value) in resumed.known.clone() {
            resumed.write(&name, &value)?;
        }
        Ok(resumed)
    }

    fn write(&mut self, name: &str, value: &str) -> Result<()> {
        self.file.write_all(format!("{name}\t{value}\n").as_bytes())?;
        Ok(self.file.sync_data()?)
    }

    /// The outcome that is known by this name, or that of running `run`.
    pub fn outcome(
        &mut self,
        name: &str,
        way: Way,
        run: impl FnOnce() -> Outcome,
    ) -> Result<Outcome> {
        if let Some(numbers) = self.known.get(name) {
            let numbers = numbers.split(' ').map(|number| Ok(number.parse()?));
            let numbers: Vec<u64> = numbers.collect::<Result<_>>()?;
            return decode(way, &numbers).ok_or_else(|| format!("{name} is no outcome").into());
        }
        let outcome = run();
        let numbers: Vec<_> = encode(&outcome).iter().map(u64::to_string).collect();
        self.write(name, &numbers.join(" "))?;
        Ok(outcome)
    }

    /// The table that is known by this name, or that which `run` makes.
    pub fn table(&mut self, name: &str, run: impl FnOnce() -> Result<Table>) -> Result<Table> {
        self.figure(name, || Ok((run()?, String::new()))).map(|(table, _)| table)
    }

    /// The same with a plot.
    pub fn figure(
        &mut self,
        name: &str,
        run: impl FnOnce() -> Result<(Table, String)>,
    ) -> Result<(Table, String)> {
        let name = format!("table {name}");
        if let Some(value) = self.known.get(&name) {
            return decode_table(value).ok_or_else(|| format!("{name} is no table").into());
        }
        let (table, plot) = run()?;
        self.write(&name, &encode_table(&table, &plot))?;
        Ok((table, plot))
    }

    /// Removes the file.
    pub fn end(self) -> Result<()> {
        Ok(std::fs::remove_file(self.path)?)
    }
}

/// The plot, and then the parts of the table: rows of cells, each of which ends.
fn encode_table(table: &Table, plot: &str) -> String {
    let mut rows = vec![vec![plot.to_owned()], vec![table.title.clone()]];
    rows.extend([table.columns().to_vec(), table.notes.clone()]);
    rows.extend(table.rows().iter().cloned());
    let row = |cells: &Vec<String>| {
        let cells = cells.iter().map(|cell| cell.replace('\n', &LINE.to_string()));
        let cells = cells.map(|cell| format!("{cell}{CELL}"));
        cells.collect::<String>()
    };
    rows.iter().map(row).collect::<Vec<_>>().join(&ROW.to_string())
}

fn decode_table(value: &str) -> Option<(Table, String)> {
    let cells = |row: &str| -> Vec<String> {
        let cells = row.split_terminator(CELL).map(|cell| cell.replace(LINE, "\n"));
        cells.collect()
    };
    let mut rows = value.split(ROW).map(cells);
    let (plot, title) = (rows.next()?.pop()?, rows.next()?.pop()?);
    let (columns, notes) = (rows.next()?, rows.next()?);
    let mut table = Table::new(&title, &columns.iter().map(String::as_str).collect::<Vec<_>>());
    notes.into_iter().for_each(|note| table.note(note));
    rows.for_each(|row| table.row(row));
    Some((table, plot))
}

fn encode(outcome: &Outcome) -> Vec<u64> {
    let Outcome { chunks, logical, exact, questions, looked_up, entries, index_bytes, .. } =
        *outcome;
    let Questions { messages, prints } = questions;
    let numbers = [chunks, logical, exact, messages, prints, looked_up, entries, index_bytes];
    [&numbers, outcome.used.as_slice()].concat()
}

fn decode(way: Way, numbers: &[u64]) -> Option<Outcome> {
    let (first, used) = numbers.split_at_checked(8)?;
    let &[chunks, logical, exact, messages, prints, looked_up, entries, index_bytes] = first else {
        return None;
    };
    let (questions, used) = (Questions { messages, prints }, used.to_vec());
    let nodes = used.len();
    let outcome = Outcome {
        way,
        nodes,
        chunks,
        logical,
        exact,
        used,
        questions,
        looked_up,
        entries,
        index_bytes,
    };
    (nodes > 0).then_some(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            way: Way::Sigma,
            nodes: 2,
            chunks: 1,
            logical: 2,
            exact: 3,
            used: vec![4, 5],
            questions: Questions { messages: 6, prints: 7 },
            looked_up: 8,
            entries: 9,
            index_bytes: 10,
        }
    }

    #[test]
    fn an_interrupted_run_goes_on_with_the_same_options_only() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let never = || panic!("it is known");
        let mut first = Resumed::open(folder.path(), "a")?;
        first.outcome("x", Way::Sigma, outcome)?;
        drop(first);
        let path = folder.path().join("appdedupe.resume");
        std::fs::write(&path, std::fs::read_to_string(&path)? + "y\t1 2")?;
        let mut second = Resumed::open(folder.path(), "a")?;
        let again = second.outcome("x", Way::Sigma, never)?;
        assert_eq!(encode(&again), encode(&outcome()));
        assert_eq!(again.nodes, 2);
        second.outcome("y", Way::Sigma, outcome)?;
        let mut table = Table::new("title", &["one", "two"]);
        table.row(vec!["a, \"b\"".to_owned(), String::new()]);
        table.note("a note\tof two\nlines");
        table.note("another");
        let drawn = || Ok((table, "<svg>\n</svg>\n".to_owned()));
        let (first, plot) = second.figure("x", drawn)?;
        second.table("empty", || Ok(Table::new("empty", &["one"])))?;
        drop(second);
        let mut third = Resumed::open(folder.path(), "a")?;
        third.outcome("y", Way::Sigma, never)?;
        let (again, drawn) = third.figure("x", || panic!("it is known"))?;
        assert_eq!((again.markdown(), again.csv(), drawn), (first.markdown(), first.csv(), plot));
        let empty = third.table("empty", || panic!("it is known"))?;
        assert_eq!(empty.markdown(), Table::new("empty", &["one"]).markdown());
        drop(third);
        let mut other = Resumed::open(folder.path(), "b")?;
        let mut has_run = false;
        other.outcome("x", Way::Sigma, || {
            has_run = true;
            outcome()
        })?;
        assert!(has_run);
        other.end()?;
        assert!(!path.exists());
        Ok(())
    }
}
