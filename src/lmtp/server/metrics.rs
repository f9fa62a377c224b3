//! What the server counts, by prometheus-client, and the text that Prometheus reads (text
//! exposition format, version 0.0.4). Counting takes no lock that anything waits under.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::deliver::{CopyResult, Failure, How, Phases};
use crate::outcome::Outcome;
use crate::store::StoreError;

/// Upper bounds of the phases' buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// The families that are counters, as the library names them.
const COUNTERS: [&str; 6] = [
    "onedrop_deliveries",
    "onedrop_copies",
    "onedrop_in_doubt",
    "onedrop_collisions",
    "onedrop_contention_waits",
    "onedrop_connections_refused",
];

type Labels<const COUNT: usize> = [(&'static str, &'static str); COUNT];

/// See the module.
pub struct Metrics {
    registry: Registry,
    outcomes: Family<[(&'static str, String); 2], Counter>,
    stored: Counter,
    already_there: Counter,
    found: Counter,
    in_doubt: Counter,
    collisions: Counter,
    contention_waits: Counter,
    /// Clients turned away because others were there, or no thread could be made for them.
    pub refused: Counter,
    /// Clients that are there.
    pub connections: AtomicU64,
    /// Deliveries that should have ended.
    pub overdue: AtomicU64,
    lock: Histogram,
    record: Histogram,
    append: Histogram,
    commit: Histogram,
    gauges: Gauges,
}

/// What is read when somebody asks.
#[derive(Default)]
struct Gauges {
    connections: Gauge,
    overdue: Gauge,
    sessions: Family<Labels<2>, Gauge>,
}

/// The sessions of a pool (`ledger`, `store`) in a state (`used`, `idle`).
pub struct Sessions {
    pub pool: &'static str,
    pub state: &'static str,
    pub count: usize,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let (copies, phases) = (
            Family::<Labels<1>, Counter>::default(),
            Family::<Labels<1>, Histogram, fn() -> Histogram>::new_with_constructor(|| {
                Histogram::new(BOUNDS)
            }),
        );
        let copy = |how| copies.get_or_create_owned(&[("how", how)]);
        let phase = |phase| phases.get_or_create_owned(&[("phase", phase)]);
        let mut metrics = Metrics {
            registry: Registry::default(),
            outcomes: Family::default(),
            stored: copy("stored"),
            already_there: copy("already_there"),
            found: copy("found"),
            in_doubt: Counter::default(),
            collisions: Counter::default(),
            contention_waits: Counter::default(),
            refused: Counter::default(),
            connections: AtomicU64::default(),
            overdue: AtomicU64::default(),
            lock: phase("lock"),
            record: phase("record"),
            append: phase("append"),
            commit: phase("commit"),
            gauges: Gauges::default(),
        };
        let of = &mut metrics.registry;
        let [deliveries, placed, in_doubt, collisions, waits, refused] = COUNTERS;
        let help = "Recipients by how their delivery ended, those refused at RCPT among them";
        of.register(deliveries, help, metrics.outcomes.clone());
        of.register(placed, "Copies by how they came to be in their mailbox", copies);
        let help = "Leases left in doubt: the store did not say whether it took the copy";
        of.register(in_doubt, help, metrics.in_doubt.clone());
        let help = "Messages under another message's Message-ID";
        of.register(collisions, help, metrics.collisions.clone());
        let help = "Waits for another delivery's lock or lease";
        of.register(waits, help, metrics.contention_waits.clone());
        of.register(refused, "Clients turned away for want of room", metrics.refused.clone());
        let gauges = &metrics.gauges;
        of.register("onedrop_connections", "Clients", gauges.connections.clone());
        let help = "Deliveries that hang and should have ended";
        of.register("onedrop_deliveries_overdue", help, gauges.overdue.clone());
        let help = "Sessions with ledger and store, in use and kept";
        of.register("onedrop_pool_sessions", help, gauges.sessions.clone());
        of.register("onedrop_phase_seconds", "What the parts of a delivery took", phases);
        metrics
    }
}

impl Metrics {
    /// A recipient's delivery ended.
    pub fn count_outcome(&self, outcome: &Outcome) {
        let labels =
            [("outcome", outcome.name().to_owned()), ("status", outcome.status().to_string())];
        self.outcomes.get_or_create(&labels).inc();
    }

    /// A message was not recorded.
    pub fn count_no_record(&self, waits: u32) {
        self.contention_waits.inc_by(waits.into());
    }

    /// A message was recorded.
    pub fn count_record(&self, collision: bool, phases: &Phases) {
        self.collisions.inc_by(collision.into());
        self.contention_waits.inc_by(phases.waits.into());
        self.record.observe(phases.record.as_secs_f64());
        if phases.waits > 0 {
            self.lock.observe(phases.lock.as_secs_f64());
        }
    }

    /// The placing of a copy ended.
    pub fn count_copy(&self, end: &CopyResult, phases: &Phases) {
        self.contention_waits.inc_by(phases.waits.into());
        let counter = match end {
            Ok(placed) => match placed.how {
                How::Stored => &self.stored,
                How::AlreadyThere => &self.already_there,
                How::Found => &self.found,
            },
            Err(Failure::Store(StoreError::InDoubt(_))) => &self.in_doubt,
            Err(_) => return,
        };
        counter.inc();
        for (histogram, took) in [
            (&self.lock, phases.lock),
            (&self.append, phases.append),
            (&self.commit, phases.commit),
        ] {
            if !took.is_zero() {
                histogram.observe(took.as_secs_f64());
            }
        }
    }

    /// Everything, as Prometheus reads it.
    pub fn text(&self, sessions: &[Sessions]) -> String {
        self.gauges.connections.set(self.connections.load(Ordering::Relaxed) as i64);
        self.gauges.overdue.set(self.overdue.load(Ordering::Relaxed) as i64);
        for Sessions { pool, state, count } in sessions {
            let labels = [("pool", *pool), ("state", *state)];
            self.gauges.sessions.get_or_create(&labels).set(*count as i64);
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text_format(&text)
    }
}

/// The library writes OpenMetrics 1.0, which names a counter's family without `_total` and ends in
/// a mark. All else is the same in the text format, which everything reads that scrapes.
fn text_format(open_metrics: &str) -> String {
    let mut text = open_metrics.replace("# EOF\n", "");
    for name in COUNTERS {
        for kind in ["HELP", "TYPE"] {
            text = text.replace(&format!("# {kind} {name} "), &format!("# {kind} {name}_total "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::outcome::Status;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let metrics = Metrics::default();
        metrics.count_outcome(&Outcome::Delivered("x".into()));
        metrics.count_outcome(&Outcome::TempFail(Status::TEMPORARY, "x".into()));
        let phases = Phases { record: Duration::from_millis(2), waits: 3, ..Phases::default() };
        metrics.count_record(true, &phases);
        let text = metrics.text(&[Sessions { pool: "ledger", state: "used", count: 4 }]);
        for expected in [
            "# HELP onedrop_deliveries_total Recipients by how",
            "# TYPE onedrop_deliveries_total counter\n",
            "# TYPE onedrop_connections gauge\nonedrop_connections 0\n",
            "# TYPE onedrop_phase_seconds histogram\n",
            "onedrop_deliveries_total{outcome=\"delivered\",status=\"2.0.0\"} 1\n",
            "onedrop_deliveries_total{outcome=\"tempfail\",status=\"4.3.0\"} 1\n",
            "onedrop_contention_waits_total 3\n",
            "onedrop_collisions_total 1\n",
            "onedrop_pool_sessions{pool=\"ledger\",state=\"used\"} 4\n",
            "onedrop_phase_seconds_bucket{le=\"0.001\",phase=\"record\"} 0\n",
            "onedrop_phase_seconds_bucket{le=\"0.0025\",phase=\"record\"} 1\n",
            "onedrop_phase_seconds_bucket{le=\"+Inf\",phase=\"record\"} 1\n",
            "onedrop_phase_seconds_sum{phase=\"record\"} 0.002\n",
            "onedrop_phase_seconds_count{phase=\"record\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!(!text.contains("EOF"), "{text}");
        for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let counts = name.ends_with(" counter");
            assert_eq!(counts, name.contains("_total"), "{name}");
        }
    }
}
