//! What an ACL of a real Cyrus says about `mda`, who may act for every account: nothing. So the
//! rights of docs/rights.md are no measure there.

use crate::cyrus::Cyrus;
use crate::support::imap::Imap;

#[track_caller]
fn done(session: &mut Imap, command: &str) -> String {
    let answer = session.command(command).expect("an answer");
    assert!(answer.is_ok(), "{command}: {answer:?}");
    format!("{answer:?}")
}

#[test]
fn an_acl_does_not_hold_a_proxy_user_of_cyrus() {
    let cyrus = Cyrus::start(&["scuba"]);
    let mut admin = cyrus.admin();
    // All that can be said against it.
    done(&mut admin, "SETACL user/scuba mda \"\"");
    done(&mut admin, "SETACL user/scuba -mda lrswipkxtecda");
    let rights = done(&mut admin, "GETACL user/scuba");
    assert!(rights.contains("-mda lrswipkxtecda"), "{rights}");

    // It has the account's own rights all the same: to write, to delete, to make mailboxes.
    let mut proxy = cyrus.session("scuba");
    let rights = done(&mut proxy, "MYRIGHTS INBOX");
    for right in ["l", "r", "s", "w", "i", "k", "x", "t", "e", "a"] {
        let own = rights.split("INBOX ").nth(1).unwrap_or_default();
        assert!(own.contains(right), "{right}: {rights}");
    }
    let message = b"Subject: one\r\n\r\nbody\r\n";
    assert!(proxy.append("INBOX", "", message).expect("APPEND").is_ok());
    assert_eq!(cyrus.messages("scuba", "INBOX").len(), 1);
    done(&mut proxy, "SELECT INBOX");
    done(&mut proxy, "STORE 1 +FLAGS (\\Deleted)");
    done(&mut proxy, "EXPUNGE");
    assert_eq!(cyrus.messages("scuba", "INBOX").len(), 0);

    // Under its own name the ACL counts; Onedrop has no use for that.
    let mut itself = cyrus.session("mda");
    let refused = itself.command("SELECT user/scuba").expect("an answer");
    assert!(!refused.is_ok(), "{refused:?}");
}
