//! The benchmark program on small disks: it measures nothing here, it only has to work.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

/// A disk of 6 MiB: a hole, text that differs from disk to disk, and noise.
fn disk(path: &Path, salt: u8) {
    let mut bytes = vec![0; 2 << 20];
    bytes.extend((0..400_000_u32).flat_map(|n| n.wrapping_mul(0x9e37_79b1).to_be_bytes()));
    bytes.extend(std::iter::repeat_n(b"a line\n", 60_000).flatten());
    bytes.extend(vec![salt; 100_000]);
    bytes.resize(6 << 20, salt);
    std::fs::write(path, bytes).unwrap();
}

/// Disks of two machines over three days, in a folder.
fn disks() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (machine, salt) in [("a", 1), ("b", 50)] {
        for day in 0..3_u8 {
            disk(&folder.path().join(format!("{machine}.day{day}.raw")), salt + day);
        }
    }
    folder
}

/// What a command of the benchmark prints; `silt` is the program beside it.
fn bench(arguments: &[&str], folder: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_silt-bench"));
    let mut command = Command::new(program);
    command.args(arguments).arg("--work").arg(folder.join("work"));
    if !matches!(arguments[0], "sharing" | "join") {
        command.arg("--silt").arg(program.with_file_name("silt"));
    }
    if matches!(arguments[0], "sharing" | "rounds" | "throttle") {
        command.arg("--disks").arg(folder);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The cells of the row that begins like this.
fn row(text: &str, name: &str) -> Vec<f64> {
    let line = text.lines().find(|line| line.starts_with(&format!("| {name}"))).unwrap();
    line.split('|').filter_map(|cell| cell.trim().parse().ok()).collect()
}

#[test]
fn deletion_leaks_what_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let text = bench(&["deletion", "--mib", "256", "--series", "2", "--run", "64"], folder.path());
    // Deletions, predicted, counted and forecast.
    let [deletions, predicted, counted, forecast] = row(&text, "9 |")[..] else { panic!("{text}") };
    assert!((deletions - 9.0).abs() < 1e-9 && predicted > 0.15, "{text}");
    // Some 80 chunks, of which chance makes 9 more or less.
    assert!((0.3..0.9).contains(&(counted / predicted)), "{text}");
    assert!((0.6..2.0).contains(&(forecast / counted)), "{text}");
    for method in ["by summary vectors", "local, without vectors", "sweep", "the same in 8"] {
        assert!(row(&text, method)[0] > 0.0, "{text}");
    }
    assert!(row(&text, "ratio").len() == 2, "{text}");
}

/// The limit is on all backups together. How much faster they are without it is for a measurement.
#[test]
fn a_limit_on_reading_holds_for_all_backups_together() {
    let folder = disks();
    let fio = Command::new("fio").arg("--version").output().is_ok();
    let mut small = vec!["throttle", "--tasks", "1,2", "--limit-mb", "2", "--copies", "1"];
    small.extend(["--idle-s", "1"]);
    small.extend(if fio { &["--fio", "fio"][..] } else { &[] });
    let text = bench(&small, folder.path());
    // Tasks, processor, memory, read, written and hours; between them what is published.
    let (_, limited) = text.split_once("2 MB/s together").unwrap();
    let (limited, unlimited) = limited.split_once("no limit").unwrap();
    for tasks in ["1 |", "2 |"] {
        let cells = row(limited, tasks);
        let (memory, read, written, hours) = (cells[3], cells[5], cells[7], cells[9]);
        // Two segments change on each disk, of which the first passes at once.
        assert!(hours > 0.45 * 220e9 / 2e6 / 3600.0, "{text}");
        // What was changed was read, and not much more than that.
        let of_changed = read * 1e6 * hours * 3600.0 / 220e9;
        assert!((0.98..2.0).contains(&of_changed), "{of_changed}: {text}");
        assert!(memory > 10.0 && written >= 0.0, "{text}");
        assert!(row(unlimited, tasks)[8] > 0.0, "{text}");
    }
    if fio {
        for beside in ["nothing", "1 at once, 2 MB/s", "2 at once, no limit"] {
            let latency = row(&text, beside);
            assert!(latency.len() == 4 && latency.iter().all(|ms| *ms > 0.0), "{text}");
            assert!(latency[0] <= latency[1] && latency[2] <= latency[3], "{text}");
        }
    } else {
        eprintln!("SKIPPED: no fio, so that latency is not measured");
    }
}

#[test]
fn sharing_reaches_what_is_possible() {
    let folder = disks();
    let text = bench(&["sharing"], folder.path());
    let (nothing, all) = (row(&text, "nothing"), row(&text, "all duplicates"));
    assert!(nothing[1] < all[1] && all[1] > 99.0, "{text}");
    assert!((all[0] - 100.0).abs() < 0.01 && all[2] < nothing[2], "{text}");
}

#[test]
fn rounds_store_less_than_backups_one_by_one() {
    let folder = disks();
    let text = bench(&["rounds"], folder.path());
    let megabytes = |way| *row(&text, way).last().unwrap();
    assert!(megabytes("round |") < megabytes("one by one"), "{text}");
    assert!((megabytes("round |") - megabytes("round with spool")).abs() <= 1.0, "{text}");
}

#[test]
fn a_join_finds_three_of_four_requests() {
    let folder = tempfile::tempdir().unwrap();
    let found = |runs: &str| {
        let sizes = ["--entries", "200000", "--requests", "20000", "--runs", runs];
        let text = bench(&[&["join"], &sizes[..]].concat(), folder.path());
        let line = text.lines().find(|line| line.starts_with("join: ")).unwrap().to_owned();
        let numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
        numbers.take(2).collect::<Vec<f64>>()
    };
    let numbers = found("1");
    assert!((numbers[1] / numbers[0] - 0.75).abs() < 0.02, "{numbers:?}");
    assert_eq!(found("7"), numbers);
}

#[test]
fn every_workload_runs_and_is_reported() {
    let folder = disks();
    let program = Path::new(env!("CARGO_BIN_EXE_silt-bench"));
    let silt = program.with_file_name("silt");
    assert!(silt.exists(), "build the workspace: the benchmark runs {}", silt.display());
    let work = folder.path().join("work");
    let output = Command::new(program)
        .args(["run", "--systems", "silt", "--runs", "1", "--disks"])
        .arg(folder.path())
        .arg("--work")
        .arg(&work)
        .arg("--silt")
        .arg(silt)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(work.join("results.md")).unwrap();
    for workload in ["first backup", "changed map", "in place", "1 MiB", "check", "reached by silt"]
    {
        assert!(text.contains(workload), "{text}");
    }
    let json = std::fs::read_to_string(work.join("results.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["measured"].as_array().unwrap().len(), 16, "eight workloads in two ways");
    assert!(std::fs::read_to_string(work.join("results.svg")).unwrap().ends_with("</svg>\n"));
}

#[test]
fn trees_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let versions = ["one", "two"].map(|name| folder.path().join(name));
    for version in &versions {
        std::fs::create_dir(version).unwrap();
        std::fs::write(version.join("file"), version.to_str().unwrap()).unwrap();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_silt-bench"));
    let work = folder.path().join("work");
    let output = Command::new(program)
        .args(["trees", "--runs", "1", "--small-files", "10", "--work"])
        .arg(&work)
        .arg("--silt")
        .arg(program.with_file_name("silt"))
        .args(versions.iter().flat_map(|version| ["--source".as_ref(), version.as_os_str()]))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for task in ["first backup", "nothing changed", "next version", "restore", "repository of silt"]
    {
        assert!(text.contains(task), "{text}");
    }
    let json = std::fs::read_to_string(work.join("trees.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let tasks: Vec<usize> =
        json.as_array().unwrap().iter().map(|it| it["costs"].as_array().unwrap().len()).collect();
    assert_eq!(tasks, [4, 2], "the small files have no later version");
}
