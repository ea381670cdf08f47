//! Walks that are limited to listed paths.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use silt_format::ErrorKind;
use silt_tree::{Marker, PathList, Rules, Step};

use crate::kit::{Scratch, awkward_tree, step_text, walk_all};

fn only(paths: &[&str]) -> Rules {
    let mut list = PathList::default();
    paths.iter().for_each(|path| list.add(path.as_bytes()).unwrap());
    let mut rules = Rules::default();
    rules.only = Some(Arc::new(list));
    rules
}

/// Returns the steps of a walk as text.
fn steps(root: &Path, rules: &Rules) -> Vec<String> {
    walk_all(root, rules, |_, step| match step {
        Step::Enter(found) => format!("{}/", String::from_utf8_lossy(&found.name)),
        Step::Entry(found) => String::from_utf8_lossy(&found.name).into_owned(),
        Step::Leave(_) => "..".into(),
        Step::Excluded(name, reason) => format!("-{} {reason:?}", String::from_utf8_lossy(&name)),
        Step::Failed(path, error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            format!("!{}", String::from_utf8_lossy(&path))
        }
    })
}

fn tree(scratch: &Scratch) -> std::path::PathBuf {
    let root = scratch.path("t");
    for path in ["a/b/x", "a/b/y", "a/c/z", "a-", "d/e", "d/f/g", "h"] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"x").unwrap();
    }
    symlink("d", root.join("link")).unwrap();
    root
}

#[test]
fn only_listed_paths_are_taken_with_what_is_below_and_above_them() {
    let scratch = Scratch::new();
    let root = tree(&scratch);
    let absolute = format!("{}/h", root.display());
    let found = steps(&root, &only(&["d", "a/b/x", "a-", &absolute, "link", "/elsewhere"]));
    let below_d = ["d/", "e", "f/", "g", "..", ".."];
    let expected = [&["/", "a/", "b/", "x", "..", "..", "a-"][..], &below_d, &["h", "link", ".."]];
    assert_eq!(found, expected.concat());
    for all in [".", root.to_str().unwrap()] {
        assert_eq!(steps(&root, &only(&[all, "a/b"])), steps(&root, &Rules::default()));
    }
    assert_eq!(steps(&root, &only(&["/elsewhere"])), ["/", ".."]);
}

#[test]
fn a_walk_of_a_whole_directory_is_the_same_if_the_directory_is_listed() {
    let scratch = Scratch::new();
    awkward_tree(&scratch.path("t/below"));
    let walk = |root: &str, rules: &Rules| walk_all(&scratch.path(root), rules, step_text);
    let all = walk("t", &Rules::default());
    assert!(all.len() > 150, "{}", all.len());
    assert_eq!(walk("t", &only(&["below"])), all);
}

#[test]
fn listed_paths_that_do_not_exist_are_reported_one_by_one() {
    let scratch = Scratch::new();
    let root = tree(&scratch);
    let missing = ["a/none/1", "a/none/2", "a/c/zz", "h/below", "link/e", "d/none", "z"];
    let rules = only(&[&missing[..], &["d", "a/c/z"]].concat());
    let found = steps(&root, &rules);
    let expected = "/ a/ c/ z !a/c/zz .. !a/none/1 !a/none/2 .. d/ !d/none e f/ g .. .. h \
                    !h/below link !link/e !z ..";
    assert_eq!(found.join(" "), expected);
}

#[test]
fn what_rules_leave_out_is_left_out_of_listed_directories_and_not_missing() {
    let scratch = Scratch::new();
    let root = tree(&scratch);
    let mut rules = only(&["a/b", "a/c/z", "d/e", "d/f/g", "h"]);
    rules.exclude("x", false).unwrap();
    rules.exclude("/a/c/", false).unwrap();
    fs::write(root.join("d/.nobackup"), b"").unwrap();
    rules.markers.push(Marker::parse(".nobackup").unwrap());
    let found = steps(&root, &rules);
    let expected = "/ a/ b/ -x Pattern(0) y .. -c Pattern(1) .. d/ - Marker(0) .. h ..";
    assert_eq!(found.join(" "), expected);
}

/// As many as fill several windows.
#[test]
fn only_listed_names_of_a_large_directory_are_looked_at() {
    let scratch = Scratch::new();
    let root = tree(&scratch);
    for at in 0..3000 {
        fs::write(root.join(format!("a/b/{at:04}")), b"").unwrap();
    }
    let names: Vec<String> = (0..3000).step_by(2).map(|at| format!("a/b/{at:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = steps(&root, &only(&names));
    assert_eq!(found.len(), 3 + 1500 + 3);
    assert!(found.contains(&"2998".to_owned()) && !found.contains(&"2999".to_owned()));
}
