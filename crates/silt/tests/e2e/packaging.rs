//! What packages are made of: manual pages, units of systemd.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::{Place, Run, can, tool};

/// Every command has a page, and each page is as `man` and `mandoc` want it.
#[test]
fn manual_pages_are_complete_and_correct() {
    let place = Place::new();
    place.silt(&["manual", "pages", "--date", "2026-11-23"]).exits(0).says("manual pages");
    let pages: Vec<PathBuf> =
        std::fs::read_dir(place.path("pages")).unwrap().map(|it| it.unwrap().path()).collect();
    let names: BTreeSet<&str> =
        pages.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    let all = ["silt.1", "silt-backup.1", "silt-key-add.1", "silt.toml.5", "silt-buckets.7"];
    assert!(all.iter().all(|name| names.contains(name)), "{names:?}");
    assert!(!names.contains("silt-complete.1") && !names.contains("silt-manual.1"), "{names:?}");
    let text = |name: &str| std::fs::read_to_string(place.path("pages").join(name)).unwrap();
    assert!(text("silt.1").contains("password\\-file") && text("silt.1").contains("EXIT STATUS"));
    let status = text("silt-status.1");
    assert!(status.contains("EXAMPLES\n.nf\nsilt status\n"), "{status}");
    assert!(!status.contains("password\\-file"), "{status}");
    assert!(text("silt-backup.1").contains("one\\-file\\-system"));
    if can("mandoc") {
        for page in &pages {
            let page = page.to_str().unwrap();
            assert_eq!(tool("mandoc", &["-Tlint", "-Wwarning", page]), "", "{page}");
            let man = ["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page];
            let run = Run::of(Command::new("man").args(man).env("LC_ALL", "C.UTF-8")).exits(0);
            assert_eq!(run.err, "", "{page}");
        }
    }
}

#[test]
fn a_password_can_be_a_credential_of_systemd() {
    let place = Place::new();
    place.write("silt.toml", b"[profiles.default]\npassword-file = 'credential:silt-x.password'\n");
    std::fs::create_dir(place.path("credentials")).unwrap();
    let silt = |folder: Option<&str>| {
        let mut command = place.command();
        command.env_remove("SILT_PASSWORD").env("SILT_CONFIG", place.path("silt.toml"));
        command.envs(folder.map(|folder| ("CREDENTIALS_DIRECTORY", place.path(folder))));
        Run::of(command.args(["snapshots"]))
    };
    silt(Some("credentials")).exits(1).says("credentials/silt-x.password");
    place.write("credentials/silt-x.password", b"secret\n");
    silt(Some("credentials")).exits(0);
    silt(None).exits(1).says("/etc/credstore/silt-x.password");
    let run = place
        .command()
        .env_remove("SILT_PASSWORD")
        .args(["snapshots", "--password-file"])
        .arg("credential:../silt.toml")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(2));
}

/// The folder of the units.
fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd")
}

/// The lines of a service that restrict it.
fn restrictions(service: &str) -> Vec<&str> {
    let from = service.find("\n# Reads all files").unwrap();
    service[from..].lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect()
}

#[test]
fn units_are_correct_and_restricted() {
    let read = |name: &str| std::fs::read_to_string(units().join(name)).unwrap();
    let services = ["backup", "check", "forget", "optimize"]
        .map(|name| read(&format!("silt-{name}@.service")));
    assert!(restrictions(&services[0]).contains(&"ProtectSystem=strict"));
    let agent = read("silt-agent.service");
    let of_agent = agent.split("\n[Install]").next().unwrap();
    assert_eq!(restrictions(of_agent), restrictions(&services[0]));
    for service in &services {
        assert_eq!(restrictions(service), restrictions(&services[0]));
    }
    if !can("systemd-analyze") {
        return;
    }
    let place = Place::new();
    for entry in std::fs::read_dir(units()).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let name = path.file_name().unwrap().to_str().unwrap();
        place.write(name, text.replace("/usr/bin/silt", crate::PROGRAM).as_bytes());
    }
    let agent = place.text("silt-agent.service");
    tool("systemd-analyze", &["verify", "--man=no", &agent]);
    tool("systemd-analyze", &["security", "--offline=true", "--threshold=27", &agent]);
    for name in ["backup", "check", "forget"] {
        let [service, timer] =
            ["service", "timer"].map(|it| place.text(&format!("silt-{name}@a-b.{it}")));
        tool("systemd-analyze", &["verify", "--man=no", &service, &timer]);
        // 2.6 of 10; what is left is what a backup needs: root, files, devices and the network.
        tool("systemd-analyze", &["security", "--offline=true", "--threshold=27", &service]);
    }
}
