//! What the server counts, by prometheus-client, and the text that Prometheus reads (text
//! exposition format, version 0.0.4). Counting takes no lock that anything waits under.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use onedrop_admin::status::StatusGauges;
use onedrop_core::deliver::{CopyEnd, Ending, Failure, How, LookBackEnd, Phases};
use onedrop_core::outcome::Reason;
use onedrop_core::store::StoreError;

/// Upper bounds of the phases' buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// What looks back come to.
const LOOK_BACKS: [&str; 4] = ["found", "nothing", "later", "failed"];

type Labels<const COUNT: usize> = [(&'static str, &'static str); COUNT];

/// The counters of a server, with their registry.
pub struct Metrics {
    registry: Registry,
    outcomes: Family<[(&'static str, String); 3], Counter>,
    copies: Family<Labels<1>, Counter>,
    look_backs: Family<Labels<1>, Counter>,
    look_backs_open: Family<Labels<1>, Gauge>,
    in_doubt: Counter,
    collisions: Counter,
    accounts_gone: Counter,
    pub contention_waits: Counter,
    /// Clients turned away because others were there, or no thread could be made for them.
    pub refused: Counter,
    /// Clients that are there.
    pub connections: Gauge,
    /// Deliveries that should have ended.
    pub overdue: Gauge,
    sessions: Family<Labels<2>, Gauge>,
    phases: Family<Labels<1>, Histogram, fn() -> Histogram>,
}

impl Metrics {
    /// New ones, beside the gauges of others.
    pub fn with(gauges: &StatusGauges) -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::default(),
            outcomes: Family::default(),
            copies: Family::default(),
            look_backs: Family::default(),
            look_backs_open: Family::default(),
            in_doubt: Counter::default(),
            collisions: Counter::default(),
            accounts_gone: Counter::default(),
            contention_waits: Counter::default(),
            refused: Counter::default(),
            connections: Gauge::default(),
            overdue: Gauge::default(),
            sessions: Family::default(),
            phases: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
        };
        // What was not counted yet is shown as 0.
        for how in ["stored", "already_there", "found"] {
            metrics.copies.get_or_create_owned(&[("how", how)]);
        }
        for came_to in LOOK_BACKS {
            metrics.look_backs.get_or_create_owned(&[("came_to", came_to)]);
        }
        for phase in ["lock", "record", "append", "commit"] {
            metrics.phases.get_or_create_owned(&[("phase", phase)]);
        }
        let of = &mut metrics.registry;
        let help = "Recipients by how their delivery ended, those refused at RCPT among them";
        of.register("onedrop_deliveries", help, metrics.outcomes.clone());
        let help = "Copies by how they came to be in their mailbox";
        of.register("onedrop_copies", help, metrics.copies.clone());
        let help = "Looks for copies that may be older than their record, by what they came to";
        of.register("onedrop_look_backs", help, metrics.look_backs.clone());
        let help = "Such looks under way, and those that wait";
        of.register("onedrop_look_backs_open", help, metrics.look_backs_open.clone());
        let help = "Leases left in doubt: the store did not say whether it took the copy";
        of.register("onedrop_in_doubt", help, metrics.in_doubt.clone());
        let help = "Messages under another message's Message-ID";
        of.register("onedrop_collisions", help, metrics.collisions.clone());
        let help = "Recipients who have mail on record, and are unknown now";
        of.register("onedrop_accounts_gone", help, metrics.accounts_gone.clone());
        let help = "Waits for another delivery's lock or lease";
        of.register("onedrop_contention_waits", help, metrics.contention_waits.clone());
        let help = "Clients turned away for want of room";
        of.register("onedrop_connections_refused", help, metrics.refused.clone());
        of.register("onedrop_connections", "Clients", metrics.connections.clone());
        let help = "Deliveries and look-ups that hang and should have ended";
        of.register("onedrop_deliveries_overdue", help, metrics.overdue.clone());
        let help = "Sessions with ledger and store, in use and kept";
        of.register("onedrop_pool_sessions", help, metrics.sessions.clone());
        let help = "What the parts of a delivery took";
        of.register("onedrop_phase_seconds", help, metrics.phases.clone());
        gauges.register(&mut metrics.registry);
        metrics
    }

    /// A recipient's delivery ended.
    pub fn count_ending(&self, ending: &Ending) {
        let outcome = &ending.outcome;
        let labels = [
            ("outcome", outcome.name().to_owned()),
            ("reason", ending.reason.map_or("", Reason::word).to_owned()),
            ("status", outcome.status().to_string()),
        ];
        self.outcomes.get_or_create(&labels).inc();
    }

    /// A delivery failed, or the placing of a copy.
    pub fn count_failure(&self, failure: &Failure) {
        match failure {
            Failure::Store(StoreError::InDoubt(_)) => self.in_doubt.inc(),
            Failure::AccountGone { .. } | Failure::AddressGone { .. } => self.accounts_gone.inc(),
            _ => 0,
        };
    }

    /// A copy was to be looked for among all that is in its mailbox.
    pub fn count_look_back(&self, end: &LookBackEnd) {
        let came_to = match end {
            LookBackEnd::Looked(Some(looked)) if looked.found.is_some() => "found",
            LookBackEnd::Looked(_) => "nothing",
            LookBackEnd::Later(_) => "later",
            LookBackEnd::Failed(_) => "failed",
        };
        self.look_backs.get_or_create(&[("came_to", came_to)]).inc();
    }

    /// A message was recorded.
    pub fn count_record(&self, collision: bool, phases: &Phases) {
        self.collisions.inc_by(collision.into());
        self.contention_waits.inc_by(phases.waits.into());
        self.observe("record", phases.record);
        if phases.waits > 0 {
            self.observe("lock", phases.lock);
        }
    }

    /// The placing of a copy ended.
    pub fn count_copy(&self, end: &CopyEnd, phases: &Phases) {
        self.contention_waits.inc_by(phases.waits.into());
        match end {
            CopyEnd::Placed(placed) => {
                let how = match placed.how {
                    How::Stored => "stored",
                    How::AlreadyThere => "already_there",
                    How::Found => "found",
                };
                self.copies.get_or_create(&[("how", how)]).inc();
            }
            CopyEnd::Left(_) => return,
            CopyEnd::Failed(failure) => {
                self.count_failure(failure);
                if !matches!(failure, Failure::Store(StoreError::InDoubt(_))) {
                    return;
                }
            }
        }
        let parts = [("lock", phases.lock), ("append", phases.append), ("commit", phases.commit)];
        for (phase, took) in parts.into_iter().filter(|(_, took)| !took.is_zero()) {
            self.observe(phase, took);
        }
    }

    fn observe(&self, phase: &'static str, took: Duration) {
        self.phases.get_or_create(&[("phase", phase)]).observe(took.as_secs_f64());
    }

    /// Everything, as Prometheus reads it. Of each pool: how many sessions are used, and how many
    /// idle; of look backs: how many are under way, and how many wait.
    pub fn text(
        &self,
        pools: impl Iterator<Item = (&'static str, (usize, usize))>,
        (running, waiting): (usize, usize),
    ) -> String {
        for (state, count) in [("running", running), ("waiting", waiting)] {
            self.look_backs_open.get_or_create(&[("state", state)]).set(count as i64);
        }
        // After a reload there may be one less.
        self.sessions.clear();
        for (pool, (used, idle)) in pools {
            for (state, count) in [("used", used), ("idle", idle)] {
                let labels = [("pool", pool), ("state", state)];
                self.sessions.get_or_create(&labels).set(count as i64);
            }
        }
        let mut open_metrics = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut open_metrics, &self.registry);
        // The library writes OpenMetrics 1.0, which names a counter's family without `_total` and
        // ends in a mark. All else is the same in the text format, which everything reads that
        // scrapes.
        let mut text = open_metrics.replace("# EOF\n", "");
        let types = open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for name in types.filter_map(|line| line.strip_suffix(" counter")) {
            for kind in ["HELP", "TYPE"] {
                let family = format!("# {kind} {name}");
                text = text.replace(&format!("{family} "), &format!("{family}_total "));
            }
        }
        text
    }
}
