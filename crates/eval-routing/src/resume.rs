//! Outcomes of an interrupted run, which the next one does not repeat.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use silt_report::Result;
use silt_routing::Questions;

use super::ways::{Outcome, Way};

/// Outcomes by what was run. The file is removed at the end of a run.
pub struct Resumed {
    path: PathBuf,
    file: File,
    known: BTreeMap<String, Vec<u64>>,
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
            let (name, numbers) =
                line.trim_end().split_once('\t').ok_or("a line without a name")?;
            let numbers = numbers.split(' ').map(|number| Ok(number.parse()?));
            known.insert(name.to_owned(), numbers.collect::<Result<_>>()?);
        }
        let mut file = File::create(&path)?;
        writeln!(file, "{options}")?;
        let mut resumed = Self { path, file, known };
        for (name, numbers) in resumed.known.clone() {
            resumed.write(&name, &numbers)?;
        }
        Ok(resumed)
    }

    fn write(&mut self, name: &str, numbers: &[u64]) -> Result<()> {
        let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
        self.file.write_all(format!("{name}\t{}\n", numbers.join(" ")).as_bytes())?;
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
            return decode(way, numbers).ok_or_else(|| format!("{name} is no outcome").into());
        }
        let outcome = run();
        self.write(name, &encode(&outcome))?;
        Ok(outcome)
    }

    /// Removes the file.
    pub fn end(self) -> Result<()> {
        Ok(std::fs::remove_file(self.path)?)
    }
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
        drop(second);
        let mut third = Resumed::open(folder.path(), "a")?;
        third.outcome("y", Way::Sigma, never)?;
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
