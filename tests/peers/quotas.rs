//! A mail server that keeps a quota itself: mail waits, or goes back where that is asked for, and
//! what was refused stands once as soon as there is room again. By IMAP and by LMTP.

use crate::cyrus::Cyrus;
use crate::imap_proof::Mail;
use crate::support::dovecot_24::Dovecot24;
use crate::support::imap::Imap;
use crate::support::letters;

/// A mail server with one place in Lisa's INBOX.
struct Full<'a> {
    imap_port: u16,
    lmtp: String,
    /// Makes room for more.
    make_room: &'a dyn Fn(),
    count: &'a dyn Fn() -> usize,
}

impl Full<'_> {
    fn puts_off_or_sends_back(&self, by_lmtp: bool) {
        let site = |over_quota: &str| {
            let lmtp = if by_lmtp { format!("lmtp = \"{}\"\n", self.lmtp) } else { String::new() };
            let keys = format!("over_quota = \"{over_quota}\"\n{lmtp}");
            Mail::with(self.imap_port, &keys, "")
        };
        let (defer, bounce) = (site("defer"), site("bounce"));
        let deliver = |mail: &Mail, name: &str, expected: i32, said: &str| {
            let args = ["deliver", "-f", letters::ANN, "-d", "lisa@b.example"];
            let (status, told) = mail.run(&args, letters::from_ann(name).as_bytes());
            assert!(status == expected && told.starts_with(said), "{name}: {status}: {told}");
        };
        let placed = if by_lmtp { "handed over account=lisa" } else { "stored account=lisa" };
        deliver(&defer, "first", 0, placed);
        for _ in 0..2 {
            deliver(&defer, "second", 75, "4.2.2 store: over quota");
        }
        deliver(&bounce, "third", 69, "5.2.2 store: over quota");
        assert_eq!((self.count)(), 1);
        (self.make_room)();
        deliver(&defer, "second", 0, placed);
        deliver(&defer, "first", 0, "already there");
    }
}

const ONE_MESSAGE: &str = "mail_plugins {
  quota = yes
}
protocol imap {
  mail_plugins {
    imap_quota = yes
  }
}
quota user {
  driver = count
  message_count = 1
}
";

#[test]
fn of_a_dovecot_24() {
    for by_lmtp in [false, true] {
        let dovecot = Dovecot24::start(&["lisa", "doug"], ONE_MESSAGE);
        let password = dovecot.password();
        let full = Full {
            imap_port: dovecot.imap_port(),
            lmtp: format!("lmtp://127.0.0.1:{}", dovecot.lmtp_port()),
            make_room: &|| {
                let session = Imap::login_as(dovecot.imap_port(), "lisa", "mda", password);
                let mut session = session.expect("a login");
                for command in ["SELECT INBOX", "STORE 1:* FLAGS \\Deleted", "EXPUNGE"] {
                    assert!(session.command(command).expect(command).is_ok(), "{command}");
                }
            },
            count: &|| dovecot.messages("lisa", "INBOX").len(),
        };
        full.puts_off_or_sends_back(by_lmtp);
        assert_eq!((full.count)(), 1);
    }
}

#[test]
fn of_a_cyrus() {
    for by_lmtp in [false, true] {
        // By LMTP it would take one more than there is room for.
        let cyrus = Cyrus::start_with(&["lisa"], "lmtp_strict_quota: yes\n");
        let quota = |messages: u8| {
            let set = cyrus.admin().command(&format!("SETQUOTA user/lisa (MESSAGE {messages})"));
            assert!(set.expect("an answer").is_ok());
        };
        quota(1);
        let full = Full {
            imap_port: cyrus.port(),
            lmtp: format!("unix:{}", cyrus.lmtp_socket().display()),
            make_room: &|| quota(9),
            count: &|| cyrus.messages("lisa", "INBOX").len(),
        };
        full.puts_off_or_sends_back(by_lmtp);
        assert_eq!((full.count)(), 2);
    }
}
