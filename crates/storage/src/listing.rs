//! Listing objects by name.

use std::vec::IntoIter;

use silt_format::{Error, ErrorKind, Result};

use crate::{Key, Storage};

/// The most objects in one [`ListPage`].
pub const LIST_PAGE_OBJECTS_MAX: usize = 1000;

/// Some objects in byte order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// Names and sizes in bytes.
    pub objects: Vec<(Key, u64)>,
    /// Whether more follow the last one; never so on an empty page.
    pub truncated: bool,
}

/// Returns a page of a listing after checking it: names in order, below the prefix, after `after`.
///
/// Fails with `Unavailable` if the page violates this, because callers rely on the first name being
/// the newest.
pub fn list_page<S: Storage + ?Sized>(
    storage: &S,
    prefix: &str,
    after: Option<&Key>,
) -> Result<ListPage> {
    let page = storage.list(prefix, after)?;
    let mut last = after;
    for (key, _) in &page.objects {
        let why = if !key.as_str().starts_with(prefix) {
            "is not below it"
        } else if last.is_some_and(|last| last >= key) {
            "is out of order: the storage repeats itself"
        } else {
            last = Some(key);
            continue;
        };
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!("listing {prefix:?} in {}: {key} {why}", storage.describe()),
        ));
    }
    Ok(page)
}

/// Some objects, and their tags: an object that replaces another under its name has another tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedPage {
    /// The objects.
    pub page: ListPage,
    /// Names and tags of those that have tags, in byte order of the names; `None` if the storage
    /// tells none.
    pub tags: Option<Vec<(Key, String)>>,
}

/// Every object whose name begins with `prefix` and comes after `after`, a page at a time.
///
/// Pages are fetched as the iterator reaches them: objects created or deleted meanwhile may or
/// may not show. It ends after the first error.
pub fn list_all<S: Storage + ?Sized>(
    storage: &S,
    prefix: impl Into<String>,
    after: Option<Key>,
) -> ListAll<'_, S> {
    ListAll { storage, prefix: prefix.into(), after, page: Vec::new().into_iter(), more: true }
}

/// The iterator of [`list_all`].
pub struct ListAll<'a, S: Storage + ?Sized> {
    storage: &'a S,
    prefix: String,
    after: Option<Key>,
    page: IntoIter<(Key, u64)>,
    more: bool,
}

impl<S: Storage + ?Sized> ListAll<'_, S> {
    fn fetch(&mut self) -> Result<()> {
        let page = list_page(self.storage, &self.prefix, self.after.as_ref())?;
        self.more = page.truncated;
        // A server that says nothing and has more would have us loop for ever.
        if page.objects.is_empty() && page.truncated {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "listing {:?} in {} does not get past {:?}",
                    self.prefix,
                    self.storage.describe(),
                    self.after.as_ref().map_or("its start", Key::as_str)
                ),
            ));
        }
        if let Some((last, _)) = page.objects.last() {
            self.after = Some(last.clone());
        }
        self.page = page.objects.into_iter();
        Ok(())
    }
}

impl<S: Storage + ?Sized> Iterator for ListAll<'_, S> {
    type Item = Result<(Key, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.len() == 0
            && self.more
            && let Err(error) = self.fetch()
        {
            self.more = false;
            return Some(Err(error));
        }
        self.page.next().map(Ok)
    }
}
