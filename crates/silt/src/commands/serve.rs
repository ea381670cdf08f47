//! `silt serve`.

use std::sync::Arc;

use jiff::tz::TimeZone;
use serde_json::json;
use silt_export::catalog::{Catalog, CatalogOptions};
use silt_export::nbd::{Exports, Listener, Server, ServerOptions, TlsOptions, TlsServer};

use super::{Failure, Session, Traffic};
use crate::cli::{Serve, ServeNbd};
use crate::output;

/// Most threads of a connection: more find nothing to do where a volume is near.
const THREADS_MAX: usize = 4;

pub fn run(session: &Session<'_>, args: &Serve) -> Result<u8, Failure> {
    match args {
        Serve::Nbd(args) => nbd(session, args),
        Serve::Replica(args) => super::serve_replica::run(session, args),
    }
}

fn nbd(session: &Session<'_>, args: &ServeNbd) -> Result<u8, Failure> {
    let tls = tls(args)?;
    let listeners = listeners(args, tls.is_some())?;
    let repository = session.open(Traffic::Restore, false)?;
    let memory_bytes = session.global.memory << 20;
    let zone = TimeZone::system();
    let options = CatalogOptions { memory_bytes, zone, ..CatalogOptions::default() };
    let catalog = Arc::new(Catalog::new(repository, options));
    let exports = if args.snapshots.is_empty() {
        Exports::all(catalog)
    } else {
        Exports::of(catalog, &args.snapshots)?
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if session.global.jobs == 0 { cores } else { session.global.jobs };
    let options = ServerOptions {
        connections_max: usize::from(args.connections_max),
        threads: threads.clamp(1, THREADS_MAX),
        idle_exit_ns: args.idle_exit.map(|seconds| seconds.saturating_mul(1_000_000_000)),
        tls,
    };
    let server = Server::new(exports, options);
    for listener in &listeners {
        let uri = listener.uri("");
        if session.global.json {
            output::message("ready", json!({"address": uri}));
        } else {
            output::note(&format!("serving at {uri}"));
        }
    }
    server.run(&listeners)?;
    Ok(0)
}

fn tls(args: &ServeNbd) -> Result<Option<TlsServer>, Failure> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    let options = TlsOptions {
        certificate: certificate.clone(),
        key: key.clone(),
        client_authority: args.tls_client_ca.clone(),
    };
    Ok(Some(options.load()?))
}

fn listeners(args: &ServeNbd, has_tls: bool) -> Result<Vec<Listener>, Failure> {
    let usage = |message: &str| Failure::Usage(message.to_owned());
    // Whether a port is reached from elsewhere is known before it is opened.
    if args.listen.is_some_and(|address| !address.ip().is_loopback()) && !has_tls && !args.no_tls {
        return Err(refused());
    }
    let (fds, pid) = (args.listen_fds.as_deref(), args.listen_pid.as_deref());
    let mut listeners = Listener::handed_over(fds, pid)?;
    if listeners.iter().any(|listener| !listener.is_local()) && !has_tls && !args.no_tls {
        return Err(refused());
    }
    listeners.extend(args.socket.as_deref().map(Listener::unix).transpose()?);
    listeners.extend(args.listen.map(Listener::tcp).transpose()?);
    if listeners.is_empty() {
        return Err(usage("pass an address to listen on: --socket PATH or --listen ADDR:PORT"));
    }
    Ok(listeners)
}

fn refused() -> Failure {
    Failure::Usage(
        "without TLS everybody on the network could read the volumes: use --tls-cert, --tls-key \
         and --tls-client-ca, or --socket with an SSH tunnel; --no-tls listens anyway"
            .to_owned(),
    )
}
