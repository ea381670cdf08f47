//! A name node and a data node of HDFS of a test's own, in a temporary folder.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use silt_hdfs::HdfsStorage;
use silt_storage::{Key, PutMode, Storage};
use tempfile::TempDir;

/// A running name node with one data node.
pub struct Hadoop {
    nodes: Vec<Child>,
    port: u16,
    _folder: TempDir,
}

/// Where `scripts/setup.sh` installs it.
#[expect(clippy::disallowed_methods, reason = "a test looks for the server where it is installed")]
fn jars() -> Option<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share"));
    let folder = data.or_else(home)?.join("silt-tests/hadoop");
    folder.join("complete").exists().then_some(folder)
}

fn write_settings(folder: &Path, name: &str, settings: &[(&str, String)]) {
    let property = |(name, value): &(&str, String)| {
        format!("<property><name>{name}</name><value>{value}</value></property>")
    };
    let properties: String = settings.iter().map(property).collect();
    let text = format!("<configuration>{properties}</configuration>");
    std::fs::write(folder.join(name), text).unwrap();
}

impl Hadoop {
    /// Starts both; where they are missing the test is skipped, unless it may not be.
    #[expect(clippy::print_stdout, reason = "a skipped test says so")]
    #[expect(clippy::disallowed_methods, reason = "a server takes its time; CI says what it needs")]
    pub fn start() -> Option<Self> {
        let Some(jars) = jars() else {
            let required = std::env::var("SILT_TESTS_REQUIRED").unwrap_or_default();
            assert!(!required.split_whitespace().any(|word| word == "hdfs"), "hdfs is required");
            println!("SKIPPED: this test needs Hadoop; scripts/setup.sh installs it");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let any = || "127.0.0.1:0".to_owned();
        let below = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let address = format!("hdfs://127.0.0.1:{port}");
        write_settings(folder.path(), "core-site.xml", &[("fs.defaultFS", address)]);
        let settings = [
            ("dfs.namenode.name.dir", below("names")),
            ("dfs.datanode.data.dir", below("data")),
            ("dfs.replication", "1".to_owned()),
            ("dfs.permissions.enabled", "false".to_owned()),
            ("dfs.namenode.http-address", any()),
            ("dfs.datanode.address", any()),
            ("dfs.datanode.http.address", any()),
            ("dfs.datanode.ipc.address", any()),
        ];
        write_settings(folder.path(), "hdfs-site.xml", &settings);
        let classes = format!("{}:{}/*", folder.path().display(), jars.display());
        let start = |class: &str, arguments: &[&str]| {
            let mut java = Command::new("java");
            java.args(["-Xmx256m", "-cp", &classes]);
            java.arg(format!("org.apache.hadoop.hdfs.server.{class}")).args(arguments);
            java.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        assert!(start("namenode.NameNode", &["-format"]).wait().unwrap().success());
        let nodes = vec![start("namenode.NameNode", &[])];
        let mut hadoop = Self { nodes, port, _folder: folder };
        // The data node gives up where there is no name node.
        Self::wait(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
        hadoop.nodes.push(start("datanode.DataNode", &[]));
        Self::wait(|| hadoop.takes_objects());
        Some(hadoop)
    }

    /// An address for a folder.
    pub fn location(&self, folder: &str) -> String {
        format!("hdfs://127.0.0.1:{}/{folder}", self.port)
    }

    fn takes_objects(&self) -> bool {
        let storage = HdfsStorage::open(&self.location("started"), None).unwrap();
        let key = Key::new("x").unwrap();
        let put = storage.put(&key, &[b"x"], PutMode::Create);
        put.is_ok() && storage.delete(&[key]).is_ok()
    }

    #[expect(clippy::disallowed_methods, reason = "a server takes its time to start")]
    fn wait(is_there: impl Fn() -> bool) {
        for _ in 0..300 {
            if is_there() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("hdfs does not start");
    }
}

impl Drop for Hadoop {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}
