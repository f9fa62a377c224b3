//! A model of the copy that is handed over to the mail server's own delivery (`store.lmtp`),
//! checked exhaustively: two hosts, a server whose filters file the copy anywhere, pass it on or
//! take our field out, with and without the guard that remembers what it has carried out; crashes,
//! lost answers and sessions, refusals after the dot, late servers, servers that die in the middle
//! of a filter or before they note what they did, and rows that are forgotten. It shares no code
//! with `src/`.
//!
//! Each call of the ledger is one step, and so is the check of the clock. The server executes
//! before time passes, but where `is_late`. An execution is what counts: the copy that is filed,
//! the answer that is sent, the forward. A filter may have a second part, which files into INBOX,
//! and which a server that dies leaves undone.

use stateright::{Model, Property};

use crate::explored::{breaks, broken};
use crate::full;

const LEASE: u8 = 2;
/// The final dot goes out while the lease is at most this many ticks old.
const DEADLINE: u8 = 0;
/// Of a message that no delivery of ours has handed over, or whose field a filter took out.
const NO_VALUE: u8 = 0;
/// Of another copy of the same message, which a colleague's filter has sent on.
const FOREIGN: u8 = 7;

/// A rule that is broken, to see that the model would find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    NoLook,
    /// The look takes an equal message for the copy,
    ByContent,
    /// or one with any value.
    AnyValue,
    /// The look searches INBOX alone,
    InboxOnly,
    /// or passes by what it cannot open.
    PassesBy,
    /// The look for a forgotten copy goes by its new value alone.
    LooksNotBack,
    /// What the server refuses after the dot was certainly not carried out.
    RefusalIsCertain,
    /// That it takes one at a time, and has one, counts as carried out.
    ContendedIsDone,
    /// Each claim has a value of its own.
    ValueOfClaim,
    /// The server notes what it has not carried out yet.
    NotesFirst,
    /// What is found is the end, though the guard would drop what had ended.
    FoundIsTheEnd,
    /// What was found is handed over again where the guard is not proven,
    AgainUnproven,
    /// where the guard has forgotten it,
    AgainTooLate,
    /// or though it has another value.
    AgainWithAnyValue,
    /// `verify` takes a later try's copy out for one that stands in another mailbox.
    AcrossMailboxes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filter {
    /// Filed where only a look in all mailboxes finds it.
    Files,
    /// Sent on, answered, discarded, or filed where no look comes.
    Hides,
    /// Filed without our field.
    Strips,
}

#[derive(Debug, Clone)]
struct Handed {
    hosts: usize,
    /// Of each delivery, before the one without faults.
    tries: u8,
    filter: Filter,
    /// The filter files into INBOX as well, at last.
    has_second: bool,
    has_guard: bool,
    /// That is on record.
    is_proven: bool,
    /// The server takes one delivery to an account at a time.
    is_serial: bool,
    /// A message of the same content that stands in another mailbox of the account already: the
    /// sender's own, or a colleague's.
    beside: Option<u8>,
    crashes: u8,
    lost_sessions: u8,
    lost_answers: u8,
    /// How often the server refuses after the dot, though it has carried it out.
    refusals: u8,
    /// How often it dies.
    deaths: u8,
    /// How often a mailbox cannot be opened for a while.
    closes: u8,
    /// How often the row is forgotten.
    forgets: u8,
    /// How often the guard forgets what is as old as its memory; the rows know their age.
    fades: u8,
    /// Deliveries of other messages to the account.
    others: u8,
    /// Hand-overs are carried out later than the lease lives, and processes frozen before the dot.
    is_late: bool,
    /// Processes stand still for longer than the lease between the server's answer and the receipt.
    stalls: bool,
    broken: Option<Broken>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    row: Row,
    /// Where the filter files: the values in the first field of what stands there.
    filed: Vec<u8>,
    /// And by which tries.
    tries: Vec<u8>,
    /// In another of the account's mailboxes, which is not INBOX.
    beside: Option<u8>,
    is_closed: bool,
    /// How often each part was carried out.
    executions: [u8; 2],
    /// What INBOX has by the second part: the values and the tries.
    inbox: Vec<(u8, u8)>,
    /// The guard's memory is over for what the row has handed over by now.
    has_faded: bool,
    /// What the server remembers, a bit for each value.
    remembered: u8,
    under_way: Vec<HandOff>,
    /// What the server remembered as another message's delivery began.
    other: Option<u8>,
    deliveries: Vec<Delivery>,
    crashes: u8,
    lost_sessions: u8,
    lost_answers: u8,
    refusals: u8,
    deaths: u8,
    closes: u8,
    forgets: u8,
    fades: u8,
    others: u8,
    seen: Seen,
    calm: bool,
}

/// What has happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Seen {
    found: bool,
    dropped: bool,
    contended: bool,
    outlived: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Row {
    value: u8,
    has_receipt: bool,
    epoch: u8,
    leased: u8,
    in_doubt: bool,
    prior_doubt: bool,
    looks_back: bool,
    lock: Option<u8>,
    /// `verify` looks at it.
    is_unsettled: bool,
}

/// A message that the server has whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct HandOff {
    value: u8,
    /// Which try it is.
    epoch: u8,
    sender: Option<u8>,
    /// Its parts that are carried out; all of them, and it is not noted yet.
    done: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Delivery {
    at: At,
    tries: u8,
    session: bool,
    age: u8,
    claim: Claim,
    answer: Option<Answer>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Claim {
    value: u8,
    epoch: u8,
    in_doubt: bool,
    looks_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Done,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Record,
    TakeTurn,
    Look,
    /// MAIL, RCPT, DATA: the server may have another delivery to the account.
    Announce,
    /// The check of the clock, and the final dot.
    Check,
    Dot,
    Answer,
    Confirm {
        found: bool,
    },
    Delivered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    Does(u8),
    Dies(u8),
    LosesSession(u8),
    LosesAnswer(u8),
    Executes(usize),
    Notes(usize),
    Refuses(usize),
    Never(usize),
    ServerDies,
    OtherBegins,
    OtherEnds,
    Fades,
    Closes,
    Opens,
    Forgets,
    Calm,
}

const TRUTH: &str = "never delivered unless it was carried out";
const RECEIPT: &str = "nothing is taken for the copy but the copy";
const ONE: &str = "carried out once";
const TWO: &str = "carried out twice at most";
const SETTLED: &str = "one copy, or verify looks";
const KEPT: &str = "verify leaves a copy in each mailbox";
const DELIVERED: &str = "always delivered in the end";
const FOUND: &str = "a look finds the copy";
const DROPPED: &str = "the guard drops a second one";
const CONTENDED: &str = "the server has another delivery";
const OUTLIVED: &str = "carried out after its sender gave up";

impl Model for Handed {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let delivery = Delivery {
            at: At::Record,
            tries: self.tries,
            session: true,
            age: 0,
            claim: Claim::default(),
            answer: None,
        };
        let row = Row {
            value: 1,
            has_receipt: false,
            epoch: 0,
            leased: 0,
            in_doubt: false,
            prior_doubt: false,
            looks_back: false,
            lock: None,
            is_unsettled: false,
        };
        vec![State {
            row,
            filed: Vec::new(),
            tries: Vec::new(),
            beside: self.beside,
            is_closed: false,
            executions: [0; 2],
            inbox: Vec::new(),
            has_faded: false,
            remembered: 0,
            under_way: Vec::new(),
            other: None,
            deliveries: vec![delivery; self.hosts],
            crashes: self.crashes,
            lost_sessions: self.lost_sessions,
            lost_answers: self.lost_answers,
            refusals: self.refusals,
            deaths: self.deaths,
            closes: self.closes,
            forgets: self.forgets,
            fades: self.fades,
            others: self.others,
            seen: Seen::default(),
            calm: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (at, one) in state.under_way.iter().enumerate() {
            // One execution after the other: the next waits for what is not noted.
            let is_next =
                !state.under_way.iter().enumerate().any(|(other, it)| other != at && it.done > 0);
            if one.done == self.parts() {
                steps.push(Step::Notes(at));
                if state.refusals > 0 && !state.calm {
                    steps.push(Step::Refuses(at));
                }
            } else {
                if is_next || !self.is_serial {
                    steps.push(Step::Executes(at));
                }
                if one.sender.is_none() && one.done == 0 {
                    steps.push(Step::Never(at));
                }
            }
        }
        if state.other.is_some() {
            steps.push(Step::OtherEnds);
        }
        let waits = |one: &Delivery| one.at == At::Answer && one.answer.is_none();
        let may = |one: &Delivery| {
            !waits(one) && (one.is_running() || one.at == At::Record && one.tries > 0)
        };
        if state.calm {
            let running = state.deliveries.iter().position(Delivery::is_running);
            let next = running.or_else(|| state.deliveries.iter().position(may));
            let next = next.filter(|at| may(&state.deliveries[*at]));
            return steps.extend(next.map(|at| Step::Does(at as u8)));
        }
        let writes = |one: &Delivery| match one.at {
            At::Dot | At::Answer => true,
            At::Confirm { .. } => !self.stalls,
            _ => false,
        };
        let is_written = !state.under_way.is_empty() || state.deliveries.iter().any(writes);
        if state.row.leased > 0 && (self.is_late || !is_written) {
            steps.push(Step::Tick);
        }
        for (at, one) in state.deliveries.iter().enumerate() {
            let number = at as u8;
            if may(one) {
                steps.push(Step::Does(number));
            }
            if one.is_running() {
                if state.crashes > 0 {
                    steps.push(Step::Dies(number));
                }
                if state.lost_sessions > 0 && one.session {
                    steps.push(Step::LosesSession(number));
                }
                if state.lost_answers > 0 && one.at == At::Answer {
                    steps.push(Step::LosesAnswer(number));
                }
            }
        }
        let is_free = !state.has_delivery(None) || !self.is_serial;
        if state.others > 0 && state.other.is_none() && is_free {
            steps.push(Step::OtherBegins);
        }
        if state.deaths > 0 && !state.under_way.is_empty() {
            steps.push(Step::ServerDies);
        }
        if state.fades > 0 && state.row.epoch > 0 && state.is_quiet() {
            steps.push(Step::Fades);
        }
        if state.closes > 0 {
            steps.push(Step::Closes);
        }
        if state.is_closed {
            steps.push(Step::Opens);
        }
        if state.forgets > 0 && state.row.epoch > 0 && state.row.leased == 0 {
            steps.push(Step::Forgets);
        }
        if state.is_quiet() {
            steps.push(Step::Calm);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Tick => {
                state.row.leased -= 1;
                let running = state.deliveries.iter_mut().filter(|one| one.is_running());
                running.for_each(|one| one.age = (one.age + 1).min(DEADLINE + 1));
            }
            Step::Does(me) => self.does(&mut state, usize::from(me)),
            Step::Dies(me) => {
                state.crashes -= 1;
                state.hang_up(me);
                state.ends(usize::from(me), At::Record);
            }
            Step::LosesSession(me) => {
                state.lost_sessions -= 1;
                state.deliveries[usize::from(me)].session = false;
                state.row.lock = state.row.lock.filter(|holder| *holder != me);
            }
            Step::LosesAnswer(me) => {
                state.lost_answers -= 1;
                state.hang_up(me);
                state.ends(usize::from(me), At::Record);
            }
            Step::Executes(at) => self.execute(&mut state, at),
            Step::Notes(at) => {
                let HandOff { value, sender, .. } = state.under_way.remove(at);
                state.remembered |= 1 << value;
                state.answers(sender, Answer::Done);
            }
            Step::Refuses(at) => {
                state.refusals -= 1;
                let HandOff { sender, .. } = state.under_way.remove(at);
                state.answers(sender, Answer::Refused);
            }
            Step::Never(at) => {
                state.under_way.remove(at);
            }
            Step::ServerDies => {
                state.deaths -= 1;
                for HandOff { sender, .. } in std::mem::take(&mut state.under_way) {
                    if let Some(sender) = sender {
                        state.ends(usize::from(sender), At::Record);
                    }
                }
                state.other = None;
            }
            Step::OtherBegins => {
                state.others -= 1;
                state.other = Some(state.remembered);
            }
            // It writes all that it knew, and what it has carried out.
            Step::OtherEnds => {
                if let Some(knew) = state.other.take() {
                    state.remembered = knew;
                }
            }
            Step::Fades => {
                state.fades -= 1;
                (state.remembered, state.has_faded) = (0, true);
            }
            Step::Closes => {
                state.closes -= 1;
                state.is_closed = true;
            }
            Step::Opens => state.is_closed = false,
            Step::Forgets => {
                state.forgets -= 1;
                let value = state.row.value + 1;
                state.row = Row {
                    value,
                    has_receipt: false,
                    epoch: 0,
                    leased: 0,
                    in_doubt: true,
                    prior_doubt: true,
                    looks_back: true,
                    lock: state.row.lock,
                    is_unsettled: false,
                };
            }
            Step::Calm => {
                state.calm = true;
                (state.row.leased, state.is_closed) = (0, false);
                for one in &mut state.deliveries {
                    one.tries = u8::from(one.at != At::Delivered);
                }
            }
        }
        state.tidy();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Handed>> {
        vec![
            Property::<Handed>::always(TRUTH, |model, state| {
                let is_told = state.deliveries.iter().any(|one| one.at == At::Delivered);
                !is_told || model.is_carried_out(state)
            }),
            Property::<Handed>::always(RECEIPT, |_, state| {
                !state.row.has_receipt || state.executions[0] > 0
            }),
            Property::<Handed>::always(ONE, |_, state| state.executions.iter().all(|n| *n <= 1)),
            Property::<Handed>::always(TWO, |_, state| state.executions.iter().all(|n| *n <= 2)),
            Property::<Handed>::always(SETTLED, |_, state| {
                let is_over = state.calm && state.is_delivered() && state.is_quiet();
                let is_alone = state.filed.len() <= 1 && state.inbox.len() <= 1;
                !is_over || is_alone || state.row.is_unsettled
            }),
            Property::<Handed>::always(KEPT, |model, state| {
                let is_over = state.calm && state.is_delivered() && state.is_quiet();
                !is_over || model.leaves_a_copy(state)
            }),
            Property::<Handed>::eventually(DELIVERED, |_, state| {
                state.calm && state.is_delivered()
            }),
            Property::<Handed>::sometimes(FOUND, |_, state| state.seen.found),
            Property::<Handed>::sometimes(DROPPED, |_, state| state.seen.dropped),
            Property::<Handed>::sometimes(CONTENDED, |_, state| state.seen.contended),
            Property::<Handed>::sometimes(OUTLIVED, |_, state| state.seen.outlived),
        ]
    }
}

impl Delivery {
    fn is_running(&self) -> bool {
        !matches!(self.at, At::Record | At::Delivered)
    }
}

impl State {
    fn is_quiet(&self) -> bool {
        self.under_way.is_empty()
            && self.other.is_none()
            && !self.deliveries.iter().any(Delivery::is_running)
    }

    fn is_delivered(&self) -> bool {
        self.deliveries.iter().all(|one| one.at == At::Delivered)
    }

    /// The server has a delivery to the account under way, but for this one's.
    fn has_delivery(&self, but: Option<usize>) -> bool {
        let is_announced = |(at, one): (usize, &Delivery)| {
            matches!(one.at, At::Check | At::Dot) && Some(at) != but
        };
        !self.under_way.is_empty() || self.deliveries.iter().enumerate().any(is_announced)
    }

    fn answers(&mut self, sender: Option<u8>, answer: Answer) {
        match sender {
            Some(sender) => self.deliveries[usize::from(sender)].answer = Some(answer),
            None => self.seen.outlived = true,
        }
    }

    fn hang_up(&mut self, me: u8) {
        let of_mine = self.under_way.iter_mut().filter(|one| one.sender == Some(me));
        of_mine.for_each(|one| one.sender = None);
    }

    /// The process ends, and what it held with it.
    fn ends(&mut self, me: usize, at: At) {
        self.row.lock = self.row.lock.filter(|holder| usize::from(*holder) != me);
        let tries = self.deliveries[me].tries;
        let (session, claim) = (true, Claim::default());
        self.deliveries[me] = Delivery { at, tries, session, age: 0, claim, answer: None };
    }

    /// Without what no longer matters.
    fn tidy(&mut self) {
        if self.row.has_receipt {
            (self.row.leased, self.row.in_doubt, self.row.prior_doubt) = (0, false, false);
        }
        // Epochs are compared with the row's only.
        let (was, epoch) = (self.row.epoch, self.row.epoch.min(2));
        self.row.epoch = epoch;
        for one in self.deliveries.iter_mut().filter(|one| one.is_running()) {
            one.claim.epoch = if one.claim.epoch == was { epoch } else { 9 };
        }
        self.under_way.sort_unstable();
    }
}

impl Handed {
    fn does(&self, state: &mut State, me: usize) {
        let Delivery { at, session, age, claim, answer, .. } = state.deliveries[me].clone();
        let is_named = state.row.value == claim.value || self.broken == Some(Broken::ValueOfClaim);
        match at {
            At::Record => self.record(state, me),
            At::TakeTurn if !session || state.row.lock.is_some() => self.gives_back(state, me),
            At::TakeTurn if !is_named => state.ends(me, At::Record),
            At::TakeTurn if state.row.has_receipt => state.ends(me, At::Delivered),
            At::TakeTurn if state.row.epoch != claim.epoch => state.ends(me, At::Record),
            At::TakeTurn => {
                state.row.lock = Some(me as u8);
                let looks = self.broken != Some(Broken::NoLook);
                state.deliveries[me].at = if looks { At::Look } else { At::Announce };
            }
            At::Look => match self.look(state, claim) {
                None => self.gives_back(state, me),
                Some(found) => {
                    state.seen.found |= found;
                    let is_end = found && !self.may_be_half_done(state, claim);
                    state.deliveries[me].at =
                        if is_end { At::Confirm { found } } else { At::Announce };
                }
            },
            At::Announce => {
                let is_busy = state.has_delivery(Some(me)) || state.other.is_some();
                state.seen.contended |= is_busy;
                match is_busy && self.is_serial {
                    true if self.broken == Some(Broken::ContendedIsDone) => {
                        state.deliveries[me].at = At::Confirm { found: false };
                    }
                    true => self.gives_back(state, me),
                    false => state.deliveries[me].at = At::Check,
                }
            }
            At::Check if age > DEADLINE => self.gives_back(state, me),
            At::Check => state.deliveries[me].at = At::Dot,
            At::Dot => {
                let hand_off = HandOff {
                    value: claim.value,
                    epoch: claim.epoch,
                    sender: Some(me as u8),
                    done: 0,
                };
                state.under_way.push(hand_off);
                state.deliveries[me].at = At::Answer;
            }
            At::Answer => match answer {
                Some(Answer::Done) => state.deliveries[me].at = At::Confirm { found: false },
                Some(Answer::Refused) if self.broken == Some(Broken::RefusalIsCertain) => {
                    self.gives_back(state, me);
                }
                // A doubt: the lease is kept until it has run out.
                Some(Answer::Refused) | None => state.ends(me, At::Record),
            },
            At::Confirm { found } => {
                if !is_named {
                    state.row.is_unsettled = true;
                    return state.ends(me, At::Record);
                }
                let is_second = state.row.has_receipt;
                state.row.is_unsettled |= is_second && !found;
                state.row.has_receipt = true;
                state.ends(me, if is_second { At::Record } else { At::Delivered });
            }
            At::Delivered => {}
        }
    }

    fn record(&self, state: &mut State, me: usize) {
        state.deliveries[me].tries -= 1;
        let row = &mut state.row;
        if row.has_receipt {
            return state.ends(me, At::Delivered);
        }
        if row.leased > 0 {
            return;
        }
        (row.epoch, row.leased) = (row.epoch + 1, LEASE);
        (row.prior_doubt, row.in_doubt) = (row.in_doubt, true);
        row.is_unsettled |= row.epoch > 1 || row.prior_doubt;
        if self.broken == Some(Broken::ValueOfClaim) {
            row.value += 1;
        }
        let claim = Claim {
            value: row.value,
            epoch: row.epoch,
            in_doubt: row.prior_doubt,
            looks_back: row.looks_back,
        };
        let one = &mut state.deliveries[me];
        one.claim = claim;
        one.at = if claim.in_doubt { At::TakeTurn } else { At::Announce };
    }

    /// In all mailboxes of the account; `None`: one cannot be opened.
    fn look(&self, state: &State, claim: Claim) -> Option<bool> {
        let looks_back = claim.looks_back && self.broken != Some(Broken::LooksNotBack);
        let is_it = |value: &u8| match self.broken {
            Some(Broken::ByContent) => true,
            Some(Broken::AnyValue) => *value != NO_VALUE,
            _ => *value == claim.value || looks_back && *value != NO_VALUE,
        };
        let is_beside = state.beside.is_some_and(|value| is_it(&value));
        match (state.is_closed, self.broken) {
            (_, Some(Broken::InboxOnly)) => Some(false),
            (true, Some(Broken::PassesBy)) => Some(is_beside),
            (true, _) => None,
            (false, _) => {
                let in_inbox = state.inbox.iter().any(|(value, _)| is_it(value));
                Some(is_beside || in_inbox || state.filed.iter().any(is_it))
            }
        }
    }

    fn execute(&self, state: &mut State, at: usize) {
        let HandOff { value, sender, done, .. } = state.under_way[at];
        let is_known = state.remembered >> value & 1 == 1;
        if self.has_guard && is_known && done == 0 {
            state.seen.dropped = true;
            state.under_way.remove(at);
            return state.answers(sender, Answer::Done);
        }
        if self.broken == Some(Broken::NotesFirst) {
            // As if it had been killed right after the note.
            state.remembered |= 1 << value;
            if state.deaths > 0 && !state.calm {
                state.deaths -= 1;
                state.under_way.remove(at);
                if let Some(sender) = sender {
                    state.ends(usize::from(sender), At::Record);
                }
                return;
            }
        }
        let HandOff { epoch, .. } = state.under_way[at];
        state.executions[usize::from(done)] += 1;
        match self.filter {
            Filter::Strips if done == 1 => state.inbox.push((NO_VALUE, epoch)),
            _ if done == 1 => state.inbox.push((value, epoch)),
            Filter::Files => state.filed.push(value),
            Filter::Strips => state.filed.push(NO_VALUE),
            Filter::Hides => {}
        }
        if done == 0 && self.filter == Filter::Files {
            state.tries.push(epoch);
        }
        state.under_way[at].done += 1;
    }

    fn parts(&self) -> u8 {
        1 + u8::from(self.has_second)
    }

    fn is_carried_out(&self, state: &State) -> bool {
        state.executions.iter().take(usize::from(self.parts())).all(|done| *done > 0)
    }

    /// Whether what was found may be the beginning of what the filter does: handed over again, it
    /// is dropped by the guard if it is not.
    fn may_be_half_done(&self, state: &State, claim: Claim) -> bool {
        let has_value = |value: &u8| *value == claim.value;
        let is_ours = state.filed.iter().any(has_value)
            || state.inbox.iter().any(|(value, _)| has_value(value))
            || self.broken == Some(Broken::AgainWithAnyValue);
        let is_proven = self.is_proven || self.broken == Some(Broken::AgainUnproven);
        let is_young = !state.has_faded || self.broken == Some(Broken::AgainTooLate);
        is_ours && is_proven && is_young && self.broken != Some(Broken::FoundIsTheEnd)
    }

    /// What `verify` leaves: in each mailbox the first try's copy.
    fn leaves_a_copy(&self, state: &State) -> bool {
        let inbox: Vec<u8> = state.inbox.iter().map(|(_, epoch)| *epoch).collect();
        let first = state.tries.iter().chain(&inbox).min();
        let stays = |mailbox: &[u8]| match self.broken {
            Some(Broken::AcrossMailboxes) => mailbox.iter().any(|one| Some(one) == first),
            _ => true,
        };
        [&state.tries, &inbox].iter().all(|mailbox| mailbox.is_empty() || stays(mailbox))
    }

    /// Certainly nothing was carried out: the lease is given back, if there is a session.
    fn gives_back(&self, state: &mut State, me: usize) {
        let Delivery { claim, session, .. } = &state.deliveries[me];
        let row = &mut state.row;
        let is_ours = row.value == claim.value && row.epoch == claim.epoch;
        if *session && !row.has_receipt && is_ours {
            (row.leased, row.in_doubt) = (0, row.prior_doubt);
        }
        state.ends(me, At::Record);
    }
}

/// Two hosts and one fault of each kind, inside of the bounds.
const GUARDED: Handed = Handed {
    hosts: 2,
    tries: 1,
    filter: Filter::Files,
    has_second: false,
    has_guard: true,
    is_proven: true,
    is_serial: true,
    beside: Some(NO_VALUE),
    crashes: 1,
    lost_sessions: 1,
    lost_answers: 1,
    refusals: 1,
    deaths: 0,
    closes: 1,
    forgets: 0,
    fades: 0,
    others: 1,
    is_late: false,
    stalls: true,
    broken: None,
};
const UNPROVEN: Handed = Handed { is_proven: false, ..GUARDED };
const UNGUARDED: Handed = Handed { has_guard: false, is_serial: false, ..UNPROVEN };

fn holds(model: Handed, seen: &[&str]) {
    assert_eq!(broken(&model, seen), Vec::<&str>::new(), "{model:?}");
}

#[test]
fn with_the_guard_a_copy_is_carried_out_once_whatever_the_filter_does() {
    // What was carried out and refused is not noted.
    let certain = Handed { refusals: 0, ..GUARDED };
    holds(certain.clone(), &[FOUND, DROPPED, CONTENDED, OUTLIVED]);
    for filter in [Filter::Hides, Filter::Strips] {
        holds(Handed { filter, ..certain.clone() }, &[DROPPED, CONTENDED, OUTLIVED]);
        let late = Handed { filter, is_late: true, ..certain.clone() };
        holds(late, &[DROPPED, CONTENDED, OUTLIVED]);
    }
    holds(Handed { is_late: true, ..certain.clone() }, &[FOUND, OUTLIVED]);
    if full() {
        holds(Handed { tries: 2, ..certain.clone() }, &[FOUND, CONTENDED, OUTLIVED]);
        holds(Handed { tries: 2, is_late: true, ..certain }, &[FOUND, DROPPED, OUTLIVED]);
    }
}

/// What the server had carried out and not noted is carried out again, as it may have been the
/// beginning; `verify` sees it where it was filed.
#[test]
fn a_server_that_dies_before_its_note_delivers_twice() {
    let dies = Handed { deaths: 1, refusals: 0, ..GUARDED };
    for filter in [Filter::Files, Filter::Hides, Filter::Strips] {
        let model = Handed { filter, ..dies.clone() };
        assert_eq!(broken(&model, &[CONTENDED]), [ONE], "{filter:?}");
    }
    assert_eq!(broken(&GUARDED, &[FOUND, CONTENDED, OUTLIVED]), [ONE], "refused");
    // Where the guard is not proven, what is found is the end.
    holds(Handed { is_proven: false, ..dies }, &[FOUND, CONTENDED]);
    holds(UNPROVEN, &[FOUND, CONTENDED, OUTLIVED]);
}

#[test]
fn a_filter_that_was_broken_off_comes_to_its_end() {
    let parts = Handed { has_second: true, refusals: 0, others: 0, ..GUARDED };
    holds(parts.clone(), &[FOUND, DROPPED]);
    holds(Handed { fades: 1, lost_sessions: 0, ..parts.clone() }, &[FOUND, DROPPED]);
    for filter in [Filter::Files, Filter::Hides] {
        let dies = Handed { deaths: 1, lost_sessions: 0, filter, ..parts.clone() };
        assert_eq!(broken(&dies, &[FOUND, DROPPED]), [ONE], "{filter:?}");
    }
    // The price of no guard, and of one that is not proven.
    for one in [UNPROVEN, UNGUARDED] {
        let faultless = Handed { crashes: 0, lost_sessions: 0, lost_answers: 0, ..one };
        let dies = Handed { deaths: 1, has_second: true, refusals: 0, stalls: false, ..faultless };
        breaks(&dies, TRUTH);
    }
}

#[test]
fn without_the_guard_the_look_finds_what_is_filed() {
    holds(UNGUARDED, &[FOUND, OUTLIVED]);
    holds(Handed { deaths: 1, lost_sessions: 0, ..UNGUARDED }, &[FOUND, OUTLIVED]);
}

#[test]
fn without_the_guard_one_lost_answer_is_two_at_most() {
    let faultless = Handed {
        filter: Filter::Hides,
        crashes: 0,
        lost_sessions: 0,
        lost_answers: 0,
        refusals: 0,
        stalls: false,
        ..UNGUARDED
    };
    holds(faultless.clone(), &[]);
    let answer = Handed { lost_answers: 1, ..faultless.clone() };
    let (crash, refusal) =
        (Handed { crashes: 1, ..faultless.clone() }, Handed { refusals: 1, ..faultless.clone() });
    for one in [answer, crash, refusal] {
        assert_eq!(broken(&one, &[]), [ONE]);
    }
    // And so is a server that is later than the lease, or a process frozen before the dot.
    breaks(&Handed { filter: Filter::Files, is_late: true, ..faultless }, ONE);
}

#[test]
fn a_forgotten_copy_is_found_by_any_value() {
    let forgets = Handed { forgets: 1, lost_sessions: 0, refusals: 0, ..GUARDED };
    holds(forgets.clone(), &[FOUND]);
    let unguarded =
        Handed { has_guard: false, is_proven: false, is_serial: false, ..forgets.clone() };
    holds(unguarded, &[FOUND]);
    // A colleague's is taken for it then.
    let beside = Handed { beside: Some(FOREIGN), ..forgets };
    assert_eq!(broken(&beside, &[]), [TRUTH, RECEIPT]);
    let remembered = Handed { forgets: 0, ..beside };
    holds(remembered, &[FOUND]);
}

#[test]
fn each_rule_of_the_hand_over_is_needed() {
    let colleagues = Handed { beside: Some(FOREIGN), ..GUARDED };
    let alone = Handed { beside: None, ..UNGUARDED };
    let forgets = Handed { forgets: 1, ..alone.clone() };
    let hides = Handed { filter: Filter::Hides, refusals: 0, ..GUARDED };
    let parts = Handed { has_second: true, refusals: 0, lost_sessions: 0, ..GUARDED };
    let dies = Handed { deaths: 1, ..parts.clone() };
    let forgotten = Handed { forgets: 1, fades: 1, ..parts.clone() };
    for (rule, model, property) in [
        (Broken::NoLook, alone.clone(), ONE),
        (Broken::ByContent, GUARDED, TRUTH),
        (Broken::AnyValue, colleagues, TRUTH),
        (Broken::InboxOnly, alone.clone(), ONE),
        (Broken::PassesBy, alone.clone(), ONE),
        (Broken::LooksNotBack, forgets, ONE),
        (Broken::RefusalIsCertain, GUARDED, ONE),
        (Broken::ContendedIsDone, GUARDED, TRUTH),
        (Broken::ValueOfClaim, hides.clone(), ONE),
        (Broken::ValueOfClaim, alone, ONE),
        (Broken::NotesFirst, Handed { deaths: 1, ..hides.clone() }, TRUTH),
        (Broken::FoundIsTheEnd, dies.clone(), TRUTH),
        (Broken::AcrossMailboxes, dies, KEPT),
        (Broken::AgainUnproven, UNGUARDED, ONE),
        (Broken::AgainTooLate, Handed { fades: 1, ..parts }, ONE),
        (Broken::AgainWithAnyValue, forgotten, ONE),
    ] {
        breaks(&Handed { broken: Some(rule), ..model }, property);
    }
    // Two at a time, and what one has noted is written over by the other.
    breaks(&Handed { is_serial: false, ..hides }, ONE);
}
