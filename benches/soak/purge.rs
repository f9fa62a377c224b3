//! A day of 35 is purged from a full ledger while mail comes in as fast as the server takes it:
//! how long the slowest of a hundred messages takes, beside the same load without a purge, in turn.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crate::messages;
use crate::rig::{Raised, Sent, World};
use crate::table::Times;

/// Pairs, each with a day of its own.
const ROUNDS: u64 = 5;
const DAYS: u64 = 35;
const DAY: Duration = Duration::from_secs(86_400);
const CONNECTIONS: usize = 10;

pub fn run() {
    let world = World::start();
    fill(&world, messages());
    let sent = Sent::default();
    load(&world, &sent, || thread::sleep(Duration::from_secs(2)));
    println!("{} messages on record, {CONNECTIONS} connections\n", messages());
    println!("| round | purged | in s | p99 without, ms | p99 beside it, ms | ratio |");
    println!("|---:|---:|---:|---:|---:|---:|");
    let (mut without, mut beside) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        // What was recorded before this day's end.
        let memory = DAY * u32::try_from(DAYS - round).expect("days");
        let mut purged = None;
        let with = load(&world, &sent, || {
            let began = Instant::now();
            purged = Some((world.purge(memory), began.elapsed()));
        });
        let (purges, took) = purged.expect("a purge");
        let alone = load(&world, &sent, || thread::sleep(took));
        let p99 = |times: &[Duration]| Times::of(times.to_vec()).share_ms(0.99);
        println!(
            "| {round} | {} | {:.1} | {:.1} | {:.1} | {:.2} |",
            purges.messages,
            took.as_secs_f64(),
            p99(&alone),
            p99(&with),
            p99(&with) / p99(&alone)
        );
        without.extend(alone);
        beside.extend(with);
    }
    println!("\n| all rounds | messages | p50, ms | p90 | p99 | longest |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (name, times) in [("without", &without), ("beside a purge", &beside)] {
        let sorted = Times::of(times.clone());
        let [p50, p90, p99, longest] = [0.5, 0.9, 0.99, 1.0].map(|share| sorted.share_ms(share));
        let count = times.len();
        println!("| {name} | {count} | {p50:.1} | {p90:.1} | {p99:.1} | {longest:.1} |");
    }
    let [beside, without] = [beside, without].map(|times| Times::of(times).share_ms(0.99));
    let ratio = beside / without;
    let verdict = if ratio <= 1.5 { "within 1.5" } else { "BEYOND 1.5" };
    println!("\np99 beside a purge, of that without: {ratio:.2}, {verdict}");
}

/// Full load while `work` runs; how long each message took.
fn load(world: &World, sent: &Sent, work: impl FnOnce()) -> Vec<Duration> {
    let (is_over, all) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut times = Vec::new();
                world.send(sent, u64::MAX, &is_over, |took| times.push(took));
                all.lock().expect("times").extend(times);
            });
        }
        let over = Raised(&is_over);
        work();
        drop(over);
    });
    all.into_inner().expect("times")
}

/// Puts that many messages on record, one copy and one attempt each, spread over 35 days, like one
/// that was delivered.
fn fill(world: &World, messages: u64) {
    let sent = Sent::default();
    world.send(&sent, 1, &AtomicBool::new(false), |_| ());
    let filled = FILL.replace("{messages}", &messages.to_string());
    world.postgres.psql(&filled.replace("{next}", &(messages + 2000).to_string()));
    world.postgres.psql("VACUUM ANALYZE");
    world.postgres.psql("CHECKPOINT");
}

const FILL: &str = "
CREATE TEMP TABLE given AS
SELECT n, clock_timestamp() - interval '35 days' * (1 - n / {messages}.0) AS at
FROM generate_series(1, {messages}) AS n;
INSERT INTO onedrop_message OVERRIDING SYSTEM VALUE
SELECT one.* FROM onedrop_message m, given, jsonb_populate_record(m, jsonb_build_object(
    'id', 1000 + n, 'message_id', '<' || n || '@filled.example>',
    'id_hash', sha256(n::text::bytea)::text, 'digest', sha256(('d' || n)::bytea)::text,
    'recorded_at', at)) AS one
WHERE m.id = (SELECT min(id) FROM onedrop_message) ORDER BY n;
INSERT INTO onedrop_copy OVERRIDING SYSTEM VALUE
SELECT one.* FROM onedrop_copy c, given, jsonb_populate_record(c, jsonb_build_object(
    'id', 1000 + n, 'message_id', 1000 + n, 'account', 'filled' || n % 200,
    'value', uuid_send(gen_random_uuid())::text, 'placed_at', at, 'began_at', at,
    'queue_id', upper(to_hex(n)))) AS one
WHERE c.id = (SELECT min(id) FROM onedrop_copy) ORDER BY n;
ALTER TABLE onedrop_message ALTER id RESTART WITH {next};
ALTER TABLE onedrop_copy ALTER id RESTART WITH {next};
UPDATE onedrop_ledger SET remembers_since = clock_timestamp() - interval '35 days';";
