//! Measuring in turn, and printing.

use std::thread;
use std::time::Duration;

/// Rounds that count, after [`WARM_UP`] that do not.
pub const ROUNDS: usize = 20;
const WARM_UP: usize = 3;
/// Between two deliveries: what servers still do for one (ending a session's process) is not the
/// next one's to pay.
const SETTLE: Duration = Duration::from_millis(10);

/// What is measured: a name for the table, and one delivery.
pub struct Contender<'a> {
    pub name: String,
    pub deliver: Box<dyn FnMut() -> Duration + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(name: impl Into<String>, deliver: impl FnMut() -> Duration + 'a) -> Contender<'a> {
        Contender { name: name.into(), deliver: Box::new(deliver) }
    }
}

/// The times of one contender, shortest first.
pub struct Times(Vec<Duration>);

impl Times {
    pub fn of(mut times: Vec<Duration>) -> Times {
        times.sort();
        Times(times)
    }

    pub fn median_ms(&self) -> f64 {
        let middle = self.0.len() / 2;
        let median = match self.0.len() % 2 {
            0 => (self.0[middle - 1] + self.0[middle]) / 2,
            _ => self.0[middle],
        };
        ms(median)
    }

    /// The time within which this share of all stays.
    pub fn share_ms(&self, share: f64) -> f64 {
        let at = (self.0.len() as f64 * share) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).copied().map_or(0.0, ms)
    }

    pub fn least_ms(&self) -> f64 {
        self.0.first().copied().map_or(0.0, ms)
    }
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// One delivery of each contender in turn, `rounds` times, every other time backwards: servers do
/// some things at every second delivery (Dovecot's APPEND to a full Maildir does), which would else
/// always meet the same contender.
pub fn in_turn(contenders: &mut [Contender<'_>], rounds: usize) -> Vec<Times> {
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..WARM_UP + rounds {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            thread::sleep(SETTLE);
            let took = (contenders[at].deliver)();
            if round >= WARM_UP {
                times[at].push(took);
            }
        }
    }
    times.into_iter().map(Times::of).collect()
}

/// A line of the result: contender `ours` against contender `peer`.
pub struct Line {
    pub ours: usize,
    pub peer: usize,
    /// The ratio of medians wanted at most.
    pub target: Option<f64>,
}

/// Measures and prints: each contender's times, then the ratios.
pub fn compare(contenders: &mut [Contender<'_>], rounds: usize, lines: &[Line]) {
    let times = in_turn(contenders, rounds);
    println!("| medians of {rounds}, in turn | median ms | least ms |");
    println!("|---|---:|---:|");
    for (contender, times) in contenders.iter().zip(&times) {
        println!("| {} | {:.2} | {:.2} |", contender.name, times.median_ms(), times.least_ms());
    }
    println!("\n| ours / peer | ours ms | peer ms | ratio | ratio of the least | target |");
    println!("|---|---:|---:|---:|---:|---|");
    for Line { ours, peer, target } in lines {
        let (name, against) = (&contenders[*ours].name, &contenders[*peer].name);
        let (ours, peer) = (&times[*ours], &times[*peer]);
        let ratio = ours.median_ms() / peer.median_ms();
        println!(
            "| {name} / {against} | {:.2} | {:.2} | {ratio:.2} | {:.2} | {} |",
            ours.median_ms(),
            peer.median_ms(),
            ours.least_ms() / peer.least_ms(),
            verdict(ratio, *target)
        );
    }
}

pub fn verdict(value: f64, target: Option<f64>) -> String {
    match target {
        None => "none".to_owned(),
        Some(target) if value <= target => format!("at most {target}: met"),
        Some(target) => format!("at most {target}: MISSED"),
    }
}
