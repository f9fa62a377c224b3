//! The server, its ledger and what they use, looked at again and again during a load, and what
//! that was in each tenth of it.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};

use super::world::{Sent, World};

/// Rows that are gone and not vacuumed away, of all; and the ledger's bytes, with its indexes.
const LEDGER: &str = "
SELECT (pg_current_wal_insert_lsn() - '0/0')::float8,
       sum(pg_total_relation_size(c.oid))::float8,
       sum(s.n_dead_tup)::float8 / greatest(sum(s.n_live_tup + s.n_dead_tup), 1)::float8
FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid WHERE c.relname LIKE 'onedrop%'";

/// At one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    accepted: u64,
    own_kb: u64,
    pss_kb: u64,
    files: usize,
    wal_bytes: f64,
    ledger_bytes: f64,
    dead: f64,
    server: Duration,
    postgres: Duration,
}

/// In a tenth of the load.
#[derive(Debug, Clone, Copy)]
pub struct Tenth {
    pub messages_a_second: f64,
    /// What the server has allocated (anonymous memory), on average.
    pub own_mb: f64,
    /// With its share of the files that it maps, its program first of all.
    pub pss_mb: f64,
    /// The server's open files, at most.
    pub files: f64,
    /// A message, with page images.
    pub wal_bytes: f64,
    /// With indexes, on average.
    pub ledger_mb: f64,
    /// Rows that are gone and still take room, of 100; on average.
    pub dead: f64,
    /// Processor time for a message.
    pub server_ms: f64,
    pub postgres_ms: f64,
}

/// Looks from time to time.
pub struct Samples(Vec<Sample>);

impl Samples {
    /// Looks each `gap` until `is_over`.
    pub fn take(world: &World, sent: &Sent, gap: Duration, is_over: &AtomicBool) -> Samples {
        let url = world.postgres.url_socket();
        let mut ledger = Client::connect(&url, NoTls).expect("a session");
        let mut samples = Vec::new();
        loop {
            let is_last = is_over.load(Ordering::SeqCst);
            samples.push(Sample::take(world, sent, &mut ledger));
            if is_last {
                return Samples(samples);
            }
            thread::sleep(gap);
        }
    }

    /// The tenths of what was accepted after `warm`; what a tenth has no samples of is not a
    /// number.
    pub fn tenths(&self, warm: u64) -> Vec<Tenth> {
        let Samples(samples) = self;
        let last = samples.last().map_or(warm, |sample| sample.accepted).max(warm);
        let edge = |tenth: u64| {
            let accepted = warm + (last - warm) * tenth / 10;
            samples.partition_point(|sample| sample.accepted < accepted).min(samples.len() - 1)
        };
        (0..10).map(|tenth| Tenth::of(&samples[edge(tenth)..=edge(tenth + 1)])).collect()
    }

    /// The server's open files at most, among the first and among the last half of the samples
    /// that were taken after `warm`.
    pub fn files_by_half(&self, warm: u64) -> (usize, usize) {
        let samples: Vec<&Sample> =
            self.0.iter().filter(|sample| sample.accepted >= warm).collect();
        let (first, last) = samples.split_at(samples.len() / 2);
        let most = |part: &[&Sample]| part.iter().map(|sample| sample.files).max().unwrap_or(0);
        (most(first), most(last))
    }
}

impl Sample {
    fn take(world: &World, sent: &Sent, ledger: &mut Client) -> Sample {
        let pid = world.lmtp.pid();
        let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let kb = |name: &str| {
            let rest = memory.lines().find_map(|line| line.strip_prefix(name));
            rest.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
        };
        let row = ledger.query_one(LEDGER, &[]).expect("the ledger's figures");
        Sample {
            at: Instant::now(),
            accepted: sent.accepted.load(Ordering::SeqCst),
            own_kb: kb("Anonymous:"),
            pss_kb: kb("Pss:"),
            files: fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count),
            wal_bytes: row.get(0),
            ledger_bytes: row.get(1),
            dead: row.get(2),
            server: world.lmtp.cpu(),
            postgres: world.postgres.cpu(),
        }
    }
}

impl Tenth {
    fn of(samples: &[Sample]) -> Tenth {
        let (first, last) = (samples[0], samples[samples.len() - 1]);
        let messages = (last.accepted - first.accepted) as f64;
        let mean =
            |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / samples.len() as f64;
        let most = |of: fn(&Sample) -> f64| samples.iter().map(of).fold(0.0, f64::max);
        let ms = |of: fn(&Sample) -> Duration| {
            of(&last).saturating_sub(of(&first)).as_secs_f64() * 1000.0 / messages
        };
        Tenth {
            messages_a_second: messages / (last.at - first.at).as_secs_f64(),
            own_mb: mean(|one| one.own_kb as f64 / 1024.0),
            pss_mb: mean(|one| one.pss_kb as f64 / 1024.0),
            files: most(|one| one.files as f64),
            wal_bytes: (last.wal_bytes - first.wal_bytes) / messages,
            ledger_mb: mean(|one| one.ledger_bytes / 1e6),
            dead: mean(|one| one.dead * 100.0),
            server_ms: ms(|one| one.server),
            postgres_ms: ms(|one| one.postgres),
        }
    }
}
