//! A long load by LMTP into Maildirs with the ledger in Postgres, whose memory is short, so that as
//! much is purged as comes: is each message in its mailboxes once, byte for byte, and does anything
//! grow that should not? `cargo bench --bench soak`, and a short form among the fault tests.

pub mod mail;
mod tally;
mod watch;
mod world;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tally::Tally;
use watch::Samples;
pub use watch::Tenth;
pub use world::{Purges, Sent, World};

/// How long, and how much at once.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub messages: u64,
    pub connections: usize,
    /// What the ledger remembers.
    pub memory: Duration,
}

impl Plan {
    /// This number of messages, and a memory of a small part of the time that they take.
    pub fn of(messages: u64) -> Plan {
        let secs = (messages as f64 / 33_000.0).clamp(1.0, 30.0);
        Plan { messages, connections: 16, memory: Duration::from_secs_f64(secs) }
    }
}

/// What a soak ends with.
pub struct Outcome {
    pub took: Duration,
    /// Copies in mailboxes.
    pub copies: u64,
    pub deferred: u64,
    pub purges: Purges,
    /// Copies that are not as they should be, and some that are not there.
    pub wrong: Vec<String>,
    /// Rows of copies that are not on record as placed.
    pub unplaced: u64,
    /// Messages on record in the end.
    pub on_record: u64,
    /// Of what came after twice the ledger's memory.
    pub tenths: Vec<Tenth>,
    /// Open files at most, in the first and in the last half of these.
    pub files: (usize, usize),
}

/// Sends all, and returns when each was looked for.
pub fn run(plan: Plan) -> Outcome {
    let world = World::start();
    let (sent, tally) = (Sent::default(), Tally::new(plan.messages));
    let (is_sent, never, warm) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let (world, sent, tally, is_sent) = (&world, &sent, &tally, &is_sent);
    let began = Instant::now();
    let (took, wrong, purges, samples) = thread::scope(|scope| {
        let taking = scope.spawn(|| tally.take(&world.mail(), &world.letters, is_sent));
        let gap = (plan.memory / 30).max(Duration::from_millis(50));
        let watching = scope.spawn(move || Samples::take(world, sent, gap, is_sent));
        let purging = scope.spawn(|| {
            let mut purges = Purges::default();
            while !is_sent.load(Ordering::SeqCst) {
                let more = world.purge(plan.memory);
                purges.messages += more.messages;
                purges.passed_by += more.passed_by;
                thread::sleep(plan.memory / 10);
                if began.elapsed() > 2 * plan.memory {
                    let accepted = sent.accepted.load(Ordering::SeqCst);
                    let _ = warm.compare_exchange(0, accepted, Ordering::SeqCst, Ordering::SeqCst);
                }
            }
            purges
        });
        // Also where a sender panics.
        let all_sent = Raised(is_sent);
        thread::scope(|senders| {
            for _ in 0..plan.connections {
                senders.spawn(|| world.send(sent, plan.messages, &never, |_| ()));
            }
        });
        let took = began.elapsed();
        drop(all_sent);
        let of = "no panic";
        (took, taking.join().expect(of), purging.join().expect(of), watching.join().expect(of))
    });
    let count = |what: &str| {
        let sql = format!("SELECT count(*) FROM {what}");
        world.postgres.psql(&sql).parse().expect("a number")
    };
    let warm = warm.load(Ordering::SeqCst);
    Outcome {
        took,
        copies: tally.copies.load(Ordering::SeqCst),
        deferred: sent.deferred.load(Ordering::SeqCst),
        purges,
        wrong: wrong.into_iter().chain(tally.missing()).collect(),
        unplaced: count("onedrop_copy WHERE placed_at IS NULL"),
        on_record: count("onedrop_message"),
        tenths: samples.tenths(warm),
        files: samples.files_by_half(warm),
    }
}

/// True once this is dropped.
pub struct Raised<'a>(pub &'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
