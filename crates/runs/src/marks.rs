//! Marks: which head a storage node must have to have what series refer to.
//!
//! A node whose disk was restored from an older copy looks like any other: its generations go on
//! from where they were, and the numbers of containers are given again. So the places of the
//! repository, which are elsewhere, say which head of the node series rely on: its generation, and
//! who wrote it. A node without that head has lost something: it is neither used nor swept.

use silt_format::names::Numbered;
use silt_format::{Advice, Error, ErrorKind, Head, Mark, ObjectKind, Result, SeriesId};
use silt_repository::Repository;
use silt_repository::beside::each_beside;
use silt_repository::event::Warning;
use silt_repository::heads::{self, GENERATION_MAX, HEADS_KEPT, Reading};
use silt_repository::objects::{Address, is_damage, key};
use silt_repository::settle::{settle_head, verify_unchanged};

/// The marks of a node, listed before its head is read: others raise them meanwhile.
pub struct Marks<'r> {
    repository: &'r Repository,
    number: u16,
    store: SeriesId,
    /// Generations and names, the newest first.
    listed: Vec<(u64, String)>,
    /// The newest one that counts.
    newest: Option<(u64, Mark)>,
}

impl<'r> Marks<'r> {
    /// Lists the marks of the node with this number.
    pub fn list(repository: &'r Repository, number: u16) -> Result<Self> {
        let store = repository.store(number).id;
        let mut listed = Vec::new();
        for item in repository.objects.names(&Numbered::Mark.prefix(store), None)? {
            let (name, _) = item?;
            listed.extend(Numbered::Mark.number_of(store, &name).map(|number| (number, name)));
        }
        let newest = believed(repository, store, &listed)?;
        Ok(Self { repository, number, store, listed, newest })
    }

    /// The generation of the newest mark; 0 if there is none.
    pub fn newest(&self) -> u64 {
        self.newest.map_or(0, |(generation, _)| generation)
    }

    /// The generation that series rely on, if the node does not have that head, or has another one
    /// under its number: what was stored there since is lost. 0 if it has it. `newest` is the
    /// node's newest head, read after the marks were listed.
    pub fn lost(&self, newest: Option<&Head>) -> Result<u64> {
        let Some((generation, mark)) = self.newest else { return Ok(0) };
        let newest = newest.map_or((0, [0; 16]), |head| (head.generation, head.writer));
        if newest == (generation, mark.writer) || is_old(generation, newest.0) {
            return Ok(0);
        }
        let (objects, name) =
            (&self.repository.objects, Numbered::Head.name(self.store, generation));
        // A cache may have it still.
        objects.storage.forget(&key(&name)?);
        match heads::judge(objects, self.store, &name) {
            Ok(Reading::Good(head, _)) if head.writer == mark.writer => Ok(0),
            Ok(Reading::Good(..)) => Ok(generation),
            Ok(Reading::Refused(error)) => Err(error.context("the newest marked head")),
            // A sweep may have removed it since.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let newest = self.repository.store_generation(self.number)?;
                Ok(if is_old(generation, newest) { 0 } else { generation })
            }
            // It is there.
            Err(error) if is_damage(&error) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Fails with `Corrupt` if the node has lost what series rely on.
    pub fn require(&self, newest: Option<&Head>) -> Result<()> {
        let lost = self.lost(newest)?;
        if lost == 0 {
            return Ok(());
        }
        let shown = self.repository.store(self.number).shown;
        let generation = newest.map_or(0, |head| head.generation);
        let message = format!(
            "{shown} is an older copy: it has not got the head {lost} that series rely on (its \
             newest one is {generation}); what was stored there since is lost"
        );
        Err(Error::corrupt(message).with_advice(Advice::ReplaceNode))
    }

    /// The newest head of the node that counts, under its own number, if the node has what series
    /// rely on; `None` if it has none. Fails as [`require`](Self::require) does, and with `Busy` if
    /// the node was moved meanwhile: where it was before, it is older.
    fn head(&self) -> Result<Option<Head>> {
        let objects = &self.repository.objects;
        let mut newest = None;
        for item in heads::all(objects, self.store) {
            match heads::judge(objects, self.store, &item?.1)? {
                Reading::Good(head, _) => {
                    newest = Some(*head);
                    break;
                }
                Reading::Refused(_) => {}
            }
        }
        verify_unchanged(objects)?;
        self.require(newest.as_ref()).map(|()| newest)
    }

    /// Adds one for this head, and removes those below it.
    fn put(self, head: &Head) -> Result<()> {
        let (generation, mark) = (head.generation, Mark { writer: head.writer });
        let objects = &self.repository.objects;
        let name = Numbered::Mark.name(self.store, generation);
        let address = Address::new(ObjectKind::Mark, self.store, generation);
        let authority = self.repository.required_authority()?;
        let signer = authority.as_deref().unwrap_or(&objects.signer);
        let object = objects.sealed_by(signer, address, &mark.encode())?;
        let put = || objects.put_pieces(&name, address.kind, &[object.clone().into()]).map(drop);
        match put() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if Self::list(self.repository, self.number)?.newest == Some((generation, mark)) {
                    objects.storage.settle(&key(&name)?)?;
                } else {
                    // It is damaged, or somebody has put it there who may not.
                    match objects.delete(std::slice::from_ref(&name)) {
                        Err(error) if error.kind() == ErrorKind::Denied => {
                            let consequence = "the node's newest head is not marked";
                            self.repository.warn(Warning::after(&error, consequence));
                            return Ok(());
                        }
                        deleted => deleted?,
                    }
                    put()?;
                }
            }
            put => put?,
        }
        self.remove_below(generation)
    }

    /// Removes those below a generation that is marked.
    fn remove_below(self, generation: u64) -> Result<()> {
        let old = self.listed.into_iter().filter(|(mark, _)| *mark < generation);
        let old: Vec<String> = old.map(|(_, name)| name).collect();
        match self.repository.objects.delete(&old) {
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            // Where nothing may be deleted, they stay.
            Err(error) if error.kind() != ErrorKind::Denied => {
                self.repository.warn(Warning::after(&error, "old marks of a node stay"));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The newest of these marks of a node that counts.
///
/// One that can't be read does not count, nor one that a key has signed that may not remove, or was
/// removed before. Such a key could have the administrator give up good nodes.
fn believed(
    repository: &Repository,
    store: SeriesId,
    listed: &[(u64, String)],
) -> Result<Option<(u64, Mark)>> {
    for (generation, name) in listed {
        let address = Address::new(ObjectKind::Mark, store, *generation);
        let signed = repository.objects.get_signed(name, address);
        match signed.and_then(|(plain, by)| Ok((Mark::decode(&plain)?, by))) {
            Ok((mark, by))
                if by.may_remove
                    && by.reaches(store, *generation).is_ok()
                    && *generation <= GENERATION_MAX =>
            {
                return Ok(Some((*generation, mark)));
            }
            Ok(_) => {}
            Err(error) if is_damage(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Raises the marks of nodes to what a head that is committed next may rely on.
///
/// Call it when all that the head refers to is registered. A key that may not remove does nothing:
/// whoever has registered what it has found marks it. Fails with `Corrupt` if a node was replaced
/// by an older copy meanwhile, and with `Unavailable` if one can't be reached any more.
pub fn raise(repository: &Repository, nodes: Vec<u16>) -> Result<()> {
    if repository.required_authority().is_err() {
        return Ok(());
    }
    each_beside(repository, nodes, raise_one, |raised| raised)
}

/// Raises the mark of a node to its newest head.
pub fn raise_one(repository: &Repository, number: u16) -> Result<()> {
    let marks = Marks::list(repository, number)?;
    let Some(head) = marks.head()? else { return Ok(()) };
    let objects = &repository.objects;
    // Its writer may have died before it was durable, and the power may still fail.
    settle_head(objects, (marks.store, head.generation), &head.name)?;
    if marks.newest != Some((head.generation, Mark { writer: head.writer })) {
        return marks.put(&head);
    }
    // Whoever wrote it may have died before every place had it.
    objects.storage.settle(&key(&Numbered::Mark.name(marks.store, head.generation))?)
}

/// Fails with `Corrupt` if a node has lost what series rely on.
pub fn require(repository: &Repository, number: u16) -> Result<()> {
    Marks::list(repository, number)?.head().map(drop)
}

/// Whether a head of this generation may have been removed since, and its number given again to
/// somebody who slept: a sweep has looked at the mark before.
fn is_old(generation: u64, newest: u64) -> bool {
    newest >= generation.saturating_add(HEADS_KEPT)
}
