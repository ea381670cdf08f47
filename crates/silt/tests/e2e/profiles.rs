//! The configuration file and its profiles.

use crate::kit::{Place, Run, disk};

const FILE: &str = r#"
default-profile = "home"

[profiles.home]
repository = "repository"
password-file = "password"
memory = 32
tags = ["nightly"]

[profiles.home.retention]
keep-last = 1

[profiles.home.series.web1]
volumes = { root = "web1.raw" }
[profiles.home.series.db1]
volumes = { root = "db1.raw", data = "web1.raw" }

[profiles.other]
repository = "elsewhere"
password-command = "echo of-other"
limit-read = 7
"#;

/// A place whose settings come from a file.
fn place() -> Place {
    let place = Place::new();
    place.write("silt.toml", FILE.as_bytes());
    place.write("password", b"secret\n");
    place.write("web1.raw", &disk(1, 4));
    place.write("db1.raw", &disk(2, 4));
    place
}

/// Runs the program without a repository and a password in its environment.
fn silt(place: &Place, arguments: &[&str]) -> Run {
    let mut command = place.command();
    command.env_remove("SILT_REPOSITORY").env_remove("SILT_PASSWORD");
    // A relative path in the file begins at its folder.
    command.current_dir("/").env("SILT_CONFIG", place.path("silt.toml"));
    Run::of(command.args(arguments))
}

#[test]
fn a_profile_says_where_and_what() {
    let place = place();
    silt(&place, &["backup"]).exits(0).says("Made snapshot of web1");
    silt(&place, &["backup", "db1"]).exits(0);
    let listed = silt(&place, &["snapshots", "--json"]).exits(0).messages();
    let series: Vec<_> = listed.iter().map(|it| it["series"].as_str().unwrap()).collect();
    assert_eq!(series, ["db1", "db1", "web1"]);
    assert_eq!(listed[0]["tags"][0], "nightly");
    assert_eq!(listed[0]["volumes"].as_array().unwrap().len(), 2);
    silt(&place, &["forget", "--dry-run"]).exits(0).says("Would delete 1 snapshot of db1");
    silt(&place, &["forget", "--keep-last", "2", "--dry-run"]).exits(0).says("Nothing to delete");
    silt(&place, &["backup", "nobody"]).exits(2).says("name the volumes of 'nobody'");
    place.silt(&["backup"]).exits(2).says("name a series and its volumes");
    // Another profile, another repository and password.
    let cheap = ["--kdf-memory", "8", "--kdf-passes", "1"];
    silt(&place, &[&["--profile", "other", "init"][..], &cheap].concat()).exits(0);
    silt(&place, &["--profile", "other", "snapshots"]).exits(0).says("No snapshots yet");
    assert!(place.path("elsewhere/config").exists());
    silt(&place, &["--profile", "none", "snapshots"]).exits(2).says("there are: home, other");
}

#[test]
fn an_option_comes_before_its_variable_and_that_before_the_profile() {
    let place = place();
    let shown = |environment: &[(&str, &str)], arguments: &[&str]| {
        let mut command = place.command();
        command.env_remove("SILT_REPOSITORY").env("SILT_CONFIG", place.path("silt.toml"));
        command.envs(environment.iter().copied()).args(["config", "show", "--json"]);
        let messages = Run::of(command.args(arguments)).exits(0).messages();
        let settings = messages[0]["settings"].as_array().unwrap().clone();
        move |key: &str| {
            let found = settings.iter().find(|setting| setting["key"] == key).unwrap();
            (found["value"].clone(), found["from"].as_str().unwrap().to_owned())
        }
    };
    let of = shown(&[], &[]);
    let home = place.text("repository");
    assert_eq!(of("repository"), (home.into(), "profile".to_owned()));
    assert_eq!(of("memory"), (32.into(), "profile".to_owned()));
    assert_eq!(of("jobs"), (0.into(), "default".to_owned()));
    let of = shown(&[("SILT_REPOSITORY", "there")], &["--memory", "48"]);
    assert_eq!(of("repository"), ("there".into(), "environment".to_owned()));
    assert_eq!(of("memory"), (48.into(), "command line".to_owned()));
    let of = shown(&[("SILT_REPOSITORY", "there")], &["-r", "here"]);
    assert_eq!(of("repository"), ("here".into(), "command line".to_owned()));
    silt(&place, &["config", "show"]).exits(0).says("Series   db1, web1");
    // A password of the environment leaves out that of the profile.
    place.write("password", b"wrong");
    silt(&place, &["snapshots"]).exits(12);
    let mut command = place.command();
    command.env("SILT_CONFIG", place.path("silt.toml"));
    Run::of(command.args(["snapshots"])).exits(0);
    // The file of the user is found without being named.
    std::fs::create_dir_all(place.path("config/silt")).unwrap();
    place.write("config/silt/silt.toml", FILE.as_bytes());
    let mut command = place.command();
    command.env("XDG_CONFIG_HOME", place.path("config"));
    Run::of(command.args(["config", "show"])).exits(0).says("Profile  home");
}

#[test]
fn errors_name_the_file_the_line_and_the_key() {
    let place = place();
    silt(&place, &["config", "check"]).exits(0).says("is correct");
    let wrong = [
        ("[profiles.a]\nrepo = \"x\"\n", "unknown field `repo`", "line 2"),
        ("[profiles.a]\n\nmemory = 7\n", "7 is not in the range 24 to", "line 3"),
        ("[profiles.a]\nwait = \"soon\"\n", "'soon'", "line 2"),
        ("[profiles.a]\nmemory = \n", "memory", "line 2"),
        ("[profiles.a.retention]\nmin-age = \"3d\"\n", "profile 'a': retention", "silt.toml"),
        ("[profiles.a.retention]\nkeep-dayly = 3\n", "unknown field `keep-dayly`", "line 2"),
        ("[profiles.a.series.x]\nvolumes = {}\n", "series.x: it has no volumes", "silt.toml"),
        ("default-profile = \"b\"\n", "has no profile 'b'", "silt.toml"),
    ];
    for (text, what, place_of_it) in wrong {
        place.write("silt.toml", text.as_bytes());
        let said = silt(&place, &["config", "check"]).exits(2).err;
        assert!(said.contains(what) && said.contains(place_of_it), "{text}: {said}");
        assert!(said.contains(&place.text("silt.toml")), "{said}");
    }
    silt(&place, &["snapshots"]).exits(2);
    silt(&place, &["version"]).exits(0);
    std::fs::remove_file(place.path("silt.toml")).unwrap();
    silt(&place, &["snapshots"]).exits(1).says("silt.toml");
    place.silt(&["--profile", "home", "snapshots"]).exits(2).says("no configuration file");
}

/// Options that have a variable, except those of passwords: two sources of a password are refused.
#[test]
fn an_option_beats_its_variable() {
    let place = Place::new();
    let file = |name: &str| place.write(name, b"[profiles.a]\njobs = 1\n[profiles.b]\njobs = 2\n");
    let (named, of_variable) = (file("named.toml"), file("variable.toml"));
    let log = place.text("named.log");
    let config = ["--config", named.as_str(), "--profile", "a"];
    let rows: [(&[&str], &str, &str, &str, &str); 6] = [
        (&["--repo", "named"], "SILT_REPOSITORY", "variable", "repository", "\"named\""),
        (&["--cache-dir", "named"], "SILT_CACHE_DIR", "variable", "cache-dir", "\"named\""),
        (&["--cache-size", "7"], "SILT_CACHE_SIZE", "8", "cache-size", "7"),
        (&["--no-cache"], "SILT_NO_CACHE", "0", "cache", "false"),
        (&config, "SILT_CONFIG", &of_variable, "file", &named),
        (&config, "SILT_PROFILE", "b", "profile", "a"),
    ];
    for (option, variable, value, key, expected) in rows {
        let mut command = place.command();
        command.args(["config", "show", "--json"]).args(option).env(variable, value);
        let shown = Run::of(&mut command).exits(0).messages().remove(0);
        if ["file", "profile"].contains(&key) {
            assert_eq!(shown[key], expected, "{variable}");
            continue;
        }
        let settings = shown["settings"].as_array().unwrap();
        let setting = settings.iter().find(|setting| setting["key"] == key).unwrap();
        assert_eq!(setting["from"], "command line", "{variable}");
        assert_eq!(setting["value"].to_string(), expected, "{variable}");
    }
    let mut command = place.command();
    command.args(["status", "--log-file", &log]).env("SILT_LOG_FILE", place.text("variable.log"));
    Run::of(&mut command).exits(0);
    assert!(place.path("named.log").exists() && !place.path("variable.log").exists());
    // It is parsed when a bucket is opened, which fails here.
    let bucket = |options: &[&str]| {
        let mut command = place.command();
        command.args(["status", "-r", "s3://none?timeout=1&retries=0"]).args(options);
        command.env("SILT_S3_CONNECTIONS", "many").env("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
        Run::of(command.env("AWS_ALLOW_HTTP", "true").env("AWS_ACCESS_KEY_ID", "none"))
    };
    bucket(&[]).says("SILT_S3_CONNECTIONS is not a number");
    let given = bucket(&["--connections", "3"]);
    assert!(!given.printed().contains("is not a number"), "{}", given.printed());
}

#[test]
fn a_backup_is_compressed_as_the_command_the_profile_or_the_repository_says() {
    let place = place();
    let lines = (0..60_000_u32).map(|line| format!("{line} op{} {:x}\n", line % 97, line * 7919));
    let log = place.write("log.raw", lines.collect::<String>().as_bytes());
    let stored = |series: &str, arguments: &[&str]| {
        let arguments = [&["backup", series, &log, "--json"][..], arguments].concat();
        silt(&place, &arguments).exits(0).summary()["stored_bytes"].as_u64().unwrap()
    };
    let of_repository = stored("a", &[]);
    let (fastest, by_level) =
        (stored("b", &["--compression", "fastest"]), stored("c", &["--compression", "-7"]));
    assert_eq!(fastest, by_level);
    let profile = FILE.replacen("memory = 32", "memory = 32\ncompression = \"best\"", 1);
    place.write("silt.toml", profile.as_bytes());
    let best = stored("d", &[]);
    assert!(best < of_repository && of_repository < fastest, "{best} {of_repository} {fastest}");
    assert_eq!(stored("e", &["--compression", "1"]), of_repository, "the option comes first");
    silt(&place, &["config", "show"]).exits(0).says("compression");
    silt(&place, &["backup", "f", &log, "--compression", "20"]).exits(2).says("fastest, fast");
    place.write("silt.toml", profile.replace("best", "bester").as_bytes());
    silt(&place, &["config", "check"]).exits(2).says("use fastest, fast, default, better, best");
}
