//! The status in numbers: for `onedrop status --json`, and as metrics, which the server serves and
//! a host without one writes into a file for node_exporter.

use std::time::{Duration, SystemTime};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;

use super::LedgerFacts;
use super::findings::{percentile, reasons, unverified, with_outcome};
use onedrop_locks::jobs::job_status::{JobStanding, JobState};
use onedrop_site::config::JobSettings;

/// The figures of `onedrop status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StatusFigures {
    pub schema_version: i64,
    pub program_schema_version: i64,
    /// How far back the attempts are counted that follow.
    pub attempts_secs: u64,
    pub delivered: u64,
    pub tempfail: u64,
    pub permfail: u64,
    pub without_end: u64,
    /// Of those that were deferred or refused, the most frequent first.
    pub reasons: Vec<ReasonCount>,
    pub p50_ms: Option<u64>,
    pub p99_ms: Option<u64>,
    pub copies_in_doubt: u64,
    pub leases_without_end: u64,
    pub oldest_doubt_secs: Option<u64>,
    /// How far back copies were looked through.
    pub copies_secs: u64,
    pub sent_waiting: u64,
    /// For how long no job has verified with success, or how old the ledger is; `None`: there is
    /// no message to verify.
    pub unverified_secs: Option<u64>,
    pub purged_secs_ago: Option<u64>,
    pub hosts: Vec<HostFigures>,
    pub jobs: Vec<JobFigures>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReasonCount {
    pub reason: String,
    pub count: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostFigures {
    pub host: String,
    /// `None`: it says nothing of itself, and is known by what it delivers.
    pub version: Option<String>,
    pub seen_secs_ago: Option<u64>,
    pub attempts: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobFigures {
    pub job: String,
    /// In a word, as `onedrop jobs list` has it.
    pub state: &'static str,
    /// Failures since the last success; 0 for one that is paused or disabled.
    pub errors: u32,
    pub last_exit: Option<i32>,
    /// In seconds since 1970.
    pub last_success: Option<u64>,
    /// By how much it is past the time when it should have started.
    pub overdue_secs: Option<u64>,
}

impl StatusFigures {
    pub(super) fn of(facts: &LedgerFacts, jobs: &[JobSettings]) -> StatusFigures {
        let (counts, open) = (&facts.attempts.counts, &facts.open);
        let secs = |time: Duration| time.as_secs();
        let attempts = |host: &str| {
            let own = facts.attempts.hosts.iter().find(|(name, _)| name == host);
            own.map_or(0, |(_, count)| *count)
        };
        let known = facts.hosts.iter().map(|row| HostFigures {
            host: row.host.clone(),
            version: Some(row.program_version.clone()),
            seen_secs_ago: Some(secs(row.seen_ago)),
            attempts: attempts(&row.host),
        });
        let is_unknown = |host: &str| facts.hosts.iter().all(|row| row.host != host);
        let others = facts.attempts.hosts.iter().filter(|(host, _)| is_unknown(host));
        let others = others.map(|(host, count)| HostFigures {
            host: host.clone(),
            version: None,
            seen_secs_ago: None,
            attempts: *count,
        });
        let open_ends = counts.iter().filter(|one| one.outcome.is_none());
        let reason = |(reason, count)| ReasonCount { reason, count };
        StatusFigures {
            schema_version: facts.schema.found,
            program_schema_version: facts.schema.program,
            attempts_secs: secs(facts.attempts.reach),
            delivered: with_outcome(counts, "delivered"),
            tempfail: with_outcome(counts, "tempfail"),
            permfail: with_outcome(counts, "permfail"),
            without_end: open_ends.map(|one| one.count).sum(),
            reasons: reasons(counts).into_iter().map(reason).collect(),
            p50_ms: percentile(counts, 50),
            p99_ms: percentile(counts, 99),
            copies_in_doubt: open.in_doubt,
            leases_without_end: open.leases_over,
            oldest_doubt_secs: open.oldest.map(secs),
            copies_secs: secs(open.reach),
            sent_waiting: open.kept,
            unverified_secs: unverified(facts, jobs).map(secs),
            purged_secs_ago: facts.remembered.purged_ago.map(secs),
            hosts: known.chain(others).collect(),
            jobs: jobs
                .iter()
                .map(|job| JobFigures::of(&JobStanding::of(job, jobs, &facts.jobs)))
                .collect(),
        }
    }
}

impl JobFigures {
    /// A job that nothing has looked for yet has no row.
    fn of(standing: &JobStanding<'_>) -> JobFigures {
        let row = standing.row;
        let secs = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
        };
        JobFigures {
            job: standing.job.name.clone(),
            state: standing.state.as_str(),
            errors: if standing.is_on() { standing.failures() } else { 0 },
            last_exit: row.and_then(|row| row.last_exit),
            last_success: row.and_then(|row| row.last_success).map(secs),
            overdue_secs: standing.overdue.map(|by| by.as_secs()),
        }
    }
}

/// What a host sees whether or not it has the ledger's figures.
#[derive(Debug, Clone, Copy)]
pub struct SeenByHost {
    /// It takes mail, whether or not this role may read its figures.
    pub ledger_up: bool,
    pub store_up: bool,
    /// Without a mistake in the configuration; with one, the host runs no job.
    pub jobs_config_ok: bool,
    /// Deliveries of the last hour that were put off before they were on record.
    pub unrecorded: u64,
}

/// The gauges of them, in a registry.
#[derive(Debug, Default, Clone)]
pub struct StatusGauges {
    build: Family<[(&'static str, &'static str); 1], Gauge>,
    schema: Gauge,
    ledger_up: Gauge,
    store_up: Gauge,
    jobs_config_ok: Gauge,
    unrecorded: Gauge,
    in_doubt: Gauge,
    leases: Gauge,
    oldest: Gauge,
    kept: Gauge,
    unverified: Gauge,
    last_success: Family<[(&'static str, String); 1], Gauge>,
    errors: Family<[(&'static str, String); 1], Gauge>,
    overdue: Family<[(&'static str, String); 1], Gauge>,
    on_record: Family<[(&'static str, String); 1], Gauge>,
    seen: Gauge,
}

impl StatusGauges {
    /// Has them served with what else is in `registry`.
    pub fn register(&self, registry: &mut Registry) {
        self.register_of_host(registry);
        self.register_of_ledger(registry);
    }

    /// What is known without its figures.
    fn register_of_host(&self, of: &mut Registry) {
        let gauges = self;
        gauges.build.get_or_create_owned(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        of.register("onedrop_build_info", "The program: always 1", gauges.build.clone());
        let help =
            "Whether the ledger answered when it was last asked, and took what a server wrote";
        of.register("onedrop_ledger_up", help, gauges.ledger_up.clone());
        let help = "Whether the mail store answered when it was last asked";
        of.register("onedrop_store_up", help, gauges.store_up.clone());
        let help = "Whether the host can read its jobs; 0: a mistake in its configuration";
        of.register("onedrop_jobs_config_ok", help, gauges.jobs_config_ok.clone());
        let help = "Deliveries of the last hour on this host, put off before they were on record";
        of.register("onedrop_unrecorded_deliveries", help, gauges.unrecorded.clone());
    }

    fn register_of_ledger(&self, of: &mut Registry) {
        let gauges = self;
        let help = "The ledger's schema version; 0: not known yet";
        of.register("onedrop_schema_version", help, gauges.schema.clone());
        let help = "Copies that may stand in their mailbox, without a receipt";
        of.register("onedrop_copies_in_doubt", help, gauges.in_doubt.clone());
        let help = "Copies whose lease ran out without an end";
        of.register("onedrop_leases_without_end", help, gauges.leases.clone());
        let help = "Age of the oldest of both in seconds; 0: there is none";
        of.register("onedrop_oldest_doubt_seconds", help, gauges.oldest.clone());
        let help = "Messages whose copy for Sent has waited for more than a day";
        of.register("onedrop_sent_waiting", help, gauges.kept.clone());
        let help = "For how long no job has verified with success; 0: no message is there";
        of.register("onedrop_unverified_seconds", help, gauges.unverified.clone());
        let help = "When a job last succeeded, in seconds since 1970; 0: never";
        let times = gauges.last_success.clone();
        of.register("onedrop_job_last_success_timestamp_seconds", help, times);
        let help = "Failures of a job since its last success";
        of.register("onedrop_job_errors", help, gauges.errors.clone());
        let help = "By how much a job is past the time when it should have started";
        of.register("onedrop_job_overdue_seconds", help, gauges.overdue.clone());
        let help = "Whether any host has looked for the job since it is configured";
        of.register("onedrop_job_on_record", help, gauges.on_record.clone());
        let help = "When these were last known, in seconds since 1970";
        of.register("onedrop_status_timestamp_seconds", help, gauges.seen.clone());
    }

    /// What is so at `now`; without figures the last ones stay.
    pub fn set(&self, seen: SeenByHost, figures: Option<&StatusFigures>, now: SystemTime) {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.ledger_up.set(seen.ledger_up.into());
        self.store_up.set(seen.store_up.into());
        self.jobs_config_ok.set(seen.jobs_config_ok.into());
        self.unrecorded.set(number(seen.unrecorded));
        let Some(figures) = figures else { return };
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.seen.set(number(now.as_secs()));
        self.schema.set(figures.schema_version);
        self.in_doubt.set(number(figures.copies_in_doubt));
        self.leases.set(number(figures.leases_without_end));
        self.oldest.set(number(figures.oldest_doubt_secs.unwrap_or(0)));
        self.kept.set(number(figures.sent_waiting));
        // Without its jobs a host does not know which of them verifies.
        let unverified = figures.unverified_secs.filter(|_| seen.jobs_config_ok);
        self.unverified.set(number(unverified.unwrap_or(0)));
        // A job that is gone from the configuration is shown no more.
        self.last_success.clear();
        self.errors.clear();
        self.overdue.clear();
        self.on_record.clear();
        for one in &figures.jobs {
            let JobFigures { job, state, errors, last_success, overdue_secs, .. } = one;
            // Not `job`, which Prometheus calls its own targets.
            let labels = [("name", job.clone())];
            self.last_success.get_or_create_owned(&labels).set(number(last_success.unwrap_or(0)));
            self.errors.get_or_create_owned(&labels).set(i64::from(*errors));
            let overdue = number(overdue_secs.unwrap_or(0));
            self.overdue.get_or_create_owned(&labels).set(overdue);
            let is_on_record = *state != JobState::New.as_str();
            self.on_record.get_or_create_owned(&labels).set(is_on_record.into());
        }
    }

    /// All of them as Prometheus reads them, for node_exporter's textfile collector; without
    /// figures those that are known without them.
    pub fn textfile(seen: SeenByHost, figures: Option<&StatusFigures>, now: SystemTime) -> String {
        let mut registry = Registry::default();
        let gauges = StatusGauges::default();
        gauges.register_of_host(&mut registry);
        if figures.is_some() {
            gauges.register_of_ledger(&mut registry);
        }
        gauges.set(seen, figures, now);
        let mut text = String::new();
        // Writing to a String cannot fail. The mark at the end is OpenMetrics' alone.
        let _ = encode(&mut text, &registry);
        text.replace("# EOF\n", "")
    }
}
