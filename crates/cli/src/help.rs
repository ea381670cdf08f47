//! Help: what a command's page shows of the global options, and pages for topics.

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::global::BUCKETS;
use crate::program::Cli;
use crate::trees::FILE_TREES;

/// The widest page, in columns, on a terminal that is wider.
const COLUMNS_MAX: usize = 100;
/// The column at which the list of global options is wrapped.
const COLUMNS: usize = 96;

const ENVIRONMENT: &str = "\
SILT_REPOSITORY           the repository, instead of --repo
SILT_PASSWORD             the password
SILT_PASSWORD_FILE        a file with the password in its first line
SILT_PASSWORD_COMMAND     a command that prints it. Set one of these three, or --password-file
SILT_NEW_PASSWORD, SILT_NEW_PASSWORD_FILE, SILT_NEW_PASSWORD_COMMAND
                          the same for the new password of key add and key passwd
SILT_ADMIN_PASSWORD, SILT_ADMIN_PASSWORD_FILE, SILT_ADMIN_PASSWORD_COMMAND
                          the same for the administrator of an append-only repository
SILT_TO_PASSWORD, SILT_TO_PASSWORD_FILE, SILT_TO_PASSWORD_COMMAND
                          the same for a replica in a folder or bucket
SILT_S3_..., SILT_CACHE_DIR, SILT_CACHE_SIZE, SILT_NO_CACHE
                          repositories in buckets: see `silt help buckets`
SILT_CONFIG, SILT_PROFILE
                          the configuration file, and which of its profiles to use
TZ                        the time zone of times that are read and printed
XDG_CACHE_HOME, XDG_STATE_HOME, XDG_CONFIG_HOME, HOME
                          the folders of the cache, this machine's records and silt.toml

Command-line options take precedence over variables, and these over the profile.
";

const BUCKETS_INTRODUCTION: &str = "\
A repository in a bucket: s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX.

Variable                 In the location   Meaning
SILT_S3_CLASS            class=            storage class of new objects
SILT_S3_METADATA_CLASS   metadata-class=   class of everything but containers; default: as class
SILT_S3_CONNECTIONS      connections=      parallel requests; default: 32, uploads 4
SILT_S3_TIMEOUT          timeout=          seconds per request, 60 by default
SILT_S3_RETRIES          retries=          retries per request, 8 by default
SILT_S3_LOCK             lock=             lock new objects for this many days, such as 30d
SILT_S3_LOCK_MODE        lock-mode=        governance (the default) or compliance
SILT_S3_PRICES                             prices, to print the cost of the requests
SILT_CACHE_DIR                             folder of the cache
SILT_CACHE_SIZE                            size of the cache per repository in MiB, 512 by default
SILT_NO_CACHE                              use no cache

Credentials are set as for the programs of the store: AWS_ACCESS_KEY_ID, AWS_PROFILE,
AWS_ENDPOINT_URL, AZURE_STORAGE_ACCOUNT_NAME, GOOGLE_APPLICATION_CREDENTIALS and others.
Options in the location take precedence over command-line options, and these over variables:
s3://bucket/vms?class=STANDARD_IA&connections=8

";

const TREES_INTRODUCTION: &str = "\
A directory is backed up as a file tree: `silt backup home /srv/home etc=/etc`. These options
of `silt backup` choose what is backed up, and decide which files are read again:

";

const FLEET: &str = "\
A fleet file lists series and their volumes, for `silt backup --fleet FILE` and
`silt rounds plan FILE`. Commands can prepare volumes and clean up afterwards:

  tags = [\"nightly\"]
  [series.web1]
  before = \"lvcreate --snapshot --size 5G --name web1-backup vg/web1\"
  volumes = { root = \"/dev/vg/web1-backup\" }
  after = \"lvremove --yes vg/web1-backup\"
  [series.db1]
  volumes = { root = \"/vm/db1.raw\" }
  [series.home]
  volumes = { files = \"/home\" }
  tree = { exclude = [\"*.tmp\"], one-file-system = true }    # as in `silt help trees`

`before` runs before the volumes of a series are opened, and `after` once they are no longer
needed, even if the backup failed. SILT_SERIES holds the name of the series. The commands get
no passwords.
";

const PROFILES: &str = "\
The configuration file is that of --config or SILT_CONFIG, otherwise $XDG_CONFIG_HOME/silt/silt.toml
(~/.config/silt/silt.toml), otherwise /etc/silt/silt.toml. Everything in it is optional:

  default-profile = \"home\"            # otherwise the profile called default, if there is one

  [profiles.home]
  repository = \"/backup/silt\"
  password-file = \"password\"          # or \"credential:NAME\", a systemd credential
                                      # or password-command = \"pass show silt\"
  memory = 128                        # as the options of these names; see `silt help options`
  jobs = 4
  compression = \"better\"              # of backups; see `silt backup --help`
  limit-read = 200
  limit-write = 100
  wait = \"10m\"
  nice = 10
  cache-dir = \"/var/cache/silt\"
  cache-size = 1024
  cache = true
  tags = [\"nightly\"]                  # of the snapshots of its series

  [profiles.home.retention]           # the rules of `silt forget`
  keep-daily = 7
  keep-weekly = 4
  min-age = \"3d\"

  [profiles.home.series.web1]         # as in a fleet file
  volumes = { root = \"/dev/vg/web1\" }

  [profiles.home.replicas.offsite]    # where `silt replicate` sends snapshots; only `to` is needed
  to = \"ssh://backup@offsite/backup/replica\"
  prefix = \"site1-\"                   # in front of the names of series there
  series = [\"web1\", \"db-*\"]           # names, or their beginnings and *; all by default
  tags = [\"nightly\"]
  newest = 1
  compression = 15
  delta = \"off\"                       # 'auto' by default
  limit-write = \"2mbit\"
  window = \"22:00-06:00\"
  max-lag = \"3d\"                      # `silt status` fails if it is further behind
  password-file = \"replica-password\"  # or password-command; only for a folder or bucket
  remote-program = \"/opt/silt/silt\"
  foreign = true                      # a repository with another secret

`silt backup` backs up all series of the profile, `silt backup web1` one of them. `silt forget`
applies the rules to all series of the repository. `silt replicate` sends to all replicas of the
profile, `silt replicate --to offsite` to one. Relative paths start at the folder of the file.
Options take precedence over variables, and these over the profile: see `silt config show`.
";

const AGENTS: &str = "\
`silt agent run` backs up the series of a profile when they are due. The file is that of
`silt help profiles`, with a table [agent]. Everything in it is optional:

  [agent]
  name = \"host1\"                      # by default the name of the host
  profile = \"default\"                 # whose series, repository and limits it uses
  backup = \"daily\"                    # when series are due, as in systemd.time(7)
  forget = \"Sat 05:00\"                # `silt forget`
  reclaim = \"Sat 06:00\"               # `silt reclaim`
  reclaim-with-agents = false         # its --with-agents
  optimize = \"Sat *-*-1..7 12:00\"   # `silt optimize`
  check = \"Sun 05:00\"                 # `silt check`
  check-data = \"5%\"                   # with --read-data-subset
  replicate = \"hourly\"                # `silt replicate`
  round = \"22:00\"                     # `silt cluster round`, by one of the agents that have it
  round-parts = 1                     # its --parts
  round-spool = false                 # this host copies changed data, and releases volumes early
  index-memory = \"0\"                  # for a part of the shared index, which all backups ask
  ask-nodes = false                   # whether backups ask the processes of storage nodes
  spread = \"30min\"                    # each task is put off by up to this long, always the same
  parallel = 1                        # runs at once
  forget-after-backup = false         # `silt backup --forget`
  allow = [\"backup\", \"cancel\", \"round\"]    # commands of `silt cluster` that it obeys
  alone-after = \"15min\"               # how long a due task waits for the director
  leads = true                        # whether it may be the director
  limit = 0                           # runs of all hosts at once while it is; 0: no limit

  [agent.bus]                         # without it, the host works alone
  servers = [\"nats://bus1:4222\", \"nats://bus2:4222\"]
  user = \"host1\"
  password-file = \"bus-password\"      # or \"credential:NAME\", a systemd credential
  certificates = \"ca.pem\"             # of the servers, besides those of the system
  certificate = \"host1.pem\"           # shown to the servers
  key = \"host1.key\"
  tls-first = false                   # for servers with handshake_first
  replicas = 3                        # servers that keep each job

  [profiles.default.series.db1]
  volumes = { root = \"/vm/db1.raw\" }
  schedule = \"hourly\"                 # instead of that of [agent]; \"never\": only on command

`silt agent check-config` checks it and shows the times, `silt agent calendar` those of an
expression. Relative paths start at the folder of the file.
";

/// A page of help that belongs to no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The global options.
    Options,
    /// The table of agents.
    Agents,
    /// The options and variables of repositories in buckets.
    Buckets,
    /// The variables.
    Environment,
    /// Fleet files.
    Fleet,
    /// The configuration file.
    Profiles,
    /// The options of file trees in a backup.
    Trees,
}

/// Finds a topic by its name.
pub fn topic(name: &str) -> Option<Topic> {
    match name {
        "options" => Some(Topic::Options),
        "agents" => Some(Topic::Agents),
        "buckets" => Some(Topic::Buckets),
        "environment" => Some(Topic::Environment),
        "fleet" => Some(Topic::Fleet),
        "profiles" => Some(Topic::Profiles),
        "trees" => Some(Topic::Trees),
        _ => None,
    }
}

/// The command line. A command's help shows its own options, and the global ones by name only.
pub fn command() -> Command {
    let command = Cli::command();
    let note = note(&command);
    let command =
        command.max_term_width(COLUMNS_MAX).disable_help_flag(true).arg(help_flag()).mut_args(
            |arg| if arg.is_global_set() && arg.get_id() != "help" { arg.hide(true) } else { arg },
        );
    let command = command.mut_subcommand("backup", with_trees_by_name);
    let command = command.mut_subcommand("tune", with_trees_by_name);
    with_note(command, &note)
}

/// A command that names its options for file trees in one line.
fn with_trees_by_name(command: Command) -> Command {
    let is_of_trees = |arg: &Arg| arg.get_help_heading() == Some(FILE_TREES);
    let names = names_of(&command, is_of_trees);
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let line = line_of("File trees:", &names, "see `silt help trees`");
    let command = command.after_help(format!("{after}\n\n{line}"));
    command.mut_args(|arg| if is_of_trees(&arg) { arg.hide(true) } else { arg })
}

/// `--help`, which is as short as `-h`.
fn help_flag() -> Arg {
    let flag = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort);
    flag.help("Print help").global(true)
}

/// A topic's page.
pub fn page(topic: Topic) -> StyledStr {
    match topic {
        Topic::Options => {
            rendered("Global options of all commands:\n\n", |arg| !is_for_buckets(arg))
        }
        Topic::Buckets => rendered(BUCKETS_INTRODUCTION, is_for_buckets),
        Topic::Agents => StyledStr::from(AGENTS),
        Topic::Environment => StyledStr::from(ENVIRONMENT),
        Topic::Trees => rendered_trees(),
        Topic::Fleet => StyledStr::from(FLEET),
        Topic::Profiles => StyledStr::from(PROFILES),
    }
}

/// A topic's text without the options that its page lists.
pub fn introduction(topic: Topic) -> &'static str {
    match topic {
        Topic::Options => "",
        Topic::Agents => AGENTS,
        Topic::Buckets => BUCKETS_INTRODUCTION,
        Topic::Environment => ENVIRONMENT,
        Topic::Trees => TREES_INTRODUCTION,
        Topic::Fleet => FLEET,
        Topic::Profiles => PROFILES,
    }
}

fn is_for_buckets(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(BUCKETS)
}

/// A page with an introduction and some of the global options.
fn rendered(introduction: &str, is_shown: impl Fn(&Arg) -> bool) -> StyledStr {
    let all = Cli::command();
    let shown = all.get_arguments().filter(|arg| arg.is_global_set() && is_shown(arg));
    rendered_options(introduction, shown)
}

/// The page of what is left out of file trees.
fn rendered_trees() -> StyledStr {
    let all = Cli::command();
    let backup = all.get_subcommands().find(|command| command.get_name() == "backup");
    let options = backup.into_iter().flat_map(Command::get_arguments);
    let shown = options.filter(|arg| arg.get_help_heading() == Some(FILE_TREES));
    rendered_options(TREES_INTRODUCTION, shown)
}

fn rendered_options<'a>(introduction: &str, shown: impl Iterator<Item = &'a Arg>) -> StyledStr {
    let page = Command::new("silt").max_term_width(COLUMNS_MAX).disable_help_flag(true);
    let mut page = page.args(shown.cloned()).help_template("{before-help}{options}");
    page = page.mut_args(|arg| arg.help_heading(None::<&str>).hide_env_values(true));
    let options = page.render_help();
    StyledStr::from(format!("{introduction}{options}\n"))
}

/// The line that names the global options.
fn note(command: &Command) -> String {
    let names =
        names_of(command, |arg| arg.is_global_set() && !arg.is_hide_set() && !is_for_buckets(arg));
    line_of("Global options:", &names, "see `silt help options`")
}

/// The long names of a command's options that `is_named` selects.
fn names_of(command: &Command, is_named: impl Fn(&Arg) -> bool) -> Vec<String> {
    let named = command.get_arguments().filter(|arg| is_named(arg));
    named.filter_map(Arg::get_long).map(|name| format!("--{name},")).collect()
}

/// A line of options by name, wrapped.
fn line_of(title: &str, names: &[String], hint: &str) -> String {
    let (see, topic) = hint.split_once(' ').unwrap_or((hint, ""));
    let mut line = title.to_owned();
    let mut column = line.len();
    for word in names.iter().map(String::as_str).chain([see, topic]) {
        if column + 1 + word.len() > COLUMNS {
            line.push_str("\n ");
            column = 1;
        }
        line.push(' ');
        line.push_str(word);
        column += 1 + word.len();
    }
    line
}

/// The command with the line at the end of its help, and of that of its subcommands. The text
/// behind the first paragraph of its description comes after its options.
fn with_note(command: Command, note: &str) -> Command {
    let text = |text: Option<&StyledStr>| text.map(ToString::to_string).unwrap_or_default();
    let (about, long) = (text(command.get_about()), text(command.get_long_about()));
    let more = long.strip_prefix(&about).unwrap_or_default().trim().to_owned();
    let after = [more, text(command.get_after_help()), note.to_owned()];
    let after: Vec<String> = after.into_iter().filter(|part| !part.is_empty()).collect();
    let after = after.join("\n\n");
    command.after_help(after).mut_subcommands(|subcommand| with_note(subcommand, note))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a command's help that fit on one screen.
    const LINES_MAX: usize = 40;

    /// Commands whose own options, arguments and examples need more, and why.
    const LONG: [(&str, usize, &str); 2] = [
        ("silt backup", 84, "it has 24 options of its own, six of them for rounds"),
        ("silt replicate", 41, "it has 17 options of its own"),
    ];

    /// The pages of a command and of its subcommands, by their names.
    fn pages(command: &mut Command, name: &str, found: &mut Vec<(String, String)>) {
        found.push((name.to_owned(), command.render_help().to_string()));
        for subcommand in command.get_subcommands_mut() {
            let name = format!("{name} {}", subcommand.get_name());
            pages(subcommand, &name, found);
        }
    }

    fn all_pages() -> Vec<(String, String)> {
        let mut command = command().term_width(COLUMNS_MAX);
        command.build();
        let mut found = Vec::new();
        pages(&mut command, "silt", &mut found);
        found
    }

    #[test]
    fn the_help_of_a_command_fits_on_a_screen() {
        let mut wrong = Vec::new();
        for (name, page) in all_pages() {
            let long = LONG.iter().find(|(long, ..)| *long == name);
            let lines_max = long.map_or(LINES_MAX, |(_, lines_max, _)| *lines_max);
            let lines = page.lines().count();
            if name != "silt" && lines > lines_max {
                wrong.push(format!("{name}: {lines} lines"));
            }
            if lines <= LINES_MAX && long.is_some() {
                wrong.push(format!("{name}: {lines} lines are no exception"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn own_options_come_first_and_global_ones_by_name() {
        let pages = all_pages();
        assert!(pages.len() > 40, "{} pages", pages.len());
        for (name, page) in pages {
            let at =
                |text: &str| page.find(text).unwrap_or_else(|| panic!("{name}: {text}\n{page}"));
            assert!(at("Options:") < at("\nGlobal options:"), "{name}");
            assert!(at("--password-file,") > at("\nGlobal options:"), "{name}: {page}");
            assert!(!page.contains("--limit-read <"), "{name}: {page}");
            assert!(!page.contains("--s3-prices"), "{name}: {page}");
        }
    }

    #[test]
    fn topics_describe_every_global_option_once() {
        let [options, buckets] = [Topic::Options, Topic::Buckets].map(|it| page(it).to_string());
        for arg in Cli::command().get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(name) = arg.get_long().filter(|_| arg.is_global_set()) else { continue };
            let is_in = |page: &str| {
                let mut words = page.lines().flat_map(|line| line.split_whitespace().take(2));
                words.any(|word| word == format!("--{name}"))
            };
            assert_eq!(is_for_buckets(arg), is_in(&buckets), "--{name}");
            assert!(is_in(&buckets) || is_in(&options), "--{name}");
        }
        assert!(page(Topic::Environment).to_string().contains("SILT_PASSWORD_FILE"));
    }
}
