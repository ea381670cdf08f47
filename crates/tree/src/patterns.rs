//! Patterns in the syntax of gitignore.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use silt_format::{Error, Result};

/// Maximum number of patterns.
pub const PATTERNS_MAX: usize = 65_536;
/// Maximum length of a pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;

/// Patterns in the order in which they were given. If several match, the last one counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns {
    all: Vec<Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    text: Vec<u8>,
    /// `None` if it matches nothing, for example because a class is not closed.
    glob: Option<Glob>,
    /// Whether the pattern is UTF-8. Otherwise the glob has stand-ins for bytes.
    is_text: bool,
    is_negated: bool,
    directories_only: bool,
}

impl Patterns {
    /// Adds a line of a gitignore file. Ignores empty lines and comments. Fails with `Invalid` if
    /// the limits are exceeded.
    pub(crate) fn add(&mut self, line: &[u8], ignores_case: bool) -> Result<()> {
        let line = without_trailing_spaces(line);
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(());
        }
        let is_text = std::str::from_utf8(line).is_ok();
        let text = &*if is_text { String::from_utf8_lossy(line) } else { stand_ins(line).into() };
        if line.len() > PATTERN_BYTES_MAX || self.all.len() >= PATTERNS_MAX {
            let limits = format!("{PATTERNS_MAX} patterns of {PATTERN_BYTES_MAX} bytes");
            return Err(Error::invalid(format!("the patterns exceed the limit of {limits}")));
        }
        let (is_negated, rest) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
        let (directories_only, rest) =
            rest.strip_suffix('/').map_or((false, rest), |rest| (true, rest));
        let is_anchored = rest.contains('/');
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        let glob = match translated(rest) {
            Some(glob) => {
                let glob = if is_anchored { glob } else { format!("**/{glob}") };
                let built = GlobBuilder::new(&glob)
                    .literal_separator(true)
                    .backslash_escape(true)
                    .case_insensitive(ignores_case)
                    .build();
                Some(built.map_err(|error| invalid(line, error))?)
            }
            None => None,
        };
        let text = line.to_vec();
        self.all.push(Pattern { text, glob, is_text, is_negated, directories_only });
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the text of a pattern by its number.
    pub(crate) fn text(&self, at: usize) -> Option<&[u8]> {
        self.all.get(at).map(|pattern| pattern.text.as_slice())
    }

    /// Compiles all patterns. Fails with `Invalid` if they are too complex.
    pub(crate) fn compiled(&self) -> Result<Matcher> {
        let (mut set, mut uses, mut of_bytes) = (GlobSetBuilder::new(), Vec::new(), Vec::new());
        for (at, pattern) in self.all.iter().enumerate() {
            let Some(glob) = &pattern.glob else { continue };
            let (is_negated, directories_only) = (pattern.is_negated, pattern.directories_only);
            let of_pattern = Use { at, is_negated, directories_only };
            if pattern.is_text {
                set.add(glob.clone());
                uses.push(of_pattern);
            } else {
                let regex = bytes_regex(glob).map_err(|error| invalid(&pattern.text, error))?;
                of_bytes.push((regex, of_pattern));
            }
        }
        let set = set.build().map_err(|error| {
            Error::invalid(format!("compiling {} patterns", uses.len())).with_source(error)
        })?;
        Ok(Matcher { set, uses, of_bytes, matches: Vec::new() })
    }
}

fn invalid(
    text: &[u8],
    error: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
) -> Error {
    Error::invalid(format!("pattern '{}'", String::from_utf8_lossy(text))).with_source(error)
}

/// The character that stands for the byte 0 in a pattern that is not UTF-8; it and the next 255 are
/// for private use.
const STAND_IN: u32 = 0x10_ff00;

/// Returns a pattern that is not UTF-8 as text: each byte counts as a character, and a character
/// for private use stands for each one that is not ASCII.
fn stand_ins(pattern: &[u8]) -> String {
    let stand_in = |byte: u8| char::from_u32(STAND_IN + u32::from(byte)).unwrap_or('?');
    let letter = |&byte: &u8| if byte.is_ascii() { char::from(byte) } else { stand_in(byte) };
    pattern.iter().map(letter).collect()
}

/// Compiles a glob with the bytes themselves in place of their stand-ins.
fn bytes_regex(glob: &Glob) -> std::result::Result<Regex, Box<regex_automata::meta::BuildError>> {
    let mut regex = glob.regex().to_owned();
    for byte in 0x80..=u8::MAX {
        let stand_in = char::from_u32(STAND_IN + u32::from(byte)).unwrap_or('?');
        let mut utf8 = [0; 4];
        let parts = stand_in.encode_utf8(&mut utf8).bytes().map(|part| format!("\\x{part:02x}"));
        let escaped: String = parts.collect();
        regex = regex.replace(&escaped, &format!("\\x{byte:02x}"));
    }
    // As globset compiles its own.
    let syntax = syntax::Config::new().utf8(false).dot_matches_new_line(true);
    let config = Regex::config().utf8_empty(false);
    Regex::builder().syntax(syntax).configure(config).build(&regex).map_err(Box::new)
}

struct Use {
    at: usize,
    is_negated: bool,
    directories_only: bool,
}

/// Compiled patterns.
pub(crate) struct Matcher {
    set: GlobSet,
    uses: Vec<Use>,
    /// Patterns that are not UTF-8.
    of_bytes: Vec<(Regex, Use)>,
    matches: Vec<usize>,
}

impl Matcher {
    pub(crate) fn is_empty(&self) -> bool {
        self.uses.is_empty() && self.of_bytes.is_empty()
    }

    /// Returns the number of the pattern that excludes a path below the root.
    pub(crate) fn excludes(&mut self, path: &[u8], is_directory: bool) -> Option<usize> {
        let candidate = Candidate::new(Path::new(OsStr::from_bytes(path)));
        self.set.matches_candidate_into(&candidate, &mut self.matches);
        let of_bytes = self.of_bytes.iter().filter(|(regex, _)| regex.is_match(path));
        let fitting = self.matches.iter().map(|&at| &self.uses[at]);
        let fitting = fitting.chain(of_bytes.map(|(_, it)| it));
        let last = fitting.filter(|it| is_directory || !it.directories_only).max_by_key(|it| it.at);
        last.filter(|it| !it.is_negated).map(|it| it.at)
    }
}

fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let mut text = line;
    while let Some(shorter) = text.strip_suffix(b" ") {
        let escapes = shorter.iter().rev().take_while(|&&byte| byte == b'\\').count();
        if escapes % 2 == 1 {
            break;
        }
        text = shorter;
    }
    text
}

/// Translates a pattern of gitignore into a glob of globset; `None` if it matches nothing. The two
/// differ: gitignore has no alternatives in braces, but has escapes in classes and named classes
/// such as `[:digit:]`. A pattern with an empty name matches nothing, as no path has one.
fn translated(pattern: &str) -> Option<String> {
    let (mut glob, mut letters) = (String::new(), pattern.chars());
    let mut begins_name = true;
    while let Some(letter) = letters.next() {
        if letter == '/' && begins_name {
            return None;
        }
        begins_name = letter == '/';
        match letter {
            // Before an escaped slash, two stars are one directory or more.
            '\\' if letters.as_str().starts_with('/') && is_two_stars(&glob) => {
                letters.next();
                glob.truncate(glob.len() - "**".len());
                glob.push_str("*/**/");
                begins_name = true;
            }
            '\\' => glob.extend(['\\', letters.next()?]),
            '{' | '}' | ',' => glob.extend(['\\', letter]),
            // Three or more stars mean the same as two.
            '*' if glob.ends_with("**") => {}
            '[' => {
                let (class, rest) = Class::parse(letters.as_str())?;
                class.write(&mut glob)?;
                letters = rest.chars();
            }
            letter => glob.push(letter),
        }
    }
    (!begins_name).then_some(glob)
}

/// Whether the last name of a glob is two stars.
fn is_two_stars(glob: &str) -> bool {
    glob == "**" || glob.ends_with("/**")
}

/// A class of characters, as git's `wildmatch` reads it.
struct Class {
    is_negated: bool,
    letters: Vec<char>,
}

impl Class {
    /// Parses a class from the text after its `[`; returns it and the text after its `]`.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let (is_negated, text) =
            text.strip_prefix(['!', '^']).map_or((false, text), |rest| (true, rest));
        let (mut letters, mut rest) = (Vec::new(), text.chars());
        let mut previous = None;
        let mut letter = rest.next()?;
        loop {
            let follows = rest.as_str();
            if letter == '-' && previous.is_some() && !follows.starts_with(']') {
                let mut last = rest.next()?;
                if last == '\\' {
                    last = rest.next()?;
                }
                letters.extend(previous.take()?..=last);
            } else if let Some(class) = (letter == '[').then(|| named(follows)).flatten() {
                letters.extend((0..128_u8).filter(|&byte| (class.contains)(byte)).map(char::from));
                rest = class.rest.chars();
                previous = None;
            } else {
                let literal = if letter == '\\' { rest.next()? } else { letter };
                letters.push(literal);
                previous = Some(literal);
            }
            letter = rest.next()?;
            if letter == ']' {
                break;
            }
        }
        letters.sort_unstable();
        letters.dedup();
        Some((Self { is_negated, letters }, rest.as_str()))
    }

    /// Appends the class to a glob. A class that is not negated becomes alternatives, as classes of
    /// globset have no escapes. No class matches `/`. Returns `None` for an empty class.
    fn write(&self, to: &mut String) -> Option<()> {
        let letters = self.letters.iter().filter(|&&letter| letter != '/');
        if self.is_negated {
            let has = |letter| self.letters.contains(&letter);
            to.push_str("[!");
            to.extend(has(']').then_some(']'));
            to.extend(letters.filter(|letter| !matches!(letter, ']' | '-')));
            to.push('/');
            to.extend(has('-').then_some('-'));
            to.push(']');
            return Some(());
        }
        let alternatives: Vec<String> = letters.map(|letter| format!("\\{letter}")).collect();
        let is_empty = alternatives.is_empty();
        to.push('{');
        to.push_str(&alternatives.join(","));
        to.push('}');
        (!is_empty).then_some(())
    }
}

/// A named class, and the text after it.
struct Named<'a> {
    contains: fn(u8) -> bool,
    rest: &'a str,
}

/// Parses a named class, such as `[:digit:]`, from the text after its `[`.
fn named(text: &str) -> Option<Named<'_>> {
    let (name, rest) = text.strip_prefix(':')?.split_once(":]")?;
    let contains: fn(u8) -> bool = match name {
        "alnum" => |byte| byte.is_ascii_alphanumeric(),
        "alpha" => |byte| byte.is_ascii_alphabetic(),
        "blank" => |byte| matches!(byte, b' ' | b'\t'),
        "cntrl" => |byte| byte.is_ascii_control(),
        "digit" => |byte| byte.is_ascii_digit(),
        "graph" => |byte| byte.is_ascii_graphic(),
        "lower" => |byte| byte.is_ascii_lowercase(),
        "print" => |byte| byte.is_ascii_graphic() || byte == b' ',
        "punct" => |byte| byte.is_ascii_punctuation(),
        "space" => |byte| matches!(byte, b' ' | b'\t'..=b'\r'),
        "upper" => |byte| byte.is_ascii_uppercase(),
        "xdigit" => |byte| byte.is_ascii_hexdigit(),
        _ => return None,
    };
    Some(Named { contains, rest })
}
