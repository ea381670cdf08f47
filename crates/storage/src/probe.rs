//! Tests in a few requests whether a storage can hold a repository.

use silt_format::{Error, ErrorKind, Result};

use crate::{ByteRange, Key, PutMode, Storage, list_all};

/// Tests conditional creation, reading, ranges, listing after writing, and deletion. The test uses
/// an object called `name`, which must not exist; it is removed afterwards.
///
/// Fails with `Unsupported` if the storage lacks one of them; the message says which.
pub fn probe(storage: &dyn Storage, name: &Key) -> Result<()> {
    let missing = |what: &str| {
        let place = storage.describe();
        let message = format!("{place} can't hold a repository: {what}");
        Err(Error::new(ErrorKind::Unsupported, message))
    };
    storage.put(name, &[b"first ", b"bytes"], PutMode::Create)?;
    let tried = (|| {
        match storage.put(name, &[b"others"], PutMode::Create) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Ok(()) => {
                return missing(
                    "it overwrites objects although they were to be created only if absent; of two \
                     hosts that commit at once one would lose its snapshot",
                );
            }
            Err(error) => return Err(error),
        }
        let mut bytes = Vec::new();
        storage.get(name, ByteRange::Full, &mut bytes)?;
        if bytes != b"first bytes" {
            return missing("an object is not read as it was written");
        }
        storage.get(name, ByteRange::Bounded { offset: 2, length: 3 }, &mut bytes)?;
        if bytes != b"rst" {
            return missing("ranges of objects are not read as asked for");
        }
        if !is_listed(storage, name)? {
            return missing("an object is not listed at once after it was written");
        }
        Ok(())
    })();
    storage.delete(std::slice::from_ref(name))?;
    tried?;
    if is_listed(storage, name)? {
        return missing("an object is listed still after it was deleted");
    }
    Ok(())
}

fn is_listed(storage: &dyn Storage, name: &Key) -> Result<bool> {
    for item in list_all(storage, name.as_str(), None) {
        if item?.0 == *name {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use silt_format::{ErrorKind, Result};

    use super::probe;
    use crate::{
        ByteRange, Guarantees, Key, ListPage, MemoryStorage, ObjectMeta, PutMode, Storage,
    };

    /// A store that knows no conditions.
    struct Overwriting(MemoryStorage);

    impl Storage for Overwriting {
        fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
            self.0.delete(std::slice::from_ref(key))?;
            self.0.put_bytes(key, body, mode)
        }
        fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
            self.0.get(key, range, into)
        }
        fn settle(&self, key: &Key) -> Result<()> {
            self.0.settle(key)
        }
        fn head(&self, key: &Key) -> Result<ObjectMeta> {
            self.0.head(key)
        }
        fn delete(&self, keys: &[Key]) -> Result<()> {
            self.0.delete(keys)
        }
        fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
            self.0.list(prefix, after)
        }
        fn guarantees(&self) -> Guarantees {
            self.0.guarantees()
        }
        fn describe(&self) -> String {
            "a store".to_owned()
        }
    }

    #[test]
    fn a_store_without_conditions_is_refused_and_left_clean() -> Result<()> {
        let name = Key::new("probe/1")?;
        probe(&MemoryStorage::new(), &name)?;
        let store = Overwriting(MemoryStorage::new());
        let error = probe(&store, &name).err();
        assert_eq!(error.as_ref().map(silt_format::Error::kind), Some(ErrorKind::Unsupported));
        assert!(error.is_some_and(|error| error.to_string().contains("overwrites")));
        assert!(store.list("", None)?.objects.is_empty());
        Ok(())
    }
}
