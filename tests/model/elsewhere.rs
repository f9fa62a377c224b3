//! A model of the copy whose mailbox is not there and that goes to its account's INBOX, checked
//! exhaustively: deliveries that mean `lists`, INBOX or both, while the mailbox is made and deleted
//! between any two of their steps, with crashes, lost sessions and answers, late servers and frozen
//! processes. It shares no code with `src/`; the steps are those of
//! `crates/core/src/deliver/stand_in.rs`.
//!
//! Each call of the ledger is one transaction and one step. The check of the clock and the last
//! bytes are one step, and the server executes them before time passes, but where `is_late`
//! (`main.rs` has what lies between). What an owner deletes with its mailbox is no lost copy.

use stateright::{Model, Property};

use crate::explored::{breaks, broken};
use crate::full;

const LEASE: u8 = 2;
/// Last bytes go out while the lease is at most this many ticks old.
const DEADLINE: u8 = 0;
const LISTS: usize = 0;
const INBOX: usize = 1;

/// A rule that is broken, to see that the model would find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// That the copy goes elsewhere is put on record without the lock and the epoch,
    WithoutTurn,
    /// or with a look at the epoch and without the lock.
    WithoutLock,
    /// INBOX is written into before the meant row says so.
    InboxFirst,
    /// INBOX's row is not claimed.
    InboxUnclaimed,
    /// A later delivery takes the mailbox that is there by now.
    NotFinal,
    /// A later delivery takes "elsewhere" for "placed".
    NotPointing,
    /// A late copy in the meant mailbox stays beside the one in INBOX.
    NoUndo,
    /// In a Maildir: the copy's lock is given up before the row says so.
    LockGivenUp,
}

#[derive(Debug, Clone)]
struct Elsewhere {
    /// The mailboxes that each delivery means, in the order in which it takes them.
    means: Vec<Vec<usize>>,
    /// Of each delivery, before the one without faults.
    tries: u8,
    crashes: u8,
    lost_sessions: u8,
    lost_answers: u8,
    /// How often the owner makes `lists`, and deletes it with what is in it,
    makes: u8,
    deletes: u8,
    /// and closes it to us: neither looks nor copies, but what is in it stays.
    closes: u8,
    /// Processes are frozen in the midst of an append, and servers execute it late.
    is_late: bool,
    /// Maildirs: locks of their own, joined leases, one name for a copy.
    join: bool,
    broken: Option<Broken>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    rows: [Row; 2],
    /// `lists` and INBOX: the names of what stands there.
    mailboxes: [Vec<u8>; 2],
    is_there: bool,
    is_closed: bool,
    /// Its owner has deleted it with a copy in it.
    taken: bool,
    /// Appends that the server has not executed: into which, and who waits for the answer.
    on_the_way: Vec<(usize, Option<u8>)>,
    deliveries: Vec<Delivery>,
    crashes: u8,
    lost_sessions: u8,
    lost_answers: u8,
    makes: u8,
    deletes: u8,
    closes: u8,
    /// Somebody went to INBOX, and `lists` was made later.
    was_made_late: bool,
    calm: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Row {
    receipt: Option<Receipt>,
    epoch: u8,
    leased: u8,
    in_doubt: bool,
    prior_doubt: bool,
    /// Whose turn it is.
    lock: Option<u8>,
    /// Who has the copy's lock in the Maildir.
    guard: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Receipt {
    Named(u8),
    Elsewhere,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Delivery {
    at: At,
    tries: u8,
    session: bool,
    /// Which mailbox it is about now, and its claim of that row.
    now: usize,
    claim: (u8, bool),
    /// Ticks since the record.
    age: u8,
    parts: [Part; 2],
    /// Where its copy went, or why it was not taken.
    answer: Option<Answer>,
    /// The Maildir was missing when its lock was taken.
    is_missing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Stored(u8),
    Refused,
}

/// How far a delivery is with a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    NotMeant,
    Claimed(u8, bool),
    Placed,
    /// INBOX has the copy; this delivery claims INBOX if it does not mean it.
    ByInbox,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Record,
    Reserve,
    TakeTurn,
    Look,
    Append,
    Answer,
    Confirm {
        name: u8,
        found: bool,
    },
    Undo(u8),
    /// Its mailbox is not there: the turn, if it has none,
    Decide,
    /// and that on record.
    Note,
    ClaimInbox,
    Delivered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    Does(u8),
    Dies(u8),
    LosesSession(u8),
    /// The answer to the append does not come.
    InDoubt(u8),
    Lands(usize),
    NeverLands(usize),
    Makes,
    Deletes,
    Closes,
    Calm,
}

const TRUTH: &str = "never delivered without a copy";
const ONE: &str = "one copy in each mailbox, and one in all for whom one is meant";
const NONE_BESIDE: &str = "none stands in a mailbox whose row says elsewhere";
const RECEIPT: &str = "a receipt on record names a copy";
const DELIVERED: &str = "always delivered in the end";
const FOUND: &str = "a look finds a copy";
const WENT: &str = "a copy goes elsewhere";
const FOLLOWS: &str = "another delivery follows to INBOX";
const LATE: &str = "the mailbox is made after that";
const BOTH: &str = "each of two mailboxes that are there has a copy";
const UNDONE: &str = "a late copy is taken out again";

impl Model for Elsewhere {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let delivery = Delivery {
            at: At::Record,
            tries: self.tries,
            session: true,
            now: LISTS,
            claim: (0, false),
            age: 0,
            parts: [Part::NotMeant; 2],
            answer: None,
            is_missing: false,
        };
        let state = |is_there| State {
            rows: Default::default(),
            mailboxes: Default::default(),
            is_there,
            is_closed: false,
            taken: false,
            on_the_way: Vec::new(),
            deliveries: vec![delivery.clone(); self.means.len()],
            crashes: self.crashes,
            lost_sessions: self.lost_sessions,
            lost_answers: self.lost_answers,
            makes: self.makes,
            deletes: self.deletes,
            closes: self.closes,
            was_made_late: false,
            calm: false,
        };
        vec![state(false), state(true)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for at in 0..state.on_the_way.len() {
            steps.push(Step::Lands(at));
            if state.on_the_way[at].1.is_none() {
                steps.push(Step::NeverLands(at));
            }
        }
        let is_waiting = |one: &Delivery| one.at == At::Answer && one.answer.is_none();
        let next = |one: &Delivery| one.is_running() || one.at == At::Record && one.tries > 0;
        if state.calm {
            let running = state.deliveries.iter().position(Delivery::is_running);
            let next = running.or_else(|| state.deliveries.iter().position(next));
            let next = next.filter(|at| !is_waiting(&state.deliveries[*at]));
            return steps.extend(next.map(|at| Step::Does(at as u8)));
        }
        let is_leased = state.rows.iter().any(|row| row.leased > 0);
        if is_leased && (self.is_late || state.on_the_way.is_empty()) {
            steps.push(Step::Tick);
        }
        for (at, one) in state.deliveries.iter().enumerate() {
            let number = at as u8;
            if next(one) && !is_waiting(one) {
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
                    steps.push(Step::InDoubt(number));
                }
            }
        }
        if state.makes > 0 && !state.is_there {
            steps.push(Step::Makes);
        }
        if state.deletes > 0 && state.is_there {
            steps.push(Step::Deletes);
        }
        if state.closes > 0 && state.is_there && !state.is_closed {
            steps.push(Step::Closes);
        }
        if state.is_quiet() {
            steps.push(Step::Calm);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Tick => {
                state.rows.iter_mut().for_each(|row| row.leased = row.leased.saturating_sub(1));
                let running = state.deliveries.iter_mut().filter(|one| one.is_running());
                running.for_each(|one| one.age = (one.age + 1).min(DEADLINE + 1));
            }
            Step::Does(me) => self.does(&mut state, usize::from(me)),
            Step::Dies(me) => {
                state.crashes -= 1;
                state.hang_up(me);
                state.ends(usize::from(me));
            }
            Step::LosesSession(me) => {
                state.lost_sessions -= 1;
                state.lose_session(me);
            }
            Step::InDoubt(me) => {
                state.lost_answers -= 1;
                state.hang_up(me);
                self.part_ends(&mut state, usize::from(me), Part::Failed);
            }
            Step::Lands(at) => {
                let (mailbox, sender) = state.on_the_way.remove(at);
                let answer = match mailbox == INBOX || state.is_open() {
                    true => Answer::Stored(state.store(mailbox)),
                    false => Answer::Refused,
                };
                if let Some(sender) = sender {
                    state.deliveries[usize::from(sender)].answer = Some(answer);
                }
            }
            Step::NeverLands(at) => {
                state.on_the_way.remove(at);
            }
            Step::Makes => {
                state.makes -= 1;
                state.is_there = true;
                state.was_made_late |= state.rows[LISTS].receipt == Some(Receipt::Elsewhere);
            }
            Step::Deletes => {
                state.deletes -= 1;
                (state.is_there, state.is_closed) = (false, false);
                state.taken |= !state.mailboxes[LISTS].is_empty();
                state.mailboxes[LISTS].clear();
            }
            Step::Closes => {
                state.closes -= 1;
                state.is_closed = true;
            }
            Step::Calm => {
                state.calm = true;
                state.rows.iter_mut().for_each(|row| row.leased = 0);
                for one in &mut state.deliveries {
                    one.tries = u8::from(one.at != At::Delivered);
                }
            }
        }
        state.tidy();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Elsewhere>> {
        vec![
            Property::<Elsewhere>::always(TRUTH, |model, state| {
                let has_one = |mailbox: &usize| {
                    let [lists, inbox] = &state.mailboxes;
                    match *mailbox {
                        INBOX => !inbox.is_empty(),
                        _ => !lists.is_empty() || state.taken || !inbox.is_empty(),
                    }
                };
                let delivered = state.deliveries.iter().zip(&model.means);
                let mut delivered = delivered.filter(|(one, _)| one.at == At::Delivered);
                delivered.all(|(_, means)| means.iter().all(has_one))
            }),
            Property::<Elsewhere>::always(ONE, |model, state| {
                let [lists, inbox] = &state.mailboxes;
                let most = if model.means.iter().any(|one| one.contains(&INBOX)) { 2 } else { 1 };
                lists.len() <= 1 && inbox.len() <= 1 && lists.len() + inbox.len() <= most
            }),
            Property::<Elsewhere>::always(NONE_BESIDE, |_, state| {
                state.rows[LISTS].receipt != Some(Receipt::Elsewhere)
                    || !state.is_quiet()
                    || state.mailboxes[LISTS].is_empty()
            }),
            Property::<Elsewhere>::always(RECEIPT, |_, state| {
                let is_true = |(row, mailbox): (&Row, &Vec<u8>)| match row.receipt {
                    Some(Receipt::Named(name)) => mailbox.contains(&name) || state.taken,
                    Some(Receipt::Elsewhere) | None => true,
                };
                state.rows.iter().zip(&state.mailboxes).all(is_true)
            }),
            Property::<Elsewhere>::eventually(DELIVERED, |_, state| {
                state.calm && state.deliveries.iter().all(|one| one.at == At::Delivered)
            }),
            Property::<Elsewhere>::sometimes(FOUND, |_, state| {
                let finds = |one: &Delivery| matches!(one.at, At::Confirm { found: true, .. });
                state.deliveries.iter().any(finds)
            }),
            Property::<Elsewhere>::sometimes(WENT, |_, state| {
                state.rows[LISTS].receipt == Some(Receipt::Elsewhere)
                    && state.mailboxes[INBOX].len() == 1
            }),
            Property::<Elsewhere>::sometimes(FOLLOWS, |_, state| {
                let by_inbox = |one: &&Delivery| one.parts[LISTS] == Part::ByInbox;
                state.deliveries.iter().filter(by_inbox).count() > 1
            }),
            Property::<Elsewhere>::sometimes(LATE, |_, state| state.was_made_late),
            Property::<Elsewhere>::sometimes(BOTH, |_, state| {
                state.mailboxes.iter().all(|mailbox| mailbox.len() == 1)
            }),
            Property::<Elsewhere>::sometimes(UNDONE, |_, state| {
                state.deliveries.iter().any(|one| matches!(one.at, At::Undo(_)))
            }),
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
        self.on_the_way.is_empty() && !self.deliveries.iter().any(Delivery::is_running)
    }

    fn is_open(&self) -> bool {
        self.is_there && !self.is_closed
    }

    /// A new message in a mailbox; its name is no other's that anybody knows.
    fn store(&mut self, mailbox: usize) -> u8 {
        let known = self.names(mailbox).into_iter().map(|name| *name).max().unwrap_or(0);
        self.mailboxes[mailbox].push(known + 1);
        known + 1
    }

    fn names(&mut self, mailbox: usize) -> Vec<&mut u8> {
        let mut names: Vec<&mut u8> = self.mailboxes[mailbox].iter_mut().collect();
        if let Some(Receipt::Named(name)) = &mut self.rows[mailbox].receipt {
            names.push(name);
        }
        for one in self.deliveries.iter_mut().filter(|one| one.now == mailbox) {
            if let Some(Answer::Stored(name)) = &mut one.answer {
                names.push(name);
            }
            if let At::Confirm { name, .. } | At::Undo(name) = &mut one.at {
                names.push(name);
            }
        }
        names
    }

    /// The server no longer has whom to answer.
    fn hang_up(&mut self, me: u8) {
        let of_mine = self.on_the_way.iter_mut().filter(|one| one.1 == Some(me));
        of_mine.for_each(|one| one.1 = None);
    }

    fn lose_session(&mut self, me: u8) {
        self.deliveries[usize::from(me)].session = false;
        self.rows.iter_mut().filter(|row| row.lock == Some(me)).for_each(|row| row.lock = None);
    }

    /// The process ends, and what it held with it.
    fn ends(&mut self, me: usize) {
        let number = me as u8;
        for row in &mut self.rows {
            row.lock = row.lock.filter(|holder| *holder != number);
            row.guard = row.guard.filter(|holder| *holder != number);
        }
        let one = &mut self.deliveries[me];
        let at = if one.is_running() { At::Record } else { one.at };
        *one = Delivery {
            at,
            tries: one.tries,
            session: true,
            now: LISTS,
            claim: (0, false),
            age: 0,
            parts: [Part::NotMeant; 2],
            answer: None,
            is_missing: false,
        };
    }

    /// Without what no longer matters.
    fn tidy(&mut self) {
        for mailbox in [LISTS, INBOX] {
            let row = &mut self.rows[mailbox];
            if row.receipt.is_some() {
                (row.leased, row.in_doubt, row.prior_doubt) = (0, false, false);
            }
            // Epochs are compared with the row's only.
            let (was, epoch) = (row.epoch, row.epoch.min(2));
            row.epoch = epoch;
            for one in &mut self.deliveries {
                if let Part::Claimed(of, _) = &mut one.parts[mailbox] {
                    *of = if *of == was { epoch } else { 9 };
                }
                if one.now == mailbox && one.is_running() {
                    one.claim.0 = if one.claim.0 == was { epoch } else { 9 };
                }
            }
            let mut names = self.names(mailbox);
            let mut order: Vec<u8> = names.iter().map(|name| **name).collect();
            order.sort_unstable();
            order.dedup();
            for name in &mut names {
                **name = order.binary_search(name).map_or(0, |at| at as u8 + 1);
            }
        }
        self.on_the_way.sort_unstable();
    }
}

impl Elsewhere {
    fn does(&self, state: &mut State, me: usize) {
        let number = me as u8;
        let Delivery { at, now, claim: (epoch, in_doubt), session, age, .. } = state.deliveries[me];
        let has_turn = state.rows[now].lock == Some(number);
        match at {
            At::Record => {
                state.deliveries[me].tries -= 1;
                for mailbox in self.means[me].clone() {
                    state.deliveries[me].parts[mailbox] = self.claim(state, mailbox);
                }
                self.next(state, me);
            }
            At::Reserve => {
                let is_locked = state.rows[now].guard.is_some_and(|holder| holder != number);
                if self.join && is_locked {
                    self.gives_back(state, me);
                    return;
                }
                if self.join {
                    state.rows[now].guard = Some(number);
                    state.deliveries[me].is_missing = now == LISTS && !state.is_there;
                }
                let takes_turn = in_doubt || self.join;
                state.deliveries[me].at = if takes_turn { At::TakeTurn } else { At::Append };
            }
            At::TakeTurn if !session || state.rows[now].lock.is_some() => {
                self.gives_back(state, me)
            }
            At::TakeTurn => {
                let row = &mut state.rows[now];
                match row.receipt {
                    Some(Receipt::Elsewhere) if self.broken == Some(Broken::NotFinal) => {
                        state.deliveries[me].at = At::Append;
                    }
                    Some(Receipt::Elsewhere) => self.follows(state, me),
                    Some(Receipt::Named(_)) => self.part_ends(state, me, Part::Placed),
                    None if row.epoch != epoch => self.part_ends(state, me, Part::Failed),
                    None => {
                        row.lock = Some(number);
                        let looks = in_doubt || row.prior_doubt;
                        state.deliveries[me].at = if looks { At::Look } else { At::Append };
                    }
                }
            }
            At::Look => {
                let is_closed = now == LISTS && state.is_closed;
                state.deliveries[me].at = match state.mailboxes[now].last() {
                    _ if is_closed => At::Decide,
                    Some(name) => At::Confirm { name: *name, found: true },
                    None => At::Append,
                };
            }
            At::Append if age > DEADLINE => self.gives_back(state, me),
            At::Append if self.join => self.links(state, me),
            At::Append => {
                state.on_the_way.push((now, Some(number)));
                state.deliveries[me].at = At::Answer;
            }
            At::Answer => match state.deliveries[me].answer.take() {
                Some(Answer::Stored(name)) => {
                    state.deliveries[me].at = At::Confirm { name, found: false };
                }
                Some(Answer::Refused) => state.deliveries[me].at = At::Decide,
                None => {}
            },
            At::Confirm { name, found } => self.confirm(state, me, name, found),
            At::Undo(name) => {
                state.mailboxes[now].retain(|one| *one != name);
                self.part_ends(state, me, Part::Failed);
            }
            At::Decide => {
                state.deliveries[me].session = true;
                if self.broken == Some(Broken::LockGivenUp) {
                    state.rows[now].guard = None;
                }
                match state.rows[now].receipt {
                    _ if self.broken == Some(Broken::InboxFirst) => self.follows(state, me),
                    _ if self.broken == Some(Broken::WithoutTurn) => {
                        state.deliveries[me].at = At::Note;
                    }
                    _ if has_turn => state.deliveries[me].at = At::Note,
                    _ if state.rows[now].lock.is_some() => self.gives_back(state, me),
                    Some(Receipt::Named(_)) => self.part_ends(state, me, Part::Placed),
                    Some(Receipt::Elsewhere) => self.follows(state, me),
                    None if state.rows[now].epoch != epoch => {
                        self.part_ends(state, me, Part::Failed);
                    }
                    None => {
                        if self.broken != Some(Broken::WithoutLock) {
                            state.rows[now].lock = Some(number);
                        }
                        state.deliveries[me].at = At::Note;
                    }
                }
            }
            At::Note => {
                let needs_turn =
                    !matches!(self.broken, Some(Broken::WithoutTurn | Broken::WithoutLock));
                if needs_turn && !has_turn {
                    state.deliveries[me].at = At::Decide;
                    return;
                }
                // The first receipt on record wins.
                let row = &mut state.rows[now];
                match *row.receipt.get_or_insert(Receipt::Elsewhere) {
                    Receipt::Elsewhere => self.follows(state, me),
                    Receipt::Named(_) => self.part_ends(state, me, Part::Placed),
                }
            }
            At::ClaimInbox => {
                let part = match self.broken {
                    Some(Broken::InboxUnclaimed) => Part::Claimed(9, false),
                    _ => self.claim(state, INBOX),
                };
                state.deliveries[me].parts[INBOX] = part;
                self.next(state, me);
            }
            At::Delivered => {}
        }
    }

    fn claim(&self, state: &mut State, mailbox: usize) -> Part {
        let row = &mut state.rows[mailbox];
        match row.receipt {
            Some(Receipt::Elsewhere) if self.broken == Some(Broken::NotPointing) => Part::Placed,
            Some(Receipt::Elsewhere) if self.broken == Some(Broken::NotFinal) && state.is_there => {
                Part::Claimed(row.epoch, true)
            }
            Some(Receipt::Elsewhere) => Part::ByInbox,
            Some(Receipt::Named(_)) => Part::Placed,
            None if row.leased > 0 && !self.join => Part::Failed,
            None => {
                row.epoch += u8::from(row.leased == 0);
                (row.prior_doubt, row.in_doubt, row.leased) = (row.in_doubt, true, LEASE);
                Part::Claimed(row.epoch, row.prior_doubt)
            }
        }
    }

    /// The next of its mailboxes, or the end.
    fn next(&self, state: &mut State, me: usize) {
        let number = me as u8;
        for row in &mut state.rows {
            row.lock = row.lock.filter(|holder| *holder != number);
            row.guard = row.guard.filter(|holder| *holder != number);
        }
        let parts = state.deliveries[me].parts;
        let claimed = |mailbox: &usize| matches!(parts[*mailbox], Part::Claimed(..));
        let order = self.means[me].iter().copied().chain([INBOX]);
        let one = &mut state.deliveries[me];
        (one.answer, one.is_missing) = (None, false);
        if let Some(mailbox) = order.clone().find(claimed)
            && let Part::Claimed(epoch, in_doubt) = parts[mailbox]
        {
            (one.at, one.now, one.claim) = (At::Reserve, mailbox, (epoch, in_doubt));
        } else if parts[LISTS] == Part::ByInbox && parts[INBOX] == Part::NotMeant {
            (one.at, one.now, one.claim) = (At::ClaimInbox, INBOX, (0, false));
        } else {
            let is_placed = parts[INBOX] == Part::Placed;
            let is_done = order.into_iter().all(|mailbox| match parts[mailbox] {
                Part::Placed | Part::NotMeant => true,
                Part::ByInbox => is_placed,
                Part::Claimed(..) | Part::Failed => false,
            });
            if is_done && self.broken == Some(Broken::InboxFirst) && parts[LISTS] == Part::ByInbox {
                state.rows[LISTS].receipt.get_or_insert(Receipt::Elsewhere);
            }
            if is_done {
                // Not the end of one that failed.
                state.deliveries[me].at = At::Delivered;
            }
            state.ends(me);
        }
    }

    fn part_ends(&self, state: &mut State, me: usize, part: Part) {
        let now = state.deliveries[me].now;
        state.deliveries[me].parts[now] = part;
        self.next(state, me);
    }

    fn follows(&self, state: &mut State, me: usize) {
        self.part_ends(state, me, Part::ByInbox);
    }

    /// Certainly nothing was written: the lease is given back, if there is a session.
    fn gives_back(&self, state: &mut State, me: usize) {
        let Delivery { now, claim: (epoch, _), session, .. } = state.deliveries[me];
        let row = &mut state.rows[now];
        if session && row.receipt.is_none() && row.epoch == epoch {
            (row.leased, row.in_doubt) = (0, row.prior_doubt);
        }
        self.part_ends(state, me, Part::Failed);
    }

    /// Into a Maildir: what is missing was so when the lock was taken.
    fn links(&self, state: &mut State, me: usize) {
        let Delivery { now, is_missing, .. } = state.deliveries[me];
        let name = state.mailboxes[now].last().copied();
        if is_missing {
            state.deliveries[me].at = At::Decide;
        } else if now == LISTS && !state.is_there {
            self.gives_back(state, me);
        } else {
            let name = name.unwrap_or_else(|| state.store(now));
            state.deliveries[me].at = At::Confirm { name, found: false };
        }
    }

    /// The first receipt wins; who comes second takes its own out.
    fn confirm(&self, state: &mut State, me: usize, name: u8, found: bool) {
        let now = state.deliveries[me].now;
        state.deliveries[me].session = true;
        let is_by_inbox = state.deliveries[me].parts[LISTS] == Part::ByInbox;
        if self.broken == Some(Broken::InboxUnclaimed) && now == INBOX && is_by_inbox {
            return self.part_ends(state, me, Part::Placed);
        }
        let on_record = state.rows[now].receipt.get_or_insert(Receipt::Named(name));
        if *on_record == Receipt::Named(name) {
            self.part_ends(state, me, Part::Placed);
        } else if found || self.join || self.broken == Some(Broken::NoUndo) {
            self.part_ends(state, me, Part::Failed);
        } else {
            state.deliveries[me].at = At::Undo(name);
        }
    }
}

/// Two deliveries that mean `lists`, and one fault of each kind, inside of the bounds.
fn two() -> Elsewhere {
    Elsewhere {
        means: vec![vec![LISTS]; 2],
        tries: 1,
        crashes: 1,
        lost_sessions: 1,
        lost_answers: 1,
        makes: 1,
        deletes: 1,
        closes: 0,
        is_late: false,
        join: false,
        broken: None,
    }
}

/// One of them means both mailboxes.
fn both(first: [usize; 2]) -> Elsewhere {
    Elsewhere { means: vec![first.to_vec(), vec![LISTS]], ..two() }
}

fn maildir() -> Elsewhere {
    Elsewhere { join: true, lost_answers: 0, ..two() }
}

fn holds(model: Elsewhere, seen: &[&str]) {
    assert_eq!(broken(&model, seen), Vec::<&str>::new(), "{model:?}");
}

#[test]
fn a_copy_whose_mailbox_comes_and_goes_is_one() {
    holds(two(), &[FOUND, WENT, FOLLOWS, LATE]);
    let inbox = Elsewhere { means: vec![vec![LISTS], vec![INBOX]], ..two() };
    holds(inbox, &[FOUND, WENT, LATE, BOTH]);
    for order in [[LISTS, INBOX], [INBOX, LISTS]] {
        holds(both(order), &[FOUND, WENT, LATE, BOTH]);
    }
    if full() {
        holds(Elsewhere { tries: 2, makes: 2, ..two() }, &[FOUND, WENT, FOLLOWS, LATE]);
        holds(Elsewhere { means: vec![vec![LISTS]; 3], ..two() }, &[FOUND, WENT, FOLLOWS, LATE]);
    }
}

#[test]
fn in_maildirs_a_copy_whose_mailbox_comes_and_goes_is_one() {
    holds(maildir(), &[FOUND, WENT, FOLLOWS, LATE]);
    for order in [[LISTS, INBOX], [INBOX, LISTS]] {
        let both = Elsewhere { join: true, lost_answers: 0, ..both(order) };
        holds(both, &[FOUND, WENT, LATE, BOTH]);
    }
}

#[test]
fn a_late_copy_in_a_mailbox_that_was_given_up_is_taken_out_again() {
    let frozen = Elsewhere { is_late: true, crashes: 0, lost_answers: 0, ..two() };
    assert_eq!(broken(&frozen, &[UNDONE, WENT]), [ONE]);
    let no_undo = Elsewhere { broken: Some(Broken::NoUndo), ..frozen };
    breaks(&no_undo, NONE_BESIDE);
}

#[test]
fn where_a_mailbox_is_closed_to_us_a_copy_in_doubt_may_be_beside_the_one_in_inbox() {
    let closed = Elsewhere { closes: 1, makes: 0, deletes: 0, ..two() };
    assert_eq!(broken(&closed, &[WENT]), [ONE, NONE_BESIDE]);
}

#[test]
fn each_rule_of_the_way_to_inbox_is_needed() {
    let inbox = Elsewhere { means: vec![vec![LISTS], vec![INBOX]], ..two() };
    for (rule, model, property) in [
        (Broken::WithoutTurn, two(), ONE),
        (Broken::WithoutLock, two(), ONE),
        (Broken::InboxFirst, two(), ONE),
        (Broken::InboxUnclaimed, inbox, ONE),
        (Broken::NotFinal, two(), ONE),
        (Broken::NotPointing, two(), TRUTH),
        (Broken::LockGivenUp, maildir(), ONE),
    ] {
        breaks(&Elsewhere { broken: Some(rule), ..model }, property);
    }
}
