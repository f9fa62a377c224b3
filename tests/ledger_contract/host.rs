//! A ledger for one test ([`Rig`]), and what the tests want of a handle on it ([`Host`]).

pub use onedrop::ledger::claim::TurnState;

use super::*;

/// A ledger of its own for one test, with its schema at [`SCHEMA_VERSION`].
pub trait Rig: Sync {
    /// Another handle, as of another process: it shares nothing with others but the ledger.
    fn ledger(&self) -> Arc<dyn AnyLedger>;

    /// The same, of a host whose configuration says this.
    fn ledger_of(&self, config: Option<SharedConfig>) -> Arc<dyn AnyLedger>;

    /// Another handle with such a pool of connections; `None` where there are none.
    fn ledger_with(&self, limits: Limits) -> Option<Arc<dyn AnyLedger>>;

    /// Makes all leases run out, as if the ledger's clock had gone on.
    fn expire_leases(&self);

    /// Makes all leases of named locks run out.
    fn expire_locks(&self) {
        self.expire_leases();
    }

    /// Makes the ledger's clock step, forward or back.
    fn step_clock(&self, secs: i64);

    /// Lets time go by.
    fn pass(&self, secs: i64) {
        self.step_clock(secs);
    }

    /// Whether a step of the ledger's clock moves the end of leases.
    fn steps_move_leases(&self) -> bool {
        true
    }

    /// Ends every session that any handle has, in use or not; false where a session cannot be lost.
    fn lose_sessions(&self) -> bool;

    /// Runs SQL beside the ledger; false where there is none to run.
    fn sql(&self, statements: &str) -> bool;

    /// Makes each commit take a tenth of a second, where calls at the same time may share one.
    fn slow_commits(&self) {}

    /// Whether one transaction wrote the newest state of several attempts; `None` where no two
    /// calls share one.
    fn shared_transactions(&self) -> Option<bool> {
        None
    }

    /// Sets the time from which on the ledger remembers.
    fn remember_since(&self, at: SystemTime) {
        let secs = at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let is_postgres = self.shared_transactions().is_some();
        let at = if is_postgres { format!("to_timestamp({secs})") } else { secs.to_string() };
        self.sql(&format!("UPDATE onedrop_ledger SET remembers_since = {at}"));
    }

    /// Takes the schema away, so that connections of before find nothing; false where that cannot
    /// be.
    fn forget_schema(&self) -> bool {
        self.sql(
            "DROP TABLE onedrop_job_run; DROP TABLE onedrop_job;
             DROP VIEW IF EXISTS onedrop_assert_lock; DROP TABLE onedrop_lock_lease;
             DROP TABLE onedrop_lock_waiter;
             DROP TABLE onedrop_lock;
             DROP TABLE onedrop_kept; DROP TABLE onedrop_proof; DROP VIEW onedrop_attempt_text;
             DROP TABLE onedrop_attempt;
             DROP TABLE onedrop_unsettled; DROP TABLE onedrop_copy; DROP TABLE onedrop_raw;
             DROP VIEW onedrop_part; DROP VIEW onedrop_address; DROP VIEW onedrop_message_text;
             DROP TABLE onedrop_message; DROP TABLE onedrop_host; DROP TABLE onedrop_ledger;
             DROP TABLE onedrop_schema;",
        )
    }

    /// A query that answers `account` for `address` and nothing for others.
    fn account_query(&self, address: &str, account: &str) -> String {
        format!("SELECT '{account}' WHERE $1 = '{address}'")
    }

    /// SQL that joins texts.
    fn joined(&self, texts: &[&str]) -> String {
        texts.join(" || ")
    }
}

/// A pool of `used` connections.
pub fn limits(used: usize) -> Limits {
    Limits { used, per_key: used, kept: used, idle: Duration::from_secs(60) }
}

/// A handle, as one process or one server has it, and short forms of its calls.
#[derive(Clone)]
pub struct Host(pub Arc<dyn AnyLedger>);

impl Host {
    pub fn of(rig: &dyn Rig) -> Host {
        Host(rig.ledger())
    }

    pub fn try_record(
        &self,
        mail: &Message,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        self.try_record_by(mail, &attempt("mx1"), destinations, terms)
    }

    pub fn try_record_by(
        &self,
        mail: &Message,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError> {
        let facts = mail.facts();
        let size_bytes = mail.own_copy().len() as u64;
        let entry = Entry { size_bytes, ..entry(mail.identity(), &facts) };
        self.0.record(&entry, attempt, destinations, terms, soon())
    }

    pub fn record(&self, mail: &Message, destinations: &[Destination]) -> Recorded {
        self.try_record(mail, destinations, LEASE).expect("record")
    }

    pub fn record_identity(&self, identity: &Identity, facts: &Facts) -> Recorded {
        self.record_entry(&entry(identity, facts), &attempt("mx1"), &[], LEASE)
    }

    pub fn record_entry(
        &self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Recorded {
        self.0.record(entry, attempt, destinations, terms, soon()).expect("record")
    }

    /// Records for one destination and expects the claim.
    pub fn claim(&self, mail: &Message, destination: &Destination) -> Claim {
        claimed(&self.claim_state(mail, destination))
    }

    pub fn claim_state(&self, mail: &Message, destination: &Destination) -> CopyState {
        self.record(mail, std::slice::from_ref(destination)).copies.remove(0)
    }

    pub fn claim_again(
        &self,
        message: MessageKey,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Vec<CopyState> {
        self.0.claim(&message, destinations, owner, terms, soon()).expect("claim")
    }

    pub fn try_turn(&self, claim: &Claim, key: &Hash) -> Result<Taken<'_>, LedgerError> {
        self.0.take_turn(claim, key, soon()).map(Taken::from)
    }

    pub fn turn(&self, claim: &Claim, key: &Hash) -> Taken<'_> {
        self.try_turn(claim, key).expect("a turn")
    }

    /// A server may take a moment to see that a client is gone, and to free what it held.
    pub fn turn_when_free(&self, claim: &Claim, key: &Hash) -> Taken<'_> {
        let begun = Instant::now();
        loop {
            match self.try_turn(claim, key) {
                Err(LedgerError::Contended) if begun.elapsed() < Duration::from_secs(10) => {
                    thread::sleep(Duration::from_millis(5));
                }
                turn => return turn.expect("a turn"),
            }
        }
    }

    pub fn confirm(&self, claim: &Claim, receipt: &Receipt) -> Confirmed {
        self.confirm_with(claim, receipt, CopyFacts::default(), None)
    }

    pub fn confirm_with(
        &self,
        claim: &Claim,
        receipt: &Receipt,
        facts: CopyFacts,
        end: Option<(AttemptKey, &AttemptEnd)>,
    ) -> Confirmed {
        let one = ToConfirm { claim: *claim, receipt, facts, end, may_be_lost: false };
        self.0.confirm(&one, soon()).expect("confirm")
    }

    pub fn release(&self, claims: &[Claim]) {
        self.0.release(claims, soon()).expect("release");
    }

    pub fn keep(&self, message: MessageKey, bytes: &[u8], why: &str) -> bool {
        self.0.keep(&message, bytes, why, soon()).expect("keep")
    }

    pub fn kept(&self, message: MessageKey) -> Option<String> {
        self.0.kept(&message, soon()).expect("kept")
    }

    pub fn kept_bytes(&self, message: MessageKey) -> Option<Vec<u8>> {
        self.0.kept_bytes(message.number, soon()).expect("kept bytes")
    }

    pub fn keep_until_due(
        &self,
        message: MessageKey,
        destination: &Destination,
        bytes: &[u8],
        after: Duration,
    ) -> Due {
        let due = self.0.keep_until_due(&message, destination, (bytes, "later"), after, soon());
        due.expect("kept until due")
    }

    /// Leases a copy as `onedrop settle` does.
    pub fn claim_due(&self, message: MessageKey, destination: &Destination) -> CopyState {
        let terms = LeaseTerms { due: true, ..LEASE };
        let wanted = std::slice::from_ref(destination);
        self.claim_again(message, wanted, &attempt("settle"), terms).remove(0)
    }

    /// What is due and kept, and then what is watched.
    pub fn to_settle(&self) -> Vec<CopyOnRecord> {
        [self.due(), self.watched()].concat()
    }

    pub fn due(&self) -> Vec<CopyOnRecord> {
        self.0.copies_to_settle(false, None, 100, soon()).expect("copies to settle")
    }

    pub fn watched(&self) -> Vec<CopyOnRecord> {
        self.0.copies_to_settle(true, None, 100, soon()).expect("watched copies")
    }

    pub fn look_again(&self, copy: &CopyOnRecord, after: Option<Duration>) {
        self.0.look_again(copy, after, soon()).expect("a time");
    }

    pub fn leave_to_sender(&self, claim: &Claim, was: Option<&Receipt>, is: &Receipt) -> bool {
        self.0.leave_to_sender(claim, was, is, soon()).expect("left to the sender")
    }

    pub fn has_namesake(&self, copy: &CopyOnRecord) -> bool {
        self.0.has_namesake(copy, soon()).expect("an answer")
    }

    /// Ends the attempt that [`Host::record`] put on record.
    pub fn finish(&self, mail: &Message, attempt: AttemptKey, end: &AttemptEnd) {
        let own = Some((attempt, &self::attempt("mx1"), end));
        self.0.finish(mail.identity(), own, &[], soon()).expect("finish");
    }

    /// Puts attempts on record that recorded nothing.
    pub fn note(&self, mail: &Message, ended: &[(Attempt, AttemptEnd)]) {
        self.0.finish(mail.identity(), None, ended, soon()).expect("finish");
    }

    pub fn account(&self, query: &str, asked: &Asked) -> Result<Option<String>, LedgerError> {
        Ok(self.home(query, asked)?.map(|home| home.account))
    }

    pub fn home(&self, query: &str, asked: &Asked) -> Result<Option<Home>, LedgerError> {
        self.0.account_by_query(query, asked, soon())
    }

    pub fn is_proven(&self, way: &Way) -> bool {
        self.0.is_proven(way, soon()).expect("an answer")
    }

    /// In the order of the alphabet.
    pub fn proven_forms(&self, server: &str, login_user: &str) -> Vec<String> {
        let mut forms = self.0.proven_forms(server, login_user, soon()).expect("an answer");
        forms.sort();
        forms
    }

    pub fn note_proof(&self, way: &Way, holds: bool, host: &str) {
        self.0.note_proof(way, holds, host, soon()).expect("a record");
    }

    pub fn latest(&self, limit: u32) -> Vec<(Destination, Receipt)> {
        self.0.latest_copies(limit, soon()).expect("the latest")
    }

    pub fn has_placed_copy(&self, account: &str) -> bool {
        self.0.has_placed_copy(account, soon()).expect("an answer")
    }

    pub fn account_reached(&self, addresses: &[&str]) -> Option<String> {
        self.0.account_reached(addresses, soon()).expect("an answer")
    }

    /// All copies to verify, those of an account in pages of `limit`.
    pub fn copies_by(&self, window: &Window, limit: u32) -> Vec<CopyOnRecord> {
        let (mut copies, mut account) = (Vec::new(), None::<String>);
        loop {
            let accounts = self.0.accounts_to_verify(window, account.as_deref(), limit, soon());
            let accounts = accounts.expect("accounts to verify");
            assert!(accounts.len() <= limit as usize);
            let Some(last) = accounts.last() else { return copies };
            account = Some(last.clone());
            copies
                .extend(accounts.iter().flat_map(|account| self.copies_of(window, account, limit)));
        }
    }

    pub fn copies_of(&self, window: &Window, account: &str, limit: u32) -> Vec<CopyOnRecord> {
        let (mut copies, mut last) = (Vec::new(), None::<CopyOnRecord>);
        loop {
            let page = self.0.copies_to_verify(window, account, last.as_ref(), limit, soon());
            let page = page.expect("copies to verify");
            assert!(page.len() <= limit as usize);
            let Some(end) = page.last() else { return copies };
            last = Some(end.clone());
            copies.extend(page);
        }
    }

    pub fn copies(&self, window: &Window) -> Vec<CopyOnRecord> {
        self.copies_by(window, 100)
    }

    pub fn settle(&self, copy: &CopyOnRecord, receipt: &Receipt) -> bool {
        self.0.settle(copy, receipt, soon()).expect("settle")
    }

    pub fn traces(&self, filter: &TraceFilter<'_>, limit: u32) -> Vec<Trace> {
        self.0.trace(filter, limit, soon()).expect("trace")
    }

    pub fn trace(&self, wanted: &str) -> Vec<Trace> {
        self.traces(&TraceFilter::of(wanted), 10)
    }

    pub fn trace_one(&self, wanted: &str) -> Trace {
        let mut traces = self.trace(wanted);
        assert_eq!(traces.len(), 1, "{wanted:?} names one message: {traces:#?}");
        traces.remove(0)
    }

    pub fn schema_version(&self) -> i64 {
        self.0.schema_version(soon()).expect("a version").found
    }

    pub fn migrate(&self) -> Result<Vec<String>, LedgerError> {
        self.0.migrate(soon())
    }
}

/// A turn that was taken. One that is ours is open until this is dropped.
pub struct Taken<'a> {
    state: TurnState,
    turn: Option<Box<dyn OpenTurn + 'a>>,
}

pub const OURS: TurnState = TurnState::Ours { in_doubt: false };
pub const OURS_IN_DOUBT: TurnState = TurnState::Ours { in_doubt: true };

impl<'a> From<Turn<'a>> for Taken<'a> {
    fn from(turn: Turn<'a>) -> Taken<'a> {
        match turn {
            Turn::Ours { in_doubt, turn } => {
                Taken { state: TurnState::Ours { in_doubt }, turn: Some(turn) }
            }
            Turn::Placed(receipt) => Taken { state: TurnState::Placed(receipt), turn: None },
            Turn::EpochGone => Taken { state: TurnState::EpochGone, turn: None },
        }
    }
}

impl Taken<'_> {
    pub fn state(&self) -> &TurnState {
        &self.state
    }

    pub fn try_confirm(self, claim: &Claim, receipt: &Receipt) -> Result<Confirmed, LedgerError> {
        self.try_confirm_until(claim, receipt, soon())
    }

    pub fn try_confirm_until(
        self,
        claim: &Claim,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<Confirmed, LedgerError> {
        let facts = CopyFacts::default();
        let one = ToConfirm { claim: *claim, receipt, facts, end: None, may_be_lost: false };
        self.try_confirm_of(&one, until)
    }

    pub fn try_confirm_of(
        self,
        one: &ToConfirm<'_>,
        until: Instant,
    ) -> Result<Confirmed, LedgerError> {
        self.turn.expect("an open turn").confirm(one, until)
    }

    pub fn confirm(self, claim: &Claim, receipt: &Receipt) -> Confirmed {
        self.try_confirm(claim, receipt).expect("confirm")
    }
}

impl PartialEq<TurnState> for Taken<'_> {
    fn eq(&self, state: &TurnState) -> bool {
        self.state == *state
    }
}

impl std::fmt::Debug for Taken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

pub fn claimed(state: &CopyState) -> Claim {
    match state {
        CopyState::Claimed(claim) => *claim,
        other => panic!("expected a claim, got {other:?}"),
    }
}

pub fn copy_key(mail: &Message, destination: &Destination) -> Hash {
    mail.identity().copy_key(&destination.account, &destination.mailbox)
}

pub fn uid(uid: u32) -> Receipt {
    Receipt::uid(1_700_000_000, uid)
}

/// A message's entry, of one byte.
/// A message of now, as nearly all are.
pub fn entry<'a>(identity: &'a Identity, facts: &'a Facts) -> Entry<'a> {
    Entry {
        identity,
        facts,
        size_bytes: 1,
        raw: None,
        nul_runs: None,
        at: None,
        oldest: Some(SystemTime::now()),
        fields: None,
    }
}

pub const ALL: Window = Window { since: UNIX_EPOCH, all: true };

/// Texts that a stranger, an administrator or a broken program may send.
pub fn hostile_texts() -> Vec<String> {
    vec![
        "o'brien\"; DROP TABLE onedrop_copy; -- {$1} %s \\' \\".to_owned(),
        "Grüße 日本 🦀 \u{FFFD}\u{202E}".to_owned(),
        "line\r\nBcc: everyone\r\n".to_owned(),
        "nul\0inside".to_owned(),
        "\0".to_owned(),
        "\u{1}\u{7f}\u{80}\u{9f}\t".to_owned(),
        "x".repeat(100_000),
        "é".repeat(50_000),
        String::new(),
    ]
}
