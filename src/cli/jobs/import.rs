//! `onedrop jobs import`: the lines of a crontab as sections for the configuration.
//!
//! Promise: what it writes is a configuration's jobs, whatever the crontab is. A line that no job
//! can stand for is a comment with the reason, and what a job lacks of its line is one above it. A
//! job runs when cron would start the line, and as cron it makes up for nothing and tries nothing
//! again. Nothing but the crontab is read.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::tz::TimeZone;

use super::{CommandOutcome, ended};
use onedrop_core::text;
use onedrop_locks::schedule::Schedule;

const HEAD: &str = "\
# By onedrop jobs import. As with cron, a time that was missed is not made up for (backfill), and a
# command that failed is not tried again (retry): take these two lines out of a job to have both.
# What cron does and a job does not: it begins in the user's home, sets HOME, LOGNAME, SHELL and
# PATH=/usr/bin:/bin, mails what the command writes, and starts a line again while it still runs.
# What a job does and cron does not: it ends what its command has left in the background, and the
# command itself where the ledger stays away. For a user, root has to tick.
";

/// Onedrop's own jobs: a section of such a name would change one of them.
const OWN: [&str; 3] = ["purge", "settle", "verify"];

/// With the form of /etc/crontab, in which a user comes before the command.
pub(super) fn run(crontab: &Path, system: bool) -> Result<CommandOutcome, String> {
    let bytes = std::fs::read(crontab)
        .map_err(|error| format!("{}: {error}", text::escaped(&crontab.to_string_lossy())))?;
    let zone = TimeZone::system().iana_name().map(str::to_owned);
    let mut import = Import::new(zone, system);
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        import.line(at + 1, &String::from_utf8_lossy(line));
    }
    Ok(ended(import.out, import.is_whole))
}

struct Import {
    out: String,
    zone: String,
    system: bool,
    /// Settings above the line, in order.
    settings: Vec<(String, String)>,
    names: BTreeSet<String>,
    /// Every line with a time has become a job.
    is_whole: bool,
}

impl Import {
    /// `zone` is this host's, if it is known.
    fn new(zone: Option<String>, system: bool) -> Import {
        let mut out = HEAD.to_owned();
        if zone.is_none() {
            out += "# This host's time zone has no name: its jobs go by UTC.\n";
        }
        Import {
            out,
            zone: zone.unwrap_or_else(|| "UTC".to_owned()),
            system,
            settings: Vec::new(),
            names: OWN.map(str::to_owned).into(),
            is_whole: true,
        }
    }

    fn line(&mut self, number: usize, line: &str) {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            return;
        }
        if let Some((name, value)) = setting(line) {
            self.settings.retain(|(other, _)| *other != name);
            let why = match name.as_str() {
                "MAILTO" | "MAILFROM" => "a job sends no mail: its on_failure can",
                "CRON_TZ" => "jobs have timezone, which is this host's below",
                "LOGNAME" | "USER" => "a job has user, for which root has to tick",
                "SHELL" if value.is_empty() => "there is no such shell: jobs below have /bin/sh",
                _ => return self.settings.push((name, value)),
            };
            return self.comment(number, line, why);
        }
        match self.job(number, line) {
            Ok(section) => self.out += &section,
            Err(why) => {
                self.is_whole = false;
                self.comment(number, line, &format!("NO JOB: {why}"));
            }
        }
    }

    fn comment(&mut self, number: usize, line: &str, why: &str) {
        self.out += &format!("\n{}# {why}\n", cited(number, line));
    }

    fn job(&mut self, number: usize, line: &str) -> Result<String, String> {
        if line.contains(['\0', char::REPLACEMENT_CHARACTER]) {
            return Err("it is not UTF-8, or has a NUL".to_owned());
        }
        let mut rest = line;
        let fields = if line.starts_with('@') { 1 } else { 5 };
        let times: Vec<&str> = (0..fields).map_while(|_| word(&mut rest)).collect();
        let times = times.join(" ");
        if times.eq_ignore_ascii_case("@reboot") {
            return Err("no job is due when a host starts: take a unit of systemd".to_owned());
        }
        Schedule::cron(&times, &self.zone)?;
        let user = if self.system { word(&mut rest) } else { None };
        let (command, input) = command_and_input(rest.trim_matches([' ', '\t', '\r']));
        if command.is_empty() {
            return Err("it has no command".to_owned());
        }
        let name = self.name(&command);
        if user.is_some_and(|user| user.contains(char::is_control)) {
            return Err("its user has a control character".to_owned());
        }
        let user = user.map_or_else(String::new, |user| format!("user = {}\n", quoted(user)));
        let list =
            |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", ");
        let of_shell = |(name, _): &&(String, String)| name == "SHELL";
        let shell = self.settings.iter().find(of_shell).map_or("/bin/sh", |(_, shell)| shell);
        let words = [shell.to_owned(), "-c".to_owned(), script(&command, input.as_deref())];
        let others = self.settings.iter().filter(|setting| !of_shell(setting));
        let others: Vec<String> = others.map(|(name, value)| format!("{name}={value}")).collect();
        let env = match others.is_empty() {
            true => String::new(),
            false => format!("env = [{}]\n", list(&others)),
        };
        Ok(format!(
            "\n{}[jobs.{name}]\nschedule = {}\ntimezone = {}\ncommand = [{}]\n{user}{env}\
             backfill = \"none\"\nretry = \"0\"\n",
            cited(number, line),
            quoted(&times),
            quoted(&self.zone),
            list(&words),
        ))
    }

    /// Of the program that a command runs, as far as can be guessed; each but once.
    fn name(&mut self, command: &str) -> String {
        const OF_SHELL: [&str; 14] = [
            "cd", "command", "do", "env", "exec", "if", "ionice", "nice", "sh", "sleep", "sudo",
            "test", "then", "while",
        ];
        let is_between = |c: char| c.is_whitespace() || ";|&(){}<>[]!\"'`$".contains(c);
        let is_program = |word: &&str| {
            let begins = word.starts_with(|c: char| c.is_ascii_alphanumeric());
            begins && !word.contains('=') && !OF_SHELL.contains(word)
        };
        let bases = command.split(is_between).map(|word| word.rsplit('/').next().unwrap_or(word));
        let fit = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let found = bases.filter(|word| word.len() <= 60).find(is_program).unwrap_or("job");
        let base: String = found.chars().map(fit).collect();
        let numbered = (2_u32..).map(|number| format!("{base}-{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        let name = names.find(|name| !self.names.contains(name)).unwrap_or(base);
        self.names.insert(name.clone());
        name
    }
}

/// What the shell gets, with the input that cron would give the command.
fn script(command: &str, input: Option<&str>) -> String {
    let Some(input) = input else { return command.to_owned() };
    let lines = input.split_terminator('\n').map(|line| line.replace('\'', r"'\''"));
    let lines: Vec<String> = lines.map(|line| format!("'{line}'")).collect();
    // On a line of its own the bracket is no part of a comment.
    format!("printf '%s\\n' {} | {{ {command}\n}}", lines.join(" "))
}

/// The line as a comment.
fn cited(number: usize, line: &str) -> String {
    format!("# Line {number}: {}\n", text::escaped(line.trim_end()))
}

/// A word of a line, and the rest after its blanks.
fn word<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let end = rest.find([' ', '\t']).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.trim_start_matches([' ', '\t']);
    Some(word).filter(|word| !word.is_empty())
}

/// `NAME = value`, quoted or not, as crontab(5) has it; `None`: the line is none.
fn setting(line: &str) -> Option<(String, String)> {
    let blanks = [' ', '\t'];
    let (name, rest) = match line.chars().next().filter(|c| ['"', '\''].contains(c)) {
        Some(quote) => line[1..].split_once(quote)?,
        None => line.split_at(line.find([' ', '\t', '='])?),
    };
    let value = rest.trim_start_matches(blanks).strip_prefix('=')?.trim_matches([' ', '\t', '\r']);
    let unquoted = ['"', '\''].iter().find_map(|quote| {
        value.strip_prefix(*quote)?.strip_suffix(*quote).filter(|value| !value.contains(*quote))
    });
    let is_fit = !name.is_empty() && !name.contains('=') && !line.contains('\0');
    is_fit.then(|| (name.to_owned(), unquoted.unwrap_or(value).to_owned()))
}

/// The command up to the first `%`, and the input after it, if there is any, in which further ones
/// are line ends. A backslash before a `%` is taken away, in a command also one before another.
fn command_and_input(text: &str) -> (String, Option<String>) {
    let (mut command, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        match c {
            '%' => {
                let input = Some(input(chars.as_str())).filter(|input| !input.is_empty());
                return (command.trim_end().to_owned(), input);
            }
            '\\' => match chars.next() {
                Some(next @ ('%' | '\\')) => command.push(next),
                Some(next) => command.extend(['\\', next]),
                None => command.push('\\'),
            },
            c => command.push(c),
        }
    }
    (command, None)
}

fn input(text: &str) -> String {
    const ESCAPED: &str = "\0";
    text.replace("\\%", ESCAPED).replace('%', "\n").replace(ESCAPED, "%")
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    // JSON's, but that DEL has to be escaped.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}
