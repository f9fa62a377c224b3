//! A model of the delivery protocol, checked exhaustively: all orders of the processes' steps, with
//! crashes, lost sessions and answers, frozen processes, late servers, stepping clocks, forgotten
//! rows, `onedrop verify` and the mailbox's owner. It shares no code with `src/`: it shows that the
//! protocol is right, not that the code follows it.
//!
//! `steps.rs` has a delivery's steps, `verify.rs` those of verify, `ledger.rs` the ledger's calls,
//! `world.rs` everything else that happens and the properties, `state.rs` the state. `due.rs`,
//! `elsewhere.rs`, `handed.rs`, `locks.rs` and `line.rs` (who waits for a lock) are models of their
//! own.
//!
//! Each process runs `tries` times. From every state in which no process runs, the model also goes
//! on with one try a process without faults, and that must deliver. The message's lock is not
//! modelled: `record` is one transaction, and the unique keys hold without it.

mod due;
mod elsewhere;
mod explored;
mod handed;
mod ledger;
mod line;
mod locks;
mod state;
mod steps;
mod verify;
mod world;

use std::time::Instant;

use stateright::{Checker, Expectation, Model};
use world::{
    AGAIN, BYTES, FOUND, FOUND_BY_VERIFY, IN_DOUBT, KEEPS, KEPT, LAST, LOOKED_BACK, LOST,
    ONE_AT_END, ONE_EVER, OUTLIVES, PUT_BACK, RECEIPT, REMOVED, RESTARTED, SETTLED, SETTLES, TRUTH,
    UNDONE, UNREAD, WAITS, ZOMBIE,
};

/// A protocol and its environment. Large ones run with `ONEDROP_FULL=1` (`tests/run --full`).
#[derive(Debug, Clone)]
pub struct Protocol {
    /// For each process its copies, its own mailbox first, a shared one last.
    pub jobs: Vec<Vec<u8>>,
    pub tries: u8,
    /// For each verifier its runs.
    pub verifiers: Vec<u8>,
    pub start: Start,
    pub layers: Layers,
    pub wrong: Option<BrokenRule>,
    pub faults: Faults,
    /// Ticks that may pass between the check of the clock and the last bytes; `None`: any number.
    pub freeze: Option<u8>,
    /// Ticks within which the server executes an append.
    pub lag: u8,
    /// The server returns the UID of a stored message, and can expunge one UID.
    pub uid_plus: bool,
    /// A Maildir: the append is idempotent by the copy's name, and leases are joined.
    pub join: bool,
    /// Leases count by the clock of the one host's boot (a ledger in a file); else by a server's
    /// wall clock.
    pub boot_clock: bool,
    /// The first process is configured with a longer lease, and a longer deadline, than the others.
    pub long: bool,
    /// The copies are shared ones (Sent): if the store refuses one, the ledger keeps its bytes.
    pub shared: bool,
    /// Copies in doubt may be older than their rows: what was in the mailbox before the turn is
    /// read outside of it.
    pub looks_back: bool,
    /// A copy that verify does not find has been missing for a week.
    pub after_a_week: bool,
    /// Processes are interchangeable: for one copy, which all of them place.
    pub symmetric: bool,
    /// Check this property alone, and stop where it breaks.
    pub only: Option<&'static str>,
}

/// The state of every mailbox at the start.
#[derive(Debug, Clone, Copy)]
pub enum Start {
    Empty,
    /// The last lease has run out in doubt, and the mailbox holds this many copies.
    InDoubt {
        copies: u8,
    },
    /// The oldest of this many copies is on record, in a row that was leased more than once.
    Placed {
        copies: u8,
    },
}

/// The rules of the protocol; each can be switched off.
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
    /// A confirm that finds another receipt on record leaves a doubt.
    pub doubt: bool,
    /// A forgotten row is claimed in doubt.
    pub memory: bool,
    /// Whoever has written a copy whose row is gone records it again, in doubt.
    pub again: bool,
    /// Verify looks at the keeper after it has marked the double,
    pub keeper: bool,
    /// and removes the mark if the keeper is missing.
    pub put_back: bool,
}

/// Rules that are not used because they break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenRule {
    /// A confirm counts only while the claim's epoch is the row's.
    OwnEpoch,
    /// A confirm that finds another epoch and no receipt on record removes its own copy.
    UndoUnrecorded,
    /// Claims name rows by their numbers, which are used again.
    RowsByNumber,
    /// A repeated call knows its own lease by host and process.
    LeaseByProcess,
    /// Of two receipts without a name, one is ours if the row's epoch is.
    UnnamedByEpoch,
    /// A shared copy that the store refuses counts as delivered although its bytes are not kept.
    DeliveredUnkept,
    /// Recording a doubt does not change the row's epoch.
    DoubtKeepsEpoch,
    /// Verify knows copies with epoch > 1 only, not joined leases.
    SecondLookByEpoch,
    /// Verify removes doubles if no receipt is on record.
    RemoveUnrecorded,
    /// Verify looks at the keeper before it marks and expunges the double.
    LookThenMark,
    /// A lease is judged by the length that the claimer is configured with, not by its own.
    LeaseByClaimer,
    /// What came into the mailbox since the look back is not looked at in the turn.
    LookBackIsEnough,
    /// After a restart of the host the leases of the boot before are over.
    BootEndsLeases,
    /// If the boot's id cannot be read, leases count as those of another boot, which are over.
    UnreadIsAnotherBoot,
    /// No record waits for the ledger's disk either.
    LosesRecords,
    /// A receipt waits for no disk, also of a copy that a second process may have written.
    LosesAnyReceipt,
    /// A receipt that waits for no disk frees the bytes of a shared copy at once.
    LosesKept,
    /// Whoever records again what it has written finds another's receipt, and does not wait for it
    /// to be on the disk.
    UndoUnsynced,
}

/// Which rows may be forgotten.
#[derive(Debug, Clone, Copy)]
pub enum ForgottenRows {
    /// By `onedrop purge` and `forget`.
    Unleased,
    /// By a standby that takes over without the last commits.
    Leased,
    Any,
}

#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Processes die, connections to the store break, the ledger is unreachable.
    pub crash: bool,
    pub lost_session: bool,
    /// The ledger's server crashes, with all sessions and with what waited for no disk.
    pub ledger_crash: bool,
    /// Number of calls that may be in transit after their callers have lost their sessions.
    pub lost_answers: u8,
    /// The wall clock that the ledger goes by steps past the end of all leases, or back.
    pub clock: bool,
    /// How often the one host restarts, with all processes.
    pub boots: u8,
    /// A process may be unable to read which boot it is.
    pub unread: bool,
    /// How often a row is forgotten.
    pub forgets: u8,
    /// Of these.
    pub forgotten: ForgottenRows,
    /// Number of actions of the mailboxes' owner.
    pub owner: u8,
    /// The owner does nothing between verify's last look at the keeper and the removal of the
    /// double.
    pub owner_waits: bool,
}

const ALL: Layers = Layers {
    lock: true,
    guard: true,
    lease: true,
    look: true,
    check: true,
    epoch: true,
    undo: true,
    doubt: true,
    memory: true,
    again: true,
    keeper: true,
    put_back: true,
};
const NO_FAULTS: Faults = Faults {
    crash: false,
    lost_session: false,
    ledger_crash: false,
    lost_answers: 0,
    clock: false,
    boots: 0,
    unread: false,
    forgets: 0,
    forgotten: ForgottenRows::Unleased,
    owner: 0,
    owner_waits: false,
};
const CRASH: Faults = Faults { crash: true, ..NO_FAULTS };
const LOST_SESSION: Faults = Faults { lost_session: true, ..NO_FAULTS };
const ANY_FAULT: Faults = Faults { crash: true, lost_session: true, ..NO_FAULTS };
const LEDGER_CRASH: Faults = Faults { ledger_crash: true, ..ANY_FAULT };
const CLOCK: Faults = Faults { clock: true, ..NO_FAULTS };
const LOST_ANSWERS: Faults = Faults { lost_answers: 1, ..NO_FAULTS };

/// Two processes, one copy, any fault, inside the promise, with a server that executes at once.
fn two() -> Protocol {
    Protocol {
        jobs: vec![vec![0], vec![0]],
        tries: 2,
        verifiers: Vec::new(),
        start: Start::Empty,
        layers: ALL,
        wrong: None,
        faults: ANY_FAULT,
        freeze: Some(0),
        lag: 0,
        uid_plus: true,
        join: false,
        boot_clock: false,
        long: false,
        shared: false,
        looks_back: false,
        after_a_week: false,
        symmetric: false,
        only: None,
    }
}

/// The same with one try for each before the last one.
fn once() -> Protocol {
    Protocol { tries: 1, ..two() }
}

/// Any freeze, no crash.
fn frozen(faults: Faults) -> Protocol {
    Protocol { freeze: None, faults, ..two() }
}

/// The same for copies in doubt, which take a turn.
fn frozen_in_doubt(faults: Faults) -> Protocol {
    Protocol { start: Start::InDoubt { copies: 0 }, ..frozen(faults) }
}

/// A Maildir, with frozen processes.
fn maildir() -> Protocol {
    Protocol { join: true, freeze: None, ..two() }
}

/// A Maildir without its own locks: only the ledger's lock is left.
fn maildir_without_locks(faults: Faults) -> Protocol {
    Protocol { layers: Layers { guard: false, ..ALL }, tries: 1, faults, ..maildir() }
}

/// Verifiers only, over copies of earlier deliveries.
fn verifiers(runs: &[u8], start: Start) -> Protocol {
    Protocol { jobs: Vec::new(), verifiers: runs.to_vec(), start, faults: NO_FAULTS, ..two() }
}

/// The owner of the mailboxes acts this often.
fn owner(acts: u8) -> Faults {
    Faults { owner: acts, owner_waits: true, ..NO_FAULTS }
}

/// Whether the large configurations run as well.
fn full() -> bool {
    std::env::var_os("ONEDROP_FULL").is_some_and(|value| value == "1")
}

/// Explores all states. Exactly the properties in `broken` must break, and everything in `seen`
/// must happen.
fn check(name: &str, protocol: &Protocol, broken: &[&str], seen: &[&str]) {
    let started = Instant::now();
    let checker = protocol.clone().checker().spawn_bfs().join();
    let secs = started.elapsed().as_secs_f32();
    let found: Vec<&str> = protocol.properties().iter().map(|property| property.name).collect();
    let (fails, happens): (Vec<_>, Vec<_>) = protocol
        .properties()
        .into_iter()
        .filter(|property| checker.discovery(property.name).is_some())
        .partition(|property| property.expectation != Expectation::Sometimes);
    let fails: Vec<&str> = fails.iter().map(|property| property.name).collect();
    let result =
        if fails.is_empty() { "holds".to_owned() } else { format!("not: {}", fails.join(", ")) };
    let copies = protocol.init_states()[0].copies.len();
    let (processes, states) =
        (protocol.jobs.len() + protocol.verifiers.len(), checker.unique_state_count());
    println!("| {name} | {processes} | {copies} | {states} | {secs:.1} | {result} |");
    let steps: String = fails.iter().map(|name| shortest(protocol, name)).collect();
    print!("{steps}");
    let mut wanted = broken.to_vec();
    wanted.sort_by_key(|name| found.iter().position(|one| one == name));
    assert_eq!(fails, wanted, "{name}\n{steps}");
    let happens: Vec<&str> = happens.iter().map(|property| property.name).collect();
    let missing: Vec<&&str> = seen.iter().filter(|name| !happens.contains(name)).collect();
    assert!(missing.is_empty(), "{name}: {missing:?}, only {happens:?}");
}

/// The shortest path to a state in which `property` does not hold.
fn shortest(protocol: &Protocol, property: &'static str) -> String {
    let alone = Protocol { only: Some(property), ..protocol.clone() };
    let Some(path) = alone.checker().spawn_bfs().join().discovery(property) else {
        return String::new();
    };
    let steps: Vec<String> = path.into_actions().into_iter().map(world::words).collect();
    format!("    not \"{property}\": {}\n", steps.join(" | "))
}

#[test]
fn inside_the_promise_there_is_one_copy() {
    let seen = [FOUND, WAITS, OUTLIVES, ZOMBIE];
    check("server on time", &two(), &[], &seen);
    // Lease 3, last bytes until 1: one tick is left for a freeze or for the server.
    check("server late, within the lease", &Protocol { lag: 1, ..two() }, &[], &seen);
    check("frozen, within the lease", &Protocol { freeze: Some(1), ..two() }, &[], &seen);
}

#[test]
fn the_promise_allows_lease_minus_deadline_for_freeze_and_server_together() {
    let broken = [ONE_EVER, ONE_AT_END];
    // Each is shorter than the lease, but with the time before the check it ends after the lease.
    check(
        "frozen for lease - deadline",
        &Protocol { freeze: Some(2), ..once() },
        &broken,
        &[FOUND],
    );
    check(
        "frozen, then server late",
        &Protocol { freeze: Some(1), lag: 1, ..once() },
        &broken,
        &[FOUND],
    );
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
fn a_refused_shared_copy_is_kept_until_it_is_placed() {
    // One of the two processes may be `onedrop verify --repair`, which places like a delivery.
    let sent = Protocol { shared: true, ..two() };
    check("Sent", &Protocol { lag: 1, ..sent.clone() }, &[], &[FOUND, KEEPS, OUTLIVES, ZOMBIE]);
    let answers =
        Protocol { tries: 1, faults: Faults { crash: true, ..LOST_ANSWERS }, ..sent.clone() };
    check("Sent, answers lost, crash", &answers, &[], &[AGAIN, FOUND, KEEPS]);
    let frozen = Protocol { tries: 1, freeze: None, ..sent.clone() };
    check("Sent, frozen", &frozen, &[ONE_EVER, ONE_AT_END], &[FOUND, KEEPS, UNDONE]);
    let unkept = Protocol { tries: 1, wrong: Some(BrokenRule::DeliveredUnkept), ..sent };
    check("Sent, delivered though nothing is kept", &unkept, &[TRUTH, SETTLED], &[FOUND]);
}

#[test]
fn a_receipt_that_a_crash_of_the_ledger_loses_is_found_again() {
    let two = Protocol { faults: LEDGER_CRASH, ..two() };
    check("receipts lost", &two, &[], &[FOUND, LOST, OUTLIVES, WAITS, ZOMBIE]);
    check("receipts lost, server late", &Protocol { lag: 1, ..two.clone() }, &[], &[FOUND, LOST]);
    let once = Protocol { tries: 1, ..two };
    let verified = Protocol { verifiers: vec![1], ..once.clone() };
    let seen = [FOUND, FOUND_BY_VERIFY, LOST, SETTLES];
    check("receipts lost, verify", &verified, &[], &seen);
    let maildir = Protocol { tries: 1, faults: LEDGER_CRASH, ..maildir() };
    check("receipts lost: Maildir", &maildir, &[], &[FOUND, LOST]);
    let boots = Faults { boots: 1, lost_session: false, ..LEDGER_CRASH };
    let boots = Protocol { boot_clock: true, faults: boots, lag: 1, ..once.clone() };
    check("receipts lost, one host, a restart", &boots, &[], &[FOUND, LOST, RESTARTED]);
    let sent = Protocol { shared: true, ..once.clone() };
    check("receipts of Sent are not lost", &sent, &[], &[FOUND, KEEPS]);
    // Outside of the promise all is as if no receipt were lost.
    let faults = Faults { ledger_crash: true, ..LOST_SESSION };
    let frozen = Protocol { freeze: None, faults, ..verified };
    let seen = [LOST, UNDONE, REMOVED, SETTLES];
    check("receipts lost, frozen, verify", &frozen, &[ONE_EVER], &seen);

    let records = Protocol { wrong: Some(BrokenRule::LosesRecords), ..once.clone() };
    let broken = [ONE_EVER, ONE_AT_END, SETTLED, IN_DOUBT];
    check("records are lost as well", &records, &broken, &[LOST]);
    let any = Protocol { wrong: Some(BrokenRule::LosesAnyReceipt), ..frozen };
    let broken = [TRUTH, RECEIPT, ONE_EVER, ONE_AT_END, SETTLED, KEPT, LAST];
    check("frozen, verify, any receipt is lost", &any, &broken, &[LOST, REMOVED]);
    let kept = Protocol { wrong: Some(BrokenRule::LosesKept), ..sent };
    check("Sent, a lost receipt has freed the bytes", &kept, &[BYTES], &[LOST, KEEPS]);
}

#[test]
fn in_doubt_a_frozen_process_writes_no_second_copy_while_its_session_lives() {
    // The copy's lock lives as long as the session and excludes all others until the thaw.
    check("frozen, in doubt, no crash", &frozen_in_doubt(NO_FAULTS), &[], &[WAITS]);
    check(
        "the same, session lost",
        &frozen_in_doubt(LOST_SESSION),
        &[ONE_EVER],
        &[FOUND, UNDONE, ZOMBIE],
    );
}

#[test]
fn a_frozen_process_removes_or_records_its_late_copy() {
    // Thawed after the other's confirm, it removes its late copy. Thawed before it, its copy is
    // recorded, and the other one removes its own.
    check("frozen, no crash", &frozen(NO_FAULTS), &[ONE_EVER], &[FOUND, UNDONE, WAITS]);
    check("frozen, session lost", &frozen(LOST_SESSION), &[ONE_EVER], &[FOUND, UNDONE, ZOMBIE]);
}

#[test]
fn the_first_receipt_wins_where_the_clock_steps() {
    let clock = Protocol { faults: CLOCK, ..two() };
    check("clock steps", &clock, &[ONE_EVER], &[FOUND, UNDONE, WAITS]);
    let own_epoch = Protocol { wrong: Some(BrokenRule::OwnEpoch), ..clock.clone() };
    check("clock steps, the epoch must be ours", &own_epoch, &[ONE_EVER, ONE_AT_END], &[UNDONE]);
    let no_undo = Protocol { layers: Layers { undo: false, ..ALL }, ..clock };
    check("clock steps, no undo", &no_undo, &[ONE_EVER, ONE_AT_END], &[FOUND]);
    let crash = Protocol { faults: Faults { crash: true, ..CLOCK }, ..once() };
    check("clock steps, crash", &crash, &[ONE_EVER, ONE_AT_END], &[FOUND, UNDONE]);
}

#[test]
fn a_ledger_in_a_file_counts_leases_by_the_hosts_boot() {
    let clock = Protocol { boot_clock: true, faults: Faults { crash: true, ..CLOCK }, ..two() };
    check("one host, clock steps", &clock, &[], &[FOUND, WAITS, OUTLIVES]);
    let by_wall = Protocol { boot_clock: false, tries: 1, ..clock.clone() };
    check("the same by the wall clock", &by_wall, &[ONE_EVER, ONE_AT_END], &[FOUND, UNDONE]);

    // The mail server is another machine, and executes what it has got before the restart.
    let boots = Protocol { faults: Faults { boots: 2, ..CLOCK }, lag: 1, ..clock.clone() };
    check("one host, two restarts, server late", &boots, &[], &[FOUND, RESTARTED]);
    let over = Protocol { wrong: Some(BrokenRule::BootEndsLeases), tries: 1, ..boots.clone() };
    let broken = [ONE_EVER, ONE_AT_END];
    check("the same, leases end with the boot", &over, &broken, &[RESTARTED]);
    // A Maildir's lease need not be waited for: what was to write it has ended with the host.
    let files = Protocol { join: true, tries: 1, freeze: None, lag: 0, ..boots };
    check("Maildir, two restarts", &files, &[], &[FOUND, RESTARTED]);

    let unread = Protocol { faults: Faults { unread: true, ..CRASH }, lag: 1, tries: 1, ..clock };
    check("a boot that cannot be read", &unread, &[], &[FOUND, UNREAD]);
    let another = Protocol { wrong: Some(BrokenRule::UnreadIsAnotherBoot), ..unread };
    check("the same, taken for another boot", &another, &broken, &[UNREAD]);
}

#[test]
fn a_lease_is_as_long_as_its_owner_was_configured_with() {
    let long = Protocol { long: true, lag: 1, ..once() };
    check("another lease time", &long, &[], &[FOUND, WAITS, OUTLIVES]);
    let claimers = Protocol { wrong: Some(BrokenRule::LeaseByClaimer), ..long };
    let broken = [ONE_EVER, ONE_AT_END];
    check("the same, leases by the claimer's", &claimers, &broken, &[FOUND, UNDONE]);
}

#[test]
fn removing_a_copy_without_a_receipt_on_record_loses_mail() {
    // Another process has just found that very copy. This needs no clock step and no freeze.
    let lost = [TRUTH, RECEIPT, SETTLED, KEPT];
    let inside = Protocol { wrong: Some(BrokenRule::UndoUnrecorded), ..once() };
    check("an undo without a receipt on record", &inside, &lost, &[UNDONE]);
    let lost = [TRUTH, RECEIPT, ONE_EVER, SETTLED, KEPT];
    let clock = Protocol { faults: CLOCK, ..inside };
    check("the same, clock steps", &clock, &lost, &[UNDONE]);
}

#[test]
fn a_call_whose_answer_is_lost_is_made_again() {
    // The first call may be executed before the second one, after it, after the attempt, or never.
    let lost = Protocol { faults: LOST_ANSWERS, ..once() };
    check("answers lost", &lost, &[], &[AGAIN, FOUND, WAITS]);
    let crash = Faults { crash: true, ..LOST_ANSWERS };
    check(
        "answers lost, crash",
        &Protocol { faults: crash, ..lost.clone() },
        &[],
        &[AGAIN, FOUND, OUTLIVES],
    );
    check(
        "answers lost, frozen",
        &Protocol { freeze: None, ..lost.clone() },
        &[ONE_EVER],
        &[AGAIN, UNDONE],
    );
    let maildir = Protocol { tries: 1, faults: LOST_ANSWERS, ..maildir() };
    check("answers lost: Maildir", &maildir, &[], &[AGAIN, WAITS]);
    if full() {
        check(
            "answers lost, two tries",
            &Protocol { tries: 2, ..lost.clone() },
            &[],
            &[AGAIN, FOUND],
        );
        let shared = Protocol { jobs: vec![vec![0, 2], vec![1, 2]], ..lost };
        check("answers lost: two recipients, one Sent", &shared, &[], &[AGAIN, FOUND, WAITS]);
        check(
            "answers lost, crash: Maildir",
            &Protocol { faults: crash, ..maildir },
            &[],
            &[AGAIN, WAITS],
        );
    }
}

#[test]
fn a_lease_known_by_its_process_is_confused_with_that_of_the_next_attempt() {
    let crash = Faults { crash: true, ..LOST_ANSWERS };
    let alone = Protocol { jobs: vec![vec![0]], faults: crash, ..two() };
    check("answers lost, one process", &alone, &[], &[AGAIN, FOUND]);
    let by_process = Protocol { wrong: Some(BrokenRule::LeaseByProcess), ..alone };
    let broken = [ONE_EVER, ONE_AT_END, SETTLED];
    check("the same, leases known by host and process", &by_process, &broken, &[AGAIN]);
}

#[test]
fn a_forgotten_row_is_created_again_in_doubt() {
    let forgets = Faults { forgets: 1, ..CRASH };
    let forgotten = Protocol { faults: forgets, ..once() };
    check("forgotten while not leased", &forgotten, &[], &[FOUND]);
    let answers = Faults { crash: false, lost_answers: 1, ..forgets };
    check("the same, answers lost", &Protocol { faults: answers, ..once() }, &[], &[AGAIN, FOUND]);
    // Like a ledger that was restored from a backup and does not know it.
    let fresh = Protocol { layers: Layers { memory: false, ..ALL }, ..forgotten };
    check("forgotten, and claimed without doubt", &fresh, &[ONE_EVER, ONE_AT_END, SETTLED], &[]);
    // Whoever has written a copy puts it on record in doubt, where a fail-over has lost the record.
    let (jobs, layers) = (vec![vec![0]], Layers { memory: false, ..ALL });
    let faults = Faults { forgets: 1, forgotten: ForgottenRows::Any, ..NO_FAULTS };
    let lost = Protocol { jobs, layers, faults, ..once() };
    check("a fail-over under a delivery", &lost, &[], &[FOUND]);
    let layers = Layers { again: false, ..layers };
    let broken = [ONE_EVER, ONE_AT_END, SETTLED];
    check("the same, not recorded again", &Protocol { layers, ..lost }, &broken, &[]);
    // Outside the promise: the holder of the lease may write after the next process has looked.
    let leased = Protocol { faults: Faults { forgotten: ForgottenRows::Any, ..forgets }, ..once() };
    check("forgotten while leased", &leased, &[ONE_EVER, ONE_AT_END], &[FOUND]);
}

#[test]
fn a_copy_whose_record_a_fail_over_lost_goes_where_another_is_on_record() {
    let layers = Layers { memory: false, ..ALL };
    let faults = Faults { forgets: 1, forgotten: ForgottenRows::Leased, ..NO_FAULTS };
    let two = Protocol { layers, faults, ..once() };
    let copies = [ONE_EVER, ONE_AT_END];
    check("a fail-over under two deliveries", &two, &copies, &[UNDONE]);
    // Nothing is lost, whatever else goes wrong.
    let faults = Faults { forgets: 2, forgotten: ForgottenRows::Any, ..LEDGER_CRASH };
    let verified = Protocol { verifiers: vec![1], ..two };
    let worst = Protocol { freeze: None, faults, ..verified.clone() };
    let broken = [ONE_EVER, ONE_AT_END, SETTLED, IN_DOUBT];
    check("two fail-overs, verify, frozen, crash", &worst, &broken, &[LOST, REMOVED, UNDONE]);
    let faults = Faults { ledger_crash: true, ..verified.faults };
    let unsynced = Protocol { wrong: Some(BrokenRule::UndoUnsynced), faults, ..verified };
    let broken = [TRUTH, RECEIPT, ONE_EVER, ONE_AT_END, SETTLED, KEPT, LAST, IN_DOUBT];
    check("an undo for a receipt that may be lost", &unsynced, &broken, &[LOST, UNDONE]);
}

#[test]
fn a_late_process_confirms_no_other_message() {
    let faults = Faults { forgets: 1, forgotten: ForgottenRows::Any, ..NO_FAULTS };
    let two_rows = Protocol { jobs: vec![vec![0], vec![1]], faults, ..once() };
    check("two messages, rows by random values", &two_rows, &[], &[FOUND]);
    let by_number = Protocol { wrong: Some(BrokenRule::RowsByNumber), ..two_rows };
    let lost = [TRUTH, RECEIPT, SETTLED, KEPT];
    check("two messages, numbers used again", &by_number, &lost, &[UNDONE]);
}

#[test]
fn a_look_back_outside_of_the_turn_is_completed_in_it() {
    let seen = [FOUND, LOOKED_BACK, WAITS, ZOMBIE];
    let one = Start::InDoubt { copies: 1 };
    let back = Protocol { looks_back: true, start: Start::InDoubt { copies: 0 }, ..two() };
    check("looks back, server late", &Protocol { lag: 1, ..back.clone() }, &[], &seen);
    check("the same, one copy there", &Protocol { start: one, ..back.clone() }, &[], &seen[..1]);
    let clock = Protocol { faults: CLOCK, start: one, ..back.clone() };
    check("looks back, clock steps", &clock, &[], &seen[..1]);
    let forgotten = Faults { forgets: 1, ..CRASH };
    let forgotten = Protocol { faults: forgotten, tries: 1, ..back.clone() };
    check("looks back, forgotten", &forgotten, &[], &seen[..2]);
    let verified = Protocol { verifiers: vec![1], start: one, tries: 1, ..back.clone() };
    check("looks back, verify", &verified, &[], &[FOUND, SETTLES]);
    let enough = Protocol { wrong: Some(BrokenRule::LookBackIsEnough), ..back };
    let broken = [ONE_EVER, ONE_AT_END];
    check("the same, what came since is not looked at", &enough, &broken, &[LOOKED_BACK]);
}

#[test]
fn without_uidplus_a_second_copy_leaves_a_doubt() {
    let unnamed = Protocol { uid_plus: false, ..once() };
    check("no UIDPLUS", &unnamed, &[], &[FOUND]);
    check("no UIDPLUS, server late", &Protocol { lag: 1, ..unnamed.clone() }, &[], &[FOUND]);
    check(
        "no UIDPLUS, answers lost",
        &Protocol { faults: LOST_ANSWERS, ..unnamed.clone() },
        &[],
        &[AGAIN, FOUND],
    );
    let two_copies = [ONE_EVER, ONE_AT_END];
    let frozen = Protocol { verifiers: vec![1], freeze: None, faults: NO_FAULTS, ..unnamed };
    check("no UIDPLUS, frozen, verify", &frozen, &two_copies, &[FOUND, SETTLES]);
    let unseen = [ONE_EVER, ONE_AT_END, SETTLED];
    let no_doubt = Protocol { layers: Layers { doubt: false, ..ALL }, ..frozen.clone() };
    check("the same, no doubt left", &no_doubt, &unseen, &[SETTLES]);
    let by_epoch = Protocol { wrong: Some(BrokenRule::UnnamedByEpoch), ..frozen.clone() };
    check("the same, ours if the row's epoch is", &by_epoch, &unseen, &[SETTLES]);
    let same_epoch = Protocol { wrong: Some(BrokenRule::DoubtKeepsEpoch), ..frozen };
    check("the same, a doubt that verify does not see", &same_epoch, &unseen, &[SETTLES]);
}

#[test]
fn two_verifiers_and_an_owner_leave_one_copy() {
    let copies = [ONE_EVER, ONE_AT_END];
    let two = verifiers(&[2, 2], Start::Placed { copies: 2 });
    check("two verifiers", &two, &copies, &[REMOVED, SETTLES]);
    check(
        "two verifiers, three copies",
        &Protocol { start: Start::Placed { copies: 3 }, ..two.clone() },
        &copies,
        &[REMOVED, SETTLES],
    );
    check(
        "two verifiers, crash",
        &Protocol { faults: CRASH, ..two.clone() },
        &copies,
        &[REMOVED, SETTLES],
    );
    let owner = Protocol { faults: owner(3), ..two };
    check("two verifiers, owner", &owner, &copies, &[REMOVED, PUT_BACK, SETTLES]);
    let three = Protocol {
        start: Start::Placed { copies: 3 },
        faults: Faults { owner: 2, ..owner.faults },
        ..owner
    };
    check("two verifiers, owner, three copies", &three, &copies, &[REMOVED, PUT_BACK, SETTLES]);
    let doubt = verifiers(&[2, 2], Start::InDoubt { copies: 2 });
    check("two verifiers, in doubt", &doubt, &copies, &[FOUND_BY_VERIFY, REMOVED, SETTLES]);
    let doubt = Protocol { faults: self::owner(2), ..doubt };
    check(
        "two verifiers, in doubt, owner",
        &doubt,
        &copies,
        &[FOUND_BY_VERIFY, REMOVED, PUT_BACK, SETTLES],
    );
}

#[test]
fn a_removal_looks_at_the_keeper_after_marking_the_double() {
    let right = Protocol { faults: owner(2), ..verifiers(&[2, 2], Start::Placed { copies: 2 }) };
    let last = [ONE_EVER, ONE_AT_END, LAST];
    let no_keeper = Layers { keeper: false, ..ALL };
    check(
        "owner, no look at the copy that stays",
        &Protocol { layers: no_keeper, ..right.clone() },
        &last,
        &[REMOVED],
    );
    let look_first = Protocol { wrong: Some(BrokenRule::LookThenMark), ..right.clone() };
    check("owner, a look before the mark", &look_first, &last, &[REMOVED]);
    // One instant is left, because IMAP has no lock on a mailbox.
    let instant = Faults { owner_waits: false, ..right.faults };
    check(
        "owner, in that very instant",
        &Protocol { faults: instant, ..right.clone() },
        &last,
        &[REMOVED],
    );

    // Each verifier takes the other's keeper for the double: the copy on record was marked for a
    // week, then unmarked.
    let crossed = Protocol { after_a_week: true, ..right };
    let copies = [RECEIPT, ONE_EVER, ONE_AT_END, SETTLED];
    check("crossed", &crossed, &copies, &[REMOVED, PUT_BACK]);
    let lost = [RECEIPT, ONE_EVER, ONE_AT_END, SETTLED, KEPT, LAST];
    let no_keeper = Protocol { layers: no_keeper, ..crossed.clone() };
    check("crossed, no look at the copy that stays", &no_keeper, &lost, &[REMOVED]);
    let look_first = Protocol { wrong: Some(BrokenRule::LookThenMark), ..crossed.clone() };
    check("crossed, a look before the mark", &look_first, &lost, &[REMOVED]);
    let marked = [RECEIPT, ONE_EVER, ONE_AT_END, SETTLED, KEPT];
    let no_put_back = Protocol { layers: Layers { put_back: false, ..ALL }, ..crossed.clone() };
    check("crossed, no mark taken back", &no_put_back, &marked, &[REMOVED]);
    // The owner's mail program expunges while both marks are set.
    check(
        "crossed, owner expunges",
        &Protocol { faults: owner(3), ..crossed },
        &marked,
        &[REMOVED, PUT_BACK],
    );
}

#[test]
fn verify_disturbs_no_delivery() {
    let beside = Protocol { verifiers: vec![1], ..once() };
    check("verify beside deliveries", &beside, &[], &[FOUND, FOUND_BY_VERIFY, WAITS, SETTLES]);
    let owner = Protocol { faults: owner(1), ..beside.clone() };
    check("verify, deliveries, owner", &owner, &[], &[FOUND, SETTLES]);
    let clock = Protocol { faults: CLOCK, ..beside.clone() };
    check(
        "verify, deliveries, clock steps",
        &clock,
        &[ONE_EVER],
        &[FOUND_BY_VERIFY, UNDONE, REMOVED, SETTLES],
    );
    let frozen = Protocol { freeze: None, faults: NO_FAULTS, ..beside.clone() };
    check(
        "verify, deliveries, frozen",
        &frozen,
        &[ONE_EVER],
        &[FOUND_BY_VERIFY, UNDONE, REMOVED, SETTLES],
    );
    // Verify first records what it finds for a row in doubt, as a delivery does.
    let lost = [TRUTH, RECEIPT, ONE_EVER, SETTLED, KEPT, LAST];
    let unrecorded = Protocol { wrong: Some(BrokenRule::RemoveUnrecorded), ..frozen.clone() };
    check("the same, taken out before one is on record", &unrecorded, &lost, &[REMOVED]);
    // The owner's mail program may remove the mark of an undo: then two copies stay, and the row
    // records the doubt.
    let unmarks = Protocol { faults: self::owner(1), ..frozen };
    let copies = [ONE_EVER, ONE_AT_END];
    check("verify, deliveries, frozen, owner", &unmarks, &copies, &[UNDONE, REMOVED, SETTLES]);
    let same_epoch = Protocol { wrong: Some(BrokenRule::DoubtKeepsEpoch), ..unmarks };
    let unseen = [ONE_EVER, ONE_AT_END, SETTLED];
    check("the same, a doubt that verify does not see", &same_epoch, &unseen, &[UNDONE, SETTLES]);
}

#[test]
fn a_copy_written_after_the_second_look_is_not_found() {
    // A frozen process whose answer is lost as well, after verify has settled the row: a known case
    // outside the promise.
    let late = Protocol { verifiers: vec![1], freeze: None, faults: CRASH, ..once() };
    check(
        "verify, frozen, crash",
        &late,
        &[ONE_EVER, ONE_AT_END, SETTLED],
        &[FOUND, UNDONE, REMOVED, SETTLES],
    );
}

#[test]
fn outside_the_promise_nothing_is_lost_and_one_copy_stays_after_verify() {
    let broken = [ONE_EVER, ONE_AT_END];
    let seen = [FOUND, UNDONE, WAITS, OUTLIVES, ZOMBIE];
    check("frozen, crash", &Protocol { freeze: None, ..two() }, &broken, &seen);
    check("server later than the lease", &Protocol { lag: 4, ..two() }, &broken, &seen);
    check(
        "server later than the lease, no crash",
        &Protocol { lag: 4, faults: NO_FAULTS, ..two() },
        &broken,
        &[FOUND],
    );
}

#[test]
fn a_maildir_holds_one_copy_even_if_a_reader_moves_files() {
    check("Maildir", &maildir(), &[], &[FOUND, WAITS, ZOMBIE]);
}

#[test]
fn a_maildir_holds_one_sent_copy_for_two_recipients() {
    let shared = Protocol { jobs: vec![vec![0, 2], vec![1, 2]], tries: 1, ..maildir() };
    check("Maildir: two recipients, one Sent", &shared, &[], &[FOUND, WAITS, ZOMBIE]);
}

#[test]
fn a_maildir_without_locks_may_hold_two_copies_after_a_lost_session() {
    // Leases are joined, so only the ledger's lock separates two writers, and the file's name until
    // a reader moves the first file.
    check("Maildir, no locks in it", &maildir_without_locks(CRASH), &[], &[FOUND, WAITS]);
    let lost = maildir_without_locks(LOST_SESSION);
    check("the same, session lost", &lost, &[ONE_EVER, ONE_AT_END], &[FOUND, ZOMBIE]);
    let by_epoch = Protocol { wrong: Some(BrokenRule::SecondLookByEpoch), ..lost };
    let broken = [ONE_EVER, ONE_AT_END, SETTLED];
    check("the same, second look by epoch", &by_epoch, &broken, &[FOUND, ZOMBIE]);
}

#[test]
fn without_the_lock_a_freeze_in_doubt_leaves_two_copies() {
    let layers = Layers { lock: false, ..ALL };
    // Inside the promise the lease alone excludes others; the lock only saves work and waiting.
    check("no lock", &Protocol { layers, ..two() }, &[], &[FOUND]);
    let frozen = Protocol { layers, ..frozen_in_doubt(NO_FAULTS) };
    check("no lock: frozen, in doubt", &frozen, &[ONE_EVER], &[UNDONE]);
    // A Maildir has locks of its own; without any lock it breaks.
    check("no lock: Maildir", &Protocol { layers, tries: 1, ..maildir() }, &[], &[FOUND]);
    let layers = Layers { guard: false, ..layers };
    let none = Protocol { layers, ..maildir_without_locks(CRASH) };
    check("no lock, none in the Maildir", &none, &[ONE_EVER, ONE_AT_END], &[FOUND]);
}

#[test]
fn without_the_lease_two_processes_leave_two_copies() {
    let layers = Layers { lease: false, ..ALL };
    let broken = [ONE_EVER, ONE_AT_END];
    check("no lease", &Protocol { layers, ..once() }, &broken, &[FOUND]);
    // In doubt, the lock replaces the lease as long as nothing breaks; otherwise nothing does.
    check(
        "no lease: frozen, in doubt",
        &Protocol { layers, ..frozen_in_doubt(NO_FAULTS) },
        &[],
        &[],
    );
    check(
        "no lease, no fault",
        &Protocol { layers, faults: NO_FAULTS, ..once() },
        &[ONE_EVER],
        &[UNDONE],
    );
}

#[test]
fn without_the_look_a_crash_leaves_two_copies() {
    let layers = Layers { look: false, ..ALL };
    check("no look", &Protocol { layers, ..once() }, &[ONE_EVER, ONE_AT_END], &[OUTLIVES]);
    let found =
        Protocol { layers, start: Start::InDoubt { copies: 1 }, faults: NO_FAULTS, ..once() };
    check("no look: in doubt, one copy there", &found, &[ONE_EVER, ONE_AT_END], &[]);
    check(
        "no look: Maildir",
        &Protocol { layers, tries: 1, ..maildir() },
        &[ONE_EVER, ONE_AT_END],
        &[],
    );
}

#[test]
fn without_the_clock_check_a_slow_process_leaves_two_copies() {
    let layers = Layers { check: false, ..ALL };
    check(
        "no clock check",
        &Protocol { layers, ..once() },
        &[ONE_EVER, ONE_AT_END],
        &[FOUND, UNDONE],
    );
}

#[test]
fn without_the_epoch_a_slow_process_releases_the_lease_of_another() {
    let layers = Layers { epoch: false, ..ALL };
    check("no epoch", &Protocol { layers, ..two() }, &[ONE_EVER, ONE_AT_END], &[FOUND]);
}

#[test]
fn without_the_undo_a_thawed_process_leaves_its_late_copy() {
    let layers = Layers { undo: false, ..ALL };
    // Inside the promise no process is late and there is nothing to undo; the undo is for processes
    // that were frozen too long.
    check("no undo", &Protocol { layers, ..two() }, &[], &[FOUND]);
    let first = Protocol { layers, ..frozen(LOST_SESSION) };
    check("no undo: frozen, session lost", &first, &[ONE_EVER, ONE_AT_END], &[FOUND, ZOMBIE]);
}

#[test]
fn without_any_layer_there_are_two_copies_and_still_nothing_is_lost() {
    let layers = Layers {
        lock: false,
        guard: false,
        lease: false,
        look: false,
        check: false,
        epoch: false,
        undo: false,
        ..ALL
    };
    check(
        "no layer at all",
        &Protocol { layers, ..once() },
        &[ONE_EVER, ONE_AT_END],
        &[OUTLIVES, ZOMBIE],
    );
}
