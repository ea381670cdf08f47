//! Peak memory of whole runs.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::kit::{Place, disk};

/// Peak resident memory of a run of the program, in KiB, as the kernel counted it.
fn peak_kib(place: &Place, args: &[&str]) -> u64 {
    let silt = env!("CARGO_BIN_EXE_silt");
    // The shell waits for the program and then reads what the kernel says of its children.
    let script = "import resource,subprocess,sys;\
                  subprocess.check_call(sys.argv[1:],stdout=subprocess.DEVNULL);\
                  print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let mut command = std::process::Command::new("python3");
    command.arg("-c").arg(script).arg(silt).args(args);
    command.env("SILT_REPOSITORY", place.path("repository")).env("SILT_PASSWORD", "secret");
    let output = command.current_dir(place.folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

#[test]
fn memory_does_not_grow_with_the_disk() {
    let place = Place::new();
    let (noise, piece) = (disk(77, 16), 40_u64 << 30);
    let file = File::create(place.path("a.raw")).unwrap();
    file.set_len(piece * 8).unwrap();
    for i in 0..16 {
        let mut noise = noise.clone();
        noise.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3).wrapping_add(i));
        file.write_at(&noise, u64::from(i) * (piece / 2)).unwrap();
    }
    let backup = peak_kib(&place, &["backup", "vm", "a.raw", "-q"]);
    let restore = peak_kib(&place, &["restore", "latest", "out.raw", "-q"]);
    assert!(backup <= 64 << 10, "backup: {backup} KiB");
    assert!(restore <= 96 << 10, "restore: {restore} KiB");
}
