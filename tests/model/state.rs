//! What the model's world consists of: rows, locks and mailboxes, one of each per copy, and the delivering processes.
//! Only what can still matter is kept: time is what is left of leases and waits, an epoch is "the row's" or "gone", and
//! UIDs are numbered anew. So time has no bound in the model, only the number of tries has.

/// The part of the deadline in which last bytes may be sent, in ticks. It runs from the record here; the real one begins
/// earlier, with the process, and so leaves more time.
pub const DEADLINE: u8 = 1;
/// How long a lease lasts from the claim.
pub const LEASE: u8 = 3;
/// How long the answer to an append is waited for.
pub const ANSWER: u8 = 1;

/// A claim whose row has been claimed by another since.
const GONE: u8 = 0;

/// Everything, between two steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub copies: Vec<Copy>,
    pub processes: Vec<Process>,
    /// The faults have ended: Postfix tries once more, one process at a time and nobody in its way.
    pub calm: bool,
}

/// One copy: its row in the ledger, its lock, its mailbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Copy {
    pub receipt: Option<u8>,
    pub epoch: u8,
    /// Ticks until the lease has run out.
    pub leased: u8,
    pub in_doubt: bool,
    pub prior_doubt: bool,
    /// The ledger's, which lives as long as a session.
    pub lock: Option<u8>,
    /// The store's, which lives as long as a process: a Maildir's.
    pub guard: Option<u8>,
    pub mailbox: Vec<Stored>,
    pub on_the_way: Vec<Append>,
}

/// A copy that stands in its mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stored {
    /// The UID, or for a Maildir the one name that the copy has.
    pub name: u8,
    /// A reader has moved it from `new/` to `cur/`: its name is free again.
    pub moved: bool,
}

/// An append whose last bytes are sent and which the server has not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Append {
    /// Who waits for the answer; nobody: the connection is gone.
    pub sender: Option<u8>,
    /// Ticks within which the server executes it.
    pub within: u8,
}

/// One recipient's process, over all its tries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Process {
    pub at: At,
    /// Which of its copies it is at.
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

/// What a process does next; the names are those in `src/deliver.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// Not running: not yet, or ended with 75.
    Record,
    /// Has begun the append of its only copy, and holds the store's lock of it.
    Begun,
    TakeTurn,
    Look,
    Check,
    LastBytes,
    Answer,
    /// `found`: by the look.
    Confirm {
        found: bool,
    },
    Undo,
    Wait,
    Delivered,
}

/// Where one copy stands in a try, as `deliver::Step`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    #[default]
    Busy,
    Claimed {
        epoch: u8,
        in_doubt: bool,
    },
    Placed,
    Failed,
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

impl Copy {
    /// The next UID: none is ever given twice.
    pub fn next_name(&self, others: impl Iterator<Item = u8>) -> u8 {
        let known = self.mailbox.iter().map(|stored| stored.name).chain(self.receipt).chain(others);
        known.max().unwrap_or(0) + 1
    }
}

impl State {
    /// Nobody runs and nothing is on its way.
    pub fn is_quiet(&self) -> bool {
        self.copies.iter().all(|copy| copy.on_the_way.is_empty()) && !self.processes.iter().any(Process::is_running)
    }

    pub fn is_delivered(&self) -> bool {
        self.processes.iter().all(|process| process.at == At::Delivered)
    }

    /// The same state with nothing in it that cannot matter any more. `jobs` are each process's copies.
    pub fn forget(&mut self, jobs: &[Vec<u8>]) {
        for (number, copy) in self.copies.iter_mut().enumerate() {
            let number = number as u8;
            // Epochs are compared with the row's only.
            let epoch = copy.epoch.min(2);
            let mut names: Vec<u8> = copy.mailbox.iter().map(|stored| stored.name).chain(copy.receipt).collect();
            for (process, job) in self.processes.iter_mut().zip(jobs) {
                for (place, step) in process.steps.iter_mut().enumerate() {
                    if let Step::Claimed { epoch: claimed, .. } = step
                        && job.get(place) == Some(&number)
                    {
                        *claimed = if *claimed == copy.epoch { epoch } else { GONE };
                    }
                }
                if job.get(usize::from(process.place)) == Some(&number) {
                    names.extend(process.receipt);
                }
            }
            copy.epoch = epoch;
            if copy.receipt.is_some() {
                (copy.leased, copy.in_doubt) = (0, false);
            }
            // UIDs: their order is what the look sees of them.
            names.sort_unstable();
            names.dedup();
            if names.last().is_some_and(|last| usize::from(*last) != names.len()) {
                let renamed = |name: u8| names.binary_search(&name).map_or(0, |index| index as u8 + 1);
                copy.mailbox.iter_mut().for_each(|stored| stored.name = renamed(stored.name));
                copy.receipt = copy.receipt.map(renamed);
                for (process, job) in self.processes.iter_mut().zip(jobs) {
                    if job.get(usize::from(process.place)) == Some(&number) {
                        process.receipt = process.receipt.map(renamed);
                    }
                }
            }
            copy.on_the_way.sort_unstable();
        }
    }

    /// Processes with the same job are interchangeable: they are put in an order, and locks and appends follow them.
    pub fn sort_processes(&mut self) {
        let mut order: Vec<u8> = (0..self.processes.len() as u8).collect();
        let rank = |index: &u8| {
            let p = &self.processes[usize::from(*index)];
            let waits = self.copies[0].on_the_way.iter().find(|append| append.sender == Some(*index));
            let locks = [self.copies[0].lock, self.copies[0].guard].map(|holder| holder == Some(*index));
            (p.at, p.steps, p.age, p.waited, p.session, p.patience, p.tries, p.receipt, waits.copied(), locks)
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
        self.processes = order.iter().map(|index| self.processes[usize::from(*index)].clone()).collect();
    }
}
