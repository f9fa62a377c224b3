//! What is under load: `onedrop lmtp`, Maildirs in memory, the ledger in Postgres.
//!
//! In memory, because ext4 without a journal takes ever longer to find an inode while files are
//! made and removed by the thousand: what slows down shall be Onedrop or its ledger.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onedrop::clock::SystemClock;
use onedrop::retention::{self, Ages};
use onedrop::service::ONE;

use super::mail::{DOMAIN, Letters, SENDER, accounts};
use crate::TempRoot;
use crate::disk::SmallDisk;
use crate::dovecot::MAIL_USER;
use crate::lmtp::{Launch, Lmtp};
use crate::postgres::Postgres;
use crate::site::run;

/// A server with some memory of its own. It looks often for what to vacuum, because days are
/// minutes here, and makes checkpoints often, so that each part of a run has its share of them.
const SETTINGS: &str = "shared_buffers = 256MB\nmax_wal_size = 4GB\ncheckpoint_timeout = 30s\n\
                        autovacuum_naptime = 1s\n";

pub struct World {
    // Declared first: ends before its folders go.
    pub lmtp: Lmtp,
    pub postgres: Postgres,
    pub letters: Letters,
    _disk: SmallDisk,
    root: TempRoot,
}

/// What the load came to.
#[derive(Default)]
pub struct Sent {
    /// The next message's number.
    next: AtomicU64,
    /// Messages that were accepted for all their recipients.
    pub accepted: AtomicU64,
    /// Replies that said "later".
    pub deferred: AtomicU64,
}

/// What the purges took out.
#[derive(Debug, Default, Clone, Copy)]
pub struct Purges {
    pub messages: u64,
    pub passed_by: u64,
}

impl World {
    pub fn start() -> World {
        let postgres = Postgres::start_with(SETTINGS);
        let root = TempRoot::new();
        let disk = SmallDisk::mount(&root.join("mail"), "4g", MAIL_USER);
        let folder = root.dir_for("etc", MAIL_USER, 0o755);
        let config = folder.join("onedrop.toml");
        let text = format!(
            "{}[store]\nurl = \"maildir://{}\"\n\
             [directory]\ndomains = [\"{DOMAIN}\"]\n[deliver]\ntrial = true\n",
            postgres.toml(),
            root.join("mail").display()
        );
        std::fs::write(&config, text).expect("a configuration");
        let migrated = run(&config, &["migrate"]);
        assert!(migrated.status.success(), "{migrated:?}");
        let lmtp = Launch::of(&config).start();
        World { lmtp, postgres, letters: Letters::new(), _disk: disk, root }
    }

    pub fn mail(&self) -> PathBuf {
        self.root.join("mail")
    }

    /// Sends messages one after the other over a connection of its own, until their number is
    /// `messages` or `is_over`; `tell` hears of each how long its answer took. What is deferred is
    /// sent again.
    pub fn send(
        &self,
        sent: &Sent,
        messages: u64,
        is_over: &AtomicBool,
        mut tell: impl FnMut(Duration),
    ) {
        let mut client = self.lmtp.client();
        while !is_over.load(Ordering::SeqCst) {
            let number = sent.next.fetch_add(1, Ordering::SeqCst);
            if number >= messages {
                break;
            }
            let letter = self.letters.letter(number);
            let to: Vec<String> =
                accounts(number).map(|account| format!("u{account}@{DOMAIN}")).collect();
            let mut to: Vec<&str> = to.iter().map(String::as_str).collect();
            while !to.is_empty() {
                let began = Instant::now();
                let replies = client.deliver(SENDER, &to, &letter).expect("replies");
                tell(began.elapsed());
                for reply in &replies {
                    assert!(reply.is_ok() || reply.code / 100 == 4, "{number}: {reply}");
                }
                let mut replies = replies.iter();
                to.retain(|_| replies.next().is_some_and(|reply| !reply.is_ok()));
                sent.deferred.fetch_add(to.len() as u64, Ordering::SeqCst);
            }
            sent.accepted.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One run of `onedrop purge`, which takes no days that are so short.
    pub fn purge(&self, memory: Duration) -> Purges {
        let ages = Ages { messages: memory, facts: memory, raw: memory, kept: memory };
        let ledger = self.postgres.ledger(ONE);
        let purged = retention::purge(ages, false, &ledger, &SystemClock).expect("a purge");
        Purges { messages: purged.messages, passed_by: purged.passed_by }
    }
}
