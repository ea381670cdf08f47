//! The client of S3 itself, and answers that are given to it in place of a server's.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RetryConfig,
};
use silt_format::{Advice, Error, ErrorKind};
use silt_storage::{ByteRange, Key};

use super::ObjectFolder;
use crate::counters::Counters;
use crate::failure::{Failure, WORDS};
use crate::network::Network;
use crate::witness::{Outcome, Witness, witnessed};

/// Answers every request alike, or not at all.
#[derive(Clone, Debug)]
struct Answers {
    status: Option<u16>,
    headers: &'static [(&'static str, &'static str)],
    body: String,
}

#[async_trait::async_trait]
impl HttpService for Answers {
    async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
        let Some(status) = self.status else {
            let error = std::io::Error::other("refused");
            return Err(HttpError::new(HttpErrorKind::Connect, error));
        };
        let mut answer = Response::builder().status(status);
        for (name, value) in self.headers {
            answer = answer.header(*name, *value);
        }
        Ok(answer.body(self.body.clone().into()).unwrap())
    }
}

impl HttpConnector for Answers {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Witness(HttpClient::new(self.clone()))))
    }
}

fn builder(answers: Answers) -> AmazonS3Builder {
    AmazonS3Builder::new()
        .with_bucket_name("b")
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(answers)
}

fn store(answers: Answers) -> Arc<dyn ObjectStore> {
    let keys = builder(answers).with_access_key_id("a").with_secret_access_key("s");
    Arc::new(keys.build().unwrap())
}

fn answer(status: u16, body: &str) -> Answers {
    Answers { status: Some(status), headers: &[], body: body.to_owned() }
}

fn code(status: u16, code: &str) -> Answers {
    answer(status, &format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code></Error>"))
}

fn failed(
    store: &Arc<dyn ObjectStore>,
    call: &impl AsyncFn(&dyn ObjectStore) -> object_store::Result<()>,
) -> Error {
    let (result, outcome) =
        Network::shared().unwrap().runtime().block_on(witnessed(call(&**store)));
    Failure::new(result.unwrap_err(), outcome).told("s3://b/x", "try", |_| None)
}

async fn put(store: &dyn ObjectStore) -> object_store::Result<()> {
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    store.put_opts(&Path::from("a"), "x".into(), options).await.map(drop)
}

async fn get(store: &dyn ObjectStore) -> object_store::Result<()> {
    let range = Some(GetRange::Bounded(5..10));
    store.get_opts(&Path::from("a"), GetOptions { range, ..GetOptions::default() }).await.map(drop)
}

async fn list(store: &dyn ObjectStore) -> object_store::Result<()> {
    store.list_with_delimiter(None).await.map(drop)
}

#[test]
fn every_request_has_the_kind_of_its_answer() {
    let wanted = [
        (code(404, "NoSuchBucket"), ErrorKind::NoRepository),
        (code(404, "NoSuchKey"), ErrorKind::NotFound),
        (answer(404, ""), ErrorKind::NotFound),
        (code(403, "AccessDenied"), ErrorKind::Denied),
        (answer(403, "<html>"), ErrorKind::Denied),
        (answer(401, ""), ErrorKind::Denied),
        (code(400, "ExpiredToken"), ErrorKind::Denied),
        (code(400, "RequestTimeout"), ErrorKind::Unavailable),
        (code(400, "InvalidArgument"), ErrorKind::Unsupported),
        (code(501, "NotImplemented"), ErrorKind::Unsupported),
        (code(409, "OperationAborted"), ErrorKind::Unavailable),
        (code(503, "SlowDown"), ErrorKind::Unavailable),
        (code(500, "InternalError"), ErrorKind::Unavailable),
        (answer(200, "no list"), ErrorKind::Unavailable),
        (Answers { status: None, ..answer(0, "") }, ErrorKind::Unavailable),
    ];
    for (answers, kind) in wanted {
        let is_refusal = answers.status.is_none_or(|status| status >= 300);
        let store = store(answers.clone());
        assert_eq!(failed(&store, &list).kind(), kind, "list {answers:?}");
        if is_refusal {
            assert_eq!(failed(&store, &put).kind(), kind, "put {answers:?}");
            assert_eq!(failed(&store, &get).kind(), kind, "get {answers:?}");
        }
    }
}

#[test]
fn a_name_that_is_taken_is_told_from_one_that_is_being_written() {
    let of = |answers| failed(&store(answers), &put).kind();
    assert_eq!(of(code(412, "PreconditionFailed")), ErrorKind::AlreadyExists);
    assert_eq!(of(answer(412, "")), ErrorKind::AlreadyExists);
    assert_eq!(of(answer(304, "")), ErrorKind::AlreadyExists);
    assert_eq!(of(answer(409, "")), ErrorKind::AlreadyExists);
    assert_eq!(of(code(409, "ConditionalRequestConflict")), ErrorKind::Unavailable);
}

#[test]
fn messages_hold_what_the_server_says() {
    let body = "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code>\
                <Message>no right to s3:ListBucket</Message></Error>";
    let error = failed(&store(answer(403, body)), &list).to_string();
    let wanted = "try in s3://b/x: 403 Forbidden AccessDenied no right to s3:ListBucket";
    assert_eq!(error, wanted);
    let body = "<Error><Code>InvalidRequest</Code>\
                <Message>Bucket is missing Object Lock Configuration</Message></Error>";
    let error = failed(&store(answer(400, body)), &put);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.advice(), Some(&Advice::UseBucketWithLocks), "{error}");
    assert_eq!(error.to_string(), "try: the bucket of s3://b/x has no Object Lock");
    // As much as somebody reads.
    let long = format!("<Error><Code>{}</Code></Error>", "x".repeat(1 << 20));
    assert!(failed(&store(answer(403, &long)), &list).to_string().len() < 500);
    let long = code(403, &"x".repeat(10_000));
    assert!(failed(&store(long), &list).to_string().len() < 500);
}

/// Without keys the client asks the machine for some.
#[test]
fn credentials_that_nobody_gave_are_asked_for() {
    for answers in [Answers { status: None, ..answer(0, "") }, answer(404, ""), answer(500, "")] {
        let store: Arc<dyn ObjectStore> = Arc::new(builder(answers.clone()).build().unwrap());
        let error = failed(&store, &list);
        assert_eq!(error.kind(), ErrorKind::Denied, "{answers:?}");
        assert_eq!(error.advice(), Some(&Advice::GiveS3Credentials), "{error}");
    }
}

const MODIFIED: (&str, &str) = ("last-modified", "Wed, 21 Oct 2026 07:28:00 GMT");

/// The words of each row of [`WORDS`] are those of the client that is locked.
#[test]
fn what_only_words_of_the_client_tell_has_its_kind() {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    Network::shared()
        .unwrap()
        .runtime()
        .block_on(memory.put(&Path::from("a"), "123".into()))
        .unwrap();
    let partial = |headers| Answers { headers, ..answer(206, "") };
    let none = partial(&[("content-range", "bytes */3"), ("content-length", "0"), MODIFIED]);
    let short = partial(&[("content-range", "bytes 0-2/3"), ("content-length", "3"), MODIFIED]);
    let mut found = Vec::new();
    for store in [memory, store(none), store(short)] {
        let error = failed(&store, &get);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        found.extend(WORDS.iter().filter(|(words, _)| error.to_string().contains(words)));
    }
    let denied = "<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code>\
                  <Message>no</Message></Error></DeleteResult>";
    let error = failed(&store(answer(200, denied)), &async |store: &dyn ObjectStore| {
        store.delete(&Path::from("a")).await
    });
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    found.extend(WORDS.iter().filter(|(words, _)| error.to_string().contains(words)));
    assert!(WORDS.iter().all(|words| found.contains(&words)), "{found:?}");
    for refused in [code(416, "InvalidRange"), answer(416, "")] {
        assert_eq!(failed(&store(refused), &get).kind(), ErrorKind::Invalid);
    }
}

/// A store's own rule counts before all others.
#[test]
fn a_client_may_have_a_rule_of_its_own() {
    let store = store(code(404, "NoSuchKey"));
    let folder = ObjectFolder::new(store, Network::shared().unwrap(), "x", "s3://b/x", 0);
    let key = Key::new("a").unwrap();
    let kind = |folder: &ObjectFolder| folder.head(&key).unwrap_err().kind();
    assert_eq!(kind(&folder), ErrorKind::NotFound);
    assert_eq!(kind(&folder.with_error_kinds(|_| Some(ErrorKind::Denied))), ErrorKind::Denied);
}

/// Six answers, since any may have waited for a processor; and refusals may come from elsewhere.
#[test]
fn the_soonest_of_enough_answers_tells_how_far_away_the_store_is() {
    let of = |answers| {
        let network = Network::shared().unwrap();
        ObjectFolder::new(store(answers), network, "x", "s3://b/x", 0)
    };
    let key = Key::new("a").unwrap();
    let headers = &[("content-length", "1"), MODIFIED];
    let (folder, refusing) = (of(Answers { headers, ..answer(200, "x") }), of(answer(404, "")));
    let mut bytes = Vec::new();
    for count in 1..8 {
        match count % 2 {
            0 => drop(folder.head(&key).unwrap()),
            _ => folder.get(&key, ByteRange::Full, &mut bytes).unwrap(),
        }
        assert_eq!(folder.soonest_answer_ns().is_some(), count >= 6, "{count}");
        refusing.head(&key).unwrap_err();
    }
    assert!(folder.soonest_answer_ns().unwrap() < 60_000_000_000);
    assert_eq!(refusing.soonest_answer_ns(), None);
    let (soon, late) = (Duration::from_millis(2), Duration::from_millis(30));
    let counters = Counters::default();
    for began_after in [late, late, soon, late, late, late].map(Some) {
        counters.answered(&Outcome { began_after, ..Outcome::default() });
    }
    assert_eq!(counters.soonest_answer_ns(), Some(2_000_000));
}

/// Nothing is allocated for what nobody reads at once.
#[test]
fn an_object_that_is_too_large_for_one_read_is_not_read() {
    let headers = &[("content-length", "1099511627776"), MODIFIED];
    let store = store(Answers { headers, ..answer(200, "x") });
    let folder = ObjectFolder::new(store, Network::shared().unwrap(), "x", "s3://b/x", 3);
    let mut bytes = Vec::new();
    let error = folder.get(&Key::new("a").unwrap(), ByteRange::Full, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(bytes.capacity() < 1 << 20);
    assert_eq!(folder.usage().gets, 1);
}
