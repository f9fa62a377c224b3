//! What many clients at once get: a few are all answered, of many most are turned away, and probes
//! share an answer.

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use onedrop::hook::{Call, Hook};
use onedrop::ledger::LedgerError;
use onedrop::web;

use crate::served::Answer;
use crate::support::wait_until;
use crate::wire::{InProcess, LONG, WaitsAt};

/// A ledger that takes this time to answer this call.
struct TakesAWhile(&'static str, Duration);

impl Hook<LedgerError> for TakesAWhile {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        if call.name == self.0 {
            thread::sleep(self.1);
        }
        Ok(())
    }
}

fn answer_of(mut client: TcpStream) -> Answer {
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an answer");
    Answer::of(&answer)
}

/// How many of `clients` at once get the page; the others get 503.
fn served_at_once(clients: usize) -> usize {
    let served = InProcess::start(Arc::new(TakesAWhile("jobs", Duration::from_millis(20))));
    let asking: Vec<_> = (0..clients).map(|_| served.ask("/jobs")).collect();
    let answers: Vec<_> = asking.into_iter().map(answer_of).collect();
    served.end();
    let with = |status| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!(with(200) + with(503), clients, "{answers:?}");
    with(200)
}

#[test]
fn a_few_clients_at_once_are_all_answered() {
    assert_eq!(served_at_once(12), 12);
    // Of these some rest, and a machine that is busy may take what is left of their time.
    assert!((0..5).any(|_| served_at_once(16) == 16));
}

#[test]
fn of_many_clients_at_once_most_are_turned_away() {
    // Without a rest all of them would be served in a third of a second.
    let clients = web::LIMITS.places;
    let served = served_at_once(clients);
    assert!(served >= web::QUESTIONS && served < clients / 2, "{served} of {clients}");
}

#[test]
fn while_many_wait_a_page_keeps_its_turn_for_a_while() {
    let are_kept_out = || {
        let waits = WaitsAt::call("jobs");
        let served = InProcess::start(waits.clone());
        let asking: Vec<_> = (0..web::QUESTIONS).map(|_| served.ask("/jobs")).collect();
        assert!(wait_until(LONG, || waits.waiting() == web::QUESTIONS));
        let others: Vec<_> = (0..12).map(|_| served.ask("/locks")).collect();
        // That they wait is not to be seen. The pause is twice as long as this.
        thread::sleep(Duration::from_millis(500));
        waits.goes_on.store(true, Ordering::SeqCst);
        for client in asking {
            assert_eq!(answer_of(client).status, 200);
        }
        // Probes have a turn of their own, and do not wait for the others.
        assert_eq!(served.get("/healthz").status, 200);
        let is_kept_out = |client: &TcpStream| {
            client.set_nonblocking(true).expect("a socket");
            let nothing = client.peek(&mut [0]).is_err();
            client.set_nonblocking(false).expect("a socket");
            nothing
        };
        let are_kept_out = others.iter().all(is_kept_out);
        // For a while only.
        let are_served = others.into_iter().map(answer_of).all(|answer| answer.status == 200);
        // No client waits any more, and the turns come back.
        assert!(wait_until(LONG, || served.get("/locks").status == 200));
        served.end();
        are_kept_out && are_served
    };
    assert!((0..5).any(|_| are_kept_out()));
}

/// Counts the times that the schema is read.
#[derive(Default)]
struct Counts(AtomicUsize);

impl Hook<LedgerError> for Counts {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        self.0.fetch_add(usize::from(call.name == "schema_version"), Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn however_many_probe_the_ledger_is_asked_twice_a_second() {
    let counts = Arc::new(Counts::default());
    let served = InProcess::start(counts.clone());
    let began = Instant::now();
    for _ in 0..20 {
        let probes: Vec<_> = (0..10).map(|_| served.ask("/healthz")).collect();
        for answer in probes.into_iter().map(answer_of) {
            assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
        }
    }
    let most = began.elapsed().as_millis() / 500 + 1;
    let asked = counts.0.load(Ordering::SeqCst);
    assert!(asked as u128 <= most, "{asked} times of at most {most}");
    served.end();
}

/// No probe fails because others probe, however slow the ledger's answer is.
#[test]
fn probes_at_once_of_a_slow_ledger_are_all_answered() {
    let slow = TakesAWhile("schema_version", Duration::from_millis(30));
    let served = InProcess::start(Arc::new(slow));
    let probes: Vec<_> = (0..30).map(|_| served.ask("/healthz")).collect();
    let answers: Vec<_> = probes.into_iter().map(answer_of).collect();
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    served.end();
}

#[test]
fn an_answer_to_probes_is_not_kept_for_long() {
    let waits = WaitsAt::failing("schema_version");
    let served = InProcess::start(waits.clone());
    assert_eq!(served.get("/healthz").status, 503);
    waits.goes_well();
    assert!(wait_until(LONG, || served.get("/healthz").status == 200));
    served.end();
}
