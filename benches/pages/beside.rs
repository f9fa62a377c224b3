//! Deliveries a second by `onedrop lmtp` into Maildirs in memory, alone and while a hundred clients
//! ask for all pages all the time: in turn, on the same ledger.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::Site;
use crate::is_short;
use crate::look::{Web, kinds};
use crate::mail::{DOMAIN, Letters, SENDER, accounts};
use crate::support::lmtp::{Launch, Lmtp};

const CONNECTIONS: usize = 10;
const CLIENTS: usize = 100;

/// The figures of a round.
#[derive(Debug, Default)]
struct Round {
    deliveries: f64,
    /// Of pages, a second.
    shown: f64,
    busy: f64,
    refused: f64,
}

pub fn run(site: &Site) {
    let (rounds, time) = match is_short() {
        true => (3, Duration::from_secs(2)),
        false => (7, Duration::from_secs(4)),
    };
    let lmtp = Launch::of(&site.config).start();
    let web = Web::start(site);
    let (letters, next) = (Letters::new(), AtomicU64::new(0));
    let paths: Vec<String> = kinds(site).into_iter().map(|(_, path)| path).collect();
    let one = |is_asked: bool, time: Duration| {
        round(&lmtp, &letters, &next, is_asked.then_some((&web, &paths)), time)
    };
    one(false, Duration::from_secs(1));
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for at in 0..rounds {
        let order = if at % 2 == 0 { [false, true] } else { [true, false] };
        for is_asked in order {
            let kept = if is_asked { &mut beside } else { &mut alone };
            kept.push(one(is_asked, time));
        }
    }
    println!(
        "\n| medians of {rounds}, {CONNECTIONS} connections | deliveries a second | least, most | \
         pages a second | of them 503 | not answered |\n|---|---:|---:|---:|---:|---:|"
    );
    for (what, kept) in [("alone", &alone), ("beside 100 clients of all pages", &beside)] {
        println!(
            "| {what} | {:.0} | {:.0}, {:.0} | {:.0} | {:.0} | {:.0} |",
            median(kept, |one| one.deliveries),
            kept.iter().map(|one| one.deliveries).fold(f64::MAX, f64::min),
            kept.iter().map(|one| one.deliveries).fold(0.0, f64::max),
            median(kept, |one| one.shown + one.busy),
            median(kept, |one| one.busy),
            median(kept, |one| one.refused)
        );
    }
    let ratios: Vec<f64> =
        alone.iter().zip(&beside).map(|(a, b)| b.deliveries / a.deliveries).collect();
    let ratio = median(&beside, |one| one.deliveries) / median(&alone, |one| one.deliveries);
    let least = ratios.iter().copied().fold(f64::MAX, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    println!("\nRatio of deliveries {ratio:.2} ({least:.2} to {most:.2}).");
}

fn median(rounds: &[Round], figure: fn(&Round) -> f64) -> f64 {
    let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn round(
    lmtp: &Lmtp,
    letters: &Letters,
    next: &AtomicU64,
    asked: Option<(&Web, &Vec<String>)>,
    time: Duration,
) -> Round {
    let [delivered, shown, busy, refused] = [const { AtomicU64::new(0) }; 4];
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    thread::scope(|scope| {
        for at in 0..CLIENTS {
            let Some((web, paths)) = asked else { break };
            let (shown, busy, refused, is_over) = (&shown, &busy, &refused, &is_over);
            let ask = move || {
                for path in paths.iter().cycle().skip(at) {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let count = match web.get(path) {
                        Ok((200 | 303, ..)) => shown,
                        Ok((503, ..)) => busy,
                        Ok(_) | Err(_) => refused,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            };
            let builder = thread::Builder::new().stack_size(256 * 1024);
            builder.spawn_scoped(scope, ask).expect("a thread");
        }
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut client = lmtp.client();
                while !is_over.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let letter = letters.letter(number);
                    let to = accounts(number).next().expect("an account");
                    let to = format!("u{to}@{DOMAIN}");
                    let replies = client.deliver(SENDER, &[&to], &letter).expect("replies");
                    for reply in &replies {
                        assert!(reply.is_ok(), "{number}: {reply}");
                    }
                    delivered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(time.saturating_sub(began.elapsed()));
        is_over.store(true, Ordering::Relaxed);
        // What is answered later does not count.
        let secs = began.elapsed().as_secs_f64();
        let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / secs;
        Round {
            deliveries: rate(&delivered),
            shown: rate(&shown),
            busy: rate(&busy),
            refused: rate(&refused),
        }
    })
}
