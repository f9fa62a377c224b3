//! The rules of a copy, cell by cell: every state of a row, and every ask. A ledger may decide in
//! statements of its own; here each must answer, and leave the row, as `claim.rs` says.
//!
//! The rows of all cells are put there at once and read at once. Times are hundreds of thousands of
//! seconds apart and compared in thousands, so that it does not matter how long a run takes.

use std::collections::BTreeMap;

use onedrop::ledger::claim::{self, Change, DueIn, Lease, Row, TurnState, Wanted};
use onedrop::ledger::memory::MemoryCopy;
use onedrop::ledger::{BatchTerms, ForgetWhat};

use super::rigs::*;
use super::*;

const THOUSAND: u64 = 1000;
/// What a live lease is, and has left; a claim asks for less than what is left, or for more.
const LENGTH: u64 = 200 * THOUSAND;
const LEFT: u64 = 100 * THOUSAND;
const SHORT: u64 = 50 * THOUSAND;
const LONG: u64 = 300 * THOUSAND;
/// When a copy is due that is, and one that is made so.
const DUE: u64 = 400 * THOUSAND;
const MADE_DUE: u64 = 500 * THOUSAND;
/// When a copy is looked at that is to be looked at.
const LOOK: u64 = 60 * THOUSAND;

/// Numbers of rows that are put there; those that an ask makes are below, or above.
const FIRST: i64 = 1_000_000;

const MAILBOX: (&str, &str) = ("doug", "INBOX");

/// A copy on record, as the rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuledCopy {
    pub row: Row,
    /// In what time it is to be looked at again.
    pub look_in: Option<Duration>,
    /// NUL replaced, wrapped, found by the look.
    pub facts: [bool; 3],
}

const FACTS: CopyFacts = CopyFacts { nul_replaced: true, wrapped: true, found_by_look: true };

/// A state, and what is asked in it.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Of the message's row and of its copy's, if they are there.
    pub number: i64,
    pub message: MessageState,
    pub before: Option<RuledCopy>,
    ask: Ask,
}

#[derive(Debug, Clone, Copy)]
pub struct MessageState {
    pub is_there: bool,
    pub looks_back: bool,
}

#[derive(Debug, Clone)]
enum Ask {
    Claim {
        is_own: bool,
        is_named_twice: bool,
        terms: LeaseTerms,
        way: ClaimWay,
    },
    Turn(Named),
    /// With whether a crash of the server may undo it.
    Confirm(Named, Receipt, bool),
    Release(Named),
    Keep,
    KeepUntilDue,
    Forget,
}

/// How a claim is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ClaimWay {
    Claim,
    /// The message is recorded once more.
    Record,
}

/// The claim that an ask names.
#[derive(Debug, Clone, Copy)]
enum Named {
    /// The last one of this row.
    Last,
    OfAnEarlierEpoch,
    OfAFormerValue,
}

/// What came back.
#[derive(Debug, Clone, PartialEq)]
enum Answer {
    Copies(Vec<CopyState>),
    Turn(Result<TurnState, String>),
    Confirmed(Result<Confirmed, String>),
    Done,
    Kept(bool),
    Due(Option<Receipt>),
    /// How many copies, and how many of them were passed by.
    Forgotten(usize, usize),
}

/// A ledger whose rows a test can put there and read.
trait CellRig: Rig {
    fn put(&self, cells: &[Cell]);

    /// How many ask at once.
    fn threads(&self) -> usize;

    /// The copies by the numbers of their messages, each with its own number.
    fn on_record(&self) -> BTreeMap<i64, (i64, RuledCopy)>;
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// To thousands of seconds.
fn round(time: Duration) -> Duration {
    secs((time.as_secs() + THOUSAND / 2) / THOUSAND * THOUSAND)
}

fn own() -> Attempt {
    Attempt { value: RandomValue::from([1; 16]), ..attempt("mx1") }
}

fn others() -> Attempt {
    Attempt { value: RandomValue::from([2; 16]), ..attempt("mx2") }
}

fn former_value() -> RandomValue {
    RandomValue::from([9; 16])
}

fn name() -> Receipt {
    Receipt::name("name")
}

/// Every state that a message's row and its copy's are found in. A lease, if any, is the second,
/// but in those of a first lease.
fn states() -> Vec<(MessageState, Option<Row>)> {
    let mut states = Vec::new();
    let value = RandomValue::from([7; 16]);
    let lease = |left| Some(Lease { by: Some(own().value), length: secs(LENGTH), left });
    for prior_doubt in [false, true] {
        // All before were given back, or not.
        let row = Row {
            value,
            epoch: 2,
            prior_doubt,
            placed_epoch: if prior_doubt { 0 } else { 1 },
            looks_back: prior_doubt,
            ..Row::new(false)
        };
        let message = MessageState { is_there: true, looks_back: prior_doubt };
        let mut open = Vec::new();
        for left in [secs(LEFT), Duration::ZERO] {
            open.push(Row { lease: lease(left), in_doubt: true, ..row.clone() });
        }
        open.push(Row { in_doubt: prior_doubt, ..row.clone() });
        let due_in = Some(secs(DUE));
        for row in open {
            states.push((message, Some(row.clone())));
            let shared = Row { shared: true, ..row };
            for (due_in, kept) in [(None, false), (None, true), (due_in, false), (due_in, true)] {
                states.push((message, Some(Row { due_in, kept, ..shared.clone() })));
            }
        }
        for receipt in [uid(7), name(), Receipt::UNNAMED] {
            let shared = prior_doubt;
            let due_in = due_in.filter(|_| shared);
            let receipt = Some(receipt);
            let placed = Row { placed_epoch: 2, receipt, shared, due_in, ..row.clone() };
            states.push((message, Some(Row { settled: prior_doubt, ..placed })));
        }
    }
    states.extend(states_of_a_first_lease());
    // Last: a session knows the schema by then, and may record what is new in its own way.
    for is_there in [true, false] {
        for looks_back in [false, true] {
            states.push((MessageState { is_there, looks_back }, None));
        }
    }
    states
}

/// A copy that was leased once: its receipt may be one that a crash of the server undoes
/// ([`claim::may_be_lost`]). And one that was not leased yet, as what is kept until it is due.
fn states_of_a_first_lease() -> Vec<(MessageState, Option<Row>)> {
    let lease = |left| Some(Lease { by: Some(own().value), length: secs(LENGTH), left });
    let value = RandomValue::from([7; 16]);
    let first = Row { value, epoch: 1, in_doubt: true, ..Row::new(false) };
    let live = Row { lease: lease(secs(LEFT)), ..first.clone() };
    let over = Row { lease: lease(Duration::ZERO), ..first.clone() };
    let shared = Row { shared: true, ..live.clone() };
    let due = Row { due_in: Some(secs(DUE)), kept: true, ..shared.clone() };
    let placed = Row { receipt: Some(uid(7)), placed_epoch: 1, ..first };
    let unleased = Row { epoch: 0, lease: None, in_doubt: false, ..due.clone() };
    let found = |row: &Row| Row { prior_doubt: true, looks_back: true, ..row.clone() };
    let mut rows = vec![found(&live), found(&over)];
    rows.extend([live, over, shared, due, placed, unleased]);
    let message = |row: &Row| MessageState { is_there: true, looks_back: row.looks_back };
    rows.into_iter().map(|row| (message(&row), Some(row))).collect()
}

fn asks(message: MessageState, row: Option<&Row>) -> Vec<Ask> {
    let mut asks = vec![Ask::Keep, Ask::KeepUntilDue, Ask::Forget];
    let named = [Named::Last, Named::OfAnEarlierEpoch, Named::OfAFormerValue];
    let named = if row.is_some() { &named[..] } else { &named[..1] };
    for named in named {
        asks.push(Ask::Turn(*named));
        asks.push(Ask::Release(*named));
        for receipt in [uid(7), uid(8), name(), Receipt::UNNAMED] {
            for may_be_lost in [false, true] {
                asks.push(Ask::Confirm(*named, receipt.clone(), may_be_lost));
            }
        }
    }
    if !message.is_there {
        asks.clear();
    }
    let is_placed = row.is_some_and(|row| row.receipt.is_some());
    let is_live = row.is_some_and(is_live);
    for flags in 0..32 {
        let is = |bit: u32| flags & 1 << bit != 0;
        let (is_own, is_named_twice, join, due, is_short) = (is(0), is(1), is(2), is(3), is(4));
        // Only a lease that lives has a length that counts, and to who finds a receipt all is one.
        if is_short && !is_live || is_placed && ![0, 0b1111].contains(&flags) {
            continue;
        }
        let lease = secs(if is_short { SHORT } else { LONG });
        let terms = LeaseTerms { lease, join, due };
        if message.is_there {
            asks.push(Ask::Claim { is_own, is_named_twice, terms, way: ClaimWay::Claim });
        }
        // No record asks for what is due.
        if !due && !is_short {
            asks.push(Ask::Claim { is_own, is_named_twice, terms, way: ClaimWay::Record });
        }
    }
    asks
}

fn is_live(row: &Row) -> bool {
    row.lease.is_some_and(|lease| !lease.left.is_zero())
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (message, row) in states() {
        for ask in asks(message, row.as_ref()) {
            let before = row.clone().map(|row| RuledCopy {
                look_in: row.prior_doubt.then_some(secs(LOOK)),
                facts: [false; 3],
                row,
            });
            let number = FIRST + i64::try_from(cells.len()).expect("a number");
            cells.push(Cell { number, message, before, ask });
        }
    }
    cells
}

impl Cell {
    fn mail(&self) -> Message {
        mail(&format!("cell-{}", self.number))
    }

    fn key(&self) -> MessageKey {
        MessageKey::new(self.number, self.mail().identity())
    }

    /// Another than the row has, so that it can be seen.
    fn destination(&self) -> Destination {
        let shared = self.before.as_ref().is_none_or(|before| !before.row.shared);
        let (account, mailbox) = (MAILBOX.0.to_owned(), MAILBOX.1.to_owned());
        Destination { account, mailbox, shared }
    }

    fn named(&self, named: Named) -> Claim {
        let claim = match &self.before {
            Some(before) => before.row.claim(self.number),
            // No row has this number.
            None => Row::new(false).claim(0),
        };
        match named {
            Named::Last => claim,
            Named::OfAnEarlierEpoch => Claim { epoch: claim.epoch - 1, ..claim },
            Named::OfAFormerValue => Claim { value: former_value(), ..claim },
        }
    }

    /// What came back, and the number of the message.
    fn ask(&self, host: &Host) -> (Answer, i64) {
        let mut message = self.number;
        let answer = self.ask_of(host, &mut message);
        (answer, message)
    }

    fn ask_of(&self, host: &Host, message: &mut i64) -> Answer {
        let text = |error: LedgerError| error.to_string();
        match &self.ask {
            Ask::Claim { is_own, is_named_twice, terms, way } => {
                let wanted = vec![self.destination(); if *is_named_twice { 2 } else { 1 }];
                let by = if *is_own { own() } else { others() };
                Answer::Copies(match way {
                    ClaimWay::Claim => {
                        let claim = || host.0.claim(&self.key(), &wanted, &by, *terms, soon());
                        uncontended(claim).expect("a claim")
                    }
                    ClaimWay::Record => {
                        let (mail, facts) = (self.mail(), Facts::default());
                        let oldest = (!self.message.looks_back).then(SystemTime::now);
                        let entry = Entry { oldest, ..entry(mail.identity(), &facts) };
                        let record = || host.0.record(&entry, &by, &wanted, *terms, soon());
                        let recorded = uncontended(record).expect("a record");
                        assert_eq!(recorded.is_new, !self.message.is_there);
                        *message = recorded.message.number;
                        recorded.copies
                    }
                })
            }
            Ask::Turn(named) => {
                let key = copy_key(&self.mail(), &self.destination());
                let turn = uncontended(|| host.try_turn(&self.named(*named), &key));
                Answer::Turn(turn.map(|taken| taken.state().clone()).map_err(text))
            }
            Ask::Confirm(named, receipt, may_be_lost) => {
                let (claim, may_be_lost) = (self.named(*named), *may_be_lost);
                let one = ToConfirm { claim, receipt, facts: FACTS, end: None, may_be_lost };
                Answer::Confirmed(host.0.confirm(&one, soon()).map_err(text))
            }
            Ask::Release(named) => {
                host.release(&[self.named(*named)]);
                Answer::Done
            }
            Ask::Keep => Answer::Kept(host.keep(self.key(), b"bytes", "why")),
            Ask::KeepUntilDue => {
                let (to, after) = (self.destination(), secs(MADE_DUE));
                Answer::Due(match host.keep_until_due(self.key(), &to, b"bytes", after) {
                    Due::Placed(receipt) => Some(receipt),
                    Due::At(_) => None,
                })
            }
            Ask::Forget => {
                let name = format!("cell-{}@example.org", self.number);
                let how = BatchTerms { limit: 10, dry_run: false };
                let batch = host.0.forget(ForgetWhat::Message(&name), 0, how, soon());
                let copies = batch.expect("forgotten").copies;
                let passed_by = copies.iter().filter(|copy| copy.passed_by.is_some()).count();
                Answer::Forgotten(copies.len(), passed_by)
            }
        }
    }

    /// What `claim.rs` says: the answer, in which a new row has the number and the value of
    /// `after`, and what is on record then.
    fn expected(&self, after: Option<&(i64, RuledCopy)>) -> (Answer, Option<RuledCopy>) {
        let mut here = OneCopy(self.before.clone());
        let text = |error: LedgerError| error.to_string();
        let new = || {
            let value = after.map_or_else(former_value, |(_, after)| after.row.value);
            Row { value, ..Row::new(self.message.looks_back) }
        };
        let row = here.row();
        let answer = match &self.ask {
            Ask::Claim { is_own, is_named_twice, terms, .. } => {
                let by = if *is_own { own() } else { others() }.value;
                let copy = after.map_or(0, |(copy, _)| *copy);
                let mut claim = |again| {
                    let row = here.row().unwrap_or_else(new);
                    let shared = self.destination().shared;
                    let wanted = Wanted { by, again, shared, terms: *terms };
                    let (claimed, change) = claim::claim(&row, &wanted);
                    here.write(change);
                    let row = here.row().unwrap_or(row);
                    claimed.state(row.claim(copy))
                };
                let first = claim(false);
                let second = is_named_twice.then(|| claim(true));
                Answer::Copies([Some(first), second].into_iter().flatten().collect())
            }
            Ask::Turn(named) => {
                Answer::Turn(claim::turn(row.as_ref(), &self.named(*named)).map_err(text))
            }
            Ask::Confirm(named, receipt, _) => {
                let claim = self.named(*named);
                let (confirmed, change) = claim::confirm(row.as_ref(), &claim, receipt);
                let is_placed = change.as_ref().is_some_and(|one| one.row.receipt.is_some())
                    && row.is_some_and(|row| row.receipt.is_none());
                here.write(change);
                if let Some(copy) = here.0.as_mut().filter(|_| is_placed) {
                    copy.facts = [true; 3];
                }
                Answer::Confirmed(confirmed.map_err(text))
            }
            Ask::Release(named) => {
                here.write(claim::release(row.as_ref(), &self.named(*named)));
                Answer::Done
            }
            Ask::Keep => {
                let keeps = row.is_some_and(|row| row.wants_bytes());
                if let Some(copy) = here.0.as_mut().filter(|_| keeps) {
                    copy.row.kept = true;
                }
                Answer::Kept(keeps)
            }
            Ask::KeepUntilDue => {
                let (due, change) = claim::keep_until_due(&row.unwrap_or_else(new), secs(MADE_DUE));
                here.write(change);
                Answer::Due(match due {
                    DueIn::Placed(receipt) => Some(receipt),
                    DueIn::After(_) => None,
                })
            }
            Ask::Forget => match row {
                None => Answer::Forgotten(0, 0),
                // It may be written.
                Some(row) if is_live(&row) => Answer::Forgotten(1, 1),
                Some(row) => {
                    let value = after.map_or_else(former_value, |(_, after)| after.row.value);
                    assert_ne!(value, row.value, "another value");
                    here.write(Some(claim::forget(&row, value)));
                    Answer::Forgotten(1, 0)
                }
            },
        };
        (answer, here.0)
    }
}

/// What a ledger does with the rules' changes.
struct OneCopy(Option<RuledCopy>);

impl OneCopy {
    fn row(&self) -> Option<Row> {
        self.0.as_ref().map(|copy| copy.row.clone())
    }

    fn write(&mut self, change: Option<Change>) {
        let Some(Change { mut row, look_after, frees_kept }) = change else { return };
        let look_in = self.0.as_ref().and_then(|before| before.look_in);
        let look_in = [look_in, look_after].into_iter().flatten().min();
        row.kept &= !frees_kept;
        self.0 = Some(RuledCopy { row, look_in, facts: [false; 3] });
    }
}

/// Locks are taken by hashes, and other cells hold some.
fn uncontended<T>(mut call: impl FnMut() -> Result<T, LedgerError>) -> Result<T, LedgerError> {
    let began = Instant::now();
    loop {
        match call() {
            Err(LedgerError::Contended) if began.elapsed() < Duration::from_secs(60) => {
                thread::yield_now();
            }
            result => return result,
        }
    }
}

fn rounded(mut one: RuledCopy) -> RuledCopy {
    one.row.lease = one.row.lease.map(|lease| Lease {
        by: lease.by,
        length: round(lease.length),
        left: round(lease.left),
    });
    one.row.due_in = one.row.due_in.map(round);
    one.look_in = one.look_in.map(round);
    one
}

fn every_cell_is_as_the_rules_say(rig: &dyn CellRig) {
    let cells = cells();
    let host = Host(rig.ledger());
    rig.put(&cells);
    let threads = rig.threads();
    // So that a message which says nothing of its age may be older.
    rig.remember_since(SystemTime::now() - secs(SHORT));
    let answers: Vec<Vec<(Answer, i64)>> = at_once(threads, |n| {
        cells.iter().skip(n).step_by(threads).map(|cell| cell.ask(&host)).collect()
    });
    let on_record = rig.on_record();
    let mut wrong = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let (answer, message) = &answers[at % threads][at / threads];
        let after = on_record.get(message);
        let (expected, row) = cell.expected(after);
        let (row, after) = (row.map(rounded), after.map(|(_, row)| rounded(row.clone())));
        if (&expected, &row) != (answer, &after) {
            wrong.push(format!(
                "{cell:#?}\nanswer {answer:?}\n  rule {expected:?}\nrow  {after:?}\nrule {row:?}"
            ));
        }
    }
    let (many, first) = (wrong.len(), wrong.first());
    assert!(first.is_none(), "{many} of {} cells, the first:\n{}", cells.len(), wrong[0]);
}

#[test]
fn the_cells_are_all_there() {
    let cells = cells();
    let row = |cell: &Cell| cell.before.as_ref().map(|before| before.row.clone());
    let live = cells.iter().filter(|cell| row(cell).is_some_and(|row| is_live(&row)));
    assert!(live.count() > 400);
    let new = cells.iter().filter(|cell| !cell.message.is_there);
    assert_eq!(new.count(), 16);
    let may_be_lost = cells.iter().filter(|cell| match &cell.ask {
        Ask::Confirm(Named::Last, _, true) => row(cell).is_some_and(|row| claim::may_be_lost(&row)),
        _ => false,
    });
    // Live or over, and four receipts of each.
    assert_eq!(may_be_lost.count(), 8);
    assert!(cells.len() > 2500 && cells.len() < 3000, "{}", cells.len());
}

impl CellRig for MemoryRig {
    fn threads(&self) -> usize {
        1
    }

    fn put(&self, cells: &[Cell]) {
        let has_run_out = |cell: &&Cell| {
            let row = cell.before.as_ref().map(|before| &before.row);
            row.is_some_and(|row| row.lease.is_some_and(|lease| lease.left.is_zero()))
        };
        for cell in cells.iter().filter(has_run_out) {
            self.put_cell(cell, secs(SHORT));
        }
        // They ran out long ago.
        self.ledger().advance(secs(SHORT));
        for cell in cells.iter().filter(|cell| !has_run_out(cell)) {
            self.put_cell(cell, Duration::ZERO);
        }
    }

    fn on_record(&self) -> BTreeMap<i64, (i64, RuledCopy)> {
        let copy = |copy: MemoryCopy| {
            let CopyFacts { nul_replaced, wrapped, found_by_look } = copy.facts;
            let facts = [nul_replaced, wrapped, found_by_look];
            (copy.message, (copy.copy, RuledCopy { row: copy.row, look_in: copy.look_in, facts }))
        };
        self.ledger().copies().into_iter().map(copy).collect()
    }
}

impl MemoryRig {
    /// A cell as it is after `time`.
    fn put_cell(&self, cell: &Cell, time: Duration) {
        if !cell.message.is_there {
            return;
        }
        let mail = cell.mail();
        let message = (cell.number, mail.identity(), cell.message.looks_back);
        self.ledger().put_message(message);
        if let Some(RuledCopy { row, look_in, .. }) = &cell.before {
            let due_in = row.due_in.map(|due_in| due_in + time);
            let row = Row { due_in, ..row.clone() };
            let look_after = look_in.map(|look_in| look_in + time);
            let change = Change { row, look_after, frees_kept: false };
            self.ledger().put_copy(cell.number, cell.number, &cell.destination(), change);
        }
    }
}

/// What the SQL of an engine says in its own way.
trait CellSql {
    /// The time `secs` from now, for a column of the wall clock's.
    fn at(&self, secs: i64) -> String;

    /// The same, for the end of a lease.
    fn lease_at(&self, secs: i64) -> String;

    /// How many seconds a column is from now.
    fn left(&self, column: &str) -> String;

    fn lease_left(&self, column: &str) -> String {
        self.left(column)
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        format!("x'{}'", lock_key::hex(bytes))
    }

    fn hex(&self, column: &str) -> String {
        format!("hex({column})")
    }

    fn run(&self, sql: &str);

    /// The rows of a query, as text; empty: NULL.
    fn rows(&self, sql: &str) -> Vec<Vec<String>>;

    /// What stands before VALUES, so that rows have the numbers that they are given.
    fn with_numbers(&self) -> &'static str {
        ""
    }

    /// SQL that keeps bytes of these messages.
    fn keep(&self, messages: &[i64]) -> String {
        let at = self.at(0);
        let rows = messages.iter().map(|one| format!("({one}, {}, 'why', {at})", self.bytes(b"x")));
        let rows: Vec<String> = rows.collect();
        let rows = rows.join(", ");
        format!("INSERT INTO onedrop_kept (message_id, bytes, why, kept_at) VALUES {rows}")
    }
}

fn or_null<T>(value: Option<T>, sql: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "NULL".to_owned(), sql)
}

fn flag(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

fn whole(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).expect("seconds")
}

fn put(sql: &impl CellSql, cells: &[Cell]) {
    let insert = |table: &str, columns: &str, rows: &[String]| {
        if !rows.is_empty() {
            let (with, rows) = (sql.with_numbers(), rows.join(", "));
            let with = if columns.starts_with("id,") { with } else { "" };
            sql.run(&format!("INSERT INTO {table} ({columns}) {with} VALUES {rows}"));
        }
    };
    let is_there = |cell: &&Cell| cell.message.is_there;
    let cells: Vec<&Cell> = cells.iter().filter(is_there).collect();
    // One argument of a command has no room for all.
    for cells in cells.chunks(100) {
        let (mut messages, mut copies, mut looks) = (Vec::new(), Vec::new(), Vec::new());
        let mut kept = Vec::new();
        for cell in cells {
            let (number, mail) = (cell.number, cell.mail());
            let Identity { id_hash, digest, .. } = mail.identity();
            let (id_hash, digest) = (sql.bytes(id_hash), sql.bytes(digest));
            let (looks_back, now) = (flag(cell.message.looks_back), sql.at(0));
            messages.push(format!("({number}, {id_hash}, {digest}, '', 1, {looks_back}, {now})"));
            let Some(RuledCopy { row, look_in, .. }) = &cell.before else { continue };
            copies.push(copy(sql, number, row));
            looks.extend(look_in.map(|look_in| format!("({number}, {})", sql.at(whole(look_in)))));
            kept.extend(row.kept.then_some(number));
        }
        let columns = "id, id_hash, digest, sender, size_bytes, looks_back, recorded_at";
        insert("onedrop_message", columns, &messages);
        let columns = "id, message_id, account, mailbox, value, shared, epoch, owner, lease_value,
            lease_ms, leased_until, in_doubt, prior_doubt, looks_back, placed_at, receipt_kind,
            receipt, placed_epoch, due_at, settled_at";
        insert("onedrop_copy", columns, &copies);
        insert("onedrop_unsettled", "copy_id, look_at", &looks);
        if !kept.is_empty() {
            sql.run(&sql.keep(&kept));
        }
    }
}

fn copy(sql: &impl CellSql, number: i64, row: &Row) -> String {
    let (account, mailbox) = MAILBOX;
    let receipt = match row.receipt.as_ref() {
        Some(receipt) => format!("'{}', '{}'", receipt.kind(), receipt.text()),
        None => "NULL, NULL".to_owned(),
    };
    let end = |lease: Lease| match lease.left.is_zero() {
        // Long ago.
        true => sql.lease_at(-whole(secs(SHORT))),
        false => sql.lease_at(whole(lease.left)),
    };
    let lease = or_null(row.lease.and_then(|lease| lease.by), |by| sql.bytes(by.bytes()));
    let columns = [
        format!("{number}, {number}, '{account}', '{mailbox}'"),
        sql.bytes(row.value.bytes()),
        format!("{}, {}, ''", flag(row.shared), row.epoch),
        lease,
        (row.lease.map_or(0, |lease| whole(lease.length)) * 1000).to_string(),
        or_null(row.lease, end),
        [row.in_doubt, row.prior_doubt, row.looks_back].map(flag).join(", "),
        or_null(row.receipt.as_ref(), |_| sql.at(0)),
        receipt,
        row.placed_epoch.to_string(),
        or_null(row.due_in, |due_in| sql.at(whole(due_in))),
        or_null(row.settled.then_some(()), |()| sql.at(0)),
    ];
    format!("({})", columns.join(", "))
}

fn on_record(sql: &impl CellSql) -> BTreeMap<i64, (i64, RuledCopy)> {
    let query = format!(
        "SELECT c.message_id, c.id, {}, {}, {}, {}, {}, {}, c.epoch, c.lease_ms,
             COALESCE(c.placed_epoch, 0), c.placed_at IS NOT NULL, c.receipt_kind,
             COALESCE(c.receipt, ''), c.shared, c.in_doubt, c.prior_doubt, c.looks_back,
             c.settled_at IS NOT NULL,
             EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = c.message_id),
             c.nul_replaced, c.wrapped, c.found_by_look
         FROM onedrop_copy c LEFT JOIN onedrop_unsettled u ON u.copy_id = c.id",
        sql.hex("c.value"),
        sql.hex("c.lease_value"),
        sql.lease_left("c.leased_until"),
        sql.left("c.due_at"),
        sql.left("u.look_at"),
        sql.at(0),
    );
    sql.rows(&query).iter().map(|row| read(row)).collect()
}

fn read(row: &[String]) -> (i64, (i64, RuledCopy)) {
    let text = |at: usize| Some(row[at].as_str()).filter(|text| !text.is_empty());
    let number = |at| text(at).map(|text| text.parse::<i64>().expect("a number"));
    let flag = |at: usize| matches!(row[at].as_str(), "t" | "1");
    let value = |at| {
        let byte = |at| move |hex: &str| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
        text(at).map(|hex| RandomValue::from(std::array::from_fn(|n| byte(2 * n)(hex))))
    };
    let time = |at| number(at).map(|left| secs(u64::try_from(left).unwrap_or(0)));
    let receipt = text(12).map(|kind| Receipt::new(kind.to_owned(), row[13].as_str()));
    let lease_ms = number(9).and_then(|length| u64::try_from(length).ok()).expect("a length");
    let length = Duration::from_millis(lease_ms);
    let lease = time(4).map(|left| Lease { by: value(3), length, left });
    let ruled = Row {
        value: value(2).expect("a value"),
        epoch: number(8).expect("an epoch"),
        shared: flag(14),
        lease,
        in_doubt: flag(15),
        prior_doubt: flag(16),
        looks_back: flag(17),
        receipt: receipt.filter(|_| flag(11)),
        placed_epoch: number(10).expect("an epoch"),
        settled: flag(18),
        due_in: time(5),
        kept: flag(19),
    };
    let facts = [flag(20), flag(21), flag(22)];
    let copy = number(1).expect("a number");
    let message = number(0).expect("a number");
    (message, (copy, RuledCopy { row: ruled, look_in: time(6), facts }))
}

impl CellSql for PostgresRig {
    fn at(&self, secs: i64) -> String {
        format!("clock_timestamp() + {secs} * interval '1 second'")
    }

    fn lease_at(&self, secs: i64) -> String {
        self.at(secs)
    }

    fn left(&self, column: &str) -> String {
        format!("extract(epoch FROM {column} - clock_timestamp())::bigint")
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        format!("'\\x{}'", lock_key::hex(bytes))
    }

    fn hex(&self, column: &str) -> String {
        format!("encode({column}, 'hex')")
    }

    fn run(&self, sql: &str) {
        self.postgres.psql(sql);
    }

    fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        fields(&self.postgres.psql(sql), '|')
    }

    fn with_numbers(&self) -> &'static str {
        "OVERRIDING SYSTEM VALUE"
    }
}

impl CellSql for MariadbRig {
    fn at(&self, secs: i64) -> String {
        format!("UTC_TIMESTAMP(6) + INTERVAL {secs} SECOND")
    }

    fn lease_at(&self, secs: i64) -> String {
        self.at(secs)
    }

    fn left(&self, column: &str) -> String {
        format!("TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), {column})")
    }

    fn run(&self, sql: &str) {
        self.mariadb.sql(sql);
    }

    fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        fields(&self.mariadb.sql(sql).replace("NULL", ""), '\t')
    }

    fn keep(&self, messages: &[i64]) -> String {
        let at = self.at(0);
        let rows = messages.iter().map(|message| format!("({message}, 'why', {at})"));
        let rows = rows.collect::<Vec<_>>().join(", ");
        format!("INSERT INTO onedrop_kept (message_id, why, kept_at) VALUES {rows}")
    }
}

impl CellSql for SqliteRig {
    fn at(&self, secs: i64) -> String {
        format!("unixepoch('now') + {secs}")
    }

    fn lease_at(&self, secs: i64) -> String {
        format!("{} + {secs}", self.now().secs)
    }

    fn left(&self, column: &str) -> String {
        format!("CAST({column} - unixepoch('now') AS INTEGER)")
    }

    fn lease_left(&self, column: &str) -> String {
        format!("CAST({column} - {} AS INTEGER)", self.now().secs)
    }

    fn run(&self, sql: &str) {
        let boot = format!(
            "UPDATE onedrop_copy SET lease_boot = '{}'
             WHERE leased_until IS NOT NULL AND lease_boot IS NULL",
            self.now().id
        );
        self.connection().execute_batch(&format!("{sql}; {boot}")).expect("SQL");
    }

    fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let connection = self.connection();
        let mut query = connection.prepare(sql).expect("a query");
        let columns = query.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            let text = |at| row.get::<_, rusqlite::types::Value>(at).map(text_of);
            (0..columns).map(text).collect::<Result<_, _>>()
        };
        query.query_map([], row).expect("rows").map(|row| row.expect("a row")).collect()
    }
}

fn text_of(value: rusqlite::types::Value) -> String {
    use rusqlite::types::Value;
    match value {
        Value::Null => String::new(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text,
        Value::Blob(bytes) => lock_key::hex(&bytes),
    }
}

fn fields(text: &str, between: char) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split(between).map(str::to_owned).collect()).collect()
}

macro_rules! cell_rigs {
    ($($rig:ident: $threads:expr),*) => {
        $(impl CellRig for $rig {
            fn threads(&self) -> usize {
                $threads
            }

            fn put(&self, cells: &[Cell]) {
                put(self, cells);
            }

            fn on_record(&self) -> BTreeMap<i64, (i64, RuledCopy)> {
                on_record(self)
            }
        })*
    };
}

// SQLite has one writer, and those that wait for it sleep.
cell_rigs!(PostgresRig: 4, MariadbRig: 4, SqliteRig: 1);

#[test]
fn in_memory() {
    every_cell_is_as_the_rules_say(&MemoryRig::default());
}

#[test]
fn on_sqlite() {
    every_cell_is_as_the_rules_say(&SqliteRig::new());
}

#[test]
fn on_mariadb() {
    every_cell_is_as_the_rules_say(&MariadbRig::shared());
}

#[test]
fn on_postgres() {
    every_cell_is_as_the_rules_say(&PostgresRig::shared());
}
