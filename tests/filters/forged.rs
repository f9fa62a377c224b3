//! A stranger knows the value of a copy, as a filter has forwarded it, and writes it into other
//! mail: nothing is taken out for that, and nothing is taken for the copy.

use crate::again::{Filtering, letter};
use crate::support::filters::Guard;
use crate::support::{free_port, letters};

/// Puts a message into a mailbox by another way than a hand-over.
fn save(all: &Filtering, mailbox: &str, message: &str) {
    let mut session = all.site.dovecot.session("scuba");
    let _ = session.command(&format!("CREATE {mailbox}"));
    let saved = session.append(mailbox, "", message.replace('\n', "\r\n").as_bytes());
    assert!(saved.expect("an answer").is_ok(), "{mailbox}");
}

#[test]
fn what_a_stranger_writes_takes_no_mail_out() {
    let all = Filtering::new(Guard::On);
    all.site.dovecot.make_home("scuba");
    // It was deferred once, so a forged one may be of an earlier try.
    Filtering::deliver(&all.config(free_port()), "scuba", &letter("real")).is(75, "4.");
    let config = all.config(all.site.dovecot.lmtp_port());
    Filtering::deliver(&config, "scuba", &letter("real")).is(0, "");
    assert_eq!(all.site.postgres.psql("SELECT epoch FROM onedrop_copy"), "2");
    let value = all.value();
    all.site.postgres.psql(
        "INSERT INTO onedrop_unsettled (copy_id, look_at) SELECT id, clock_timestamp() - interval \
         '1 s' FROM onedrop_copy ON CONFLICT (copy_id) DO UPDATE SET look_at = excluded.look_at",
    );
    for (mailbox, message) in letters::forgeries(&value, &letter("real")) {
        save(&all, mailbox, &message);
    }
    let before = all.counts("scuba", ["INBOX", "Sent", "Lists", "Archive"]);
    for _ in 0..2 {
        let told = all.verify(&config);
        let counts = all.counts("scuba", ["INBOX", "Sent", "Lists", "Archive"]);
        assert_eq!(counts, before, "{told}");
    }
    let first = all.site.dovecot.messages("scuba", "INBOX").remove(0);
    assert!(String::from_utf8_lossy(&first).contains("this is real"), "the real one stands");
}
