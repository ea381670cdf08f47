//! The plan of the house, as rules: which crate may use which, no two modules that need each other,
//! and files that a person can read.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crates from the bottom up: each may use those before it, and no other.
const CRATES: [&str; 30] = [
    "format",
    "chunking",
    "similarity",
    "routing",
    "report",
    "storage",
    "remote",
    "source",
    "tree",
    "repository",
    "throttle",
    "runs",
    "import",
    "backup",
    "replicate",
    "sharing",
    "engine",
    "cluster",
    "files",
    "export",
    "terminal",
    "location",
    "agent",
    "cli",
    "sim",
    "silt",
    "eval-neptune",
    "eval-routing",
    "eval",
    "bench",
];
/// Programs outside of the workspace, each with a lock file of its own.
const PROGRAMS: [&str; 1] = ["silt-hdfs"];
/// What a release build stays bearable with.
const PACKAGES_MAX: usize = 350;
const FILE_LINES_MAX: usize = 500;
const CRATE_LINES_MAX: usize = 9_000;
/// A program outside of the workspace adds a kind of storage, and leaves the rest to the library.
const PROGRAM_LINES_MAX: usize = 1_000;
const COLUMNS_MAX: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every Rust file below a folder, with its text.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found.sort();
    found
}

/// Lines that are neither blank nor comments.
fn code_lines(text: &str) -> usize {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    text.lines().filter(is_code).count()
}

/// Without what only tests compile.
fn product(text: &str) -> &str {
    text.split_once("#[cfg(test)]").map_or(text, |(product, _)| product)
}

/// The names behind `crate::` in a file, also those in braces.
fn used(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let (mut depth, mut name) = (0, String::new());
            for letter in list.chars() {
                match letter {
                    '}' if depth == 0 => break,
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => found.extend(first_name(&std::mem::take(&mut name))),
                    letter if depth == 0 => name.push(letter),
                    _ => {}
                }
            }
            found.extend(first_name(&name));
        } else {
            found.extend(first_name(rest));
        }
    }
    found
}

fn first_name(path: &str) -> Option<String> {
    let name: String =
        path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// The rooms of a crate, which are the files and folders below `src`, and which uses which.
fn rooms(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut rooms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in files(source) {
        let below = path.strip_prefix(source).unwrap();
        let room = below.components().next().unwrap().as_os_str().to_str().unwrap();
        let room = room.trim_end_matches(".rs").to_owned();
        if room != "lib" && room != "main" {
            rooms.entry(room).or_default().extend(used(product(&text)));
        }
    }
    let names: BTreeSet<String> = rooms.keys().cloned().collect();
    for (room, uses) in &mut rooms {
        uses.retain(|name| names.contains(name) && name != room);
    }
    rooms
}

/// A way from a room back to itself, if there is one.
fn cycle(rooms: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn follow(
        rooms: &BTreeMap<String, BTreeSet<String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> bool {
        let here = way.last().unwrap().clone();
        for next in &rooms[&here] {
            if let Some(at) = way.iter().position(|room| room == next) {
                way.drain(..at);
                way.push(next.clone());
                return true;
            }
            if !done.contains(next) {
                way.push(next.clone());
                if follow(rooms, way, done) {
                    return true;
                }
                way.pop();
            }
        }
        done.insert(here);
        false
    }
    let mut done = BTreeSet::new();
    rooms.keys().find_map(|room| {
        let mut way = vec![room.clone()];
        (!done.contains(room) && follow(rooms, &mut way, &mut done)).then_some(way)
    })
}

/// Every package's folder below the root, and how many lines of code it may have.
fn packages() -> impl Iterator<Item = (String, usize)> {
    let crates = CRATES.iter().map(|name| (format!("crates/{name}"), CRATE_LINES_MAX));
    crates.chain(PROGRAMS.iter().map(|name| (format!("programs/{name}"), PROGRAM_LINES_MAX)))
}

#[test]
fn no_two_modules_of_a_crate_need_each_other() {
    for (folder, _) in packages() {
        let rooms = rooms(&root().join(&folder).join("src"));
        assert!(!rooms.is_empty(), "{folder}");
        assert_eq!(cycle(&rooms), None, "in {folder}");
    }
}

#[test]
fn a_cycle_is_found() {
    let room = |name: &str, uses: &[&str]| {
        (name.to_owned(), uses.iter().map(|&name| name.to_owned()).collect())
    };
    let rooms = BTreeMap::from([room("a", &["b"]), room("b", &["c"]), room("c", &["b"])]);
    assert_eq!(cycle(&rooms).unwrap(), ["b", "c", "b"]);
    let text = "use crate::{map::{self, Once}, objects}; crate::keys::of()";
    assert_eq!(used(text).into_iter().collect::<Vec<_>>(), ["keys", "map", "objects"]);
}

#[test]
fn crates_use_those_below_them() {
    let folder = root().join("crates");
    assert_eq!(names_in(&folder), CRATES.iter().map(|&name| name.to_owned()).collect());
    for (at, name) in CRATES.iter().enumerate() {
        let manifest = std::fs::read_to_string(folder.join(name).join("Cargo.toml")).unwrap();
        let product = manifest.split("[dev-dependencies]").next().unwrap();
        for above in &CRATES[at..] {
            let package =
                if *above == "engine" { "siltstone".to_owned() } else { format!("silt-{above}") };
            let is_used =
                product.lines().any(|line| line.starts_with(&format!("{package}.workspace")));
            assert!(!is_used, "crates/{name} uses crates/{above}, which is above it");
        }
    }
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let packages = lock.matches("[[package]]").count();
    assert!(packages <= PACKAGES_MAX, "{packages} packages are locked");
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The tables of a manifest whose names begin so, without that beginning.
fn tables(manifest: &str, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for table in manifest.split("\n[").filter_map(|table| table.strip_prefix(prefix)) {
        let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        found.insert(lines.collect::<Vec<_>>().join("\n"));
    }
    found
}

/// Storages keep bytes, whatever is in them.
#[test]
fn storages_know_nothing_of_the_format_but_its_errors() {
    let known = ["Advice", "Error", "ErrorKind", "Result", "ResultExt", "number"];
    for (path, text) in files(&root().join("crates/storage")) {
        for (at, _) in text.match_indices("silt_format::") {
            let rest = &text[at + "silt_format::".len()..];
            let names = rest.strip_prefix('{').and_then(|list| list.split_once('}'));
            let names: Vec<String> = match names {
                Some((list, _)) => list.split(',').filter_map(first_name).collect(),
                None => first_name(rest).into_iter().collect(),
            };
            for name in names {
                assert!(known.contains(&name.as_str()), "{}: {name}", path.display());
            }
        }
    }
}

/// They cannot inherit from the workspace, so what they say again must be the same.
#[test]
fn programs_outside_of_the_workspace_have_its_rules() {
    let folder = root().join("programs");
    assert_eq!(names_in(&folder), PROGRAMS.iter().map(|&name| name.to_owned()).collect());
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let lints = tables(&workspace, "workspace.lints.");
    assert_eq!(lints.len(), 2);
    for name in PROGRAMS {
        let manifest = std::fs::read_to_string(folder.join(name).join("Cargo.toml")).unwrap();
        assert_eq!(tables(&manifest, "lints."), lints, "{name}");
        for profile in ["profile.release]", "profile.dev]", "profile.dev.package.\"*\"]"] {
            assert_eq!(tables(&manifest, profile), tables(&workspace, profile), "{name}");
        }
        assert!(folder.join(name).join("Cargo.lock").exists(), "{name} has a lock file");
    }
}

/// Whether a line is too long. A row of a table in a comment may be.
fn is_long(line: &str) -> bool {
    let is_row = line.trim_start().starts_with("//") && line.contains("| ");
    line.chars().count() > COLUMNS_MAX && !is_row
}

#[test]
fn a_long_line_is_found() {
    let long = "x".repeat(COLUMNS_MAX);
    assert!(!is_long(&long) && is_long(&format!("{long}x")) && is_long(&format!("// {long}")));
    assert!(is_long(&format!("{long}.map(|it| it)")), "a closure is no table");
    assert!(!is_long(&format!("    /// | {long} | table |")));
}

#[test]
fn files_and_lines_can_be_read() {
    let clippy = std::fs::read_to_string(root().join("clippy.toml")).unwrap();
    assert!(clippy.contains("too-many-lines-threshold = 70"), "functions are kept to 70 lines");
    let mut wrong = Vec::new();
    for (folder, lines_max) in packages() {
        let mut all = 0;
        for (path, text) in files(&root().join(&folder)) {
            let lines = code_lines(&text);
            let shown = path.strip_prefix(root()).unwrap().display().to_string();
            if path.components().any(|part| part.as_os_str() == "src") {
                all += lines;
                if lines > FILE_LINES_MAX {
                    wrong.push(format!("{shown} has {lines} lines of code"));
                }
            }
            let long = (1..).zip(text.lines()).filter(|(_, line)| is_long(line));
            wrong.extend(long.map(|(number, _)| {
                format!("{shown}:{number} is longer than {COLUMNS_MAX} columns")
            }));
        }
        if all > lines_max {
            wrong.push(format!("{folder} has {all} lines of code"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The string literals of Rust code, with escapes other than line continuations left as they are.
fn literals(code: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), code);
    while let Some(at) = rest.find(['"', '\'', '/', 'r']) {
        let (before, here) = rest.split_at(at);
        let hashes = here[1..].bytes().take_while(|&byte| byte == b'#').count();
        let is_word = before.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
        let end = if here.starts_with("//") {
            here.find('\n')
        } else if here.starts_with('r') && here[1 + hashes..].starts_with('"') && !is_word {
            let (start, close) = (2 + hashes, format!("\"{}", "#".repeat(hashes)));
            let length = here[start..].find(&close).unwrap();
            found.push(here[start..start + length].to_owned());
            Some(start + length + close.len())
        } else if here.starts_with('"') {
            let (text, end) = quoted(here);
            found.push(text);
            Some(end)
        } else if here.starts_with("'\"'") || here.starts_with("'\\") {
            // A character that would look like a quote. Others, and lifetimes, do no harm.
            here[2..].find('\'').map(|length| 2 + length.max(1) + 1)
        } else {
            Some(1)
        };
        let Some(end) = end else { break };
        rest = &here[end..];
    }
    found
}

/// The text of the literal at the beginning of `code`, and where the code goes on.
fn quoted(code: &str) -> (String, usize) {
    let (mut text, mut letters) = (String::new(), code.char_indices().skip(1).peekable());
    while let Some((at, letter)) = letters.next() {
        match (letter, letters.peek()) {
            ('"', _) => return (text, at + 1),
            ('\\', Some((_, '\n'))) => {
                while letters.next_if(|(_, letter)| letter.is_whitespace()).is_some() {}
            }
            ('\\', _) => {
                text.push(letter);
                text.extend(letters.next().map(|(_, escaped)| escaped));
            }
            _ => text.push(letter),
        }
    }
    panic!("a string without an end: {code}");
}

/// Returns the first word of a message that a library may not use: the name of the program, a flag,
/// or an environment variable. Literals without a space are not messages.
fn forbidden(message: &str) -> Option<&str> {
    let of_others = PROGRAMS_OF_OTHERS.iter().any(|other| message.contains(other));
    let mut braces = 0_usize;
    let ends_word = |letter: char| {
        // The names in `{}` are of constants and variables of the code.
        braces += usize::from(letter == '{');
        let is_inside = braces > 0;
        braces -= usize::from(letter == '}' && is_inside);
        is_inside || !(letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_'))
    };
    let mut words = message.split(ends_word).filter(|_| message.contains(' '));
    words.find(|word| {
        let is_flag = word
            .strip_prefix("--")
            .is_some_and(|name| name.starts_with(|letter: char| letter.is_ascii_lowercase()));
        let is_variable = word.contains('_')
            && word.starts_with(|letter: char| letter.is_ascii_uppercase())
            && !word.contains(|letter: char| letter.is_ascii_lowercase());
        *word == "silt" || (is_flag && !of_others) || (is_variable && !OTHERS.contains(word))
    })
}

/// Programs whose flags a message may name, because the user runs them beside this one.
const PROGRAMS_OF_OTHERS: [&str; 5] = ["qemu-img", "nbdinfo", "rbd", "restic", "borg"];

/// Names that other programs define: a text of S3 servers, and the variable of systemd's sockets.
const OTHERS: [&str; 2] = ["CONTENT_RANGE", "LISTEN_FDS"];

/// Programs that embed the libraries have other commands, flags and variables. So a message says
/// what to do by an `Advice`, which the program words.
#[test]
fn no_message_of_a_library_names_a_command_a_flag_or_a_variable() {
    let mut found = Vec::new();
    let libraries: Vec<_> = CRATES.iter().take_while(|name| **name != "terminal").collect();
    assert!(libraries.contains(&&"remote") && libraries.contains(&&"export"));
    for name in libraries {
        let source = root().join("crates").join(name).join("src");
        let (tests, servers) = (Path::new("tests.rs"), source.join("server"));
        for (path, text) in files(&source) {
            // Not part of the program: tests, and the servers that tests start.
            if path.ends_with(tests) || (*name == "remote" && path.starts_with(&servers)) {
                continue;
            }
            for message in literals(product(&text)) {
                let word = forbidden(&message);
                found.extend(word.map(|word| format!("{}: {word}: {message}", path.display())));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_message_that_names_a_command_is_found() {
    let code = r##"
        // "no literal"
        fn f<'a>(it: &'a str) -> char { '"' }
        let one = format!("run `silt \
                           umount {folder}` first \"now\"");
        let two = [r#"pass --force" "#, "plain", '\''.to_string() + "two words"];
    "##;
    let texts = literals(code);
    assert_eq!(texts[0], r#"run `silt umount {folder}` first \"now\""#);
    assert_eq!(texts[1..], [r#"pass --force" "#, "plain", "two words"]);
    let named: Vec<_> = texts.iter().map(|text| forbidden(text)).collect();
    assert_eq!(named, [Some("silt"), Some("--force"), None, None]);
    assert_eq!(forbidden("unset SILT_S3_LOCK"), Some("SILT_S3_LOCK"));
    assert_eq!(forbidden("set AWS_REGION first"), Some("AWS_REGION"));
    assert_eq!(forbidden("{} of {max:?}: pass --force"), Some("--force"));
    for allowed in ["AWS_REGION", "run qemu-img --x", "a -- b", "most {BYTES_MAX} {:?}", "silt"] {
        assert_eq!(forbidden(allowed), None, "{allowed}");
    }
}

/// A public type of `siltstone`, or a re-export of names that may be types.
struct Public {
    /// The names; several where one `use` has braces.
    names: Vec<String>,
    /// Whether they are defined in another crate.
    is_foreign: bool,
    /// Whether they are re-exported rather than defined.
    is_use: bool,
    documentation: String,
}

/// Whether a name is one of a type or a trait: constants are in capitals, the rest in lower case.
fn names_a_type(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && (name.len() == 1 || name.contains(|c: char| c.is_ascii_lowercase()))
}

/// The public types that a file defines or re-exports, with their documentation.
fn public_types(text: &str) -> Vec<Public> {
    let (mut found, mut documentation) = (Vec::new(), String::new());
    let mut lines = product(text).lines();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("///") {
            documentation.push_str(text.strip_prefix(' ').unwrap_or(text));
            documentation.push('\n');
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let documentation = std::mem::take(&mut documentation);
        let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type ", "pub union "];
        if let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) {
            let names = first_name(rest).into_iter().collect();
            found.push(Public { names, is_foreign: false, is_use: false, documentation });
        } else if let Some(path) = line.strip_prefix("pub use ") {
            let mut path = path.to_owned();
            while !path.contains(';') {
                path.push_str(lines.next().unwrap());
            }
            let (room, list) = path.rsplit_once("::").map_or(("", &path[..]), |parts| parts);
            let room = room.split_once("::{").map_or(room, |(room, _)| room);
            assert!(path.matches('{').count() <= 1, "one list in a `use`: {path}");
            let list = path.split_once('{').map_or(list, |(_, list)| list);
            let shown = list.split(',').map(|name| name.rsplit(" as ").next().unwrap());
            let names = shown.filter_map(|name| first_name(name.trim_start_matches('{')));
            let names = names.filter(|name| names_a_type(name)).collect();
            let is_foreign = room.split("::").next().is_some_and(|it| it.starts_with("silt_"));
            assert!(!is_foreign || !path.contains('*'), "name what is re-exported: {path}");
            found.push(Public { names, is_foreign, is_use: true, documentation });
        }
    }
    found
}

/// Whether a text has an example that runs and asserts something.
fn has_example(documentation: &str) -> bool {
    let mut blocks = documentation.split("```");
    let _prose = blocks.next();
    // Every second block is code; what follows the fence on its line would change how it is run.
    blocks.step_by(2).any(|code| code.starts_with('\n') && code.contains("assert"))
}

/// The types that are public in these files and have no example: on their definition in this
/// crate, or on the one line that re-exports them from another.
fn without_example(files: &[String]) -> BTreeSet<String> {
    let all: Vec<Public> = files.iter().flat_map(|text| public_types(text)).collect();
    let (mut shown, mut public) = (BTreeSet::new(), BTreeSet::new());
    for item in &all {
        let own = !item.is_use || (item.is_foreign && item.names.len() == 1);
        if own && has_example(&item.documentation) {
            shown.extend(item.names.iter().cloned());
        }
        if item.is_use {
            public.extend(item.names.iter().cloned());
        }
    }
    &public - &shown
}

#[test]
fn every_public_type_of_the_library_has_an_example() {
    let files = files(&root().join("crates/engine/src"));
    let texts: Vec<String> = files.into_iter().map(|(_, text)| text).collect();
    let public = texts.iter().flat_map(|text| public_types(text)).filter(|item| item.is_use);
    let types: BTreeSet<String> = public.flat_map(|item| item.names).collect();
    for name in ["Repository", "Storage", "VolumeSource", "Snapshot", "CostModel", "Result"] {
        assert!(types.contains(name), "{name} is not found: {types:?}");
    }
    assert_eq!(without_example(&texts), BTreeSet::new());
}

#[test]
fn a_type_without_an_example_is_found() {
    let example = "/// One.\n///\n/// ```\n/// assert!(true);\n/// ```\n";
    let missing =
        |text: &str| -> Vec<String> { without_example(&[text.to_owned()]).into_iter().collect() };
    let none: [&str; 0] = [];
    assert_eq!(missing(&format!("{example}pub use silt_a::One;")), none);
    assert_eq!(missing("/// One.\npub use silt_a::One;"), ["One"]);
    assert_eq!(
        missing(&format!("{example}pub use silt_a::{{\n    One, Two,\n}};")),
        ["One", "Two"]
    );
    assert_eq!(missing("pub use silt_a::{LIMIT, Three, function};"), ["Three"]);
    let own = "mod b;\npub use b::Four;\n";
    assert_eq!(missing(&format!("{own}{example}#[derive(Debug)]\npub struct Four;")), none);
    assert_eq!(missing(&format!("{own}{example}pub fn five() {{}}\npub struct Four;")), ["Four"]);
    for fence in ["```text", "```ignore", "```no_run"] {
        let other = example.replacen("```", fence, 1);
        assert_eq!(missing(&format!("{own}{other}pub struct Four;")), ["Four"], "{fence}");
    }
    let idle = example.replace("assert!(true)", "let _ = 1");
    assert_eq!(missing(&format!("{own}{idle}pub struct Four;")), ["Four"]);
}
