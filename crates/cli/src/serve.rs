//! The arguments of the servers.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::replicate::{ServeReplica, address};

#[derive(Subcommand)]
pub enum Serve {
    /// Show volumes of snapshots as read-only block devices, by the NBD protocol
    #[command(after_help = "Examples:
  silt serve nbd --socket /run/silt.sock
  silt serve nbd --socket /run/silt.sock web1@latest:root
  silt serve nbd --listen 0.0.0.0:10809 --tls-cert server.pem --tls-key server.key \\
    --tls-client-ca clients.pem

A client names the export as it would name a volume to restore: web1@latest:root,
web1@2026-11-20:data, 3f9a01bc:root. With one volume on the command line it may omit the name:
  nbdinfo --list 'nbd+unix:///?socket=/run/silt.sock'
  nbdcopy 'nbd+unix:///web1@latest:root?socket=/run/silt.sock' root.raw
  qemu-img create -f qcow2 -F raw -b 'nbd+unix:///web1@latest:root?socket=/run/silt.sock' \\
    trial.qcow2
  nbdinfo --map=silt:changed-since:3f9a01bc 'nbd+unix:///web1@latest:root?socket=/run/silt.sock'")]
    Nbd(ServeNbd),
    /// Take snapshots that `silt replicate` sends from another machine
    #[command(after_help = "Examples:
  silt serve replica -r /backup/replica --listen 0.0.0.0:7420
  silt serve replica -r /backup/replica --init

By default the command serves one source on standard input and output, and ends.
`silt replicate --to ssh://HOST/PATH` starts it on the other machine. A key in authorized_keys there
can be limited to it, and then reaches only this repository:
  restrict,command=\"silt serve replica -r /backup/replica --init\" ssh-ed25519 AAAA...

Only a source with the secret of this repository is let in. It can only add snapshots.")]
    Replica(ServeReplica),
}

#[derive(Args)]
pub struct ServeNbd {
    /// The volumes to show, looked up once when the server starts. By default every volume of every
    /// snapshot can be opened by its name.
    #[arg(value_name = "SNAPSHOT[:VOLUME]")]
    pub snapshots: Vec<String>,
    /// Listen on a Unix socket that only you can use.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Listen on a TCP address. TLS is required except on loopback, or with --no-tls.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// The server's certificate with its chain, as PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, as PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Let in only clients with a certificate of one of these authorities, as PEM. Without it
    /// anyone who reaches the port can read the volumes.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Listen without TLS: anyone on the network can read the volumes.
    #[arg(long, conflicts_with = "tls_cert")]
    pub no_tls: bool,
    /// Exit when no client was connected for this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<u64>,
    /// Allow at most this many connections at once.
    #[arg(long, default_value_t = 64, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections_max: u16,
    #[arg(long, hide = true, env = "LISTEN_FDS")]
    pub listen_fds: Option<String>,
    #[arg(long, hide = true, env = "LISTEN_PID")]
    pub listen_pid: Option<String>,
}
