//! Oddities of the handshake and of requests, said by libnbd's shell to `silt serve nbd`.

use crate::exports::Served;
use crate::kit::{Place, can, disk, tool};

/// What each session does after `h = nbd.NBD()`; `uri` and `first` (the first bytes of the disk)
/// are set, and `refused(call, errno)` is there.
const SESSIONS: [(&str, &str); 10] = [
    (
        "no flag of the handshake: the old way, zeros and all",
        "h.set_handshake_flags(0)
h.connect_uri(uri)
assert h.get_protocol() == 'newstyle', h.get_protocol()
assert not h.get_structured_replies_negotiated()
assert h.pread(512, 0) == first[:512]",
    ),
    (
        "fixed newstyle with zeros behind EXPORT_NAME",
        "h.set_handshake_flags(nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE)
h.connect_uri(uri)
assert h.pread(512, 512) == first[512:1024]",
    ),
    (
        "no structured replies: no block status, and reads as before",
        "h.set_request_structured_replies(False)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
assert not h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
assert h.pread(4096, 0) == first[:4096]
refused(lambda: h.block_status(512, 0, lambda *_: 0), None)",
    ),
    (
        "haggling goes on after refusals",
        "h.set_opt_mode(True)
h.connect_unix(socket)
for name in ['nothing@latest:root', '', 'web1@latest:nothing', 'x' * 4096]:
    h.set_export_name(name)
    refused(h.opt_info, None)
    refused(h.opt_go, None)
names = []
h.opt_list(lambda name, about: names.append(name))
assert 'web1@latest:root' in names, names
h.set_export_name('web1@latest:root')
h.opt_info()
size = h.get_size()
h.opt_go()
assert h.get_size() == size
assert h.pread(512, 0) == first[:512]",
    ),
    (
        "ABORT ends the session",
        "h.set_opt_mode(True)
h.connect_unix(socket)
h.opt_abort()
assert h.aio_is_closed() or h.aio_is_dead()",
    ),
    (
        "contexts are listed and selected, and odd ones are not",
        "h.set_opt_mode(True)
h.add_meta_context('base:')
h.add_meta_context('qemu:dirty-bitmap:x')
h.connect_unix(socket)
h.set_export_name('web1@latest:root')
found = []
h.opt_list_meta_context(lambda name: found.append(name))
assert found == ['base:allocation'], found
h.clear_meta_contexts()
h.add_meta_context('x' * 4000)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.opt_go()
assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
extents = []
h.block_status(h.get_size(), 0, lambda c, o, e, err: extents.extend(e), nbd.CMD_FLAG_REQ_ONE)
assert len(extents) == 2, extents",
    ),
    (
        "requests that the library would not send",
        "h.set_strict_mode(0)
h.connect_uri(uri)
size = h.get_size()
refused(lambda: h.pread(1, size), errno.EINVAL)
refused(lambda: h.pread(2, size - 1), errno.EINVAL)
refused(lambda: h.pread(512, 0, 1 << 9), errno.EINVAL)
refused(lambda: h.pwrite(b'x' * 512, 0), errno.EPERM)
refused(lambda: h.trim(512, 0), errno.EPERM)
refused(lambda: h.zero(512, 0, nbd.CMD_FLAG_FAST_ZERO), errno.EINVAL, errno.EPERM)
refused(lambda: h.block_status(512, 0, lambda *_: 0), errno.EINVAL)
h.flush(nbd.CMD_FLAG_FUA)
h.cache(4096, 0)
assert h.pread(3, 7) == first[7:10]",
    ),
    (
        "one chunk with DF, and EOVERFLOW where that can't be",
        "h.set_strict_mode(0)
h.connect_uri(uri)
chunks = []
def chunk(data, offset, status, error):
    chunks.append((offset, len(data), status))
assert h.pread_structured(65536, 0, chunk, nbd.CMD_FLAG_DF) == first[:65536]
assert len(chunks) == 1 and chunks[0][:2] == (0, 65536), chunks
refused(lambda: h.pread(8 << 20, 0, nbd.CMD_FLAG_DF), errno.EOVERFLOW)",
    ),
    (
        "many requests under way when the client says goodbye",
        "h.connect_uri(uri)
buffers = [nbd.Buffer(65536) for _ in range(60)]
cookies = [h.aio_pread(buffer, 65536 * i) for i, buffer in enumerate(buffers)]
h.aio_disconnect()
while not (h.aio_is_closed() or h.aio_is_dead()):
    h.poll(-1)
for i, (cookie, buffer) in enumerate(zip(cookies, buffers)):
    assert h.aio_command_completed(cookie)
    assert bytes(buffer.to_bytearray()) == first[65536 * i:65536 * (i + 1)], i",
    ),
    (
        "TLS that the server has not",
        "h.set_tls(nbd.TLS_REQUIRE)
refused(lambda: h.connect_uri(uri.replace('nbd+unix', 'nbds+unix')), None)",
    ),
];

#[test]
fn the_server_bears_what_libnbd_can_say() {
    if !can("nbdsh") {
        return;
    }
    let (place, image) = (Place::new(), disk(7, 12));
    let raw = place.write("root.raw", &image);
    place.silt(&["backup", "web1", &format!("root={raw}")]).exits(0);
    let served = Served::start(&place, &[]);
    let uri = served.uri("web1@latest:root");
    let socket = place.text("socket");
    for (what, session) in SESSIONS {
        let script = format!(
            "import errno, nbd
def refused(call, *numbers):
    try:
        call()
    except nbd.Error as error:
        assert numbers == (None,) or error.errnum in numbers, error
    else:
        raise AssertionError('it was not refused')
uri, socket = {uri:?}, {socket:?}
first = open({raw:?}, 'rb').read()
h = nbd.NBD()
{session}
print('done')"
        );
        let path = place.write("session.py", script.as_bytes());
        assert_eq!(tool("python3", &[&path]), "done", "{what}");
        // The next client is served, whatever this one has said.
        assert_eq!(tool("nbdinfo", &["--size", &uri]), image.len().to_string(), "{what}");
    }
    served.end().exits(0);
}
