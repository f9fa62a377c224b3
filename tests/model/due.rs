//! A model of the copy that is left for later (`sent.after`), checked exhaustively: deliveries that
//! keep it until it is due, runs of `onedrop settle` that write it, leave it to the sender's mail
//! program or take it out again, `onedrop purge` and `onedrop forget` between any two of their
//! steps, and crashes. It shares no code with `src/`.
//!
//! Each call of the ledger is one transaction and one step. The server executes an append before
//! time passes; a settler gives up before its lease runs out (`main.rs` has what lies outside of
//! that). Time is the rest of the lease. Runs that come after all faults are over must leave one
//! message in the mailbox.

use stateright::{Model, Property};

use crate::explored::{breaks, holds};
use crate::full;

const LEASE: u8 = 2;
/// No row, no message, or another than the one that is meant.
const GONE: u8 = 0;

/// A rule that is broken, to see that the model would find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// A purge takes the copy out in a transaction before the one with its key.
    CopyBeforeKey,
    /// A purge does not pass by copies that are leased,
    PurgesLeased,
    /// and forget does not.
    ForgetsLeased,
    /// A purge does not move on since when the ledger remembers.
    SameMemory,
    /// A purge takes out messages whose bytes are kept.
    PurgesKept,
    /// Bytes are given up before anybody tried to write them.
    GivesUpUntried,
    /// A forgotten copy is not in doubt.
    NoDoubt,
    /// A copy that is forgotten before it is placed is due no more.
    DueNoMore,
}

#[derive(Debug, Clone)]
struct Due {
    deliveries: usize,
    settlers: usize,
    /// How often each may crash, in all.
    crashes: u8,
    purges: u8,
    forgets: u8,
    /// The mail program saves its copy.
    saves: u8,
    broken: Option<Broken>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// The message: its key, or [`GONE`].
    key: u8,
    /// It is older than what the ledger remembers, or was erased.
    key_looks_back: bool,
    /// The ledger remembers the time from which the message is.
    remembers: bool,
    row: Option<Row>,
    /// The copy's bytes are kept.
    kept: bool,
    mailbox: Vec<Stored>,
    deliveries: Vec<Delivery>,
    settlers: Vec<Settler>,
    crashes: u8,
    purges: u8,
    forgets: u8,
    saves: u8,
    /// A purge or forget came before settle was done with the copy: no settle writes it, or takes
    /// it out beside the mail program's.
    given_up: bool,
    /// No faults any more.
    calm: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    value: u8,
    /// The name of what stands for the copy.
    receipt: Option<u8>,
    by_sender: bool,
    epoch: u8,
    leased: u8,
    in_doubt: bool,
    prior_doubt: bool,
    due: bool,
    /// It is among those that are looked at again.
    unsettled: bool,
}

impl Row {
    /// No delivery has claimed it yet.
    fn new(doubt: bool) -> Row {
        Row {
            value: 1,
            receipt: None,
            by_sender: false,
            epoch: 0,
            leased: 0,
            in_doubt: doubt,
            prior_doubt: doubt,
            due: false,
            unsettled: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Stored {
    name: u8,
    /// The mail program's own.
    is_theirs: bool,
    is_marked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Delivery {
    Record,
    /// Has recorded this message.
    Keep(u8),
    Delivered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Settler {
    at: At,
    runs: u8,
    /// The row as it was read or claimed.
    value: u8,
    epoch: u8,
    in_doubt: bool,
    was: Option<u8>,
    was_due: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Read,
    Claim,
    Find,
    /// The copy's lock, the row re-read, and a look.
    Turn,
    Append,
    Confirm {
        name: u8,
        found: bool,
    },
    /// The sender's own stands for it.
    Leave(u8),
    Watch,
    Mark {
        ours: u8,
        theirs: u8,
    },
    Keeper {
        ours: u8,
        theirs: u8,
    },
    Expunge {
        ours: u8,
        theirs: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    Deliver(usize),
    DeliveryDies(usize),
    Settle(usize),
    SettlerDies(usize),
    /// An append of which the settler does not hear: it is stored, or it is not.
    Unanswered(usize, bool),
    Saves,
    /// `retention.raw_days` end.
    PurgeKept,
    Purge,
    /// With [`Broken::CopyBeforeKey`].
    PurgeCopy,
    /// By Message-ID.
    Forget,
    Erase,
    Calm,
}

const SETTLER: Settler = Settler {
    at: At::Read,
    runs: 0,
    value: GONE,
    epoch: 0,
    in_doubt: false,
    was: None,
    was_due: false,
};

impl Model for Due {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            key: GONE,
            key_looks_back: false,
            remembers: true,
            row: None,
            kept: false,
            mailbox: Vec::new(),
            deliveries: vec![Delivery::Record; self.deliveries],
            settlers: vec![Settler { runs: 2, ..SETTLER }; self.settlers],
            crashes: self.crashes,
            purges: self.purges,
            forgets: self.forgets,
            saves: self.saves,
            given_up: false,
            calm: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.calm {
            // One after the other.
            let delivery = state.deliveries.iter().position(|one| *one != Delivery::Delivered);
            let settler = state.settlers.iter().position(|one| one.is_busy(state));
            return steps.extend(delivery.map(Step::Deliver).or(settler.map(Step::Settle)));
        }
        if state.row.is_some_and(|row| row.leased > 0) {
            steps.push(Step::Tick);
        }
        for (n, delivery) in state.deliveries.iter().enumerate() {
            if *delivery != Delivery::Delivered {
                steps.push(Step::Deliver(n));
            }
            if matches!(delivery, Delivery::Keep(_)) && state.crashes > 0 {
                steps.push(Step::DeliveryDies(n));
            }
        }
        for (n, settler) in state.settlers.iter().enumerate() {
            if settler.is_busy(state) {
                steps.push(Step::Settle(n));
            }
            if settler.at != At::Read && state.crashes > 0 {
                steps.push(Step::SettlerDies(n));
                if settler.at == At::Append {
                    steps.extend([true, false].map(|stored| Step::Unanswered(n, stored)));
                }
            }
        }
        if state.saves > 0 {
            steps.push(Step::Saves);
        }
        if state.purges > 0 && state.key != GONE {
            steps.extend([Step::PurgeKept, Step::Purge]);
            if self.broken == Some(Broken::CopyBeforeKey) {
                steps.push(Step::PurgeCopy);
            }
        }
        if state.forgets > 0 && state.row.is_some() {
            steps.extend([Step::Forget, Step::Erase]);
        }
        let is_quiet = state.settlers.iter().all(|settler| settler.at == At::Read);
        if is_quiet && state.saves == 0 {
            steps.push(Step::Calm);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Tick => {
                let may_write = |one: &Settler| one.is_under_lease(&state);
                // A settler's own deadline comes before the end of its lease.
                let leased = state.row.map_or(0, |row| row.leased);
                if leased == 1 && state.settlers.iter().any(may_write) {
                    return None;
                }
                state.row.iter_mut().for_each(|row| row.leased -= 1);
            }
            Step::Deliver(n) => self.deliver(&mut state, n),
            Step::DeliveryDies(n) => {
                state.crashes -= 1;
                state.deliveries[n] = Delivery::Record;
            }
            Step::Settle(n) => self.settle(&mut state, n),
            Step::SettlerDies(n) => {
                state.crashes -= 1;
                ends(&mut state, n);
            }
            Step::Unanswered(n, stored) => {
                state.crashes -= 1;
                if stored {
                    store(&mut state, false);
                }
                ends(&mut state, n);
            }
            Step::Saves => {
                state.saves -= 1;
                store(&mut state, true);
            }
            Step::PurgeKept => {
                let row = state.row.filter(|row| row.receipt.is_none());
                let (untried, leased) =
                    (row.is_some_and(|row| row.epoch == 0), row.is_some_and(is_leased));
                let passes = untried && self.broken != Some(Broken::GivesUpUntried)
                    || leased && self.broken != Some(Broken::PurgesLeased);
                if !state.kept || passes {
                    return None;
                }
                (state.kept, state.given_up) = (false, state.given_up || !untried);
            }
            Step::Purge => {
                let leased = state.row.is_some_and(is_leased);
                let passes = leased && self.broken != Some(Broken::PurgesLeased)
                    || state.kept && self.broken != Some(Broken::PurgesKept);
                if passes {
                    return None;
                }
                state.purges -= 1;
                state.given_up |= state.is_watched();
                (state.key, state.key_looks_back, state.row) = (GONE, false, None);
                state.kept = false;
                if self.broken != Some(Broken::SameMemory) {
                    state.remembers = false;
                }
                state.forget_names();
            }
            Step::PurgeCopy => {
                if state.kept || state.row.is_none_or(is_leased) {
                    return None;
                }
                state.given_up |= state.is_watched();
                state.row = None;
                state.forget_values();
            }
            Step::Forget => {
                state.given_up |= state.is_watched();
                let row = state.row.as_mut()?;
                if is_leased(*row) && self.broken != Some(Broken::ForgetsLeased) {
                    return None;
                }
                state.forgets -= 1;
                let stays_due = row.receipt.is_none() && self.broken != Some(Broken::DueNoMore);
                let doubt = self.broken != Some(Broken::NoDoubt);
                *row = Row {
                    receipt: None,
                    by_sender: false,
                    leased: 0,
                    in_doubt: doubt,
                    prior_doubt: doubt,
                    due: row.due && stays_due,
                    ..*row
                };
                state.forget_values();
            }
            Step::Erase => {
                let row = state.row?;
                if is_leased(row) && self.broken != Some(Broken::ForgetsLeased) {
                    return None;
                }
                state.forgets -= 1;
                state.given_up |= state.kept || state.is_watched();
                (state.row, state.kept, state.key_looks_back) = (None, false, true);
                state.forget_values();
            }
            Step::Calm => {
                state.calm = true;
                state.row.iter_mut().for_each(|row| row.leased = 0);
                // Enough runs: one that writes, and one for what came to stand beside it.
                state.settlers.truncate(1);
                state.settlers[0] = Settler { runs: 3, ..SETTLER };
            }
        }
        state.tidy();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Due>> {
        vec![
            Property::<Due>::always(WHOLE, |_, state| {
                state.key != GONE || state.row.is_none() && !state.kept
            }),
            Property::<Due>::always(TRUTH, |_, state| {
                !state.deliveries.contains(&Delivery::Delivered)
                    || state.kept
                    || !state.mailbox.is_empty()
                    || state.given_up
            }),
            Property::<Due>::always(RECEIPT, |_, state| {
                let receipt = state.row.and_then(|row| row.receipt);
                let names = |name| state.mailbox.iter().any(|one| one.name == name);
                !state.is_over() || receipt.is_none_or(names) || state.given_up
            }),
            Property::<Due>::always(ONE_OF_OURS, |_, state| {
                state.mailbox.iter().filter(|one| !one.is_theirs).count() <= 1
            }),
            Property::<Due>::always(ONE_AT_END, |_, state| {
                let standing = state.mailbox.iter().filter(|one| !one.is_marked).count();
                !state.is_over() || standing == 1 || state.given_up
            }),
            Property::<Due>::sometimes(WRITTEN, |_, state| {
                state.settlers.iter().any(|one| matches!(one.at, At::Confirm { found: false, .. }))
            }),
            Property::<Due>::sometimes(FOUND, |_, state| {
                state.settlers.iter().any(|one| matches!(one.at, At::Confirm { found: true, .. }))
            }),
            Property::<Due>::sometimes(LEFT, |_, state| {
                state.settlers.iter().any(|one| matches!(one.at, At::Leave(_)))
            }),
            Property::<Due>::sometimes(TAKEN_OUT, |_, state| {
                state.settlers.iter().any(|one| matches!(one.at, At::Expunge { .. }))
            }),
            Property::<Due>::sometimes(COMES_BACK, |_, state| {
                !state.remembers && state.key != GONE && state.row.is_some()
            }),
            Property::<Due>::sometimes(ENDS, |_, state| state.is_over()),
        ]
    }
}

const WHOLE: &str = "nothing is on record without its message";
const TRUTH: &str = "never delivered without a copy or its bytes";
const RECEIPT: &str = "a receipt on record names what stands";
const ONE_OF_OURS: &str = "never two copies of ours";
const ONE_AT_END: &str = "one message stands once settle has nothing to do";
const WRITTEN: &str = "settle writes the copy";
const FOUND: &str = "settle finds the copy of a run before";
const LEFT: &str = "settle leaves it to the mail program's";
const TAKEN_OUT: &str = "settle takes ours out";
const COMES_BACK: &str = "a purged message is recorded again";
const ENDS: &str = "all is settled";

/// Its holder may still write.
fn is_leased(row: Row) -> bool {
    row.receipt.is_none() && row.leased > 0
}

/// A new message in the mailbox, by its name.
fn store(state: &mut State, is_theirs: bool) -> u8 {
    let name = state.mailbox.iter().map(|one| one.name).max().unwrap_or(0) + 1;
    state.mailbox.push(Stored { name, is_theirs, is_marked: false });
    name
}

fn ends(state: &mut State, n: usize) {
    state.settlers[n] = Settler { runs: state.settlers[n].runs, ..SETTLER };
}

impl Settler {
    fn is_under_lease(&self, state: &State) -> bool {
        let writes = matches!(self.at, At::Find | At::Turn | At::Append | At::Confirm { .. });
        writes && state.row.is_some_and(|row| self.has(row))
    }

    fn has(&self, row: Row) -> bool {
        row.value == self.value && row.epoch == self.epoch
    }

    /// It has a step to do.
    fn is_busy(&self, state: &State) -> bool {
        self.at != At::Read
            || self.runs > 0 && state.row.is_some_and(|row| is_to_settle(row, state))
    }
}

/// What `copies_to_settle` names.
fn is_to_settle(row: Row, state: &State) -> bool {
    match row.receipt {
        None => row.leased == 0 && state.kept && (row.unsettled || !row.due),
        Some(_) => row.due && row.unsettled,
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.calm
            && self.deliveries.iter().all(|one| *one == Delivery::Delivered)
            && !self.settlers.iter().any(|one| one.is_busy(self))
    }

    /// The copy is placed, and the mail program's may come to stand beside it.
    fn is_watched(&self) -> bool {
        self.row.is_some_and(|row| row.receipt.is_some() && row.due && row.unsettled)
    }

    /// No claim of before names the row.
    fn forget_values(&mut self) {
        self.settlers.iter_mut().for_each(|one| one.value = GONE);
    }

    /// The message is gone, with its row.
    fn forget_names(&mut self) {
        self.forget_values();
        for delivery in &mut self.deliveries {
            if matches!(delivery, Delivery::Keep(_)) {
                *delivery = Delivery::Keep(GONE);
            }
        }
    }

    /// Without what no longer matters: names in their order, epochs beside the row's.
    fn tidy(&mut self) {
        if let Some(row) = &mut self.row {
            let epoch = row.epoch.min(2);
            for settler in &mut self.settlers {
                settler.epoch = if settler.epoch == row.epoch { epoch } else { 9 };
            }
            row.epoch = epoch;
        }
        self.settlers.sort_unstable();
        self.deliveries.sort_unstable();
    }
}

impl Due {
    fn deliver(&self, state: &mut State, n: usize) {
        state.deliveries[n] = match state.deliveries[n] {
            Delivery::Record => {
                if state.key == GONE {
                    (state.key, state.key_looks_back) = (1, !state.remembers);
                }
                Delivery::Keep(state.key)
            }
            // Its record was purged: 75, and Postfix comes again.
            Delivery::Keep(GONE) => Delivery::Record,
            Delivery::Keep(_) => {
                let doubt = state.key_looks_back;
                let row = state.row.get_or_insert(Row::new(doubt));
                if row.receipt.is_none() {
                    (row.due, row.unsettled, state.kept) = (true, true, true);
                }
                Delivery::Delivered
            }
            Delivery::Delivered => Delivery::Delivered,
        };
    }

    fn settle(&self, state: &mut State, n: usize) {
        let me = state.settlers[n];
        let standing = |is_theirs| {
            state.mailbox.iter().find(move |one| one.is_theirs == is_theirs && !one.is_marked)
        };
        let (ours, theirs) = (standing(false).copied(), standing(true).copied());
        let row = state.row;
        let next = match me.at {
            At::Read => {
                let Some(row) = row else { return };
                let me = &mut state.settlers[n];
                (me.runs, me.value, me.epoch) = (me.runs - 1, row.value, row.epoch);
                (me.was, me.was_due) = (row.receipt, row.due);
                Some(if row.receipt.is_some() { At::Watch } else { At::Claim })
            }
            At::Claim => self.claim(state, n),
            At::Find => match (ours.filter(|_| me.in_doubt), theirs) {
                (Some(ours), _) => Some(At::Confirm { name: ours.name, found: true }),
                // The look for one that is not due asks for ours alone.
                (None, Some(theirs)) if me.was_due => Some(At::Leave(theirs.name)),
                _ if me.in_doubt => Some(At::Turn),
                _ => Some(At::Append),
            },
            At::Turn => match (row.filter(|row| me.has(*row) && row.receipt.is_none()), ours) {
                (None, _) => None,
                (_, Some(ours)) => Some(At::Confirm { name: ours.name, found: true }),
                _ => Some(At::Append),
            },
            At::Append => {
                let name = store(state, false);
                Some(At::Confirm { name, found: false })
            }
            At::Confirm { name, found } => {
                self.confirm(state, n, name, found);
                None
            }
            At::Leave(name) => {
                leave(state, me, name);
                None
            }
            At::Watch => match (ours, theirs) {
                _ if row.is_none_or(|row| row.value != me.value) => None,
                (Some(ours), Some(theirs)) => {
                    Some(At::Mark { ours: ours.name, theirs: theirs.name })
                }
                (None, Some(theirs)) if Some(theirs.name) != me.was => {
                    let marked = state.mailbox.iter().find(|one| !one.is_theirs);
                    let theirs = theirs.name;
                    // A run before this one died over it.
                    let left = marked.map(|ours| At::Expunge { ours: ours.name, theirs });
                    Some(left.unwrap_or(At::Leave(theirs)))
                }
                _ => {
                    if let Some(row) = state.row.as_mut().filter(|_| state.saves == 0) {
                        // The time to watch is over.
                        row.unsettled = false;
                    }
                    None
                }
            },
            At::Mark { ours, theirs } => {
                mark(state, ours, true);
                Some(At::Keeper { ours, theirs })
            }
            At::Keeper { ours, theirs } => Some(At::Expunge { ours, theirs }),
            At::Expunge { ours, theirs } => {
                state.mailbox.retain(|one| one.name != ours || !one.is_marked);
                Some(At::Leave(theirs)).filter(|_| me.was != Some(theirs))
            }
        };
        match next {
            Some(next) => state.settlers[n].at = next,
            None => ends(state, n),
        }
    }

    fn claim(&self, state: &mut State, n: usize) -> Option<At> {
        if state.key == GONE {
            return None;
        }
        let doubt = state.key_looks_back;
        let row = state.row.get_or_insert(Row::new(doubt));
        if row.receipt.is_some() || row.leased > 0 {
            return None;
        }
        row.prior_doubt = row.in_doubt;
        (row.epoch, row.leased, row.in_doubt) = (row.epoch + 1, LEASE, true);
        row.unsettled |= row.epoch > 1 || row.prior_doubt;
        let me = &mut state.settlers[n];
        (me.value, me.epoch, me.in_doubt) = (row.value, row.epoch, row.prior_doubt);
        Some(At::Find)
    }

    /// The first receipt wins; who comes second takes its own out.
    fn confirm(&self, state: &mut State, n: usize, name: u8, found: bool) {
        let me = state.settlers[n];
        let Some(row) = state.row.as_mut().filter(|row| row.value == me.value) else { return };
        match row.receipt {
            None => {
                (row.receipt, row.leased, row.in_doubt) = (Some(name), 0, false);
                (row.unsettled, row.by_sender, state.kept) = (true, false, false);
            }
            Some(other) if other != name && !found => {
                (row.prior_doubt, row.unsettled) = (true, true);
                state.mailbox.retain(|one| one.name != name);
            }
            Some(_) => {}
        }
    }
}

fn mark(state: &mut State, name: u8, is_marked: bool) {
    let ours = state.mailbox.iter_mut().filter(|one| one.name == name);
    ours.for_each(|one| one.is_marked = is_marked);
}

/// `leave_to_sender`.
fn leave(state: &mut State, me: Settler, name: u8) {
    let Some(row) = state.row.as_mut().filter(|row| me.has(**row)) else { return };
    if row.receipt != me.was {
        return;
    }
    (row.receipt, row.by_sender, row.leased, row.in_doubt) = (Some(name), true, 0, false);
    row.unsettled &= row.prior_doubt;
    state.kept = false;
}

const SMALL: Due =
    Due { deliveries: 2, settlers: 2, crashes: 1, purges: 1, forgets: 1, saves: 1, broken: None };

#[test]
fn a_copy_that_is_left_for_later_is_written_once_beside_purge_and_forget() {
    let mut models = vec![SMALL];
    if full() {
        models.push(Due { crashes: 2, ..SMALL });
        models.push(Due { purges: 2, forgets: 2, ..SMALL });
    }
    for model in models {
        holds(&model);
    }
}

#[test]
fn each_rule_of_purge_and_forget_is_needed() {
    for (rule, property) in [
        (Broken::CopyBeforeKey, ONE_OF_OURS),
        (Broken::PurgesLeased, ONE_OF_OURS),
        (Broken::ForgetsLeased, ONE_OF_OURS),
        (Broken::SameMemory, ONE_OF_OURS),
        (Broken::PurgesKept, TRUTH),
        (Broken::GivesUpUntried, TRUTH),
        (Broken::NoDoubt, ONE_OF_OURS),
        (Broken::DueNoMore, ONE_AT_END),
    ] {
        breaks(&Due { broken: Some(rule), ..SMALL }, property);
    }
}
