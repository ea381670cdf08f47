use super::*;

fn parsed(text: &str) -> Uri {
    Uri::parse(OsStr::new(text)).unwrap()
}

fn why(text: &[u8]) -> String {
    Uri::parse(OsStr::from_bytes(text)).unwrap_err().to_string()
}

#[test]
fn the_examples_of_the_specification() {
    let cases = [
        ("nbd://example.com/disk", "disk"),
        ("nbd+unix:///disk?socket=sock", "disk"),
        ("nbd://example.com/", ""),
        ("nbd://example.com", ""),
        ("nbd://example.com//disk", "/disk"),
        ("nbd://example.com/hello%20world", "hello world"),
    ];
    for (text, export) in cases {
        assert_eq!(parsed(text).export, export.as_bytes(), "{text}");
        assert_eq!(parsed(text).to_string(), text);
    }
    let of = |text: &str| parsed(text).address;
    let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
    assert_eq!(of("nbd://example.com"), tcp("example.com", 10809));
    assert_eq!(of("NBD://example.com:/x"), tcp("example.com", 10809));
    assert_eq!(of("nbd://127.0.0.1:99/x"), tcp("127.0.0.1", 99));
    assert_eq!(of("nbd://[::1]:99/x"), tcp("::1", 99));
    assert_eq!(of("nbd://[fe80::1%25eth0]"), tcp("fe80::1%eth0", 10809));
    assert_eq!(of("nbd+unix:///?socket=/run/x.sock"), Address::Unix("/run/x.sock".into()));
    assert_eq!(of("nbd+unix:///?socket=%00/abstract"), Address::Unix("\0/abstract".into()));
}

#[test]
fn bytes_need_not_be_text() {
    let uri = Uri::parse(OsStr::from_bytes(b"nbd+unix:///%ff+?socket=/tmp/\xfe%fd")).unwrap();
    assert_eq!(uri.export, b"\xff+");
    let Address::Unix(path) = &uri.address else { panic!("{:?}", uri.address) };
    assert_eq!(path.as_bytes(), b"/tmp/\xfe\xfd");
}

#[test]
fn tls_is_part_of_the_scheme() {
    assert_eq!(parsed("nbd://h").tls, None);
    let uri = parsed("nbds://h/x?tls-certificates=/etc/pki%20x&tls-hostname=disks&tls-type=x509");
    let tls = uri.tls.clone().unwrap();
    assert_eq!(tls.certificates.unwrap(), PathBuf::from("/etc/pki x"));
    assert_eq!(uri.server_name(), "disks");
    assert_eq!(parsed("nbds://h/x").server_name(), "h");
    assert_eq!(parsed("nbds+unix:///?socket=s").server_name(), "localhost");
    let kind = |text: &str| Uri::parse(OsStr::new(text)).unwrap_err().kind();
    assert_eq!(kind("nbds://alice@h/x"), ErrorKind::Unsupported);
    assert_eq!(kind("nbds://h/x?tls-psk-file=x"), ErrorKind::Unsupported);
    assert_eq!(kind("nbds://h/x?tls-verify-peer=0"), ErrorKind::Unsupported);
    assert_eq!(kind("nbd://h/x?tls-hostname=x"), ErrorKind::Invalid);
}

#[test]
fn malformed_uris_are_refused_with_a_reason() {
    let cases: [(&[u8], &str); 13] = [
        (b"http://h/x", "does not begin"),
        (b"nbd://", "no host"),
        (b"nbd:///x", "no host"),
        (b"nbd://h:x/", "port"),
        (b"nbd://h:65536/", "port"),
        (b"nbd://[::1/", "bracket"),
        (b"nbd://[::1]x/", "only a port"),
        (b"nbd://h/%4", "hexadecimal"),
        (b"nbd://h/%00", "NUL"),
        (b"nbd://h/?socket=x", "only nbd+unix"),
        (b"nbd+unix:///x", "no socket"),
        (b"nbd+unix://h/?socket=x", "three slashes"),
        (b"nbd://h/?x-y=1", "no parameter 'x-y'"),
    ];
    for (text, reason) in cases {
        let why = why(text);
        assert!(why.contains(reason), "{why}");
    }
    assert!(why(&[b"nbd://h/".as_slice(), &vec![b'a'; 20_000]].concat()).len() < 400);
    assert!(why(&[b"nbd://h/".as_slice(), &[b'a'; 4097]].concat()).contains("4096"));
}

#[test]
fn paths_are_no_uris() {
    for path in ["/dev/sda", "nbd", "nbd:/x", "./nbd://h/x", "x://nbd", "disk.qcow2", ""] {
        assert!(!Uri::is_uri(OsStr::new(path)), "{path}");
    }
    assert!(Uri::is_uri(OsStr::new("nbds+unix:///")));
}

#[test]
fn volumes_are_named_after_exports_or_sockets() {
    let name = |text: &str| parsed(text).volume_name();
    assert_eq!(name("nbd://h/vda"), "vda");
    assert_eq!(name("nbd://h/disks/vda.0"), "vda.0");
    assert_eq!(name("nbd+unix:///web1@latest:root?socket=s"), "root");
    assert_eq!(name("nbd+unix:///?socket=/run/x.sock"), "x");
    assert_eq!(name("nbd://h"), "volume");
    assert_eq!(name("nbd://h/%0a"), "volume");
}

#[test]
fn paths_of_uris_can_be_made_absolute() {
    let absolute = |text: &str| parsed(text).absolute().unwrap().into_string().unwrap();
    let here = std::env::current_dir().unwrap();
    let here = here.to_str().unwrap().replace(' ', "%20");
    let made = absolute("nbd+unix:///root?&socket=run/a%26b#x");
    assert_eq!(made, format!("nbd+unix:///root?socket={here}/run/a%26b"));
    assert_eq!(parsed(&made).address, Address::Unix(format!("{here}/run/a&b").into()));
    for same in [
        "nbd://h:10809/disks/vda",
        "nbd+unix:///?socket=/run/x.sock",
        "nbd+unix:///?socket=%00abstract",
        "nbds://h/x?tls-certificates=/etc/pki&tls-hostname=y",
    ] {
        assert_eq!(absolute(same), same);
    }
    let made = absolute("nbds://h/x?tls-hostname=y&tls-certificates=pki");
    assert_eq!(made, format!("nbds://h/x?tls-hostname=y&tls-certificates={here}/pki"));
}
