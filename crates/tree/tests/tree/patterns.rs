//! Exclude patterns, compared with git.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use silt_format::ErrorKind;
use silt_tree::{PATTERN_BYTES_MAX, Rules, Step};

use crate::kit::{Scratch, has, walk_all};

/// Makes a tree whose names consist of few letters, so that patterns match some of them.
fn tree(root: &Path) -> Vec<String> {
    let files = [
        "a", "b/a", "b/b/a", "b/b/ab", "b/c/a", "b/c/b/a", "abc", "aXc", "A", "x.o", "b/x.o",
        "b/.x", ".x", "d/[a]", "d/{a,b}", "d/a b", "d/ a", "d/a\\", "d/!a", "d/#a", "d/-", "d/]",
        "d/^", "d/*", "d/a*", "d/?", "d/1", "d/\u{e9}", "d/_", "d/a,b", "d/B/a", "d/**",
    ];
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
    }
    fs::create_dir_all(root.join("b/e")).unwrap();
    let mut all: BTreeSet<String> = files.iter().map(|&file| file.to_owned()).collect();
    for file in files {
        let parts: Vec<&str> = file.split('/').collect();
        all.extend((1..parts.len()).map(|depth| parts[..depth].join("/")));
    }
    all.insert("b/e".into());
    all.into_iter().collect()
}

/// Returns the paths that a walk leaves out.
fn left_out(root: &Path, all: &[String], patterns: &str, ignores_case: bool) -> BTreeSet<String> {
    let mut rules = Rules::default();
    rules.exclude_lines(patterns.as_bytes(), ignores_case).unwrap();
    let above = root.to_str().unwrap().len() + 1;
    let reached = walk_all(root, &rules, |walk, step| match step {
        Step::Enter(found) | Step::Entry(found) => {
            String::from_utf8(walk.path_of(&found)).unwrap().get(above..).map(str::to_owned)
        }
        _ => None,
    });
    let reached: BTreeSet<String> = reached.into_iter().flatten().collect();
    all.iter().filter(|path| !reached.contains(*path)).cloned().collect()
}

/// Returns the paths that git ignores.
fn ignored(scratch: &Scratch, all: &[String], patterns: &str, case: bool) -> BTreeSet<String> {
    let file = scratch.path("patterns");
    fs::write(&file, patterns).unwrap();
    let mut git = Command::new("git");
    git.arg(format!("--git-dir={}", scratch.path("git").display()));
    git.arg(format!("--work-tree={}", scratch.path("tree").display()));
    git.args(["-c", &format!("core.excludesFile={}", file.display())]);
    git.args(["-c", &format!("core.ignoreCase={case}")]);
    git.args(["check-ignore", "--no-index", "-z", "--stdin"]);
    git.current_dir(scratch.path("tree")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = git.spawn().unwrap();
    child.stdin.take().unwrap().write_all(all.join("\0").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{:?}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

fn with_git(test: impl FnOnce(&Scratch, &[String])) {
    if !has("git") {
        return;
    }
    let scratch = Scratch::new();
    let all = tree(&scratch.folder("tree"));
    crate::kit::tool("git", &["init", "-q", "--bare", "git"].map(OsStr::new), &scratch.path(""));
    test(&scratch, &all);
}

/// Returns patterns with every element of the syntax, and malformed ones.
const CASES: &[&str] = &[
    "a",
    "/a",
    "b/",
    "a/",
    "*.o",
    "/*.o",
    "b/a",
    "**/a",
    "b/**",
    "b/**/a",
    "/**/a",
    "**",
    "/*",
    "*",
    "b/*",
    "b/*/a",
    "[ab]",
    "[!a]",
    "[^a]",
    "[a-c]",
    "[]]",
    "[]a]",
    "[a-]",
    "[-a]",
    "[\\]]",
    "[[:digit:]]",
    "[![:alpha:]]",
    "[[:upper:]]",
    "[",
    "[a",
    "[]",
    "d/[[]a]",
    "\\[a\\]",
    "{a,b}",
    "d/{a,b}",
    "\\*",
    "a\\*",
    "a\\",
    "a\\\\",
    "\\!a",
    "\\#a",
    "#a",
    "!a",
    "a\\ b",
    "a b ",
    "a ",
    "\\ a",
    " a",
    "?",
    "a?c",
    "a*c",
    "*\n!a",
    "/*\n!/b",
    "b\n!b/a",
    "*\n!*/\n!x.o",
    "b/**\n!b/b/\n!b/b/ab",
    ".*",
    ".x",
    "b//a",
    "//a",
    "/",
    "a**",
    "**a",
    "b/**a",
    "a**c",
    "***",
    "b/***/a",
    "[a-c-z]",
    "[z-a]",
    "[!]a]",
    "d/[*]",
    "d/[?]",
    "d/[^^]",
    "d/[!!]",
    "d/[,]",
    "a,b",
    "*,*",
    "b/\n!b/",
    "!b/\nb/",
    "\u{e9}",
    "d/[[:punct:]]",
    "d/[[:space:]a]*",
    "b/e/",
    "*/a",
    "**/b/**",
    "**/**/a",
    "b/**/**/a",
    "[[:bad:]]",
    "d/[a[:digit:]]",
    "\\a",
    "d/\\1",
    "",
    "!",
    "!/",
    "\\",
    "b/?",
    "d/[/]",
    "b[/]a",
    "/[//[ab]",
    "[/b]",
    "b/[//a]",
    "b[//]/a",
    "b\\//a",
    "**\\/a",
    "b/**\\/a",
    "/**\\/b/a",
    "***\\/a",
    "**\\//a",
    "**\\/",
    "**/**\\/a",
    "\\**\\/a",
    "b[!x]a",
    "b?a",
    "[!x]*",
    "^",
    "]",
    "d/]",
    "-",
];

#[test]
fn patterns_mean_what_they_mean_to_git() {
    with_git(|scratch, all| {
        let mut differ = Vec::new();
        for &case in CASES {
            let (ours, theirs) = (
                left_out(&scratch.path("tree"), all, case, false),
                ignored(scratch, all, case, false),
            );
            if ours != theirs {
                let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
                    a.difference(b).cloned().collect::<Vec<_>>()
                };
                differ.push((case, only(&ours, &theirs), only(&theirs, &ours)));
            }
        }
        assert!(differ.is_empty(), "pattern, only ours, only git's: {differ:#?}");
    });
}

fn pattern() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => Just("a"), 4 => Just("b"), 2 => Just("c"), 3 => Just("*"), 2 => Just("?"),
        3 => Just("**"), 5 => Just("/"), 2 => Just("[ab]"), 1 => Just("[!a]"), 1 => Just("[^b-z]"),
        2 => Just("d"), 1 => Just(".x"), 1 => Just("\\"), 1 => Just("["), 1 => Just("]"),
        1 => Just("{"), 1 => Just("}"), 1 => Just(","), 1 => Just("-"), 1 => Just("[[:alnum:]]"),
        1 => Just(" "), 1 => Just("!"), 1 => Just("#"), 1 => Just("."), 1 => Just("B"),
        1 => Just("[]-]"),
    ];
    let start = prop_oneof![3 => Just(""), 1 => Just("!"), 1 => Just("/"), 1 => Just("**/")];
    let end = prop_oneof![4 => Just(""), 1 => Just("/"), 1 => Just("/**"), 1 => Just("/*")];
    (start, prop::collection::vec(part, 1..6), end)
        .prop_map(|(start, parts, end)| format!("{start}{}{end}", parts.concat()))
        // Contrary to its manual, git reads `b**/a` as `b` followed by `**/a`.
        .prop_filter("two asterisks within a name", |pattern| {
            pattern.match_indices("**").all(|(at, _)| {
                let before = pattern[..at].trim_end_matches('*');
                before.is_empty() || before == "!" || before.ends_with('/')
            })
        })
}

#[test]
fn random_patterns_mean_what_they_mean_to_git() {
    with_git(|scratch, all| {
        let config = ProptestConfig { failure_persistence: None, ..Default::default() };
        let patterns = prop::collection::vec(pattern(), 1..4);
        proptest!(config, |(patterns in patterns)| {
            let text = patterns.join("\n");
            prop_assert_eq!(
                left_out(&scratch.path("tree"), all, &text, false),
                ignored(scratch, all, &text, false),
                "{:?}", text
            );
        });
    });
}

#[test]
fn case_is_ignored_where_it_is_asked_for() {
    with_git(|scratch, all| {
        for case in ["A", "B/", "[A-C]", "AbC", "X.O"] {
            let ours = left_out(&scratch.path("tree"), all, case, true);
            assert!(!ours.is_empty());
            assert_eq!(ours, ignored(scratch, all, case, true), "{case}");
        }
    });
}

/// Git compares bytes, too.
#[test]
fn patterns_that_are_not_utf8_match_the_bytes_of_names() {
    if !has("git") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("tree");
    let names: [&[u8]; 7] =
        [b"caf\xe9", b"caf\xc3\xa9", b"na\xefve.txt", b"\xff", b"d\xe9", b"CAF\xe9", b"caf\xff"];
    for name in names {
        let path = root.join(OsStr::from_bytes(name));
        if *name == *b"d\xe9" { fs::create_dir(path) } else { fs::write(path, b"") }.unwrap();
    }
    fs::write(root.join(OsStr::from_bytes(b"d\xe9/x")), b"").unwrap();
    crate::kit::tool("git", &["init", "-q", "--bare", "git"].map(OsStr::new), &scratch.path(""));
    let patterns: [&[u8]; 11] = [
        b"caf\xe9",
        b"caf[\xe0-\xef]",
        b"*\xef*",
        b"/d\xe9/",
        b"d\xe9/x",
        b"\\\xff",
        b"c*\xa9",
        b"[!\xff]",
        b"caf[!\xe9]",
        b"*\n!caf\xe9",
        b"caf*\n!caf\xff",
    ];
    for pattern in patterns {
        for ignores_case in [false, true] {
            let mut rules = Rules::default();
            rules.exclude_lines(pattern, ignores_case).unwrap();
            let left_out = walk_all(&root, &rules, |_, step| match step {
                Step::Excluded(name, _) => name,
                _ => Vec::new(),
            });
            let left_out: BTreeSet<Vec<u8>> = left_out.into_iter().collect();
            let ours: Vec<_> = names.iter().filter(|name| left_out.contains(**name)).collect();
            fs::write(scratch.path("patterns"), pattern).unwrap();
            let mut git = Command::new("git");
            git.arg(format!("--git-dir={}", scratch.path("git").display()));
            git.arg(format!("--work-tree={}", root.display()));
            git.args(["-c", &format!("core.excludesFile={}", scratch.path("patterns").display())]);
            git.args(["-c", &format!("core.ignoreCase={ignores_case}")]);
            git.args(["check-ignore", "--no-index", "-z", "--stdin"]);
            git.current_dir(&root).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = git.spawn().unwrap();
            child.stdin.take().unwrap().write_all(&names.join(&0)).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(matches!(output.status.code(), Some(0 | 1)), "{:?}", output.status);
            let theirs: Vec<&[u8]> = output.stdout.split(|&byte| byte == 0).collect();
            let theirs: Vec<_> = names.iter().filter(|name| theirs.contains(name)).collect();
            assert_eq!(ours, theirs, "{} {ignores_case}", pattern.escape_ascii());
        }
    }
}

#[test]
fn patterns_are_bounded_and_files_of_windows_are_read() {
    let mut rules = Rules::default();
    let long = rules.exclude("a".repeat(PATTERN_BYTES_MAX + 1), false).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::Invalid);
    let lines = ["ok\n", &"a".repeat(PATTERN_BYTES_MAX + 1)].concat();
    let long = rules.exclude_lines(lines.as_bytes(), false).unwrap_err();
    assert!(long.to_string().contains("line 2"));
    let mut rules = Rules::default();
    rules.exclude_lines(b"\xef\xbb\xbfa\r\n# b\r\nc", false).unwrap();
    let patterns: Vec<_> = (0..3).map(|at| rules.pattern(at)).collect();
    assert_eq!(patterns, [Some(&b"a"[..]), Some(b"c"), None]);
}
