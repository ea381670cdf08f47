//! The evaluation program on a small trace: all tables and plots are there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

fn eval(arguments: &[&str], folder: &Path) -> String {
    let program = env!("CARGO_BIN_EXE_silt-eval");
    let output = Command::new(program).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn disks_are_recorded_and_every_table_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let noise = |seed: u32, bytes: u32| {
        (0..bytes / 4).flat_map(move |n| (n ^ seed).wrapping_mul(0x9e37_79b1).to_be_bytes())
    };
    for (machine, own) in [("a", 1_u32 << 30), ("b", 1 << 31)] {
        for day in 0..3_u32 {
            let mut disk: Vec<u8> = noise(0, 6 << 20).chain(noise(own, 2 << 20)).collect();
            disk.resize(10 << 20, 0);
            let start = usize::try_from(day).unwrap() << 20;
            disk[start..start + 4096].fill(u8::try_from(day).unwrap() + 1);
            std::fs::write(folder.path().join(format!("{machine}.day{day}.raw")), disk).unwrap();
        }
    }
    let recorded = eval(&["record", "--disks", ".", "--trace", "t"], folder.path());
    assert!(recorded.contains("2 machines, 3 days"), "{recorded}");
    let small = ["--machines", "8", "--segments", "4", "--scale", "0.0005", "--trials", "20"];
    let few = ["--deletion-segments", "64", "--exchange-hosts", "2", "--claim-segments", "16"];
    let all = [&["tables", "--out", "out", "--trace", "t"], &small[..], &few[..]].concat();
    let text = eval(&all, folder.path());
    for title in [
        "Efficiency of the schemes, 2 recorded",
        "counted and placed, 8 generated",
        "hosts fail in groups, 2 recorded",
        "exchange",
        "Scheduling",
        "Sensitivity",
        "Efficiency over the memory of the index, 2 recorded",
        "Copies of popular data: GB of a host, 2 recorded",
        "Milliseconds of a dirty segment, 2 recorded",
        "(001, figure 3)",
        "(001, figure 4)",
        "(001, figure 5)",
        "(001, figure 6)",
        "Hours over the size of the cluster",
        "Resources of a host",
        "Metadata over the network",
        "Leaks of deletions",
        "Repair interval",
        "One deletion in each of 8 series",
        "Deletion in a cluster",
    ] {
        assert!(text.contains(title), "{title} in {text}");
    }
    // The disks have 6 MiB in common, and each day changes one chunk.
    let row = text.split("Efficiency of the schemes, 2 recorded machines").nth(1).unwrap();
    let row = |name: &str| row.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    // 2,048 chunks each on three days; 1,536 and two times 512 are different, and what is written
    // to both disks on each day.
    let left = f64::from(1536 + 2 * 512 + 3) / f64::from(2 * 3 * 2048) * 100.0;
    let synchronous = row("| synchronous");
    assert!(synchronous.contains(&format!("| {left:.2} |")), "{synchronous} for {left}");
    // Dirty bits leave the whole first day, then a segment of 512 chunks, then two.
    let dirty = f64::from(2 * (2048 + 512 + 2 * 512)) / f64::from(2 * 3 * 2048) * 100.0;
    assert!(row("| dirty bits").contains(&format!("| {dirty:.2} |")), "{}", row("| dirty bits"));
    assert!(folder.path().join("out/RESULTS.md").exists());
    // Every table has a plot, in which something is drawn within the frame.
    let files = std::fs::read_dir(folder.path().join("out")).unwrap();
    let tables = files
        .map(|file| file.unwrap().path())
        .filter(|file| file.extension().is_some_and(|it| it == "csv"));
    let tables: Vec<_> = tables.collect();
    assert!(tables.len() > 30, "{tables:?}");
    for table in tables {
        let svg = std::fs::read_to_string(table.with_extension("svg"));
        let svg = svg.unwrap_or_else(|error| panic!("{}: {error}", table.display()));
        let drawn = svg.matches("<circle").count() + svg.matches("<rect").count();
        assert!(drawn > 3 && !svg.contains("NaN") && !svg.contains("inf"), "{}", table.display());
    }
}

#[test]
fn similarity_replication_writes_every_table() {
    let folder = tempfile::tempdir().unwrap();
    let noise = |seed: u32, bytes: u32| -> Vec<u8> {
        let words = (0..bytes / 4).map(|n| (n ^ seed).wrapping_mul(0x9e37_79b1));
        words.flat_map(|word| (word ^ word >> 15).wrapping_mul(0x85eb_ca6b).to_be_bytes()).collect()
    };
    for version in 0..2_u32 {
        let name = format!("v{version}");
        std::fs::create_dir_all(folder.path().join(&name).join("part")).unwrap();
        for file in 0..8_u32 {
            let mut bytes = noise(file << 20, 100_000);
            bytes.splice(5000..5000, vec![7; usize::try_from(version).unwrap() * 100]);
            let path = folder.path().join(&name).join("part").join(format!("{file}.txt"));
            std::fs::write(path, bytes).unwrap();
        }
        let disk = folder.path().join(format!("m.day{version}.raw"));
        std::fs::write(disk, noise(version << 28, 3 << 20)).unwrap();
    }
    let all = ["neptune", "--out", "out", "--mb", "1", "--versions", "v0", "v1", "--disks", "."];
    let text = eval(&all, folder.path());
    let titles =
        ["Sets (input)", "Figure 3", "Figure 4", "Figures 5", "Table I", "Figure 7", "Figure 10"];
    for title in
        titles.iter().chain(&["A3", "A2", "Sensitivity", "begins anew", "Not in this command"])
    {
        assert!(text.contains(title), "{title} in {text}");
    }
    // Of each file of the second version, one chunk is another one, and that is sent as a delta.
    let row = |name: &str| {
        let part = text.split("scheme, versions of a tree").nth(1).unwrap();
        let line = part.lines().find(|line| line.starts_with(name)).unwrap();
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        cells[2].parse::<f64>().unwrap()
    };
    let (full, exact, standard) = (row("| full"), row("| deduplication"), row("| standard"));
    assert!(full > 0.8 && exact < full / 3.0, "{full} and {exact}");
    assert!(standard < exact / 4.0, "{standard} and {exact}");
    for file in ["NEPTUNE.md", "figure-3.svg", "figure-7.svg", "table-1.csv", "groups.csv"] {
        assert!(folder.path().join("out").join(file).exists(), "{file}");
    }
    let one = eval(&["neptune", "--out", "one", "--mb", "1", "--ways", "cbd"], folder.path());
    assert!(one.contains("| cluster-based") && !one.contains("| standard"), "{one}");
}
