//! What the server counts, and the text that Prometheus reads (text exposition format, version
//! 0.0.4). Counting takes no lock but for outcomes, of which there are few kinds.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::deliver::{End, Failure, How, Phases};
use crate::outcome::Outcome;
use crate::store::StoreError;

/// Upper bounds of the phases' buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// See the module.
#[derive(Default)]
pub struct Metrics {
    outcomes: Mutex<BTreeMap<(&'static str, String), u64>>,
    stored: AtomicU64,
    already_there: AtomicU64,
    found: AtomicU64,
    in_doubt: AtomicU64,
    collisions: AtomicU64,
    contention_waits: AtomicU64,
    /// Clients turned away because others were there, or no thread could be made for them.
    pub refused: AtomicU64,
    /// Clients that are there.
    pub connections: AtomicU64,
    /// Deliveries that should have ended.
    pub overdue: AtomicU64,
    lock: Histogram,
    record: Histogram,
    append: Histogram,
    commit: Histogram,
}

#[derive(Default)]
struct Histogram {
    /// As `BOUNDS`, and one for everything above.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

/// A gauge that is read when somebody asks.
pub struct Gauge {
    /// With its labels, as it is printed.
    pub name: String,
    pub value: usize,
}

impl Metrics {
    /// A recipient's delivery ended.
    pub fn count_outcome(&self, outcome: &Outcome) {
        let key = (outcome.name(), outcome.status().to_string());
        *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(0) += 1;
    }

    /// A message was not recorded.
    pub fn count_no_record(&self, waits: u32) {
        self.contention_waits.fetch_add(u64::from(waits), Ordering::Relaxed);
    }

    /// A message was recorded.
    pub fn count_record(&self, collision: bool, phases: &Phases) {
        self.collisions.fetch_add(u64::from(collision), Ordering::Relaxed);
        self.contention_waits.fetch_add(u64::from(phases.waits), Ordering::Relaxed);
        self.record.observe(phases.record);
        if phases.waits > 0 {
            self.lock.observe(phases.lock);
        }
    }

    /// The placing of a copy ended.
    pub fn count_copy(&self, end: &End, phases: &Phases) {
        self.contention_waits.fetch_add(u64::from(phases.waits), Ordering::Relaxed);
        let counter = match end {
            Ok(placed) => match placed.how {
                How::Stored => &self.stored,
                How::AlreadyThere => &self.already_there,
                How::Found => &self.found,
            },
            Err(Failure::Store(StoreError::InDoubt(_))) => &self.in_doubt,
            Err(_) => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        for (histogram, took) in [
            (&self.lock, phases.lock),
            (&self.append, phases.append),
            (&self.commit, phases.commit),
        ] {
            if !took.is_zero() {
                histogram.observe(took);
            }
        }
    }

    /// Everything, as Prometheus reads it.
    pub fn text(&self, gauges: &[Gauge]) -> String {
        let mut text = String::with_capacity(4096);
        header(
            &mut text,
            "onedrop_deliveries_total",
            "counter",
            "Recipients by how their delivery ended, those refused at RCPT among them.",
        );
        for ((outcome, status), count) in
            self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).iter()
        {
            line(
                &mut text,
                &format!("onedrop_deliveries_total{{outcome=\"{outcome}\",status=\"{status}\"}}"),
                *count,
            );
        }
        header(
            &mut text,
            "onedrop_copies_total",
            "counter",
            "Copies by how they came to be in their mailbox.",
        );
        for (how, count) in [
            ("stored", &self.stored),
            ("already_there", &self.already_there),
            ("found", &self.found),
        ] {
            line(
                &mut text,
                &format!("onedrop_copies_total{{how=\"{how}\"}}"),
                count.load(Ordering::Relaxed),
            );
        }
        let counters = [
            (
                "onedrop_in_doubt_total",
                "Leases left in doubt: the store did not say whether it took the copy.",
                &self.in_doubt,
            ),
            (
                "onedrop_collisions_total",
                "Messages under another message's Message-ID.",
                &self.collisions,
            ),
            (
                "onedrop_contention_waits_total",
                "Waits for another delivery's lock or lease.",
                &self.contention_waits,
            ),
            (
                "onedrop_connections_refused_total",
                "Clients turned away for want of room.",
                &self.refused,
            ),
        ];
        for (name, help, count) in counters {
            header(&mut text, name, "counter", help);
            line(&mut text, name, count.load(Ordering::Relaxed));
        }
        header(&mut text, "onedrop_connections", "gauge", "Clients.");
        line(&mut text, "onedrop_connections", self.connections.load(Ordering::Relaxed));
        header(
            &mut text,
            "onedrop_deliveries_overdue",
            "gauge",
            "Deliveries that hang and should have ended.",
        );
        line(&mut text, "onedrop_deliveries_overdue", self.overdue.load(Ordering::Relaxed));
        header(
            &mut text,
            "onedrop_pool_sessions",
            "gauge",
            "Sessions with ledger and store, in use and kept.",
        );
        for gauge in gauges {
            line(&mut text, &gauge.name, gauge.value as u64);
        }
        header(
            &mut text,
            "onedrop_phase_seconds",
            "histogram",
            "What the parts of a delivery took.",
        );
        for (phase, histogram) in [
            ("lock", &self.lock),
            ("record", &self.record),
            ("append", &self.append),
            ("commit", &self.commit),
        ] {
            histogram.print(&mut text, phase);
        }
        text
    }
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.sum_nanos
            .fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn print(&self, text: &mut String, phase: &str) {
        let mut count = 0;
        let bounds = BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bucket, bound) in self.buckets.iter().zip(bounds) {
            count += bucket.load(Ordering::Relaxed);
            line(
                text,
                &format!("onedrop_phase_seconds_bucket{{phase=\"{phase}\",le=\"{bound}\"}}"),
                count,
            );
        }
        let sum = Duration::from_nanos(self.sum_nanos.load(Ordering::Relaxed)).as_secs_f64();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "onedrop_phase_seconds_sum{{phase=\"{phase}\"}} {sum}");
        line(text, &format!("onedrop_phase_seconds_count{{phase=\"{phase}\"}}"), count);
    }
}

fn header(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(text: &mut String, name: &str, value: u64) {
    let _ = writeln!(text, "{name} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Status;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let metrics = Metrics::default();
        metrics.count_outcome(&Outcome::Delivered("x".into()));
        metrics.count_outcome(&Outcome::TempFail(Status::TEMPORARY, "x".into()));
        let phases = Phases { record: Duration::from_millis(2), waits: 3, ..Phases::default() };
        metrics.count_record(true, &phases);
        let text = metrics.text(&[Gauge {
            name: "onedrop_pool_sessions{pool=\"ledger\",state=\"used\"}".into(),
            value: 4,
        }]);
        for expected in [
            "onedrop_deliveries_total{outcome=\"delivered\",status=\"2.0.0\"} 1\n",
            "onedrop_deliveries_total{outcome=\"tempfail\",status=\"4.3.0\"} 1\n",
            "onedrop_contention_waits_total 3\n",
            "onedrop_collisions_total 1\n",
            "onedrop_pool_sessions{pool=\"ledger\",state=\"used\"} 4\n",
            "onedrop_phase_seconds_bucket{phase=\"record\",le=\"0.001\"} 0\n",
            "onedrop_phase_seconds_bucket{phase=\"record\",le=\"0.0025\"} 1\n",
            "onedrop_phase_seconds_bucket{phase=\"record\",le=\"+Inf\"} 1\n",
            "onedrop_phase_seconds_sum{phase=\"record\"} 0.002\n",
            "onedrop_phase_seconds_count{phase=\"record\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }
}
