//! An archive of years ago that is sent in again after a purge has forgotten all of it, by the
//! command and by LMTP, as it came in and as it stood in the mailbox: one copy of each, byte for
//! byte, where the mailbox has it.

use crate::support::letters;
use crate::support::lmtp_client::LmtpClient;
use crate::support::site::{Files, Places, Site, delivered, run};

const TO: &str = "scuba@mail.axial.net";
const LETTERS: usize = 6;
const DIRECTORY: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n";

fn letter(number: usize) -> Vec<u8> {
    let text = letters::from_ann(&format!("of-2020-{number}"));
    let text = text.replace("Sun, 22 Nov 2026", "Fri, 14 Aug 2020");
    format!(
        "Received: from mail.elsewhere.example (mail.elsewhere.example [192.0.2.1])\n\
         \tby mx1.axial.net (Postfix) with ESMTPS id 4BSl{number};\n\
         \tFri, 14 Aug 2020 12:00:05 +0000 (UTC)\n{text}"
    )
    .into_bytes()
}

/// The copy as if it had been delivered a year ago: the years that the delivery wrote are the last.
fn a_year_earlier(copy: &[u8]) -> Vec<u8> {
    let this = jiff::Zoned::now().year();
    String::from_utf8_lossy(copy).replace(&this.to_string(), &(this - 1).to_string()).into_bytes()
}

/// A site, and how its servers are asked.
struct Archive<'a, P: Places> {
    site: &'a Site<P>,
    /// All of Scuba's INBOX.
    inbox: &'a dyn Fn() -> Vec<Vec<u8>>,
    /// SQL in the ledger.
    sql: &'a dyn Fn(&str) -> String,
    /// Makes what is on record as if it had come a year ago.
    a_year_passes: &'a str,
}

impl<P: Places> Archive<'_, P> {
    fn copies(&self) -> Vec<Vec<u8>> {
        let mut copies = (self.inbox)();
        copies.sort();
        copies
    }

    fn is_forgotten(&self) {
        (self.sql)(self.a_year_passes);
        let purged = run(&self.site.config("etc", DIRECTORY), &["purge", "--json"]);
        assert!(purged.status.success(), "{purged:?}");
        assert_eq!((self.sql)("SELECT CAST(count(*) AS TEXT) FROM onedrop_message"), "0");
    }

    fn comes_in_again(&self) {
        let config = self.site.config("etc", DIRECTORY);
        let server = self.site.server(DIRECTORY);
        let by_lmtp = |message: &[u8]| {
            let mut client = LmtpClient::welcome(&self.site.socket());
            let replies = client.deliver("ann@elsewhere.example", &[TO], message).expect("replies");
            assert!(replies.iter().all(|reply| reply.is_ok()), "{replies:?}");
        };
        for number in 0..LETTERS {
            match number % 2 {
                0 => drop(delivered(&config, &["-d", TO], &letter(number))),
                _ => by_lmtp(&letter(number)),
            }
        }
        let before = self.copies();
        assert_eq!(before.len(), LETTERS);

        self.is_forgotten();
        for number in 0..LETTERS {
            let said = delivered(&config, &["-d", TO], &letter(number));
            assert!(said.starts_with("found "), "{said}");
        }
        assert_eq!(self.copies(), before, "by the command");

        self.is_forgotten();
        // With the fields that deliveries prepended a year ago.
        before.iter().for_each(|copy| by_lmtp(&a_year_earlier(copy)));
        assert_eq!(self.copies(), before, "by LMTP");

        // What its owner has thrown away is written, once.
        self.is_forgotten();
        let gone = letters::from_ann("never-here").replace("22 Nov 2026", "22 Nov 2020");
        for way in ["stored ", "already there "] {
            let said = delivered(&config, &["-d", TO], gone.as_bytes());
            assert!(said.starts_with(way), "{said}");
        }
        by_lmtp(gone.as_bytes());
        let mut after = self.copies();
        after.retain(|copy| !before.contains(copy));
        assert_eq!(after.len(), 1);
        assert_eq!(letters::letter(&after[0]), gone.as_bytes());
        drop(server);
    }
}

#[test]
fn an_archive_comes_in_again_on_postgres_and_imap() {
    let site = Site::with_servers();
    let archive = Archive {
        site: &site,
        inbox: &|| site.dovecot.messages("scuba", "INBOX"),
        sql: &|sql| site.postgres.psql(sql),
        a_year_passes: "UPDATE onedrop_message SET recorded_at = recorded_at - interval '1 year'",
    };
    archive.comes_in_again();
}

#[test]
fn an_archive_comes_in_again_on_sqlite_and_maildir() {
    let site: Site<Files> = Site::embedded();
    let sql = |sql: &str| -> String {
        match sql.starts_with("SELECT") {
            true => site.ledger(sql).concat(),
            false => site.sqlite().execute(sql, []).expect("SQL").to_string(),
        }
    };
    let archive = Archive {
        site: &site,
        inbox: &|| site.inbox("scuba"),
        sql: &sql,
        a_year_passes: "UPDATE onedrop_message SET recorded_at = recorded_at - 365 * 86400",
    };
    archive.comes_in_again();
}
