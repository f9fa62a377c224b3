//! `onedrop purge` and `onedrop forget` beside real deliveries of the very messages that they take
//! out: messages of the age at which they go, tried again on two hosts at once. One copy each, byte
//! for byte, whoever comes first.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use crate::kills::sites::Combination;
use crate::start_line::StartLine;
use crate::support::site::{deliver, delivered};
use crate::support::{is_full, onedrop, wait_until};

/// How a message stands when the race begins; all but the last are on record, and 35 days old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Placed,
    /// A delivery died after it wrote the copy, days ago,
    InDoubt,
    /// or before it wrote one.
    InDoubtWithout,
    /// A lease of it ended less than an hour ago.
    LeasedLately,
    /// Another recipient has it: this one's delivery is not in doubt, and takes no turn.
    OfAnother,
    /// Not on record.
    Unknown,
}

const KINDS: [Kind; 6] = [
    Kind::Placed,
    Kind::InDoubt,
    Kind::InDoubtWithout,
    Kind::LeasedLately,
    Kind::OfAnother,
    Kind::Unknown,
];
const DELIVERIES_EACH: usize = 3;
/// Longer than a lease.
const RETRY_LIMIT: Duration = Duration::from_secs(25);

impl Kind {
    fn account(self, round: usize) -> String {
        format!("{self:?}-{round}").to_lowercase()
    }

    fn message(self, round: usize) -> Vec<u8> {
        let account = self.account(round);
        format!(
            "From: ann@elsewhere.example\nDate: Fri, 14 Aug 2020 12:00:00 +0000\n\
             Subject: {account}\nMessage-ID: <{account}@x>\n\nA letter for {account}.\n"
        )
        .into_bytes()
    }

    fn deliver(self, config: &Path, round: usize) -> Output {
        let recipient = format!("{}@mail.axial.net", self.account(round));
        deliver(config, &["-d", &recipient], &self.message(round))
    }

    fn prepare(self, site: &Combination, config: &Path, round: usize) {
        if self == Kind::Unknown {
            return;
        }
        let account = self.account(round);
        let other = if self == Kind::OfAnother { "other-" } else { "" };
        let recipient = format!("{other}{account}@mail.axial.net");
        delivered(config, &["-d", &recipient], &self.message(round));
        let (days_35, no) = match (&site.postgres, &site.mariadb) {
            (Some(_), _) => ("interval '35 days 1 second'", "false"),
            (None, Some(_)) => ("INTERVAL '35 0:0:1' DAY_SECOND", "0"),
            (None, None) => ("(35 * 86400 + 1)", "0"),
        };
        site.execute(
            HOSTS[0],
            &format!(
                "UPDATE onedrop_message SET looks_back = {no}, recorded_at = recorded_at - {days_35}
                 WHERE subject = '{account}'"
            ),
        );
        if matches!(self, Kind::Placed | Kind::OfAnother) {
            return;
        }
        site.forget_receipts(HOSTS[0], &format!("account = '{account}'"));
        if self == Kind::InDoubtWithout {
            site.empty(HOSTS[0], &account);
        }
        if self != Kind::LeasedLately {
            let clear = "UPDATE onedrop_copy SET leased_until = NULL WHERE account";
            site.execute(HOSTS[0], &format!("{clear} = '{account}'"));
        }
    }
}

/// Folders of configurations; a ledger in a file has one host.
const HOSTS: [&str; 2] = ["a", "b"];

fn start(config: &Path, arguments: &[&str]) -> Child {
    let mut command = onedrop();
    command.args(arguments).arg("--config").arg(config).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("onedrop")
}

fn race(site: &Combination) {
    let is_whole = is_full();
    let rounds = if is_whole { 20 } else { 1 };
    let is_file = site.postgres.is_none() && site.mariadb.is_none();
    let configs = HOSTS.map(|host| site.config(if is_file { HOSTS[0] } else { host }));
    let mut endings: BTreeMap<String, usize> = BTreeMap::new();
    for round in 0..rounds {
        KINDS.iter().for_each(|kind| kind.prepare(site, &configs[0], round));
        let mut line = StartLine::default();
        for n in 0..DELIVERIES_EACH {
            for kind in KINDS {
                let recipient = format!("{}@mail.axial.net", kind.account(round));
                line.add(&configs[n % 2], &["-d", &recipient], &kind.message(round));
            }
        }
        let [by_id, erased] = [round, round + 2].map(|n| KINDS[n % KINDS.len()].account(round));
        let (ended, beside) = line.go_beside(|| {
            vec![
                start(&configs[0], &["purge"]),
                start(&configs[1], &["forget", &format!("<{by_id}@x>")]),
                start(&configs[0], &["forget", "--account", &erased]),
                start(&configs[1], &["purge"]),
            ]
        });
        for output in beside {
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        }
        for (n, output) in ended.into_iter().enumerate() {
            let kind = KINDS[n % KINDS.len()];
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let word = said.split(' ').next().unwrap_or_default().to_owned();
            *endings.entry(word).or_default() += 1;
            match output.status.code() {
                Some(0) => {}
                Some(75) => {
                    let mut again = None;
                    let done = wait_until(RETRY_LIMIT, || {
                        let output = kind.deliver(&configs[n % 2], round);
                        again.insert(output).status.code() != Some(75)
                    });
                    let is_delivered = again.as_ref().is_some_and(|one| one.status.success());
                    assert!(done && is_delivered, "{kind:?} after {said}: {again:?}");
                }
                other => panic!("{kind:?}: {other:?}: {said}"),
            }
        }
        for kind in KINDS {
            let there = site.mailbox(HOSTS[0], &kind.account(round), "INBOX");
            let wanted = site.stored(&kind.message(round));
            let texts: Vec<_> = there.iter().map(|one| String::from_utf8_lossy(one)).collect();
            assert!(there == [wanted], "{kind:?}, round {round}: {texts:?}");
        }
    }
    writeln!(std::io::stderr(), "{}: {rounds} rounds: {endings:?}", site.name()).expect("stderr");
}

#[test]
fn a_purge_beside_deliveries_on_postgres_and_imap_leaves_one_copy() {
    race(&Combination::servers());
}

#[test]
fn a_purge_beside_deliveries_on_mariadb_and_imap_leaves_one_copy() {
    race(&Combination::mariadb_and_imap());
}

#[test]
fn a_purge_beside_deliveries_on_sqlite_and_imap_leaves_one_copy() {
    race(&Combination::sqlite_and_imap());
}
