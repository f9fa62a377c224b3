//! One delivery for an account at a time, as `conf/dovecot/` says: who keeps the limit.

use std::thread;

use crate::support::dovecot::Dovecot;
use crate::support::filters::{Filters, Guard};
use crate::support::lmtp_client::LmtpClient;

/// LMTP processes of the mail's user, and what lets them ask.
const NOT_ROOT: &str = "service lmtp {\n  user = nobody\n}\n";
const LET_IN: &str =
    "service anvil {\n  unix_listener anvil {\n    mode = 0660\n    group = nogroup\n  }\n}\n";

const FORWARDS_THE_FIRST: &str = "require \"copy\";\nif header :is \"Subject\" \"first\" {\n  \
     redirect :copy \"far@elsewhere.example\";\n}\n";

fn hand_over(dovecot: &Dovecot, subject: &str) -> u16 {
    let mut client = LmtpClient::welcome(&dovecot.lmtp_socket());
    let message = format!("From: ann@elsewhere.example\nSubject: {subject}\n\n{subject}\n");
    let replies = client.deliver("ann@elsewhere.example", &["scuba"], &message);
    replies.expect("a dialog")[0].code
}

/// Dovecot's anvil counts deliveries; a process that may not ask it knows no limit.
#[test]
fn the_limit_needs_processes_that_may_ask_anvil() {
    for (settings, second) in
        [("", 451), (NOT_ROOT, 250), (&format!("{NOT_ROOT}{LET_IN}") as &str, 451)]
    {
        let filters = Filters::new();
        let dovecot = Dovecot::start_with(&format!("{}{settings}", filters.conf(Guard::On)));
        dovecot.make_home("scuba");
        filters.script("scuba", FORWARDS_THE_FIRST);
        filters.hold_senders();
        thread::scope(|scope| {
            let first = scope.spawn(|| hand_over(&dovecot, "first"));
            filters.wait_held();
            let told = hand_over(&dovecot, "second");
            filters.let_go();
            assert_eq!(first.join().expect("a dialog"), 250, "{settings}");
            assert_eq!(told, second, "{settings}: {}", dovecot.log());
        });
        let is_logged = dovecot.log().contains("anvil) failed: Permission denied");
        assert_eq!(is_logged, second == 250, "{settings}: {}", dovecot.log());
    }
}
