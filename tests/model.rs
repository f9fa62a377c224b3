//! The protocol of `src/deliver.rs` as a model that is checked exhaustively: every order of the processes' steps, of
//! crashes, lost sessions, frozen processes and late servers. `model/steps.rs` has the protocol's steps under the names
//! they have in `deliver.rs`, `model/world.rs` what else happens and what must hold, `model/state.rs` what there is.
//!
//! Each process may be started `tries` times; from every state in which nobody runs, the model then also goes on without
//! faults, one try for each process, and that must deliver. The message's lock is not in the model: `record` is one
//! transaction, and the unique keys hold without it. Printed for each configuration: processes, copies, states,
//! seconds, and the shortest way to whatever breaks.

#[path = "model/state.rs"]
mod state;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/world.rs"]
mod world;

use std::time::Instant;

use stateright::{Checker, Expectation, Model};
use world::{FOUND, ONE_AT_END, ONE_EVER, OUTLIVES, SETTLED, UNDONE, WAITS, ZOMBIE};

/// A protocol and the world it runs in.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// For each process its copies, its own mailbox first, a shared one last.
    pub jobs: Vec<Vec<u8>>,
    pub tries: u8,
    pub layers: Layers,
    pub faults: Faults,
    /// Ticks that may pass between the check of the clock and the last bytes; `None`: any number.
    pub freeze: Option<u8>,
    /// Ticks within which the server executes an append.
    pub lag: u8,
    /// A Maildir: the append is idempotent by the copy's name, and leases are joined.
    pub join: bool,
    /// Somebody was here before, wrote nothing, died, and the lease has run out.
    pub in_doubt: bool,
    /// Not as in `deliver.rs`: a confirm counts where no receipt is on record, whatever the epoch.
    pub first_receipt_counts: bool,
    /// `verify` knows copies with epoch > 1 only, not joined leases.
    pub second_look_by_epoch: bool,
    /// Processes are interchangeable: for one copy, which all of them place.
    pub symmetric: bool,
    /// Check this property alone, and stop where it breaks.
    pub only: Option<&'static str>,
}

/// What DESIGN's table of layers lists, each to be taken away.
#[derive(Debug, Clone, Copy)]
pub struct Layers {
    pub lock: bool,
    /// The Maildir's own lock of a copy.
    pub guard: bool,
    pub lease: bool,
    pub look: bool,
    pub check: bool,
    pub epoch: bool,
    pub undo: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Processes die, connections to the store break, ledgers stay away.
    pub crash: bool,
    pub lost_session: bool,
}

const ALL: Layers = Layers { lock: true, guard: true, lease: true, look: true, check: true, epoch: true, undo: true };
const NO_FAULTS: Faults = Faults { crash: false, lost_session: false };
const CRASH: Faults = Faults { crash: true, ..NO_FAULTS };
const LOST_SESSION: Faults = Faults { lost_session: true, ..NO_FAULTS };
const ANY_FAULT: Faults = Faults { crash: true, lost_session: true };

/// Two processes, one copy, any fault, inside the envelope with a server that executes at once.
fn two() -> Protocol {
    Protocol {
        jobs: vec![vec![0], vec![0]],
        tries: 2,
        layers: ALL,
        faults: ANY_FAULT,
        freeze: Some(0),
        lag: 0,
        join: false,
        in_doubt: false,
        first_receipt_counts: false,
        second_look_by_epoch: false,
        symmetric: false,
        only: None,
    }
}

/// The same with one try for each before the last one.
fn once() -> Protocol {
    Protocol { tries: 1, ..two() }
}

/// Any freeze, but nobody crashes.
fn frozen(faults: Faults) -> Protocol {
    Protocol { freeze: None, faults, ..two() }
}

/// The same for copies in doubt, which take a turn.
fn frozen_in_doubt(faults: Faults) -> Protocol {
    Protocol { in_doubt: true, ..frozen(faults) }
}

/// A Maildir, frozen processes and all.
fn maildir() -> Protocol {
    Protocol { join: true, freeze: None, ..two() }
}

/// The same without its locks, which then is left with the ledger's.
fn maildir_without_locks(faults: Faults) -> Protocol {
    Protocol { layers: Layers { guard: false, ..ALL }, tries: 1, faults, ..maildir() }
}

/// Explores all there is. Exactly the properties in `broken` must break: none is lost, none is reported delivered without
/// a copy, and all is delivered in the end in every configuration here. Everything in `seen` must happen.
fn check(name: &str, protocol: &Protocol, broken: &[&str], seen: &[&str]) {
    let started = Instant::now();
    let checker = protocol.clone().checker().spawn_bfs().join();
    let secs = started.elapsed().as_secs_f32();
    let result = if broken.is_empty() { "holds".to_owned() } else { format!("not: {}", broken.join(", ")) };
    let copies = protocol.init_states()[0].copies.len();
    let (processes, states) = (protocol.jobs.len(), checker.unique_state_count());
    println!("| {name} | {processes} | {copies} | {states} | {secs:.1} | {result} |");
    for property in protocol.properties() {
        let found = checker.discovery(property.name).is_some();
        match property.expectation {
            Expectation::Sometimes => assert!(found || !seen.contains(&property.name), "{name}: {}", property.name),
            Expectation::Always | Expectation::Eventually => {
                let steps = if found { shortest(protocol, property.name) } else { String::new() };
                print!("{steps}");
                assert_eq!(found, broken.contains(&property.name), "{name}: {}\n{steps}", property.name);
            }
        }
    }
}

/// The shortest way to a state where `property` does not hold.
fn shortest(protocol: &Protocol, property: &'static str) -> String {
    let alone = Protocol { only: Some(property), ..protocol.clone() };
    let Some(path) = alone.checker().spawn_bfs().join().discovery(property) else { return String::new() };
    let steps: Vec<String> = path.into_actions().into_iter().map(world::words).collect();
    format!("    not \"{property}\": {}\n", steps.join(" | "))
}

#[test]
fn inside_the_envelope_there_is_one_copy() {
    let seen = [FOUND, WAITS, OUTLIVES, ZOMBIE];
    check("server on time", &two(), &[], &seen);
    // Lease 3, last bytes until 1: one tick is left, for a freeze or for the server.
    check("server late, within the lease", &Protocol { lag: 1, ..two() }, &[], &seen);
    check("frozen, within the lease", &Protocol { freeze: Some(1), ..two() }, &[], &seen);
}

#[test]
fn the_envelope_is_lease_minus_deadline_for_freeze_and_server_together() {
    let broken = [ONE_EVER, ONE_AT_END];
    // Shorter than the lease, each of them; with the time before the check they go past its end.
    check("frozen for lease - deadline", &Protocol { freeze: Some(2), ..once() }, &broken, &[FOUND]);
    check("frozen, then server late", &Protocol { freeze: Some(1), lag: 1, ..once() }, &broken, &[FOUND]);
}

#[test]
fn three_processes_leave_one_copy() {
    let three = Protocol { jobs: vec![vec![0]; 3], tries: 1, symmetric: true, ..two() };
    let seen = [FOUND, WAITS, OUTLIVES, ZOMBIE];
    check("three processes, server late", &Protocol { lag: 1, ..three.clone() }, &[], &seen);
    check("three processes, frozen", &Protocol { freeze: Some(1), ..three }, &[], &seen);
}

#[test]
fn two_recipients_share_one_sent_copy() {
    let shared = Protocol { jobs: vec![vec![0, 2], vec![1, 2]], tries: 1, lag: 1, ..two() };
    check("two recipients, one Sent", &shared, &[], &[FOUND, WAITS, OUTLIVES, ZOMBIE]);
}

#[test]
fn in_doubt_a_frozen_process_costs_nothing_while_its_session_lives() {
    // The copy's lock, which lives as long as the session, keeps all others away until the thaw.
    check("frozen, in doubt, no crash", &frozen_in_doubt(NO_FAULTS), &[], &[FOUND, WAITS]);
    let broken = [ONE_EVER, ONE_AT_END];
    check("the same, session lost", &frozen_in_doubt(LOST_SESSION), &broken, &[FOUND, UNDONE, ZOMBIE]);
}

#[test]
fn a_frozen_process_may_come_between_the_look_and_the_confirm_of_another() {
    // Thawed after the other's confirm it takes its late copy out. Thawed between the other's look and confirm it finds
    // its epoch gone and no receipt on record that would make its copy the second; then the other adds one.
    let broken = [ONE_EVER, ONE_AT_END];
    check("frozen, no crash", &frozen(NO_FAULTS), &broken, &[FOUND, UNDONE, WAITS]);
    check("frozen, session lost", &frozen(LOST_SESSION), &broken, &[FOUND, UNDONE, ZOMBIE]);
    let first = Protocol { first_receipt_counts: true, ..frozen(LOST_SESSION) };
    check("the same, if the first receipt counted", &first, &[ONE_EVER], &[FOUND, UNDONE, ZOMBIE]);
    let inside = Protocol { first_receipt_counts: true, lag: 1, ..once() };
    check("inside, if the first receipt counted", &inside, &[], &[FOUND, ZOMBIE]);
}

#[test]
fn outside_of_the_envelope_nothing_is_lost_and_one_copy_stays_once_settled() {
    let broken = [ONE_EVER, ONE_AT_END];
    let seen = [FOUND, UNDONE, WAITS, OUTLIVES, ZOMBIE];
    check("frozen, crash", &Protocol { freeze: None, ..two() }, &broken, &seen);
    check("server later than the lease", &Protocol { lag: 4, ..two() }, &broken, &seen);
    check("server later than the lease, no crash", &Protocol { lag: 4, faults: NO_FAULTS, ..two() }, &broken, &[FOUND]);
}

#[test]
fn a_maildir_holds_one_copy_whatever_its_reader_moves() {
    check("Maildir", &maildir(), &[], &[FOUND, WAITS, ZOMBIE]);
    let shared = Protocol { jobs: vec![vec![0, 2], vec![1, 2]], tries: 1, ..maildir() };
    check("Maildir: two recipients, one Sent", &shared, &[], &[FOUND, WAITS, ZOMBIE]);
}

#[test]
fn a_maildir_without_locks_may_hold_two_once_a_session_is_lost() {
    // Leases are joined, so only the ledger's lock keeps two writers apart; the name does so until a reader moves the
    // first file.
    check("Maildir, no locks in it", &maildir_without_locks(CRASH), &[], &[FOUND, WAITS]);
    let lost = maildir_without_locks(LOST_SESSION);
    check("the same, session lost", &lost, &[ONE_EVER, ONE_AT_END], &[FOUND, ZOMBIE]);
    let by_epoch = Protocol { second_look_by_epoch: true, ..lost };
    let broken = [ONE_EVER, ONE_AT_END, SETTLED];
    check("the same, second look by epoch", &by_epoch, &broken, &[FOUND, ZOMBIE]);
}

#[test]
fn without_the_lock_a_freeze_in_doubt_costs_a_copy() {
    let layers = Layers { lock: false, ..ALL };
    // Inside the envelope the lease alone keeps others away; there the lock saves work and waiting only.
    check("no lock", &Protocol { layers, ..two() }, &[], &[FOUND]);
    let frozen = Protocol { layers, ..frozen_in_doubt(NO_FAULTS) };
    check("no lock: frozen, in doubt", &frozen, &[ONE_EVER, ONE_AT_END], &[UNDONE]);
    // A Maildir has locks of its own, and is at a loss without any.
    check("no lock: Maildir", &Protocol { layers, tries: 1, ..maildir() }, &[], &[FOUND]);
    let layers = Layers { guard: false, ..layers };
    let none = Protocol { layers, ..maildir_without_locks(CRASH) };
    check("no lock, none in the Maildir", &none, &[ONE_EVER, ONE_AT_END], &[FOUND]);
}

#[test]
fn without_the_lease_two_at_once_cost_a_copy() {
    let layers = Layers { lease: false, ..ALL };
    let broken = [ONE_EVER, ONE_AT_END];
    check("no lease", &Protocol { layers, ..once() }, &broken, &[FOUND]);
    // In doubt, as long as nothing breaks, the lock stands in for it; without doubt nothing does.
    check("no lease: frozen, in doubt", &Protocol { layers, ..frozen_in_doubt(NO_FAULTS) }, &[], &[FOUND]);
    check("no lease, no fault", &Protocol { layers, faults: NO_FAULTS, ..once() }, &broken, &[]);
}

#[test]
fn without_the_look_a_crash_costs_a_copy() {
    let layers = Layers { look: false, ..ALL };
    check("no look", &Protocol { layers, ..once() }, &[ONE_EVER, ONE_AT_END], &[OUTLIVES]);
    let frozen = Protocol { layers, ..frozen_in_doubt(NO_FAULTS) };
    check("no look: frozen, in doubt", &frozen, &[ONE_EVER, ONE_AT_END], &[]);
    check("no look: Maildir", &Protocol { layers, tries: 1, ..maildir() }, &[ONE_EVER, ONE_AT_END], &[]);
}

#[test]
fn without_the_clock_check_a_slow_process_costs_a_copy() {
    let layers = Layers { check: false, ..ALL };
    check("no clock check", &Protocol { layers, ..once() }, &[ONE_EVER, ONE_AT_END], &[FOUND, UNDONE]);
}

#[test]
fn without_the_epoch_a_slow_process_gives_back_the_lease_of_another() {
    let layers = Layers { epoch: false, ..ALL };
    check("no epoch", &Protocol { layers, ..two() }, &[ONE_EVER, ONE_AT_END], &[FOUND]);
}

#[test]
fn without_the_undo_a_thawed_process_leaves_its_late_copy() {
    let layers = Layers { undo: false, ..ALL };
    // Inside the envelope nobody is late and there is nothing to undo; it stays for who is thawed too late.
    check("no undo", &Protocol { layers, ..two() }, &[], &[FOUND]);
    // Where the undo is all that is left to do (see above), its absence shows.
    let first = Protocol { layers, first_receipt_counts: true, ..frozen(LOST_SESSION) };
    check("no undo: frozen, session lost", &first, &[ONE_EVER, ONE_AT_END], &[FOUND, ZOMBIE]);
}

#[test]
fn without_any_layer_there_are_two_copies_and_still_nothing_is_lost() {
    let layers =
        Layers { lock: false, guard: false, lease: false, look: false, check: false, epoch: false, undo: false };
    check("no layer at all", &Protocol { layers, ..once() }, &[ONE_EVER, ONE_AT_END], &[OUTLIVES, ZOMBIE]);
}
