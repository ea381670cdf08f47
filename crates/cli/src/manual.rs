//! Manual pages, made from the command line and from the topics of `silt help`.

use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use silt_format::Error;

use silt_terminal::failure::Failure;
use silt_terminal::output;

use crate::completion::Manual;
use crate::help::{Topic, introduction};
use crate::program::Cli;

/// Topics that are pages, their sections, and what they are about.
const PAGES: [(Topic, &str, &str, &str); 4] = [
    (Topic::Profiles, "silt.toml", "5", "configuration file of silt"),
    (Topic::Fleet, "silt-fleet", "5", "fleet files, which list the series of a backup"),
    (Topic::Agents, "silt-agents", "5", "the table [agent] of the configuration file of silt"),
    (Topic::Buckets, "silt-buckets", "7", "repositories of silt in object stores"),
];

/// Writes all pages to a folder, which is made if needed.
pub fn write_manual(args: &Manual) -> Result<u8, Failure> {
    let folder = &args.folder;
    let failed = |error| Error::io(format!("write manual pages to {}", folder.display()), error);
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut pages = Vec::new();
    let mut program = Cli::command();
    program.build();
    command_pages(&program, &mut pages);
    pages.extend(PAGES.into_iter().map(topic_page));
    for page in &pages {
        page.write(folder, args.date.as_deref().unwrap_or_default()).map_err(failed)?;
    }
    let count = output::count(pages.len(), "manual page");
    output::done(&format!("Wrote {count} to {}.", folder.display()));
    Ok(0)
}

/// A manual page.
struct Page {
    name: String,
    section: &'static str,
    body: Vec<u8>,
}

impl Page {
    fn write(&self, folder: &Path, date: &str) -> std::io::Result<()> {
        let Self { name, section, body } = self;
        let mut head = Roff::new();
        let source = concat!("silt ", env!("CARGO_PKG_VERSION"));
        head.control("TH", [name.as_str(), section, date, source, "Siltstone"]);
        let mut text = head.render().into_bytes();
        text.extend(body);
        std::fs::write(folder.join(format!("{name}.{section}")), text)
    }
}

/// The pages of a command and of its subcommands.
fn command_pages(command: &Command, pages: &mut Vec<Page>) {
    let is_program = !command.get_name().contains(' ') && command.get_name() == "silt";
    let own = if is_program { command.clone() } else { without_global(command) };
    pages.push(command_page(own, is_program));
    for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        command_pages(subcommand, pages);
    }
}

/// The command without the options of all commands, which the page of the program describes.
fn without_global(command: &Command) -> Command {
    command.clone().mut_args(|arg| {
        let is_hidden = arg.is_global_set() || arg.is_hide_set();
        arg.hide(is_hidden)
    })
}

fn command_page(mut command: Command, is_program: bool) -> Page {
    let usage = command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let has_commands = command.has_subcommands();
    let man = Man::new(command.override_usage(usage));
    let mut body = Vec::new();
    // Writing to memory does not fail.
    let _ = man.render_name_section(&mut body);
    let _ = man.render_synopsis_section(&mut body);
    let _ = man.render_description_section(&mut body);
    let mut notes = Roff::new();
    let parts = parts(&after);
    for part in parts.iter().filter(|part| part.heading.is_none()) {
        paragraph(&mut notes, &part.lines);
    }
    body.extend(notes.render().into_bytes());
    let _ = man.render_options_section(&mut body);
    let mut rest = Roff::new();
    if !is_program {
        let see = [roman("Options of all commands are in "), bold("silt"), roman("(1).")];
        rest.control("PP", []).text(see);
    }
    if has_commands {
        body.extend(std::mem::take(&mut rest).render().into_bytes());
        let _ = man.render_subcommands_section(&mut body);
    }
    if is_program {
        rest.control("SH", ["ENVIRONMENT"]);
        preformatted(&mut rest, introduction(Topic::Environment).lines());
    }
    for part in &parts {
        if let Some(heading) = &part.heading {
            rest.control("SH", [heading.to_uppercase().as_str()]);
            preformatted(&mut rest, part.lines.iter().map(String::as_str));
        }
    }
    see_also(&mut rest, is_program);
    body.extend(rest.render().into_bytes());
    // Before lists of values: a paragraph in place of two breaks, of which `man` warns.
    let body = String::from_utf8_lossy(&body).replace("\n.br\n\n.br\n", "\n.IP\n").into_bytes();
    Page { name, section: "1", body }
}

fn topic_page((topic, name, section, about): (Topic, &str, &'static str, &str)) -> Page {
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]).text([roman(format!("{name} - {about}"))]);
    roff.control("SH", ["DESCRIPTION"]);
    for part in parts(introduction(topic)) {
        paragraph(&mut roff, &part.lines);
    }
    see_also(&mut roff, false);
    // The heading begins the first paragraph.
    let body = roff.render().replace(".SH DESCRIPTION\n.PP\n", ".SH DESCRIPTION\n").into_bytes();
    Page { name: name.to_owned(), section, body }
}

fn see_also(roff: &mut Roff, is_program: bool) {
    roff.control("SH", ["SEE ALSO"]);
    let mut pages: Vec<(&str, &str)> = if is_program { Vec::new() } else { vec![("silt", "1")] };
    pages.extend(PAGES.iter().map(|(_, name, section, _)| (*name, *section)));
    let last = pages.len() - 1;
    for (at, (name, section)) in pages.into_iter().enumerate() {
        let end = if at == last { "" } else { "," };
        roff.text([bold(name), roman(format!("({section}){end}"))]);
    }
}

/// A paragraph of a help text. With a heading, it is a list or examples.
struct Part {
    heading: Option<String>,
    lines: Vec<String>,
}

/// The paragraphs of a text. `Examples:` and `Exit status:` are headings.
fn parts(text: &str) -> Vec<Part> {
    let mut found: Vec<Part> = Vec::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let mut lines = paragraph.trim_matches('\n').lines().map(str::to_owned).peekable();
        let heading = lines.next_if(|line| line == "Examples:" || line == "Exit status:");
        let heading = heading.map(|line| line.trim_end_matches(':').to_owned());
        found.push(Part { heading, lines: lines.collect() });
    }
    found
}

/// Prose, or lines to keep as they are if all are indented or the text has columns.
fn paragraph(roff: &mut Roff, lines: &[String]) {
    let is_kept = |line: &String| line.starts_with(' ') || line.trim_start().contains("   ");
    let mut left = lines;
    while !left.is_empty() {
        let kept = left.iter().take_while(|line| is_kept(line)).count();
        let prose = left[kept..].iter().take_while(|line| !is_kept(line)).count();
        if kept > 0 {
            roff.control("PP", []);
            preformatted(roff, left[..kept].iter().map(String::as_str));
        }
        if prose > 0 {
            roff.control("PP", []);
            for line in &left[kept..kept + prose] {
                roff.text([roman(line)]);
            }
        }
        left = &left[kept + prose..];
    }
}

/// Lines that are kept as they are, without the blanks that all begin with.
fn preformatted<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    let lines: Vec<&str> = lines.collect();
    let blanks = |line: &&str| line.len() - line.trim_start().len();
    let indent = lines.iter().filter(|line| !line.is_empty()).map(blanks).min().unwrap_or(0);
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line.get(indent..).unwrap_or_default())]);
    }
    roff.control("fi", []);
}
