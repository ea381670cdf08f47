//! Small files in the published format, written by hand.

use super::{Request, Requests, ZEROS, parse, read};
use crate::measure::measure;

/// A digest of 4,096 bytes.
fn digest(content: u32) -> String {
    format!("{content:032x}")
}

/// A line of a trace: hour, first sector, operation, and the contents of its chunks.
fn line(hour: u64, lba: u64, operation: &str, contents: &[u32]) -> String {
    let digests: String = contents.iter().map(|content| digest(*content)).collect();
    let (time, sectors) = (hour * 3_600_000_000_000, contents.len() * 8);
    format!("{time} 4892 syslogd {lba} {sectors} {operation} 6 0 {digests}\n")
}

#[test]
fn a_line_is_a_request() -> crate::Result<()> {
    let text = "89966085000000 20782 kjournald (sda1) 283193191 16 W 6 1 ";
    let request = parse(&format!("{text}{}{}", digest(1), ZEROS[0]))?;
    // A partition that begins at the sector 7 of eight has its chunks as others have.
    assert_eq!((request.time_ns, request.chunk), (89_966_085_000_000, 35_399_148));
    assert_eq!((request.device, request.is_write), ((6, 1), true));
    assert!(request.prints[0] != 0 && request.prints[1] == 0, "zeros are no chunk: {request:?}");
    // Of the homes traces, eight digests are a chunk, and their order counts.
    let eighths = |first: u32| (first..first + 8).map(digest).collect::<String>();
    let of = |digests: &str| parse(&format!("0 1 x 8 8 R 6 0 {digests}"));
    let print = |request: Request| request.prints[0];
    assert_eq!(print(of(&eighths(1))?), print(of(&eighths(1).to_uppercase())?));
    assert_ne!(print(of(&eighths(1))?), print(of(&eighths(2))?));
    assert_eq!(print(of(&ZEROS[1].repeat(8))?), 0);
    Ok(())
}

#[test]
fn what_is_no_request_is_refused_with_its_line() -> crate::Result<()> {
    let md5 = digest(1);
    for (text, wrong) in [
        ("1 2 x 8 8 W 6 0".to_owned(), "fields"),
        (format!("1 2 x 8 8 D 6 0 {md5}"), "reads nor writes"),
        (format!("1 2 x 8 12 W 6 0 {md5}"), "multiple"),
        (format!("1 2 x 8 16 W 6 0 {md5}"), "other digests"),
        (format!("1 2 x 8 8 W 6 0 {}", &md5[1..]), "digits"),
        (format!("1 2 x eight 8 W 6 0 {md5}"), "number"),
        (format!("1 2 x {} 8 W 6 0 {md5}", u64::MAX), "beyond"),
    ] {
        let error = parse(&text).err().unwrap_or_default();
        assert!(error.contains(wrong), "{text}: {error}");
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), format!("\n{}{text}\n", line(0, 8, "R", &[1])))?;
        let error = read(&[file.path().to_owned()]).err().map(|error| error.to_string());
        assert!(error.unwrap_or_default().contains("line 3 "), "{text}");
    }
    Ok(())
}

/// Two files, of two days each; by hand: segments have 4,096 sectors.
#[test]
fn a_trace_has_the_statistics_that_its_lines_say() -> crate::Result<()> {
    let folder = tempfile::tempdir()?;
    let segment = |number: u64| number * 4096;
    // Four segments are read; a chunk of the first, and two of the second that are alike.
    let first = [
        line(0, segment(0), "R", &[1]),
        line(1, segment(1), "R", &[2, 2]),
        line(2, segment(2), "R", &[3]),
        line(3, segment(5), "R", &[4]),
        // Of the first day: two segments in a row and one alone, of which the last was never read.
        line(4, segment(1), "W", &[5]),
        line(5, segment(1), "W", &[6]),
        line(6, segment(2), "W", &[7]),
        line(7, segment(9), "W", &[8]),
        // What was written is read, and was not there before.
        line(8, segment(9), "R", &[8]),
    ];
    // The next day, a chunk moves, and a write changes nothing.
    let second = [line(30, segment(0), "W", &[2]), line(31, segment(5), "W", &[4])];
    // Its name is behind that of the first by number, though not as text; its times go on.
    std::fs::write(folder.path().join("homes.9.blkparse"), first.concat())?;
    std::fs::write(folder.path().join("homes.10.blkparse"), second.concat())?;
    let (trace, found) = read(&[folder.path().to_owned()])?;
    let wanted = Requests {
        reads: 5,
        writes: 6,
        days: 2,
        chunks: 6,
        segments: 5,
        known: 5,
        dirty: 5,
        runs: 4,
    };
    assert_eq!(found, wanted);
    assert!((found.changes().0 - 0.5).abs() < 1e-9 && (found.changes().1 - 1.25).abs() < 1e-9);
    let machine = &trace.machines[0];
    let changed = |day: usize| machine.days[day].changed.keys().copied().collect::<Vec<_>>();
    assert_eq!(machine.days.len(), 3);
    assert_eq!((changed(0), changed(1)), (vec![0, 1, 2, 5], vec![1, 2, 9]));
    assert_eq!(changed(2), [0], "a write of the same content changes nothing");
    let statistics = measure(&trace);
    // 1 and 2, 9, and 0 on the next day: a run may begin with the first segment.
    assert!((statistics.run - 4.0 / 3.0).abs() < 1e-9, "{statistics:?}");
    // Of five chunks, two are alike; of four changed ones, one was elsewhere the day before.
    assert!((statistics.repeated - 0.2).abs() < 1e-9, "{statistics:?}");
    assert!((statistics.moved - 0.25).abs() < 1e-9, "{statistics:?}");
    Ok(())
}

/// A file whose times begin anew is a day later, and hosts are machines that share chunks.
#[test]
fn days_follow_each_other_and_hosts_share() -> crate::Result<()> {
    let folder = tempfile::tempdir()?;
    for (host, own) in [("a", 7), ("b", 8)] {
        std::fs::create_dir(folder.path().join(host))?;
        let days = [line(1, 0, "R", &[1, own]) + &line(30, 0, "W", &[3]), line(0, 8, "W", &[4])];
        for (number, text) in days.iter().enumerate() {
            std::fs::write(folder.path().join(host).join(format!("{number}.txt")), text)?;
        }
    }
    let (trace, found) = read(&[folder.path().join("a"), folder.path().join("b")])?;
    assert_eq!((trace.machines.len(), found.days), (2, 3));
    assert_eq!(trace.machines[0].days[3].changed.len(), 1, "the second file is the third day");
    // Three different chunks, of which one is in both machines.
    assert!((measure(&trace).sharing - 4.0 / 3.0).abs() < 1e-9);
    Ok(())
}
