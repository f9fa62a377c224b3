//! Dialogs as files. First what there is: `known:`, `later:` and `broken:` (recipients that the
//! directory knows, cannot look up now, or not as it is set up), `recipients:` and `bytes:` (the
//! limits), `idle:` (seconds), `counts-refused:` (a refused recipient is an error). Then what is
//! said, from the greeting on; `C*5: ` stands for five lines `C: `, and `#` starts a comment:
//!
//! - `C: ` a line from the client, CRLF added; `c: ` bytes, nothing added. Escapes: `escapes.rs`.
//! - `S: ` a reply line; one that ends in `...` stands for any rest, and `S: 250-...` for all such
//!   lines in a row. `X:` the connection is closed.
//! - `E: ` and `B: ` the envelope and the bytes of a message that is complete; `F: ` why there is
//!   no message in place of one.
//! - `wait: ` seconds that pass before the client goes on; `stop:` the server begins to stop.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onedrop::lmtp::server::connection::ConnectionSettings;

use super::escapes::unescaped;
use super::script::{Directory, Event, settings};

/// What happens, and what must have come of it when nothing is left to read.
#[derive(Debug, Default)]
pub struct Step {
    pub events: Vec<Event>,
    pub expected: Vec<String>,
}

pub struct Dialog {
    pub name: String,
    pub settings: ConnectionSettings,
    pub directory: Directory,
    pub steps: Vec<Step>,
}

impl Dialog {
    /// Everything the client sends.
    pub fn input(&self) -> Vec<u8> {
        let events = self.steps.iter().flat_map(|step| &step.events);
        events
            .filter_map(
                |event| if let Event::Says(bytes) = event { Some(&bytes[..]) } else { None },
            )
            .collect::<Vec<_>>()
            .concat()
    }

    /// All that happens, with a mark between the steps.
    pub fn events(&self) -> Vec<Event> {
        let steps: Vec<&[Event]> = self.steps.iter().map(|step| &step.events[..]).collect();
        steps.join(&Event::Step)
    }
}

/// All dialogs in `fixtures/dialogs`, by name.
pub fn all() -> Vec<Dialog> {
    let folder = Path::new(crate::PROJECT).join("fixtures/dialogs");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| parse(path)).collect()
}

fn parse(path: &Path) -> Dialog {
    let mut dialog = Dialog {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        settings: settings("mail.axial.net", 100, 0),
        directory: Directory::default(),
        steps: vec![Step::default()],
    };
    let text = fs::read_to_string(path).unwrap();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (word, rest) =
            line.split_once(':').unwrap_or_else(|| panic!("{}: {line}", dialog.name));
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        let (word, times) =
            word.split_once('*').map_or((word, 1), |(word, times)| (word, times.parse().unwrap()));
        let words = || rest.split(' ').map(str::to_owned).collect();
        let number = || rest.parse().unwrap_or_else(|_| panic!("{}: {line}", dialog.name));
        let event = match word {
            "known" => {
                dialog.directory.known = words();
                continue;
            }
            "later" => {
                dialog.directory.later = words();
                continue;
            }
            "broken" => {
                dialog.directory.broken = words();
                continue;
            }
            "recipients" => {
                dialog.settings.lmtp.recipients = rest.parse().unwrap();
                continue;
            }
            "bytes" => {
                dialog.settings.message_bytes = number();
                continue;
            }
            "counts-refused" => {
                dialog.settings.counts_refused = true;
                continue;
            }
            "idle" => {
                dialog.settings.lmtp.idle_secs = number();
                continue;
            }
            "S" | "E" | "B" | "F" | "X" => {
                let line =
                    if rest.is_empty() { format!("{word}:") } else { format!("{word}: {rest}") };
                dialog.steps.last_mut().unwrap().expected.extend(std::iter::repeat_n(line, times));
                continue;
            }
            "wait" => Event::Waits(Duration::from_secs(number())),
            "stop" => Event::Stop,
            "C" => Event::Says([&unescaped(rest)[..], b"\r\n"].concat().repeat(times)),
            "c" => Event::Says(unescaped(rest).repeat(times)),
            _ => panic!("{}: {line}", dialog.name),
        };
        if !dialog.steps.last().unwrap().expected.is_empty() {
            dialog.steps.push(Step::default());
        }
        let events = &mut dialog.steps.last_mut().unwrap().events;
        match (events.last_mut(), event) {
            (Some(Event::Says(before)), Event::Says(bytes)) => before.extend(bytes),
            (_, event) => events.push(event),
        }
    }
    dialog
}

/// Where `transcript` is not what `expected` says: the number of the first such line, and both.
pub fn difference(expected: &[String], transcript: &[String]) -> Option<String> {
    let mut heard = transcript.iter().peekable();
    for (number, line) in expected.iter().enumerate() {
        let Some(first) = heard.next() else {
            return Some(format!("{}: {line}\nbut nothing came", number + 1));
        };
        let fits = |said: &String| match line.strip_suffix("...") {
            Some(start) => said.starts_with(start),
            None => said == line,
        };
        if !fits(first) {
            return Some(format!("{}: {line}\nbut {first}", number + 1));
        }
        if line.ends_with("-...") {
            while heard.next_if(|said| fits(said)).is_some() {}
        }
    }
    heard.next().map(|more| format!("nothing more was to come, but {more}"))
}
