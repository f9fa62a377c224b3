//! Messages a second: few and many connections, one mailbox and many, one recipient a message.
//! Beside them the processor time of a message, and where its time goes.

use std::time::Duration;

use crate::load::{self, Clients, MAILBOXES, Peer, Target, short};
use crate::servers::{FilteringDovecot, Front, Kept, PHASES, Used};
use crate::support::dovecot::Dovecot;
use crate::support::filters::Guard;
use crate::table::Times;
use crate::world::{Bench, builds};

/// Connections, and messages in a run of two or three seconds.
const LOADS: [(usize, usize); 3] = [(1, 1000), (4, 1600), (10, 2000)];
/// Ways to run it, with the ledger's settings.
const WAYS: [(&str, Guard, Kept); 5] = [
    ("with the defaults", Guard::On, Kept::Postgres("")),
    ("without ledger.prepare", Guard::On, Kept::Postgres(UNPREPARED)),
    ("without the guard", Guard::Off, Kept::Postgres("")),
    ("SQLite", Guard::On, Kept::Sqlite),
    ("SQLite, without the guard", Guard::Off, Kept::Sqlite),
];
const UNPREPARED: &str = "prepare = \"never\"";
/// Of what Dovecot's server does alone.
const WANTED: f64 = 0.75;

/// The figures of a load, round by round.
struct Runs {
    took: Vec<Duration>,
    /// Milliseconds of processor time a message.
    cpu: [f64; 3],
    phases: [f64; 4],
}

pub fn one_mailbox() {
    run(1);
}

pub fn many_mailboxes() {
    run(MAILBOXES);
}

fn run(mailboxes: usize) {
    let mut fronts: Vec<(String, Front)> = builds()
        .into_iter()
        .map(|(name, bench)| {
            let guard = if name.contains("noguard") { Guard::Off } else { Guard::On };
            let kept = if name.contains("unprepared") {
                Kept::Postgres(UNPREPARED)
            } else if name.contains("sqlite") {
                Kept::Sqlite
            } else {
                Kept::Postgres("")
            };
            (name, Front::start(bench, guard, kept))
        })
        .collect();
    if fronts.is_empty() {
        for (name, guard, kept) in WAYS {
            fronts.push((name.to_owned(), Front::start(Bench::new(), guard, kept)));
        }
    }
    let alone = [FilteringDovecot::alone_with_own_test(), FilteringDovecot::alone()];
    println!(
        "| connections | mailboxes | Onedrop | messages/s | Dovecot alone | ratio | wanted | with \
         its own duplicate test | ratio | ms of a processor: Onedrop | Postgres | Dovecot | \
         Dovecot alone | with its own test | {} |",
        PHASES.map(|phase| format!("{phase} ms")).join(" | ")
    );
    println!("|---:|---:|---|---:|---:|---:|---|{}", "---:|".repeat(7 + PHASES.len()));
    for (sessions, messages) in LOADS {
        one_load(&fronts, &alone, sessions, messages, mailboxes);
    }
}

/// All in turn, Dovecot alone last: with a duplicate test of its own, and without any.
fn one_load(
    fronts: &[(String, Front)],
    alone: &[FilteringDovecot; 2],
    sessions: usize,
    messages: usize,
    mailboxes: usize,
) {
    let rounds = if short() { 3 } else { 7 };
    let clients = Clients { sessions, kept: true };
    let empty = || Runs { took: Vec::new(), cpu: [0.0; 3], phases: [0.0; 4] };
    let mut runs: Vec<Runs> = (0..fronts.len() + alone.len()).map(|_| empty()).collect();
    let all = (messages * rounds) as f64 / 1000.0;
    for round in 0..rounds {
        for at in load::turns(round, runs.len()) {
            let front = fronts.get(at).map(|(_, front)| front);
            let (peer, behind) = match front {
                Some(front) => (front.peer("onedrop lmtp"), &front.behind),
                None => {
                    let alone = &alone[at - fronts.len()];
                    let socket = alone.dovecot.lmtp_socket();
                    (Peer { name: "Dovecot's lmtp", socket, tag: "alone" }, alone)
                }
            };
            let target = match mailboxes {
                // A mailbox that has grown makes everybody slower.
                1 => Target::One(format!("{}-{sessions}-{round}", peer.tag)),
                _ => Target::Many(peer.tag.to_owned()),
            };
            behind.prepare(&target);
            let warm = if mailboxes == 1 { 4 * sessions } else { MAILBOXES };
            load::send(&peer, &behind.dovecot, &target, clients, warm);
            // What the warming left to be written counts for no round.
            nix::unistd::sync();
            let used = || match front {
                Some(front) => front.used(),
                None => used_alone(&behind.dovecot),
            };
            let before = used();
            let took = load::send(&peer, &behind.dovecot, &target, clients, messages);
            let after = used();
            let run = &mut runs[at];
            run.took.push(took);
            for (sum, (after, before)) in run.cpu.iter_mut().zip(after.cpu.iter().zip(before.cpu)) {
                *sum += after.saturating_sub(before).as_secs_f64() / all;
            }
            for (sum, (after, before)) in
                run.phases.iter_mut().zip(after.phases.iter().zip(before.phases))
            {
                *sum += (after - before) / all;
            }
        }
    }
    let rate = |took: Vec<Duration>| messages as f64 * 1000.0 / Times::of(took).median_ms();
    let mut of_alone =
        runs.split_off(fronts.len()).into_iter().map(|run| (rate(run.took), run.cpu[2]));
    let (Some((own_rate, own_cpu)), Some((alone_rate, alone_cpu))) =
        (of_alone.next(), of_alone.next())
    else {
        return;
    };
    for ((name, _), Runs { took, cpu: [ours, ledger, dovecot], phases }) in fronts.iter().zip(runs)
    {
        let rate = rate(took);
        let ratio = rate / alone_rate;
        let verdict = if ratio >= WANTED { "met" } else { "MISSED" };
        println!(
            "| {sessions} | {mailboxes} | {name} | {rate:.0} | {alone_rate:.0} | {ratio:.2} | \
             {verdict} | {own_rate:.0} | {:.2} | {ours:.2} | {ledger:.2} | {dovecot:.2} | \
             {alone_cpu:.2} | {own_cpu:.2} | {} |",
            rate / own_rate,
            phases.map(|phase| format!("{phase:.2}")).join(" | ")
        );
    }
}

fn used_alone(dovecot: &Dovecot) -> Used {
    Used { cpu: [Duration::ZERO, Duration::ZERO, dovecot.cpu()], phases: [0.0; 4] }
}
