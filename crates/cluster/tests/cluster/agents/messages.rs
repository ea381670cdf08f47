//! Who can open which messages.

use silt_format::ErrorKind;

use silt_repository::keys::KeyAccess;

use super::stage::{Clock, READS, Secret, WRITES};

#[test]
fn a_message_opens_with_its_number_for_its_repository_only() {
    let clock = Clock::new();
    let (secret, other) = (Secret::new(&clock, 1), Secret::new(&clock, 2));
    let messages = secret.messages();
    let sealed = messages.seal(7, b"the backup of db").unwrap();
    assert!(!sealed.windows(6).any(|part| part == b"backup"));
    let message = messages.open(7, &sealed).unwrap();
    assert_eq!(message.plain, b"the backup of db");
    assert!(message.signer.is_full());
    assert_ne!(messages.seal(7, b"the backup of db").unwrap(), sealed, "two are never alike");
    let refused = |opened: silt_format::Result<silt_cluster::Message>| {
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Corrupt);
    };
    for number in [0, 6, 8, u64::MAX] {
        refused(messages.open(number, &sealed));
    }
    refused(other.messages().open(7, &sealed));
    refused(messages.open(7, &[]));
    for at in 0..sealed.len() {
        for bit in [1, 128] {
            let mut changed = sealed.clone();
            changed[at] ^= bit;
            // A header of another version is no damage, but opens no more.
            assert!(messages.open(7, &changed).is_err(), "byte {at}");
        }
        assert!(messages.open(7, &sealed[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn simulated_messages_find_damage_and_wrong_numbers() {
    let clock = Clock::new();
    let [messages, other] = [1, 2].map(|seed| Secret::new(&clock, seed).simulated_messages());
    let sealed = messages.seal(7, b"the backup of db").unwrap();
    let message = messages.open(7, &sealed).unwrap();
    assert_eq!(message.plain, b"the backup of db");
    assert!(message.signer.is_full());
    assert!(messages.open(6, &sealed).is_err() && other.open(7, &sealed).is_err());
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        assert!(messages.open(7, &changed).is_err(), "byte {at}");
        assert!(messages.open(7, &sealed[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_message_names_its_signer_and_strangers_have_none() {
    let clock = Clock::new();
    let secret = Secret::new(&clock, 1);
    let (reader, writer) = (secret.messages(), secret.messages_of_writer("db*"));
    let sealed = writer.seal(0, b"done").unwrap();
    let signer = reader.open(0, &sealed).unwrap().signer;
    assert!(!signer.is_full());
    assert!(signer.may_write("db1").is_ok() && signer.may_write("files").is_err());
    assert!(writer.open(0, &reader.seal(0, b"go").unwrap()).unwrap().signer.is_full());
    // A signer that the list of writers lacks.
    let stranger = secret.stranger();
    let error = reader.open(0, &stranger.seal(0, b"go").unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("signed"), "{error}");
}

#[test]
fn a_key_that_was_removed_speaks_for_nobody() {
    let clock = Clock::new();
    let secret = Secret::new(&clock, 1);
    let id = secret.add_key(&KeyAccess::full());
    let (removed, reader) = (secret.messages_opened_by(WRITES), secret.messages_opened_by(READS));
    let sealed = removed.seal(0, b"go").unwrap();
    assert!(reader.open(0, &sealed).unwrap().signer.is_full());
    secret.remove_key(id);
    reader.refresh().unwrap();
    let error = reader.open(0, &sealed).unwrap_err();
    assert!(error.to_string().contains("was removed"), "{error}");
}
