//! The model's state: row, lock and mailbox of each copy, delivering processes, verifiers, and
//! calls that the ledger may still execute. It holds only what can still matter: time is the rest
//! of leases and waits, an epoch or random value is "the row's" or "gone", and UIDs are renumbered.
//! So time is unbounded in the model, and only the number of tries is bounded.

/// Ticks of the deadline in which last bytes may be sent. They count from the record; the real
/// deadline begins earlier, with the process.
pub const DEADLINE: u8 = 1;
/// How long a lease lasts from the claim.
pub const LEASE: u8 = 3;
/// The deadline and the lease of a process that is configured with longer ones.
pub const LONG_DEADLINE: u8 = 3;
pub const LONG_LEASE: u8 = 5;
/// Ticks to wait for the answer to an append.
pub const ANSWER: u8 = 1;

/// An epoch or random value that is no longer the row's; also the number of a row that is missing.
pub const GONE: u8 = 0;
/// The receipt of a copy whose UID the server did not return (no UIDPLUS).
pub const UNNAMED: u8 = 0;

/// The whole state between two steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub copies: Vec<Copy>,
    pub processes: Vec<Process>,
    pub verifiers: Vec<Verifier>,
    /// Calls in transit whose callers have lost their sessions.
    pub calls: Vec<Call>,
    /// Actions that the mailboxes' owner may still take.
    pub owner: u8,
    /// How often rows may still be forgotten.
    pub forgets: u8,
    /// How often the host may still restart.
    pub boots: u8,
    /// A process was unable to read which boot it is.
    pub unread: bool,
    /// The ledger's server has lost something in a crash.
    pub lost: bool,
    /// No more faults: Postfix tries once more, one process at a time.
    pub calm: bool,
}

/// One copy: its row in the ledger, its lock, its mailbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Copy {
    /// What claims name the row by: its random value, or its number. [`GONE`]: there is no row.
    pub row: u8,
    pub receipt: Option<u8>,
    /// The running attempt that recorded a receipt without a UID.
    pub placed_by: Option<u8>,
    pub epoch: u8,
    /// Ticks until the lease has run out.
    pub leased: u8,
    /// How long it was to last, where that differs.
    pub length: u8,
    /// The running attempt that has the lease or had the last one.
    pub holder: Option<u8>,
    pub in_doubt: bool,
    pub prior_doubt: bool,
    /// The second look has come.
    pub settled: bool,
    /// Ticks since the receipt, up to a lease.
    pub since: u8,
    /// What a crash of the ledger's server undoes.
    pub unsynced: Option<Unsynced>,
    /// The ledger's lock, which lives as long as a session.
    pub lock: Option<u8>,
    /// The Maildir's lock, which lives as long as a process.
    pub guard: Option<u8>,
    /// In the order of UIDs.
    pub mailbox: Vec<Stored>,
    pub on_the_way: Vec<Append>,
    /// What a look back has come to, in the memory of a server that all processes share.
    pub looked: Option<LookedBack>,
    /// A shared copy's bytes are in the ledger until its receipt is.
    pub kept: bool,
    /// A process has ended as delivered because they are.
    pub left: bool,
    /// The mailbox's owner has moved or deleted a copy.
    pub taken: bool,
    /// Verify has removed a copy, and none was left.
    pub bared: bool,
}

/// What has been committed of a copy, and is not on the ledger's disk yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unsynced {
    /// Its row, with all that is in it.
    Row,
    /// Its receipt; ticks until the lease has run out that is there again without it.
    Receipt { leased: u8 },
}

/// How far a look back has read a mailbox, and what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LookedBack {
    /// The highest UID that was given when it began.
    pub above: u8,
    pub found: Option<u8>,
}

/// A copy in its mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stored {
    /// The UID, or for a Maildir the one name that the copy has.
    pub name: u8,
    /// A reader has moved it from `new/` to `cur/`: its name is free again.
    pub moved: bool,
    /// The one that set its `\Deleted`.
    pub mark: Option<Mark>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    Owner,
    Ours,
}

/// An append whose last bytes were sent and that the server has not executed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Append {
    /// The process that waits for the answer; `None` if the connection is lost.
    pub sender: Option<u8>,
    /// Ticks within which the server executes it.
    pub within: u8,
}

/// A call whose caller has lost its session; it is executed later or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// A record, or a claim of those copies whose bits are set. `lives`: the attempt goes on.
    Claim {
        process: u8,
        copies: u8,
        lives: bool,
    },
    Confirm {
        process: u8,
        lives: bool,
        copy: u8,
        claim: Claim,
        receipt: u8,
        found: bool,
    },
}

/// The right to place a copy, as [`Copy`]'s row was when it was claimed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    pub row: u8,
    pub epoch: u8,
    pub in_doubt: bool,
}

/// One recipient's process, over all its tries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Process {
    pub at: At,
    /// Which of its copies is placed now.
    pub place: u8,
    pub steps: [Step; 2],
    /// Ticks since the record.
    pub age: u8,
    /// Ticks since the check of the clock; from the last bytes on, since these.
    pub waited: u8,
    pub session: bool,
    pub patience: u8,
    pub tries: u8,
    /// The copy as the store named it, or as the look found it.
    pub receipt: Option<u8>,
}

/// The next step of a process, named as in `crates/core/src/deliver/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// Not running: not yet, or ended with 75.
    Record,
    /// Has begun the append of its only copy, and holds the store's lock of it.
    Begun,
    /// The answer to the record was lost with the session: the same call in a new session.
    RecordAgain,
    TakeTurn,
    Look,
    Check,
    LastBytes,
    Answer,
    /// `found`: by the look.
    Confirm {
        found: bool,
    },
    /// The store refused the copy, or did not answer (`in_doubt`): the ledger keeps its bytes.
    Keep {
        in_doubt: bool,
    },
    /// Marks its own late copy as deleted and expunges it (UID STORE, UID EXPUNGE).
    Undo,
    Expunge,
    Wait,
    /// Like `RecordAgain`.
    WaitAgain,
    Delivered,
}

/// Where one copy stands in a try, as `deliver::Step`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    #[default]
    Busy,
    Claimed(Claim),
    Placed,
    /// A shared copy that is not placed but whose bytes are kept: done, for the recipient.
    Kept,
    Failed,
}

/// One run of `onedrop verify --repair` after the other, over the first copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verifier {
    pub at: Verify,
    pub runs: u8,
    /// The row as read, or as leased to verify.
    pub claim: Claim,
    pub receipt: Option<u8>,
    pub may_be_double: bool,
    pub needs_a_look: bool,
    /// The receipt is older than a lease.
    pub is_old: bool,
    /// The look found a keeper and no copy that may reappear.
    pub is_seen: bool,
    pub keeper: Option<u8>,
    pub doubles: Vec<u8>,
}

/// The next step of verify, named as in `crates/core/src/verify.rs` and `Store::remove_double`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verify {
    /// Reads the row.
    #[default]
    Read,
    Find,
    Claim,
    TakeTurn,
    FindAgain,
    Confirm,
    /// Looks at the double.
    Stands,
    /// Marks it.
    Mark,
    /// Looks at the keeper again.
    Keeper,
    /// Expunges the double or removes its mark.
    Expunge,
    PutBack,
    Settle,
}

impl Process {
    pub fn new(tries: u8) -> Process {
        Process {
            at: At::Record,
            place: 0,
            steps: [Step::Busy; 2],
            age: 0,
            waited: 0,
            session: true,
            patience: 0,
            tries,
            receipt: None,
        }
    }

    pub fn is_running(&self) -> bool {
        !matches!(self.at, At::Record | At::Delivered)
    }
}

impl Verifier {
    pub fn new(runs: u8) -> Verifier {
        Verifier {
            at: Verify::Read,
            runs,
            claim: Claim::default(),
            receipt: None,
            may_be_double: false,
            needs_a_look: false,
            is_old: false,
            is_seen: false,
            keeper: None,
            doubles: Vec::new(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.at != Verify::Read
    }

    fn names(&mut self) -> impl Iterator<Item = &mut u8> {
        self.doubles.iter_mut().chain(&mut self.keeper).chain(&mut self.receipt)
    }
}

impl Copy {
    pub fn stands(&self, name: u8) -> bool {
        self.mailbox.iter().any(|stored| stored.name == name && stored.mark.is_none())
    }

    pub fn mark(&mut self, name: u8, mark: Option<Mark>) {
        self.mailbox
            .iter_mut()
            .filter(|stored| stored.name == name)
            .for_each(|stored| stored.mark = mark);
    }

    /// UID EXPUNGE: what is marked, and nothing else.
    pub fn expunge(&mut self, name: u8) {
        self.mailbox.retain(|stored| stored.name != name || stored.mark.is_none());
    }
}

impl State {
    /// No process runs and nothing is in transit.
    pub fn is_quiet(&self) -> bool {
        self.copies.iter().all(|copy| copy.on_the_way.is_empty())
            && self.calls.is_empty()
            && !self.processes.iter().any(Process::is_running)
            && !self.verifiers.iter().any(Verifier::is_running)
    }

    pub fn is_delivered(&self) -> bool {
        self.processes.iter().all(|process| process.at == At::Delivered)
    }

    /// The next UID of a copy's mailbox: none is ever given twice. `jobs` are each process's
    /// copies.
    pub fn next_name(&mut self, number: u8, jobs: &[Vec<u8>]) -> u8 {
        self.names(number, jobs).into_iter().map(|name| *name).max().unwrap_or(UNNAMED) + 1
    }

    /// Wherever a UID of that mailbox is known.
    fn names(&mut self, number: u8, jobs: &[Vec<u8>]) -> Vec<&mut u8> {
        let copy = &mut self.copies[usize::from(number)];
        let mut names: Vec<&mut u8> =
            copy.mailbox.iter_mut().map(|stored| &mut stored.name).collect();
        names.extend(&mut copy.receipt);
        if let Some(looked) = &mut copy.looked {
            names.push(&mut looked.above);
            names.extend(&mut looked.found);
        }
        for (process, job) in self.processes.iter_mut().zip(jobs) {
            if job.get(usize::from(process.place)) == Some(&number) {
                names.extend(&mut process.receipt);
            }
        }
        if number == 0 {
            names.extend(self.verifiers.iter_mut().flat_map(Verifier::names));
        }
        names.extend(self.calls.iter_mut().filter_map(|call| match call {
            Call::Confirm { copy, receipt, .. } if *copy == number => Some(receipt),
            _ => None,
        }));
        names
    }

    /// Every claim of that copy.
    pub fn claims(&mut self, number: u8, jobs: &[Vec<u8>]) -> Vec<&mut Claim> {
        let mut claims = Vec::new();
        for (process, job) in self.processes.iter_mut().zip(jobs) {
            for (place, step) in process.steps.iter_mut().enumerate() {
                match step {
                    Step::Claimed(claim) if job.get(place) == Some(&number) => claims.push(claim),
                    _ => {}
                }
            }
        }
        if number == 0 {
            claims.extend(self.verifiers.iter_mut().map(|verifier| &mut verifier.claim));
        }
        claims.extend(self.calls.iter_mut().filter_map(|call| match call {
            Call::Confirm { copy, claim, .. } if *copy == number => Some(claim),
            _ => None,
        }));
        claims
    }

    /// The same state without what no longer matters.
    pub fn tidy(&mut self, jobs: &[Vec<u8>]) {
        for number in 0..self.copies.len() as u8 {
            let copy = &mut self.copies[usize::from(number)];
            // Epochs are compared with the row's only.
            let (was, epoch) = (copy.epoch, copy.epoch.min(2));
            copy.epoch = epoch;
            if copy.receipt.is_some() {
                (copy.leased, copy.in_doubt, copy.holder) = (0, false, None);
            }
            copy.length = if copy.leased > 0 { copy.length } else { 0 };
            copy.on_the_way.sort_unstable();
            for claim in self.claims(number, jobs) {
                claim.epoch = if claim.epoch == was { epoch } else { GONE };
            }
            // UIDs: their order is what the look sees of them.
            let names = self.names(number, jobs);
            let mut order: Vec<u8> =
                names.iter().map(|name| **name).filter(|name| *name != UNNAMED).collect();
            order.sort_unstable();
            order.dedup();
            for name in names {
                if *name != UNNAMED {
                    *name = order.binary_search(name).map_or(UNNAMED, |index| index as u8 + 1);
                }
            }
        }
        self.calls.sort_unstable();
    }

    /// Processes with the same job are interchangeable: they are put in an order, and locks and
    /// appends follow them. Not for worlds in which calls or leases know their process.
    pub fn sort_processes(&mut self) {
        let mut order: Vec<u8> = (0..self.processes.len() as u8).collect();
        let rank = |index: &u8| {
            let p = &self.processes[usize::from(*index)];
            let waits =
                self.copies[0].on_the_way.iter().find(|append| append.sender == Some(*index));
            let locks =
                [self.copies[0].lock, self.copies[0].guard].map(|holder| holder == Some(*index));
            (
                p.at,
                p.steps,
                p.age,
                p.waited,
                p.session,
                p.patience,
                p.tries,
                p.receipt,
                waits.copied(),
                locks,
            )
        };
        order.sort_by_cached_key(rank);
        let place = |index: u8| order.iter().position(|old| *old == index).unwrap_or(0) as u8;
        for copy in &mut self.copies {
            copy.lock = copy.lock.map(place);
            copy.guard = copy.guard.map(place);
            for append in &mut copy.on_the_way {
                append.sender = append.sender.map(place);
            }
            copy.on_the_way.sort_unstable();
        }
        self.processes =
            order.iter().map(|index| self.processes[usize::from(*index)].clone()).collect();
    }
}
