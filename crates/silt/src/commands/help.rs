//! `silt help`.

use super::Failure;
use crate::{cli, output};

/// Prints the help of the program, of a command or of a topic.
pub fn run(name: &'static str, words: &[String]) -> Result<u8, Failure> {
    if let [word] = words
        && let Some(topic) = cli::topic(word)
    {
        print(&cli::page(topic).to_string());
        return Ok(0);
    }
    let mut program = cli::command().name(name);
    program.build();
    let mut command = &mut program;
    for word in words {
        command = command.find_subcommand_mut(word).ok_or_else(|| {
            Failure::Usage(format!(
                "'{}' is neither a command nor one of the topics options, agents, \
                 buckets, environment, fleet, profiles and trees",
                words.join(" ")
            ))
        })?;
    }
    print(&command.render_long_help().to_string());
    Ok(0)
}

fn print(page: &str) {
    page.trim_end().lines().for_each(output::line);
}
