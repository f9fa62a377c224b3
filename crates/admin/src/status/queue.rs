//! Postfix' queues on this host, by `postqueue -j` (postqueue(1)): mail for those that the
//! directory knows, and how long the oldest has waited. Whose the other mail is, a query or userdb
//! without `domains` would have to be asked, and is not: it is counted apart. A host without
//! Postfix, or where Postfix has no configuration, has no such finding. A Postfix that does not run
//! matters where its own configuration leads to ours.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;

use super::{StatusFinding, StatusLevel, counted};
use crate::check::{self, program};
use onedrop_core::directory::{Directory, Known};
use onedrop_core::duration::brief;
use onedrop_core::text::shell::operand;
use onedrop_site::config::Loaded;

/// Mail that has waited for longer needs somebody. Postfix tries again after five minutes, and then
/// at longer and longer intervals.
const LONG: Duration = Duration::from_secs(3600);

/// A message in the queue, as a line of JSON of postqueue(1) has it.
#[derive(Deserialize)]
struct QueuedMessage {
    queue_name: String,
    queue_id: String,
    /// Seconds since 1970.
    arrival_time: u64,
    #[serde(default)]
    recipients: Vec<QueuedRecipient>,
}

#[derive(Deserialize)]
struct QueuedRecipient {
    address: String,
}

pub(super) fn finding(loaded: &Loaded, until: Instant) -> Option<StatusFinding> {
    let program = program::find("postqueue")?;
    let others = instances(until).into_iter().map(Some);
    let (mut queues, mut stopped, mut asked) = (String::new(), Vec::new(), 0);
    for folder in std::iter::once(None).chain(others) {
        let mut command = Command::new(&program);
        folder.iter().for_each(|folder| _ = command.args(["-c", folder]));
        asked += 1;
        match program::output_and_complaint(command.arg("-j"), "tell the queue", until) {
            // Root reads the queue by itself then, and mostly finds nothing.
            Ok((_, complaint)) if is_stopped(&complaint) => stopped.push(folder),
            Ok((queue, _)) => queues.push_str(&queue),
            Err(why) if is_stopped(&why.complaint) => stopped.push(folder),
            // Installed, perhaps for a client of the host, and never set up.
            Err(why) if why.text.ends_with("main.cf: No such file or directory") => return None,
            // This user may not ask, or the queue is too long to be listed in time.
            Err(why) => {
                let next = match &folder {
                    None => "postqueue -p".to_owned(),
                    Some(folder) => format!("postqueue -c {} -p", operand(folder)),
                };
                return Some(StatusFinding::attention("queue", why.text, next));
            }
        }
    }
    let of_queues = of_output(&queues, &loaded.config.directory.addresses, SystemTime::now());
    // What another instance leads to is not looked into.
    let matters =
        |folder: &&Option<String>| folder.is_some() || check::postfix_leads_to(loaded, until);
    Some(match stopped.iter().find(matters) {
        Some(folder) if of_queues.level == StatusLevel::Ok => {
            let sentence = match folder {
                None => "Postfix is not running".to_owned(),
                Some(folder) => format!("Postfix' instance {folder} is not running"),
            };
            StatusFinding::attention("queue", sentence, "systemctl status 'postfix*'")
        }
        None if stopped.len() == asked => {
            let sentence = "Postfix is not running, and does not deliver by this configuration";
            StatusFinding::ok("queue", sentence)
        }
        Some(_) | None => of_queues,
    })
}

/// Postfix' postqueue/postqueue.c says so to root (a warning) and to others in different lines.
fn is_stopped(complaint: &str) -> bool {
    complaint.to_lowercase().contains("mail system is down")
}

/// The configuration folders of Postfix' instances beside the first, as far as each is enabled
/// (postmulti(1)).
fn instances(until: Instant) -> Vec<String> {
    let Some(program) = program::find("postconf") else { return Vec::new() };
    let value = |args: &[&str], name: &str| {
        let mut command = Command::new(&program);
        program::output(command.args(args).args(["-hx", name]), until).unwrap_or_default()
    };
    let folders = value(&[], "multi_instance_directories");
    let folders = folders.split([' ', ',', '\t', '\n']).filter(|folder| !folder.is_empty());
    let is_enabled =
        |folder: &&str| value(&["-c", folder], "multi_instance_enable").trim() == "yes";
    folders.filter(is_enabled).map(str::to_owned).collect()
}

/// What the output of `postqueue -j` says; for the tests, which have no Postfix.
pub fn of_output(output: &str, directory: &Directory, now: SystemTime) -> StatusFinding {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (mut waiting, mut deferred, mut held, mut unknown) = (0, 0, 0, 0);
    let mut oldest: Option<(Duration, String)> = None;
    // A line that is cut, or is of a newer Postfix, is passed over.
    for one in output.lines().filter_map(|line| serde_json::from_str::<QueuedMessage>(line).ok()) {
        let known: Vec<_> =
            one.recipients.iter().map(|one| directory.known(&one.address)).collect();
        let is_ours = |known: &Known| match known {
            Known::Home(_) => true,
            Known::Ask(_) => !directory.domains.is_empty(),
            Known::Nobody => false,
        };
        if !known.iter().any(is_ours) {
            unknown += u64::from(known.iter().any(|one| matches!(one, Known::Ask(_))));
            continue;
        }
        match one.queue_name.as_str() {
            "deferred" => deferred += 1,
            "hold" => {
                held += 1;
                continue;
            }
            _ => waiting += 1,
        }
        let age = now.saturating_sub(Duration::from_secs(one.arrival_time));
        if oldest.as_ref().is_none_or(|(known, _)| age > *known) {
            oldest = Some((age, one.queue_id));
        }
    }
    let mut sentence = match (waiting, deferred) {
        (0, 0) if unknown > 0 => "nothing surely for us in Postfix' queue".to_owned(),
        (0, 0) => "nothing for us in Postfix' queue".to_owned(),
        _ => format!("{} for us in Postfix' queue, {deferred} deferred", waiting + deferred),
    };
    if held > 0 {
        sentence += &format!(", {} on hold", counted(held, "message", "messages"));
    }
    if unknown > 0 {
        let others = counted(unknown, "other is", "others are");
        sentence += &format!(", whether {others} ours is not known (no directory.domains)");
    }
    match oldest {
        Some((age, id)) if age >= LONG => {
            sentence += &format!(", the oldest {id} for {}", brief(age));
            // It may have been deferred before it came to us.
            StatusFinding::attention("queue", sentence, format!("onedrop trace {id}"))
        }
        _ => StatusFinding::ok("queue", sentence),
    }
}
