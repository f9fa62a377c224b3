//! SIGHUP: a wrong configuration changes nothing, and the log names its file and key; a right one
//! counts from the next message on, on every connection.

use std::fs;
use std::time::Duration;

use crate::support::letters::{ANN, from_ann};
use crate::support::lmtp::Lmtp;
use crate::support::lmtp_client::{LmtpClient, Reply};
use crate::support::site::{Files, Site, run};
use crate::support::wait_until;

const OLD: &str = "[directory]\ndomains = [\"old.example\"]\n";
const NEW: &str = "[directory]\ndomains = [\"new.example\"]\n[limits]\nmessage_bytes = 10000\n";

struct Served {
    site: Site<Files>,
    lmtp: Lmtp,
}

impl Served {
    fn start() -> Served {
        let site = Site::embedded();
        let lmtp = site.server(OLD);
        Served { site, lmtp }
    }

    /// The server reads this configuration and says so.
    fn reload(&mut self, more: &str) {
        let read = self.lmtp.log().matches("was read again").count();
        self.site.config("server", more);
        self.lmtp.reload();
        let again = wait_until(Duration::from_secs(20), || {
            self.lmtp.log().matches("was read again").count() > read
        });
        assert!(again, "{}", self.lmtp.log());
    }
}

/// One message; its recipient's reply. A refused one is taken back afterwards.
#[track_caller]
fn deliver(client: &mut LmtpClient, to: &str, name: &str) -> Reply {
    let reply = client.deliver(ANN, &[to], from_ann(name)).expect("a reply").remove(0);
    if reply.code == 550 {
        assert!(client.command("RSET").expect("a reply").is_ok());
    }
    reply
}

#[test]
fn a_wrong_configuration_is_told_by_file_and_key_and_the_old_one_stays_in_force() {
    let mut served = Served::start();
    let mut open = served.lmtp.client();
    assert!(deliver(&mut open, "scuba@old.example", "before").is_ok());
    // What is written, and what is said of it beside the file's name.
    let cases = [
        ("[directory]\ndomains = [\"new.example\"]\n[lmtp]\nidle_sec = 7\n", "lmtp.idle_sec"),
        (
            "[directory]\ndomains = [\"new.example\"]\n[limits]\ndeadline_secs = \"soon\"\n",
            "limits.deadline_secs",
        ),
        ("[directory]\ndomains = [\"new.example\"]\n[lock]\nlease_secs = 5\n", "lock.lease_secs"),
        ("[directory]\ndomains = [\"new.example\"\n", "syntax error"),
        ("[directory]\ndomains = []\n", "directory.domains"),
    ];
    for (number, (wrong, named)) in cases.into_iter().enumerate() {
        let before = served.lmtp.log().len();
        let is_toml = named != "syntax error";
        let path = served.site.config("server", if is_toml { wrong } else { "" });
        if !is_toml {
            fs::write(&path, wrong).expect("configuration");
        }
        // What the unit's reload asks first, without the server.
        let checked = run(&path, &["lmtp", "--check"]);
        let why = String::from_utf8_lossy(&checked.stderr);
        assert_eq!(checked.status.code(), Some(75), "{wrong}: {checked:?}");
        assert!(why.contains(named), "{named}: {checked:?}");
        served.lmtp.reload();
        let mut said = String::new();
        let told = wait_until(Duration::from_secs(20), || {
            said = served.lmtp.log()[before..].to_owned();
            said.contains("the old one stays")
        });
        assert!(told, "{wrong}: {said}");
        let record = said
            .lines()
            .find(|line| line.contains(named))
            .unwrap_or_else(|| panic!("no {named} in {said}"));
        // A rule of the server's own has no file.
        assert!(
            record.contains(&path.display().to_string()) || named == "directory.domains",
            "{record}"
        );
        for client in [&mut open, &mut served.lmtp.client()] {
            let name = format!("kept-{number}");
            assert!(deliver(client, "scuba@old.example", &name).is_ok(), "{wrong}");
            assert_eq!(deliver(client, "scuba@new.example", &name).code, 550, "{wrong}");
        }
    }
    let kept = (0..cases.len()).map(|number| from_ann(&format!("kept-{number}")));
    let kept: Vec<String> = kept.chain([from_ann("before")]).collect();
    served.site.inbox_has("scuba", &kept);
    // The next one that is right is taken.
    served.reload(NEW);
    let checked = run(&served.site.config("server", NEW), &["lmtp", "--check"]);
    assert!(checked.status.success() && checked.stdout.is_empty(), "{checked:?}");
    assert!(deliver(&mut open, "scuba@new.example", "after").is_ok());
    served.site.inbox_has("scuba", kept.into_iter().chain([from_ann("after")]));
}

#[test]
fn what_works_but_is_hardly_meant_is_told_at_the_start_and_at_a_reload() {
    let doubtful = format!("{OLD}[pool]\nper_account = 60\nledger = 50\n");
    let site = Site::embedded();
    let lmtp = site.server(&doubtful);
    let mut served = Served { site, lmtp };
    let told = || {
        served.lmtp.log().matches("pool.per_account (60) is not less than pool.ledger (50)").count()
    };
    assert!(wait_until(Duration::from_secs(20), || told() == 1), "{}", served.lmtp.log());
    served.reload(&doubtful);
    let told = || {
        served.lmtp.log().matches("pool.per_account (60) is not less than pool.ledger (50)").count()
    };
    assert!(wait_until(Duration::from_secs(20), || told() == 2), "{}", served.lmtp.log());
    let log = served.lmtp.log();
    assert!(log.contains("onedrop.toml:"), "its place is told: {log}");
    served.reload(OLD);
    assert_eq!(served.lmtp.log().matches("pool.per_account").count(), 2);
}

/// In each place between two messages that a connection may be in: greeted, after LHLO, after a
/// message, after RSET.
#[test]
fn a_new_configuration_holds_for_the_next_message_of_connections_that_stay_open() {
    let mut served = Served::start();
    let mut greeted =
        LmtpClient::unix(&served.lmtp.socket(), Duration::from_secs(60)).expect("a greeting");
    let welcome = served.lmtp.client();
    let (mut used, mut reset) = (served.lmtp.client(), served.lmtp.client());
    assert!(deliver(&mut used, "scuba@old.example", "used").is_ok());
    assert!(reset.command(&format!("MAIL FROM:<{ANN}>")).expect("a reply").is_ok());
    assert!(reset.command("RSET").expect("a reply").is_ok());
    served.reload(NEW);
    let hello = greeted.command("LHLO test.example").expect("a reply");
    assert!(hello.is_ok(), "{hello:?}");
    let clients = [("greeted", greeted), ("welcome", welcome), ("used", used), ("reset", reset)];
    let mut delivered = Vec::new();
    for (name, mut client) in clients {
        // Nothing else is said before: the first word after the reload begins the message.
        let reply = deliver(&mut client, "doug@new.example", name);
        assert!(reply.is_ok(), "{name}: {reply:?}");
        delivered.push(from_ann(name));
        served.site.inbox_has("doug", &delivered);
        assert_eq!(deliver(&mut client, "doug@old.example", name).code, 550, "{name}");
        let large = format!("{}{}", from_ann("large"), "x\n".repeat(6000));
        let replies =
            client.deliver(ANN, &["doug@new.example"], large.as_bytes()).expect("a reply");
        assert_eq!(replies[0].code, 552, "{name}: {replies:?}");
    }
}

/// A message that has begun keeps what it began with.
#[test]
fn a_message_that_has_begun_is_delivered_by_the_configuration_it_began_with() {
    let mut served = Served::start();
    let mut client = served.lmtp.client();
    assert!(client.command(&format!("MAIL FROM:<{ANN}>")).expect("a reply").is_ok());
    assert!(client.command("RCPT TO:<scuba@old.example>").expect("a reply").is_ok());
    served.reload(NEW);
    assert!(client.command("RCPT TO:<doug@old.example>").expect("a reply").is_ok());
    assert_eq!(client.command("RCPT TO:<doug@new.example>").expect("a reply").code, 550);
    assert_eq!(client.command("DATA").expect("a reply").code, 354);
    client.send(b"Subject: begun\r\n\r\nbody\r\n.\r\n").expect("a message");
    for _ in 0..2 {
        let reply = client.reply().expect("a reply");
        assert!(reply.is_ok(), "{reply:?}");
    }
    let begun = "Subject: begun\n\nbody\n".to_owned();
    served.site.inbox_has("scuba", [&begun]);
    served.site.inbox_has("doug", [&begun]);
    assert!(deliver(&mut client, "doug@new.example", "next").is_ok());
    served.site.inbox_has("doug", [begun, from_ann("next")]);
}
