//! The servers: two Dovecots with filters, and Onedrop in front of one of them.

use std::time::Duration;

use crate::load::{LOCAL_PARTS, Peer, TUNED_LMTP, Target};
use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::filters::{Filters, Guard};
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::postgres::Postgres;
use crate::world::Bench;

/// A user's script: a rule for none of the messages, and one for every sixteenth. What smtp-source
/// numbers ends in a hexadecimal digit.
const SCRIPT: &str = "require [\"fileinto\", \"mailbox\"];\n\
     if header :contains \"X-Spam-Flag\" \"YES\" {\n  fileinto :create \"Junk\";\n  stop;\n}\n\
     if header :matches \"Message-ID\" \"*0@bench.example>\" {\n  fileinto :create \"Lists\";\n}\n";

/// The rig has scripts around the user's own, which no bench needs; and the LMTP server's
/// processes, which are not root's here, ask anvil how many deliveries to an account are under way.
const TRIMMED: &str = "plugin {\n  sieve_before2 =\n  sieve_after =\n}\n\
     service anvil {\n  unix_listener anvil {\n    mode = 0666\n  }\n}\n";
const NO_SCRIPT_BEFORE: &str = "plugin {\n  sieve_before =\n}\n";
/// More deliveries to one account at a time than ever come, where Dovecot allows ten.
const AS_MANY_AS_COME: &str = "lmtp_user_concurrency_limit = 20\n";
/// A server's own way to drop what comes a second time, for as long as our guard remembers.
const OWN_TEST: &str = "require [\"duplicate\"];\n\
     if duplicate :header \"Message-ID\" :seconds 604800 {\n  discard;\n}\n";

/// A Dovecot whose LMTP server runs filters.
pub struct FilteringDovecot {
    pub dovecot: Dovecot,
    filters: Filters,
}

impl FilteringDovecot {
    /// With the shipped file.
    pub fn behind(guard: Guard) -> FilteringDovecot {
        match guard {
            Guard::On => FilteringDovecot::with(guard, ""),
            Guard::Off => FilteringDovecot::alone(),
        }
    }

    pub fn alone() -> FilteringDovecot {
        FilteringDovecot::with(Guard::Off, &format!("{NO_SCRIPT_BEFORE}{AS_MANY_AS_COME}"))
    }

    /// One that drops duplicates by itself.
    pub fn alone_with_own_test() -> FilteringDovecot {
        let alone = FilteringDovecot::with(Guard::Off, AS_MANY_AS_COME);
        alone.filters.before(OWN_TEST);
        alone
    }

    fn with(guard: Guard, more: &str) -> FilteringDovecot {
        let filters = Filters::new();
        let filtering = filters.conf(guard);
        let conf = format!("{LOCAL_PARTS}{TUNED_LMTP}{filtering}{TRIMMED}{more}");
        FilteringDovecot { dovecot: Dovecot::start_high_performance_with(&conf), filters }
    }

    /// Gives each account of `target` a home folder and a script, once.
    pub fn prepare(&self, target: &Target) {
        for account in target.accounts() {
            if !self.dovecot.mail_root().join(&account).exists() {
                self.dovecot.make_home(&account);
                self.filters.script(&account, SCRIPT);
            }
        }
    }
}

/// Onedrop in front of a Dovecot, with its ledger.
pub struct Front {
    pub behind: FilteringDovecot,
    /// Not with SQLite, whose work is Onedrop's own.
    pub postgres: Option<Postgres>,
    pub lmtp: Lmtp,
    _bench: Bench,
}

/// Where the ledger is.
#[derive(Clone, Copy)]
pub enum Kept {
    /// With settings of `[ledger]` besides its place.
    Postgres(&'static str),
    Sqlite,
}

/// The labels of the histogram `onedrop_phase_seconds`.
pub const PHASES: [&str; 4] = ["lock", "record", "append", "commit"];

/// What is read before and after a load.
#[derive(Clone, Copy)]
pub struct Used {
    /// Processor time: Onedrop, Postgres, Dovecot.
    pub cpu: [Duration; 3],
    /// Seconds that all messages together have spent in a phase.
    pub phases: [f64; 4],
}

impl Front {
    pub fn start(bench: Bench, guard: Guard, kept: Kept) -> Front {
        let behind = FilteringDovecot::behind(guard);
        let (postgres, ledger) = match kept {
            Kept::Postgres(more) => {
                let postgres = Postgres::start();
                let ledger = format!("url = \"{}\"\n{more}", postgres.url_socket());
                (Some(postgres), ledger)
            }
            Kept::Sqlite => {
                let path = bench.home.join("ledger.db");
                (None, format!("url = \"sqlite://{}\"", path.display()))
            }
        };
        let socket = behind.dovecot.lmtp_socket();
        let store =
            format!("{}\nlmtp = \"unix:{}\"", bench.imap_store(&behind.dovecot), socket.display());
        let config = bench.config("handoff", &ledger, &store);
        bench.migrate(&config);
        // The file is root's by now.
        crate::support::chown_recursive(&bench.home, MAIL_USER);
        // Where the server is started from, if it is there.
        std::fs::copy(&bench.onedrop, config.with_file_name("onedrop")).expect("a copy");
        let lmtp = Launch::of(&config).start();
        Front { behind, postgres, lmtp, _bench: bench }
    }

    pub fn peer<'a>(&self, name: &'a str) -> Peer<'a> {
        Peer { name, socket: self.lmtp.socket(), tag: "ours" }
    }

    pub fn used(&self) -> Used {
        let seconds = |phase| {
            let name = format!("onedrop_phase_seconds_sum{{phase=\"{phase}\"}}");
            self.lmtp.metric(&name).unwrap_or_default()
        };
        let postgres = self.postgres.as_ref().map(Postgres::cpu).unwrap_or_default();
        let cpu = [self.lmtp.cpu(), postgres, self.behind.dovecot.cpu()];
        Used { cpu, phases: PHASES.map(seconds) }
    }
}
