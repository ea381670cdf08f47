//! Booting a guest from a snapshot over NBD, against the same disk as a local qcow2 image.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::export::Served;
use crate::numbers::median;
use crate::process::Call;
use crate::{BootOptions, Result};

/// What the guest writes to its serial port once it has booted.
const READY: &str = "READY";

/// Boots the guest from an overlay above `backing`, to its end, and returns the seconds.
fn boot(options: &BootOptions, backing: &OsStr, format: &str, cold: bool) -> Result<f64> {
    let (overlay, log) = (options.work.join("overlay.qcow2"), options.work.join("serial"));
    drop(std::fs::remove_file(&overlay));
    drop(std::fs::remove_file(&log));
    let create = Call::new("qemu-img").args(&["create", "-q", "-b"]).arg(backing);
    create.args(&["-F", format, "-f", "qcow2"]).arg(&overlay).run()?;
    if cold {
        std::fs::write("/proc/sys/vm/drop_caches", "3")?;
    }
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg", "-m", "512", "-nodefaults", "-no-reboot", "-display", "none"]);
    command.arg("-serial").arg(joined("file:", &log));
    command.arg("-kernel").arg(options.guest.join("vmlinuz"));
    command.arg("-initrd").arg(options.guest.join("initrd.img"));
    command.args(["-append", "root=/dev/vda rw console=ttyS0 quiet panic=-1 no_timer_check"]);
    let drive = joined("if=virtio,format=qcow2,file=", &overlay);
    command.arg("-drive").arg(drive).stdin(Stdio::null());
    let start = Instant::now();
    let mut guest = command.spawn()?;
    let limit = Duration::from_secs(options.limit_s);
    let status = loop {
        if let Some(status) = guest.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            drop(guest.kill());
            drop(guest.wait());
            return Err(format!("the guest did not end within {} s", options.limit_s).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let seconds = start.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    if !status.success() || !said.contains(READY) {
        return Err(format!("the guest has not booted: {said}").into());
    }
    Ok(seconds)
}

/// An argument of two parts, of which the second may hold any bytes.
fn joined(first: &str, second: &Path) -> OsString {
    let mut whole = OsString::from(first);
    whole.push(second);
    whole
}

fn serve(options: &BootOptions, repository: &Path) -> Result<Served> {
    let socket = options.work.join("boot.sock");
    let mut command = Command::new(&options.silt);
    command.env("SILT_REPOSITORY", repository).env("SILT_PASSWORD", "bench");
    command.args(["serve", "nbd", "guest@latest", "--quiet", "--socket"]).arg(&socket);
    let served = Served::start(command.stderr(Stdio::null()), &socket)?;
    served.connect()?;
    Ok(served)
}

/// Boots by turns and prints the ratio.
pub fn run(options: &BootOptions) -> Result<()> {
    std::fs::create_dir_all(&options.work)?;
    let (repository, qcow2) = (options.work.join("repository"), options.work.join("disk.qcow2"));
    drop(std::fs::remove_dir_all(&repository));
    let disk = options.guest.join("disk.raw");
    Call::new("qemu-img").args(&["convert", "-O", "qcow2"]).arg(&disk).arg(&qcow2).run()?;
    let call = |args: &[&str]| {
        let call = Call::new(&options.silt).args(args);
        call.env("SILT_REPOSITORY", &repository).env("SILT_PASSWORD", "bench")
    };
    call(&["init"]).run()?;
    call(&["backup", "guest"]).arg(&disk).run()?;
    // Both start from what is in the page cache, or neither.
    boot(options, qcow2.as_os_str(), "qcow2", false)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=options.runs {
        // A new server each time: what it keeps in memory would help the next boot.
        let served = serve(options, &repository)?;
        let uri = format!("nbd+unix:///?socket={}", served.socket.display());
        let from_silt = boot(options, OsStr::new(&uri), "raw", options.cold)?;
        drop(served);
        let from_qcow2 = boot(options, qcow2.as_os_str(), "qcow2", options.cold)?;
        println!("{round}: from silt {from_silt:.2} s, from qcow2 {from_qcow2:.2} s");
        ours.push(from_silt);
        theirs.push(from_qcow2);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("boot from silt / from qcow2: {:.2} ({ours:.2} s / {theirs:.2} s)", ours / theirs);
    std::fs::remove_dir_all(&repository)?;
    for file in ["disk.qcow2", "overlay.qcow2", "serial"] {
        std::fs::remove_file(options.work.join(file))?;
    }
    Ok(())
}
