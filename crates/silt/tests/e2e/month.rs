//! A month of eight machines with a bad day of each kind, by the program itself under a clock that
//! is turned.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::kit::{Place, Run, can, changed, damage, disk, faketime_library, tool};

const MACHINES: [&str; 8] = ["db1", "db2", "mail", "web1", "web2", "web3", "wiki", "work"];
const DAYS: usize = 30;
const DAY_S: i64 = 86_400;
/// The second of February of 2026, a Monday, at two in the morning.
const BEGINNING_S: i64 = 1_769_997_600;
const ADMINISTRATOR: &str = "administrator's";
/// What lets tests derive keys fast.
const CHEAP: [&str; 4] = ["--kdf-memory", "8", "--kdf-passes", "1"];

struct Month {
    place: Place,
    /// What turns the clock of a program. Run by `faketime`, that would be the child of another
    /// process, which is not killed with it.
    library: String,
    /// Seconds since 1970, for all but a machine whose clock is wrong.
    now_s: i64,
    /// The folders of the repository, the first of which may be on a small file system.
    folders: [String; 2],
    images: BTreeMap<&'static str, Vec<u8>>,
    living: BTreeMap<String, Vec<u8>>,
}

impl Month {
    fn new() -> Self {
        let place = Place::new();
        let folders = [place.text("disk1/silt"), place.text("disk2/silt")];
        std::fs::create_dir(place.path("disk1")).unwrap();
        std::fs::create_dir(place.path("disk2")).unwrap();
        if can("tmpfs") {
            tool("mount", &["-t", "tmpfs", "-o", "size=300m", "tmpfs", &place.text("disk1")]);
        }
        let images = (0..).zip(MACHINES).map(|(seed, name)| {
            let image = [disk(1000, 1), disk(seed, 1)].concat();
            (name, image)
        });
        let (images, living) = (images.collect(), BTreeMap::new());
        let library = faketime_library();
        let month = Self { place, library, now_s: BEGINNING_S, folders, images, living };
        month.administrator(&[&["init", "--append-only"], &CHEAP[..]].concat()).exits(0);
        for machine in MACHINES {
            month.add_key(machine);
        }
        month.administrator(&["copies", "add", &month.folders[1]]).exits(0);
        month
    }

    /// A command at this second, of whoever has this password.
    fn at(&self, now_s: i64, password: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_silt"));
        command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("TZ", "UTC");
        command.env("LD_PRELOAD", &self.library).env("FAKETIME", format!("@{}", clock(now_s)));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        command.env("SILT_REPOSITORY", &self.folders[0]).env("SILT_PASSWORD", password);
        command.env("XDG_STATE_HOME", self.place.path(&format!("state-{password}")));
        command.current_dir(self.place.folder.path()).stdin(Stdio::null());
        command
    }

    /// Who reads everything, and has the administrator's password.
    fn administrator(&self, args: &[&str]) -> Run {
        let mut command = self.at(self.now_s, "reads", args);
        Run::of(command.env("SILT_ADMIN_PASSWORD", ADMINISTRATOR))
    }

    fn add_key(&self, machine: &str) {
        let args = [&["key", "add", "--write-only", "--series", machine], &CHEAP[..]].concat();
        let mut command = self.at(self.now_s, "reads", &args);
        command.env("SILT_ADMIN_PASSWORD", ADMINISTRATOR).env("SILT_NEW_PASSWORD", machine);
        Run::of(&mut command).exits(0);
    }

    /// What changes on a machine in a day, and its backup with the machine's own password.
    fn back_up(&mut self, machine: &'static str, day: usize, ahead_s: i64) -> Run {
        self.now_s += 600;
        let image = changed(&self.images[machine], day);
        self.place.write(&format!("{machine}.raw"), &image);
        self.images.insert(machine, image.clone());
        let args = ["backup", machine, &format!("{machine}.raw"), "--json"];
        let run = Run::of(&mut self.at(self.now_s + ahead_s, machine, &args));
        if run.code == 0 {
            let id = run.summary()["id"].as_str().unwrap().to_owned();
            self.living.insert(id, image);
        }
        run
    }

    fn all_fail(&mut self, day: usize, code: i32, why: &str) {
        for machine in MACHINES {
            self.back_up(machine, day, 0).exits(code).says(why);
        }
    }

    /// Removes by rule what is too old, and gives its space back.
    fn forget(&mut self) {
        let args = ["forget", "--keep-daily", "7", "--keep-weekly", "3", "--yes", "--reclaim"];
        self.administrator(&args).exits(0);
        let listed = self.listed();
        self.living.retain(|id, _| listed.contains(id));
        assert_eq!(listed.len(), self.living.len(), "a rule keeps what was made");
    }

    fn listed(&self) -> Vec<String> {
        let messages = self.administrator(&["snapshots", "--json"]).exits(0).messages();
        messages.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    /// The first object of a kind in the first folder, by its path below it.
    fn object(&self, below: &str) -> String {
        self.first_object(below).unwrap()
    }

    fn first_object(&self, below: &str) -> Option<String> {
        let mut found = Vec::new();
        let folder = &self.folders[0];
        walk(&Path::new(folder).join(below), &mut found);
        found.sort();
        let path = found.first()?;
        path.strip_prefix(&format!("{folder}/")).map(str::to_owned)
    }

    fn bad_day(&mut self, day: usize) {
        match day {
            // A typing error.
            2 => {
                let rule = ["forget", "--keep-tag", "nigthly", "--reclaim", "--yes"];
                self.administrator(&rule).exits(13);
                assert_eq!(self.listed().len(), self.living.len());
            }
            // A machine is killed in the middle; another, in its first backup.
            3 => {
                self.add_key("new");
                for series in ["mail", "new"] {
                    let mut command = self.at(self.now_s, series, &["backup", series, "-"]);
                    let piped = command.stdin(Stdio::piped()).stderr(Stdio::null());
                    let mut killed = piped.spawn().unwrap();
                    let mut input = killed.stdin.take().unwrap();
                    input.write_all(&disk(99, 9)).unwrap();
                    wait(Duration::from_millis(200));
                    killed.kill().unwrap();
                    killed.wait().unwrap();
                }
                self.now_s += 1000;
            }
            // A disk flips bits, and is healed by the other.
            5 => {
                for kind in ["containers", "recipes", "snapshots", "summaries"] {
                    damage(&Path::new(&self.folders[0]).join(self.object(kind)));
                }
                self.administrator(&["check", "--read-data"]).exits(0).says("`silt copies heal`");
                let healed = self.administrator(&["copies", "heal", "--read-data"]).exits(0);
                healed.says("4 replaced");
            }
            // A restore over what somebody needs, and the same beside it.
            7 => {
                self.administrator(&["restore", "web1@latest", "web1.raw"]).exits(13);
                self.administrator(&["restore", "web1@latest", "other.raw"]).exits(0);
                assert!(self.place.read("other.raw") == self.images["web1"]);
            }
            // A place is gone; it is taken off the list, and comes back later as it was.
            8 => {
                tool("mv", &[&self.place.text("disk2"), &self.place.text("away")]);
                self.all_fail(day, 1, "cannot be reached");
                self.administrator(&["copies", "remove", &self.folders[1]]).exits(0);
            }
            11 => {
                tool("mv", &[&self.place.text("away"), &self.place.text("disk2")]);
                self.administrator(&["copies", "add", &self.folders[1]]).exits(0);
            }
            15 => self.every_kind_is_damaged(),
            _ => self.other_bad_day(day),
        }
    }

    /// An object of every kind that is there is damaged on one disk: all is read from the other,
    /// and healed by it.
    fn every_kind_is_damaged(&self) {
        let kinds = [
            "containers",
            "dead",
            "recipes",
            "runs",
            "series",
            "snapshots",
            "summaries",
            "root/keys",
            "root/writers",
        ];
        let folder = Path::new(&self.folders[0]);
        let there = kinds.into_iter().filter(|kind| folder.join(kind).exists());
        let mut hurt: Vec<String> = there.filter_map(|kind| self.first_object(kind)).collect();
        hurt.extend([self.newest_head(), "config".to_owned(), "authority".to_owned()]);
        assert!(hurt.len() >= 10, "{hurt:?}");
        hurt.iter().for_each(|name| damage(&folder.join(name)));
        self.administrator(&["restore", "db1@latest", "db1.out"]).exits(0);
        assert!(self.place.read("db1.out") == self.images["db1"]);
        let healed = self.administrator(&["copies", "heal", "--read-data"]).exits(0);
        healed.says(&format!("{} replaced", hurt.len()));
    }

    fn other_bad_day(&mut self, day: usize) {
        match day {
            // The clock of one machine is four days ahead.
            13 => {
                self.back_up("db2", day, 4 * DAY_S).exits(0);
                self.administrator(&["restore", "db2@latest", "db2.out"]).exits(0).says("future");
            }
            // A disk is full, and then it can only be read.
            17 if can("tmpfs") => self.no_room(day),
            // The newest head of a series is damaged in both places.
            20 => {
                let lost =
                    self.back_up("wiki", day, 0).summary()["id"].as_str().unwrap().to_owned();
                let head = self.newest_head();
                for folder in self.folders.clone() {
                    damage(&Path::new(&folder).join(&head));
                }
                self.administrator(&["snapshots"]).exits(5).says("wiki");
                self.administrator(&["recover", "wiki"]).exits(0);
                self.living.remove(&lost);
                assert_eq!(self.listed().len(), self.living.len());
            }
            // Somebody deletes the wrong one.
            22 => {
                self.administrator(&["delete", "db1@latest"]).exits(0);
                let listed = self.listed();
                let gone = self.living.keys().find(|id| !listed.contains(id)).unwrap();
                self.administrator(&["undelete", gone]).exits(0);
            }
            // A password may be in the wrong hands.
            24 => {
                let keys = self.administrator(&["key", "list", "--json"]).exits(0).messages();
                let is_work = |key: &&serde_json::Value| key["series"][0] == "work";
                let id = keys.iter().find(is_work).unwrap()["id"].as_str().unwrap().to_owned();
                self.administrator(&["key", "remove", &id]).exits(0);
                self.back_up("work", day, 0).exits(12);
                self.add_key("work");
            }
            // The second disk is mounted elsewhere from now on.
            26 => {
                let new = self.place.text("moved");
                tool("mv", &[&self.place.text("disk2"), &new]);
                let old = std::mem::replace(&mut self.folders[1], format!("{new}/silt"));
                self.administrator(&["copies", "move", &old, &self.folders[1]]).exits(0);
                self.administrator(&["copies", "add", &self.folders[1]]).exits(0);
            }
            _ => {}
        }
    }

    /// Nothing can be added; what frees room still works. Then nothing can be changed at all.
    fn no_room(&mut self, day: usize) {
        let mounted = self.place.text("disk1");
        let filler = format!("{mounted}/filler");
        let file = std::fs::File::create(&filler).unwrap();
        std::io::copy(&mut std::io::repeat(7), &mut &file).unwrap_err();
        let before = self.images.insert("mail", disk(77, 16)).unwrap();
        self.back_up("mail", day, 0).exits(1).says("space");
        self.images.insert("mail", before);
        self.forget();
        drop(file);
        std::fs::remove_file(filler).unwrap();
        // The kernel may still be closing what was open for writing.
        let remount = format!(
            "for i in $(seq 50); do mount -o remount,ro '{mounted}' && exit; sleep 0.1; done; \
             exit 1"
        );
        tool("sh", &["-c", &remount]);
        self.all_fail(day, 13, "Read-only");
        self.administrator(&["check"]).exits(0);
        let restored = self.administrator(&["restore", "mail@latest", "mail.out"]);
        tool("mount", &["-o", "remount,rw", &mounted]);
        restored.exits(0);
    }

    /// The head that was written last, by its path below a folder.
    fn newest_head(&self) -> String {
        let (mut found, folder) = (Vec::new(), &self.folders[0]);
        walk(&Path::new(folder).join("state"), &mut found);
        found.retain(|path| path.contains("/heads/"));
        let written = |path: &String| std::fs::metadata(path).unwrap().modified().unwrap();
        let newest = found.into_iter().max_by_key(written).unwrap();
        newest.strip_prefix(&format!("{folder}/")).unwrap().to_owned()
    }

    fn end(mut self) {
        self.forget();
        self.now_s += 2 * DAY_S;
        for _ in 0..2 {
            let all = ["reclaim", "--sweep", "--min-dead", "0", "--keep-deleted", "0s"];
            self.administrator(&all).exits(0);
        }
        let check = self.administrator(&["check", "--read-data", "--json"]).exits(0).summary();
        assert_eq!(
            (&check["damaged_objects"], &check["unreferenced_objects"]),
            (&0.into(), &0.into())
        );
        let heal = ["copies", "heal", "--read-data", "--dry-run"];
        self.administrator(&heal).exits(0).says("0 would be copied, 0 would be replaced");
        assert!(self.living.len() >= 8 * 7, "{}", self.living.len());
        for (id, image) in &self.living {
            self.administrator(&["restore", id, "out.raw", "--force"]).exits(0);
            assert!(self.place.read("out.raw") == *image, "{id}");
        }
    }
}

impl Drop for Month {
    fn drop(&mut self) {
        // It may not be mounted.
        drop(Command::new("umount").arg(self.place.path("disk1")).stderr(Stdio::null()).status());
    }
}

fn walk(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { walk(&path, found) } else { found.push(path.display().to_string()) }
    }
}

#[expect(clippy::disallowed_methods, reason = "another process is to get on")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// A time as faketime takes it.
fn clock(now_s: i64) -> String {
    tool("date", &["-u", "-d", &format!("@{now_s}"), "+%Y-%m-%d %H:%M:%S"])
}

#[test]
fn after_a_month_of_bad_days_everything_that_was_kept_is_there_and_nothing_else() {
    if !can("faketime") {
        return;
    }
    let mut month = Month::new();
    for day in 0..DAYS {
        month.now_s = BEGINNING_S + i64::try_from(day).unwrap() * DAY_S;
        for machine in MACHINES {
            month.back_up(machine, day, 0).exits(0);
        }
        month.bad_day(day);
        if day % 7 == 6 {
            month.forget();
        }
        if day % 10 == 9 {
            month.administrator(&["popular", "build"]).exits(0);
        }
    }
    month.end();
}
