//! `silt serve replica`.

use std::io::IsTerminal;

use serde_json::json;
use silt_format::replica::ReplicaRole;
use silt_replicate::{
    Connection, KeepDeltas, ListenOptions, Listener, Replica, Stream, answer_init, serve,
};
use siltstone::{Context, Error, OptimizeOptions, ReceivedBases, Repository};

use super::replicate::{is_missing, stored};
use super::{Failure, Session, Traffic};
use crate::cli::{DeltaWhen, ServeReplica};
use crate::output;

/// The zstd level of what a replica sends: small messages.
const ANSWERS_LEVEL: i32 = 1;
/// Memory to make deltas by default, in bytes.
const DELTA_MEMORY_BYTES: u64 = 64 << 20;

/// `silt serve replica`.
pub fn run(session: &Session<'_>, args: &ServeReplica) -> Result<u8, Failure> {
    if args.listen.is_none() && std::io::stdin().is_terminal() {
        let message = "a source speaks to this command on standard input: `silt replicate --to \
                       ssh://HOST/PATH` runs it; to wait for sources use --listen ADDR:PORT";
        return Err(Failure::Usage(message.to_owned()));
    }
    let mut stream = Stream {
        reader: Box::new(std::io::stdin()),
        writer: Box::new(std::io::stdout()),
        close: Box::new(|| {}),
    };
    let mut is_made = false;
    if args.init {
        let (location, unique) = (session.location()?, session.unique());
        let create = || session.opener.create_if_missing(location, unique);
        (stream, is_made) = answer_init(stream, create)?;
    }
    let repository = session.open(Traffic::Backup, false).inspect_err(|failure| {
        if is_made {
            output::note(
                "silt: the replica was made, but cannot be opened here yet: put its password into \
                 SILT_PASSWORD_FILE or a configuration file of this user, and replicate again",
            );
        }
        if matches!(failure, Failure::Error(error) if is_missing(error)) {
            output::note("silt: `silt replicate --init` at the source makes a replica here");
        }
    })?;
    repository.require_all_keys()?;
    let keep = |context: &Context, received: &ReceivedBases| {
        keep_deltas(&repository.for_operation(context.clone()), received, session.global.memory)
    };
    // Only the administrator may replace containers of an append-only repository.
    let is_kept = args.delta != Some(DeltaWhen::Off) && !repository.is_append_only();
    let keep: Option<&KeepDeltas<'_>> = if is_kept { Some(&keep) } else { None };
    let Some(address) = args.listen else {
        let role = ReplicaRole::Replica;
        let mut connection = Connection::open(&repository, role, stream, ANSWERS_LEVEL)?;
        let replica = Replica::new(&repository, stored(session)).keeping(keep);
        serve(replica, &mut connection)?;
        return Ok(0);
    };
    let listener = Listener::bind(address)?;
    let address = listener.address()?.to_string();
    if session.global.json {
        output::message("ready", json!({"address": address}));
    } else {
        output::note(&format!("serving at {address}"));
    }
    let options = ListenOptions {
        connections_max: usize::from(args.connections_max),
        backup: stored(session),
        level: ANSWERS_LEVEL,
    };
    listener.run(&repository, &options, keep)?;
    Ok(0)
}

/// Stores what a source has sent as deltas as such.
fn keep_deltas(
    repository: &Repository,
    received: &ReceivedBases,
    memory_mib: u64,
) -> Result<(), Error> {
    let memory_bytes = if memory_mib == 0 { DELTA_MEMORY_BYTES } else { memory_mib << 20 };
    let options = OptimizeOptions { memory_bytes, ..OptimizeOptions::default() };
    repository.optimize_received(received, &options).map(drop)
}
