//! Series of sites by their names.

use crate::plan::Series;
use crate::site::SITES_MAX;

/// Names of series, by the site whose letter is in front.
const NAMES: [[&str; 2]; SITES_MAX] =
    [["a-vm", "a-other"], ["b-vm", "b-other"], ["c-vm", "c-other"]];

/// A series of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Called {
    /// The site.
    pub site: usize,
    /// The site whose letter is in front of the name, if there is one.
    pub prefix: Option<usize>,
    /// The series, as the site calls it that backs it up.
    pub series: Series,
}

impl Called {
    /// A series that a site backs up.
    pub fn own(site: usize, series: Series) -> Self {
        Self { site, prefix: None, series }
    }

    /// All series that a site may have.
    pub fn all(site: usize) -> impl Iterator<Item = Self> {
        let prefixes = std::iter::once(None).chain((0..SITES_MAX).map(Some));
        prefixes.flat_map(move |prefix| {
            Series::ALL.into_iter().map(move |series| Self { site, prefix, series })
        })
    }

    /// The series of this name; `None` for names that no site gives.
    pub fn by_name(site: usize, name: &str) -> Option<Self> {
        Self::all(site).find(|called| called.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.prefix {
            None => self.series.name(),
            Some(site) => NAMES[site][self.series as usize],
        }
    }

    /// What is put in front of names of series of a site.
    pub fn prefix_of(site: usize) -> &'static str {
        ["a-", "b-", "c-"][site]
    }
}
