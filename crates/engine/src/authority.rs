//! Append-only repositories: what takes something away must be signed by a key that backup hosts do
//! not hold.
//!
//! A host can write whatever head it likes. One that drops a snapshot is not believed by those who can
//! remove objects: before anything else they follow the heads since the last signed one, and each must
//! keep all of the one before it.

use silt_format::names::{self, Numbered};
use silt_format::{
    Authority, Error, ErrorKind, Head, KdfCost, KeyLabel, MasterKey, ObjectKind, Result, ResultExt,
    SeriesId, WrappedKey, verify_signature,
};
use silt_storage::{ByteRange, PutMode};

use crate::objects::{Address, Objects, is_damage, key};
use crate::repository::Repository;

/// Who administers a new append-only repository.
#[derive(Clone, Debug)]
pub struct Administrator {
    /// The password that will open the key that signs.
    pub password: Vec<u8>,
    /// What one try of it costs.
    pub cost: KdfCost,
    /// Who makes the key.
    pub label: KeyLabel,
}

/// Makes the signing key of a new repository, durable on return; the answer is its public part.
pub(crate) fn create(objects: &Objects, administrator: &Administrator) -> Result<[u8; 32]> {
    let seed = MasterKey::new(objects.context.random());
    let header = objects.new_header(Address::new(ObjectKind::Authority, SeriesId::NONE, 0));
    let Administrator { password, cost, label } = administrator;
    let object = WrappedKey::wrap(&header, password, *cost, &seed.clone().into(), label)?;
    for name in [names::AUTHORITY_COPY, names::AUTHORITY] {
        objects.storage.put(&key(name)?, &[&object], PutMode::Create)?;
    }
    Ok(Authority::new(&seed)?.public())
}

impl Repository {
    /// Whether deleting and reclaiming need the administrator's password.
    pub fn is_append_only(&self) -> bool {
        self.config.authority.is_some()
    }

    /// Opens the key that signs, so that this process may delete and reclaim.
    ///
    /// `WrongPassword` if the password does not open it.
    pub fn authorize(&mut self, password: &[u8]) -> Result<()> {
        let Some(public) = self.config.authority else { return Ok(()) };
        let mut failure = Error::corrupt("the repository has no key that signs");
        for name in [names::AUTHORITY, names::AUTHORITY_COPY] {
            let mut object = Vec::new();
            let read = self.objects.storage.get(&key(name)?, ByteRange::Full, &mut object);
            let opened = read
                .and_then(|()| WrappedKey::unwrap(&object, password))
                .and_then(|seed| {
                    let strange = || Error::corrupt("it holds no seed");
                    Authority::new(seed.master().ok_or_else(strange)?)
                })
                .context(|| format!("open {name}"));
            match opened {
                Ok(authority) if authority.public() == public => {
                    self.authority = Some(authority);
                    return Ok(());
                }
                Ok(_) => failure = Error::corrupt(format!("{name} is not this repository's")),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The key that signs, if this process has it; `Denied` if it needs it and does not have it, and with a
    /// key that only backs up.
    pub(crate) fn required_authority(&self) -> Result<Option<&Authority>> {
        self.require_all_keys()?;
        if self.is_append_only() && self.authority.is_none() {
            return Err(Error::new(
                ErrorKind::Denied,
                "the repository is append-only: this needs the administrator's password",
            ));
        }
        Ok(self.authority.as_ref())
    }

    /// Follows a series' heads since the last signed one; `Denied` names the first that takes away what it may not.
    pub(crate) fn verify_history(&self, series: SeriesId) -> Result<()> {
        match self.first_unauthorized(series)? {
            None => Ok(()),
            Some((_, name, why)) => Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "{name} takes something away and {why}: somebody has tampered with the series; \
                     nothing is deleted. `silt recover` brings back what it dropped"
                ),
            )),
        }
    }

    /// The last head before somebody took away what they might not, the name of the head that did, and
    /// what is wrong with it.
    fn first_unauthorized(&self, series: SeriesId) -> Result<Option<(Head, String, String)>> {
        let Some(public) = self.config.authority else { return Ok(None) };
        // Newest first, back to the last that is signed: it vouches for all before it.
        let mut since = Vec::new();
        for item in self.objects.names(&Numbered::Head.prefix(series), None)? {
            let (name, _) = item?;
            let head = match self.head_at(series, &name) {
                // What nobody can read takes nothing away; what follows is compared with the last.
                Err(error) if is_damage(&error) => {
                    self.warn(&format!("{error}; it is passed over"));
                    continue;
                }
                other => other?,
            };
            let verified = verify_signature(&head, &public);
            let is_signed = verified.is_ok();
            since.push((name, head, verified));
            if is_signed {
                break;
            }
        }
        let mut before: Option<Head> = None;
        for (name, head, verified) in since.into_iter().rev() {
            if let Some(before) = before.filter(|before| !head.keeps_all_of(before))
                && let Err(error) = verified
            {
                return Ok(Some((before, name, error.to_string())));
            }
            before = Some(head);
        }
        Ok(None)
    }

    fn head_at(&self, series: SeriesId, name: &str) -> Result<Head> {
        let strange = || Error::corrupt(format!("{name} is not the name of a head"));
        let generation = Numbered::number(name).ok_or_else(strange)?;
        let plain = self.objects.get(name, Address::new(ObjectKind::Head, series, generation))?;
        let head = Head::decode(&plain).context(|| format!("read head {name}"))?;
        if (head.generation, head.series) == (generation, series) {
            Ok(head)
        } else {
            Err(strange())
        }
    }

    /// Lists again what a head dropped that was not signed: the series is as it was before that head.
    /// The answer says whether there was such a head.
    pub fn recover(&self, series: &str) -> Result<bool> {
        let id = self.series_id(series);
        let authority = self.required_authority()?;
        let Some((before, _, _)) = self.first_unauthorized(id)? else { return Ok(false) };
        let newest = self.head(id)?;
        let newest = newest.ok_or_else(|| Error::corrupt("the series has no head"))?;
        let mut head = Head {
            generation: newest.generation,
            next_container: newest.next_container.max(before.next_container),
            next_pack: newest.next_pack.max(before.next_pack),
            ..before
        };
        crate::heads::commit(&self.objects, &mut head, self.objects.context.random(), authority)?;
        Ok(true)
    }
}
