//! Lists names, page by page.

use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{Key, LIST_PAGE_OBJECTS_MAX, ListPage, TaggedPage};

use super::ObjectFolder;

/// How many pages in a row may have no name of ours: some hundred millions of others' objects.
const PAGES_WITHOUT_OURS_MAX: usize = 1 << 17;

impl ObjectFolder {
    /// One page of the names below `prefix`, which is a beginning of whole names.
    pub(crate) fn page(
        &self,
        lister: &impl PaginatedListStore,
        prefix: &str,
        options: &PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        let asked = (!prefix.is_empty()).then_some(prefix);
        self.ask(&format!("list {prefix}"), || {
            self.counters.list();
            let options = PaginatedListOptions {
                max_keys: Some(LIST_PAGE_OBJECTS_MAX),
                offset: options.offset.clone(),
                page_token: options.page_token.clone(),
                ..PaginatedListOptions::default()
            };
            self.wait_for(lister.list_paginated(asked, options))
        })
    }

    /// The objects of the next page that has any of ours behind `after`; `options` say then whether
    /// and where more follow. Pages without are passed over: whoever may create objects can fill
    /// them, and a server may give empty ones.
    pub(crate) fn next_objects(
        &self,
        options: &mut PaginatedListOptions,
        after: Option<&Key>,
        page: &dyn Fn(&PaginatedListOptions) -> Result<PaginatedListResult>,
    ) -> Result<Vec<Listed>> {
        for _ in 0..PAGES_WITHOUT_OURS_MAX {
            let found = page(options)?;
            let token = found.page_token.clone();
            let mut objects = self.named(found);
            objects.retain(|listed| after.is_none_or(|after| listed.key > *after));
            let repeats = token.is_some() && token == options.page_token;
            options.page_token = token;
            if !objects.is_empty() || options.page_token.is_none() {
                return Ok(objects);
            }
            if repeats {
                break;
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("listing {} does not come to an end: the server repeats itself", self.location),
        ))
    }

    /// The objects of a page; what is no name of ours is not ours.
    fn named(&self, page: PaginatedListResult) -> Vec<Listed> {
        let objects = page.result.objects.into_iter();
        let named = objects.filter_map(|object| {
            let key = self.key(&object.location)?;
            Some(Listed { key, size: object.size, tag: object.e_tag })
        });
        named.collect()
    }
}

/// An object as a listing tells it.
pub(crate) struct Listed {
    pub key: Key,
    /// In bytes.
    pub size: u64,
    /// Its ETag, if the listing has it.
    pub tag: Option<String>,
}

/// The page of these objects.
pub(crate) fn tagged(listed: Vec<Listed>, truncated: bool) -> TaggedPage {
    let objects = listed.iter().map(|it| (it.key.clone(), it.size)).collect();
    let tags: Vec<_> = listed.into_iter().filter_map(|it| Some((it.key, it.tag?))).collect();
    TaggedPage { page: ListPage { objects, truncated }, tags: Some(tags) }
}
