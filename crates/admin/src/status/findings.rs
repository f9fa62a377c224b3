//! What the ledger's facts mean: a line for each topic, with the next command where a person should
//! look. The rules, each with its reason, are in docs/status.md.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, SystemTime};

use super::{HOUR, LedgerFacts, SILENT, StatusFinding, WINDOW, ago, counted};
use onedrop_core::duration::brief;
use onedrop_core::exit::PluginStatus;
use onedrop_core::ledger::{AttemptCount, HostRow, JobRow, MOST_OPEN};
use onedrop_core::outcome::{Reason, Status};
use onedrop_core::text::shell::operand;
use onedrop_locks::jobs::job_status::{JobStanding, since};
use onedrop_site::config::JobSettings;

/// A host that has said nothing for longer is gone for good.
const GONE: Duration = Duration::from_secs(24 * 3600);
/// Clocks of a host and the ledger may differ by this.
const CLOCKS_MS: i64 = 2000;
/// Hosts, and jobs, that are named.
const NAMED_HOSTS: usize = 8;
const NAMED: usize = 3;
/// What is due once a day, verify and purge, is overdue after two.
const DAILY: Duration = Duration::from_secs(2 * 24 * 3600);
/// Of a hundred ends that are no quota's and no other delivery's, this many may be deferred.
const DEFERRED: u64 = 1;
/// From this number on, more mail returned than delivered is a mistake of the set-up.
const REFUSED: u64 = 20;

pub(super) fn of_ledger(facts: &LedgerFacts, jobs: &[JobSettings]) -> Vec<StatusFinding> {
    let mut found = vec![schema(facts)];
    found.extend(hosts(facts));
    found.extend(attempts(&facts.attempts.counts, facts.attempts.reach));
    found.push(durations(&facts.attempts.counts));
    found.push(doubts(facts));
    found.extend(kept(facts));
    found.extend(of_jobs(facts, jobs));
    found.push(verify(facts, jobs));
    found.push(purge(facts));
    found
}

fn schema(facts: &LedgerFacts) -> StatusFinding {
    let schema = &facts.schema;
    let version = format!("ledger {schema}");
    match (schema.found - schema.program).signum() {
        0 => StatusFinding::ok("ledger", format!("schema version {}", schema.found)),
        1 => StatusFinding::attention("ledger", version, "onedrop --version"),
        _ => StatusFinding::attention("ledger", version, "onedrop migrate --dry-run"),
    }
}

fn hosts(facts: &LedgerFacts) -> Vec<StatusFinding> {
    let mut found = Vec::new();
    let silent = |row: &&HostRow| (SILENT..GONE).contains(&row.seen_ago);
    let missing: Vec<&HostRow> = facts.hosts.iter().filter(silent).collect();
    for row in missing.iter().take(NAMED) {
        let HostRow { host, program_version, seen_ago, .. } = row;
        let sentence = format!("{host} {program_version} was last seen {}", ago(*seen_ago));
        found.push(StatusFinding::attention("hosts", sentence, look_at(host)));
    }
    let is_off = |row: &&HostRow| row.clock_offset_ms.is_some_and(|ms| ms.abs() > CLOCKS_MS);
    if let Some(row) = facts.hosts.iter().filter(|row| row.seen_ago < SILENT).find(is_off) {
        let by = brief(Duration::from_millis(row.clock_offset_ms.unwrap_or(0).unsigned_abs()));
        let sentence = format!("the clock of {} differs from the ledger's by {by}", row.host);
        found.push(StatusFinding::attention("hosts", sentence, "timedatectl"));
    }
    let mut seen: Vec<String> = Vec::new();
    for row in facts.hosts.iter().filter(|row| row.seen_ago < SILENT) {
        seen.push(format!("{} {} {}", row.host, row.program_version, ago(row.seen_ago)));
    }
    // A host that only runs `onedrop deliver`, or does so for some days, says nothing but what it
    // delivers.
    for (host, count) in &facts.attempts.hosts {
        if facts.hosts.iter().all(|row| row.host != *host || row.seen_ago >= GONE) {
            seen.push(format!("{host} ({})", counted(*count, "attempt", "attempts")));
        }
    }
    let rest = seen.len().saturating_sub(NAMED_HOSTS);
    seen.truncate(NAMED_HOSTS);
    if rest > 0 {
        seen.push(format!("and {rest} more"));
    }
    let further = missing.len().saturating_sub(NAMED);
    if further > 0 {
        seen.push(format!("{further} more not seen of late"));
    }
    let last = facts.hosts.iter().min_by_key(|row| row.seen_ago).filter(|_| missing.is_empty());
    found.push(match (seen.is_empty(), last) {
        (false, _) => StatusFinding::ok("hosts", seen.join(", ")),
        // One of several may be gone for good, but not the last.
        (true, Some(HostRow { host, seen_ago, .. })) => {
            let sentence = format!("none seen of late, the last was {host} {}", ago(*seen_ago));
            StatusFinding::attention("hosts", sentence, look_at(host))
        }
        (true, None) => {
            StatusFinding::ok("hosts", "none seen of late: no server, no tick, no mail")
        }
    });
    found
}

/// The command that shows why nothing runs on a host.
fn look_at(host: &str) -> String {
    format!("ssh {} systemctl status 'onedrop-*'", operand(host))
}

/// How many ended so.
pub(super) fn with_outcome(counts: &[AttemptCount], outcome: &str) -> u64 {
    let is_so = |one: &&AttemptCount| one.outcome.as_deref() == Some(outcome);
    counts.iter().filter(is_so).map(|one| one.count).sum()
}

/// Reasons of those that were deferred or refused, the most frequent first.
pub(super) fn reasons(counts: &[AttemptCount]) -> Vec<(String, u64)> {
    let mut reasons = BTreeMap::<&str, u64>::new();
    for one in counts.iter().filter(|one| one.outcome.as_deref() != Some("delivered")) {
        if let (Some(_), Some(reason)) = (&one.outcome, &one.reason) {
            *reasons.entry(reason).or_default() += one.count;
        }
    }
    let mut reasons: Vec<_> =
        reasons.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reasons
}

fn attempts(counts: &[AttemptCount], reach: Duration) -> Vec<StatusFinding> {
    let [delivered, deferred, refused] =
        ["delivered", "tempfail", "permfail"].map(|outcome| with_outcome(counts, outcome));
    let open: u64 = counts.iter().filter(|one| one.outcome.is_none()).map(|one| one.count).sum();
    let time =
        if reach >= HOUR { "last hour".to_owned() } else { format!("last {}", brief(reach)) };
    let mut sentence =
        format!("{time}: {delivered} delivered, {deferred} tempfail, {refused} permfail");
    if open > 0 {
        sentence += &format!(", {open} without an end");
    }
    let mut found = vec![StatusFinding::ok("attempts", sentence)];
    let top = reasons(counts);
    if top.is_empty() {
        return found;
    }
    let top: Vec<String> =
        top.iter().take(NAMED).map(|(reason, count)| format!("{reason} {count}")).collect();
    let sentence = format!("why not: {}", top.join(", "));
    let is_ours =
        |one: &&AttemptCount| one.status.as_deref() == Some(&*Status::OUR_SETUP.to_string());
    let setup: u64 = counts.iter().filter(is_ours).map(|one| one.count).sum();
    // A full mailbox is its owner's affair, and another delivery's lock is none.
    let is_normal = |one: &&AttemptCount| {
        let normal = [Reason::OverQuota, Reason::Contended].map(Reason::word);
        one.outcome.as_deref() == Some("tempfail")
            && one.reason.as_deref().is_some_and(|reason| normal.contains(&reason))
    };
    let normal: u64 = counts.iter().filter(is_normal).map(|one| one.count).sum();
    let bad = deferred - normal;
    let is_bad = setup > 0
        || bad * 100 > DEFERRED * (delivered + bad)
        || refused >= REFUSED && refused > delivered;
    found.push(match (setup > 0, is_bad) {
        (true, _) => {
            let sentence = format!("{sentence}; {setup} of them are yours to mend (4.3.5)");
            StatusFinding::attention("reasons", sentence, "onedrop check")
        }
        (false, true) => {
            StatusFinding::attention("reasons", sentence, "onedrop trace --failed --since 1h")
        }
        (false, false) => StatusFinding::ok("reasons", sentence),
    });
    found
}

/// The time in milliseconds within which `of_hundred` of a hundred delivered attempts ended.
pub(super) fn percentile(counts: &[AttemptCount], of_hundred: u64) -> Option<u64> {
    let mut took: Vec<(u64, u64)> = counts
        .iter()
        .filter(|one| one.outcome.as_deref() == Some("delivered"))
        .filter_map(|one| Some((one.millis?, one.count)))
        .collect();
    took.sort_unstable();
    let total: u64 = took.iter().map(|(_, count)| count).sum();
    let wanted = (total * of_hundred).div_ceil(100);
    let mut seen = 0;
    took.into_iter().find_map(|(millis, count)| {
        seen += count;
        (seen >= wanted).then_some(millis)
    })
}

fn durations(counts: &[AttemptCount]) -> StatusFinding {
    let sentence = match (percentile(counts, 50), percentile(counts, 99)) {
        (Some(half), Some(most)) => format!("delivered in {half} ms (p50), {most} ms (p99)"),
        _ => "nothing was delivered".to_owned(),
    };
    StatusFinding::ok("duration", sentence)
}

fn doubts(facts: &LedgerFacts) -> StatusFinding {
    let open = &facts.open;
    let reach = brief(open.reach);
    let Some(oldest) = open.oldest else {
        let sentence = format!("no copy in doubt, no lease without an end (of {reach})");
        return StatusFinding::ok("doubts", sentence);
    };
    let at_least = match open.in_doubt + open.leases_over >= u64::from(MOST_OPEN) {
        true => "at least ",
        false => "",
    };
    let doubts = counted(open.in_doubt, "copy", "copies");
    let leases = counted(open.leases_over, "lease", "leases");
    let sentence = format!(
        "{at_least}{doubts} in doubt, {leases} without an end (of {reach}), the oldest from {}",
        ago(oldest)
    );
    match oldest >= HOUR {
        true => StatusFinding::attention("doubts", sentence, verify_command(oldest)),
        false => StatusFinding::ok("doubts", sentence + "; Postfix' next try looks"),
    }
}

/// The command that compares and repairs what was recorded up to `oldest` ago. It still reaches
/// that if it is typed within the hour.
fn verify_command(oldest: Duration) -> String {
    format!("onedrop verify --since {} --repair", verify_since(oldest.saturating_add(HOUR)))
}

/// The value for `onedrop verify --since`: a window that contains a message of this age.
pub fn verify_since(ago: Duration) -> String {
    match ago < WINDOW {
        true => "48h".to_owned(),
        false => format!("{}d", ago.as_secs() / 86_400 + 1),
    }
}

/// Says that sections of jobs cannot be read, in place of what the configuration seems to have
/// without them; which of them verifies is not known either.
pub fn unread_jobs(findings: &mut Vec<StatusFinding>, problem: &dyn Display) {
    findings.retain(|finding| finding.topic != "jobs" && finding.topic != "verify");
    let sentence = format!("this host runs no job: {problem}");
    findings.push(StatusFinding::attention("jobs", sentence, "onedrop check"));
}

fn kept(facts: &LedgerFacts) -> Option<StatusFinding> {
    let count = facts.open.kept;
    let copies = counted(count, "copy for Sent waits", "copies for Sent wait");
    let sentence = format!("{copies} for more than a day");
    (count > 0).then(|| StatusFinding::attention("sent", sentence, "onedrop settle"))
}

fn of_jobs(facts: &LedgerFacts, jobs: &[JobSettings]) -> Vec<StatusFinding> {
    let standings: Vec<_> =
        jobs.iter().map(|job| JobStanding::of(job, jobs, &facts.jobs)).collect();
    let mut bad: Vec<_> = standings.iter().filter(|one| one.status() != PluginStatus::Ok).collect();
    bad.sort_by_key(|one| std::cmp::Reverse(one.status()));
    let mut found: Vec<StatusFinding> = bad
        .iter()
        .take(NAMED)
        .map(|one| {
            let command = format!("onedrop jobs show {}", one.job.name);
            StatusFinding::attention("jobs", one.trouble(), command)
        })
        .collect();
    let (well, more) = (standings.len() - bad.len(), bad.len().saturating_sub(NAMED));
    if more > 0 {
        let sentence = format!("{more} more are not well");
        found.push(StatusFinding::attention("jobs", sentence, "onedrop jobs list"));
    }
    if well > 0 || bad.is_empty() {
        let sentence = match standings.is_empty() {
            true => "none in the configuration".to_owned(),
            false => format!("{} ok", counted(well as u64, "job", "jobs")),
        };
        found.push(StatusFinding::ok("jobs", sentence));
    }
    found
}

/// The rows of jobs that run `onedrop verify`: others than the shipped one by their command. A
/// host's configuration may lack that one, or be one that cannot be read.
fn verify_jobs<'a>(facts: &'a LedgerFacts, jobs: &[JobSettings]) -> Vec<&'a JobRow> {
    let runs_it = |job: &&JobSettings| runs_verify(&job.command);
    let mut names: Vec<&str> = jobs.iter().filter(runs_it).map(|job| &*job.name).collect();
    names.push("verify");
    facts.jobs.rows.iter().filter(|row| names.contains(&&*row.name)).collect()
}

/// Whether a job's command, or the text of a shell in it, has `onedrop`, options that each command
/// takes, and then `verify`.
fn runs_verify(command: &[String]) -> bool {
    let words: Vec<&str> = command.iter().flat_map(|word| word.split_whitespace()).collect();
    let is_ours = |word: &str| word.rsplit('/').next() == Some("onedrop");
    let starts = (0..words.len()).filter(|at| is_ours(words[*at]));
    starts.into_iter().any(|at| {
        let mut rest = words[at + 1..].iter();
        loop {
            match rest.next() {
                Some(&("--config" | "--color")) => _ = rest.next(),
                Some(option) if option.starts_with("--") => {}
                word => return word == Some(&"verify"),
            }
        }
    })
}

/// For how long no job has run `onedrop verify` with success; if none ever has, how far back the
/// ledger remembers. `None`: no message is on record, or the ledger does not know that.
pub(super) fn unverified(facts: &LedgerFacts, jobs: &[JobSettings]) -> Option<Duration> {
    if !facts.has_messages {
        return None;
    }
    let successes = verify_jobs(facts, jobs).into_iter().filter_map(|row| row.last_success);
    let last = successes.max().map(|at| since(at, facts.jobs.now));
    last.or(facts.remembered.since.map(|_| facts.remembered.since_ago))
}

fn verify(facts: &LedgerFacts, jobs: &[JobSettings]) -> StatusFinding {
    let now: SystemTime = facts.jobs.now;
    // Doubts that are older than the window of `doubts` are for it alone to find.
    let overdue = unverified(facts, jobs).filter(|time| *time >= DAILY);
    let ended = verify_jobs(facts, jobs).into_iter().filter(|row| row.last_end.is_some());
    let Some(row) = ended.max_by_key(|row| row.last_end) else {
        let Some(age) = overdue else { return StatusFinding::ok("verify", "no job has run it") };
        let sentence = format!("no job has run it, and the ledger remembers for {}", brief(age));
        return StatusFinding::attention("verify", sentence, verify_command(age));
    };
    let when = row.last_end.map(|end| ago(since(end, now))).unwrap_or_default();
    let show = format!("onedrop jobs show {}", row.name);
    match (row.last_exit, overdue) {
        (Some(0), None) => {
            StatusFinding::ok("verify", format!("ended {when}, nothing left to repair"))
        }
        (Some(0), Some(time)) => {
            let sentence = format!("ended {when}, and no job has run it since");
            StatusFinding::attention("verify", sentence, verify_command(time + WINDOW))
        }
        (Some(1), _) => {
            let sentence = format!("ended {when} and left something that a person must look at");
            StatusFinding::attention("verify", sentence, show)
        }
        _ => StatusFinding::attention("verify", format!("failed {when}"), show),
    }
}

fn purge(facts: &LedgerFacts) -> StatusFinding {
    let remembered = &facts.remembered;
    let age = remembered.since.map(|_| remembered.since_ago);
    match (remembered.purged_ago, age) {
        (Some(purged), _) if purged < DAILY => {
            StatusFinding::ok("purge", format!("ended {}", ago(purged)))
        }
        (Some(purged), _) => {
            StatusFinding::attention("purge", format!("ended {}", ago(purged)), "onedrop purge")
        }
        (None, Some(age)) if age >= DAILY => {
            let sentence = format!("never ended, and the ledger is {} old", brief(age));
            StatusFinding::attention("purge", sentence, "onedrop purge")
        }
        (None, _) => StatusFinding::ok("purge", "none yet"),
    }
}
