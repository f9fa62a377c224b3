//! What a run is about: which deliveries, on which hosts, what goes wrong, and who else acts. All
//! of it follows from the seed.

use std::time::Duration;

use onedrop::store::memory::Filters;

use crate::chance::Chance;

pub const LEASE: Duration = Duration::from_secs(90);
pub const DEADLINE: Duration = Duration::from_secs(60);
pub const ANSWER: Duration = Duration::from_secs(20);
/// What is left of a lease when the last moment to decide to send last bytes has come, less a
/// little.
pub const SLACK: Duration = Duration::from_secs(48);

/// What a call may suffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process ends, before the call or after it.
    Crash,
    /// The process' session with the ledger ends, and with it what it holds there.
    LostSession,
    /// The call took effect, and its caller does not learn of it.
    LostAnswer,
    /// The call fails before it takes effect.
    Fails,
    /// The ledger is out of the process' reach for a while.
    Outage,
    /// The process stands still.
    Freeze,
    /// Its machine is suspended.
    Suspend,
    /// The server takes its time over an append, or never executes it.
    LateAppend,
}

pub const FAULTS: [Fault; 8] = [
    Fault::Crash,
    Fault::LostSession,
    Fault::LostAnswer,
    Fault::Fails,
    Fault::Outage,
    Fault::Freeze,
    Fault::Suspend,
    Fault::LateAppend,
];

/// What the owner of a mailbox does with the newest message in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Reads it, for which a Maildir's file is renamed.
    Reads,
    /// Moves it elsewhere, or deletes it at once.
    Takes,
    /// Marks it as deleted.
    Marks,
}

/// A message in a queue of Postfix, for recipients by their numbers.
#[derive(Debug, Clone)]
pub struct Queued {
    pub recipients: Vec<usize>,
    pub at: Duration,
}

/// A rule that is taken away, to see that it is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    Look,
    Lease,
    ClockCheck,
    Epoch,
    Undo,
    CopyLock,
    /// Each of which stands in for the other.
    EpochAndCopyLock,
    /// In a file, leases count by the wall clock.
    BootClock,
    /// In a file, leases end with the boot.
    LeaseAfterRestart,
    /// That a copy goes elsewhere is not put on record.
    Elsewhere,
    /// A copy that goes to INBOX does not claim INBOX's row.
    InboxRow,
    /// A doubt: what may have been written counts as not written.
    Doubt,
    /// The look takes an equal message for the copy that was handed over.
    Value,
    /// What is found of a copy that was handed over is the end.
    Guard,
}

/// Which runs to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What the promise covers.
    Inside,
    /// The same on one host, with its ledger in a file: its wall clock steps by hours, and it
    /// restarts.
    OneHost,
    /// Processes that are frozen between their last check and their write for longer than a lease,
    /// servers that append even later, clocks that step further.
    Outside,
    /// Inside, for one account: its recipients mean mailboxes that their owner makes and deletes.
    Filed,
    /// Recipients' copies are handed over to the server's own delivery: inside, and with the guard
    /// outside as well.
    Handed,
    /// Outside, by an IMAP server, and above all processes are frozen: what epoch, undo and the
    /// copy's lock are for.
    Frozen,
}

impl Kind {
    pub fn is_inside(self) -> bool {
        matches!(self, Kind::Inside | Kind::OneHost | Kind::Filed | Kind::Handed)
    }
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub kind: Kind,
    /// Every order of the calls is gone through: no call takes time, and each may have the fault.
    pub is_listed: bool,
    pub without: Option<Without>,
    /// Like Maildirs, else like an IMAP server.
    pub maildir: bool,
    pub hosts: u64,
    pub recipients: usize,
    /// The author has a mailbox Sent, to which all deliveries add one copy.
    pub has_sent: bool,
    /// The mailbox that each recipient means, all of one account; empty: each has an INBOX.
    pub filed: Vec<&'static str>,
    /// When that account's owner makes one of them (or else deletes it, with what is in it).
    pub makes: Vec<(Duration, &'static str, bool)>,
    /// What the server's own delivery does with what is handed over to it.
    pub server: Option<Filters>,
    pub queued: Vec<Queued>,
    /// `sent.after`: what is longer than zero leaves the author's copy to `onedrop settle`.
    pub sent_after: Duration,
    /// When the author's mail program saves its own copy.
    pub saves: Option<Duration>,
    /// When `onedrop settle` runs.
    pub settles: Vec<Duration>,
    /// A delivery before these left all copies in doubt.
    pub begins_in_doubt: bool,
    /// The store begins before the record.
    pub begins_early: bool,
    /// Deliveries come through the door that the command and the server share.
    pub has_door: bool,
    /// A call that came to nothing, or whose answer was lost, is made again, as by the ledgers that
    /// keep sessions.
    pub calls_again: bool,
    /// `lock.wait_secs`
    pub wait: Duration,
    /// The longest that a call usually takes, in microseconds.
    pub latency: u64,
    /// How many faults there are at most, which, and how many calls in a hundred have one.
    pub faults: usize,
    pub kinds: Vec<Fault>,
    pub often: u64,
    /// How long an append may take effect after its check of the clock, at most.
    pub slack: Duration,
    /// When the ledger's clock steps, and by how many seconds.
    pub steps: Vec<(Duration, i64)>,
    /// When the host restarts.
    pub restarts: Vec<Duration>,
    /// When the ledger's server crashes.
    pub ledger_crashes: Vec<Duration>,
    /// When an owner acts in which mailbox: a recipient's by its number, then the author's.
    pub acts: Vec<(Duration, usize, Act)>,
    /// When `onedrop verify` runs, and whether it repairs.
    pub verifies: Vec<(Duration, bool)>,
}

impl Plan {
    pub fn new(kind: Kind, without: Option<Without>, chance: &mut Chance) -> Plan {
        let secs = |chance: &mut Chance, most| Duration::from_secs(chance.between(0, most));
        // Above all processes are frozen.
        let freezes = kind == Kind::Frozen || kind == Kind::Filed && chance.percent(40);
        let maildir = !freezes && kind != Kind::Handed && chance.percent(30);
        let recipients = if kind == Kind::Frozen { 1 } else { 1 + chance.pick(3) };
        let mut queued = Vec::new();
        // One message for all, each alone, or some twice: by a backup host, or an alias.
        let together = chance.percent(40);
        let spread = [0, 2, 60, 200][if freezes { 3 } else { chance.pick(4) }];
        for recipient in 0..recipients {
            let at = secs(chance, spread + 1);
            match queued.first_mut() {
                Some(Queued { recipients, .. }) if together => recipients.push(recipient),
                _ => queued.push(Queued { recipients: vec![recipient], at }),
            }
        }
        let twice = chance.pick(4) + if freezes { 2 } else { 0 };
        for _ in 0..twice {
            let recipients = vec![chance.pick(recipients)];
            queued.push(Queued { recipients, at: secs(chance, spread + 1) });
        }
        let mut kinds = match freezes {
            true => vec![Fault::Crash, Fault::LostSession, Fault::Freeze, Fault::LostAnswer],
            false => FAULTS.to_vec(),
        };
        // Fewer kinds at a time find more than all of them together.
        kinds.retain(|_| freezes || chance.percent(60));
        let (mut steps, mut restarts) = (Vec::new(), Vec::new());
        let mut slack = SLACK;
        match kind {
            Kind::Inside if chance.percent(15) => {
                let by = chance.between(1, 40);
                let ahead = chance.percent(60);
                steps.push((secs(chance, 120), if ahead { by as i64 } else { -(by as i64) }));
                if ahead {
                    slack -= Duration::from_secs(by);
                }
            }
            Kind::Outside => {
                slack = LEASE * 4;
                if chance.percent(20) {
                    let by = chance.between(1, 300) as i64;
                    steps.push((secs(chance, 120), if chance.percent(60) { by } else { -by }));
                }
            }
            Kind::OneHost => {
                for _ in 0..chance.pick(3) {
                    let by = chance.between(1, 7200) as i64;
                    steps.push((secs(chance, 120), if chance.percent(60) { by } else { -by }));
                }
                restarts.extend((0..chance.pick(3)).map(|_| secs(chance, 200)));
            }
            Kind::Frozen => slack = LEASE * 4,
            Kind::Inside | Kind::Filed | Kind::Handed => {}
        }
        let server = (kind == Kind::Handed).then(|| Filters {
            files_into: [Some("Filtered"), Some("Filtered"), Some("INBOX"), None][chance.pick(4)],
            then_into: None,
            dies: false,
            strips: chance.percent(20),
            has_guard: chance.percent(50),
        });
        // What was filed is found, and what had ended is dropped.
        let server = server.map(|server| match server.files_into {
            Some("Filtered") if server.has_guard && !server.strips => {
                Filters { then_into: Some("INBOX"), dies: chance.percent(50), ..server }
            }
            _ => server,
        });
        if server.is_some_and(|server| server.has_guard) {
            slack = LEASE * 4;
        }
        // What no look finds is handed over again after each fault.
        let one_fault = server.is_some_and(|server| !server.has_guard && !server.is_found());
        let (mut filed, mut makes) = (Vec::new(), Vec::new());
        if kind == Kind::Filed {
            let meant: &[&str] = [
                &["lists"][..],
                &["INBOX", "lists"],
                &["lists", "other"],
                &["INBOX", "lists", "other"],
            ][chance.pick(4)];
            filed.extend((0..recipients).map(|_| meant[chance.pick(meant.len())]));
            for mailbox in ["lists", "other"] {
                if chance.percent(40) {
                    makes.push((Duration::ZERO, mailbox, true));
                }
                for _ in 0..chance.pick(4) {
                    let most = [spread + 10, 700][chance.pick(2)];
                    makes.push((secs(chance, most), mailbox, chance.percent(60)));
                }
            }
        }
        let mut acts = Vec::new();
        if !matches!(kind, Kind::Frozen | Kind::Filed | Kind::Handed) && chance.percent(25) {
            for _ in 0..=chance.pick(2) {
                let mailbox = chance.pick(recipients + 1);
                let act = [Act::Reads, Act::Takes, Act::Marks][chance.pick(3)];
                acts.push((secs(chance, 600), mailbox, act));
            }
        }
        let mut verifies = Vec::new();
        if kind != Kind::Frozen && chance.percent(30) {
            for _ in 0..=chance.pick(2) {
                verifies.push((secs(chance, 700), chance.percent(80)));
            }
        }
        let mut ledger_crashes = Vec::new();
        if kind != Kind::OneHost && chance.percent(25) {
            ledger_crashes.extend((0..=chance.pick(3)).map(|_| secs(chance, 300)));
        }
        let calls_again = chance.percent(50);
        let has_sent = kind != Kind::Frozen && chance.percent(60);
        let is_due = has_sent && chance.percent(40);
        let settles = if is_due { chance.pick(4) } else { 0 };
        Plan {
            kind,
            is_listed: false,
            without,
            maildir,
            hosts: if kind == Kind::OneHost { 1 } else { 2 + chance.pick(3) as u64 },
            recipients,
            has_sent,
            filed,
            makes,
            server,
            queued,
            sent_after: Duration::from_secs(if is_due { 1 + chance.between(0, 600) } else { 0 }),
            saves: (is_due && chance.percent(60)).then(|| secs(chance, 1500)),
            settles: (0..settles).map(|_| secs(chance, 1500)).collect(),
            begins_in_doubt: kind == Kind::Frozen && chance.percent(50),
            begins_early: chance.percent(50),
            has_door: without.is_none()
                && !calls_again
                && !matches!(kind, Kind::Filed | Kind::Handed),
            calls_again,
            wait: Duration::from_secs([0, 0, 5][chance.pick(3)]),
            latency: [2_000, 200_000, 5_000_000][chance.pick(3)],
            faults: match one_fault {
                true => 1,
                false => chance.pick(7) + if freezes { 3 } else { 0 },
            },
            kinds,
            often: if freezes { 20 } else { [3, 10, 30][chance.pick(3)] },
            slack,
            steps,
            restarts,
            ledger_crashes,
            acts,
            verifies,
        }
    }

    /// Two processes that deliver to one mailbox at once, and one fault.
    pub fn listed(maildir: bool, begins_in_doubt: bool) -> Plan {
        let queued = Queued { recipients: vec![0], at: Duration::ZERO };
        Plan {
            kind: Kind::Inside,
            is_listed: true,
            without: None,
            maildir,
            hosts: 2,
            recipients: 1,
            has_sent: false,
            filed: Vec::new(),
            makes: Vec::new(),
            server: None,
            queued: vec![queued.clone(), queued],
            sent_after: Duration::ZERO,
            saves: None,
            settles: Vec::new(),
            begins_in_doubt,
            begins_early: maildir,
            has_door: false,
            calls_again: false,
            wait: Duration::ZERO,
            latency: 0,
            faults: 1,
            kinds: FAULTS.to_vec(),
            often: 100,
            slack: SLACK,
            steps: Vec::new(),
            restarts: Vec::new(),
            ledger_crashes: Vec::new(),
            acts: Vec::new(),
            verifies: Vec::new(),
        }
    }
}
