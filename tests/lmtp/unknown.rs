//! Mail to accounts that are not there costs those nothing that are.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::exposition::Exposition;
use crate::support::dovecot::{Dovecot, MAIL_USER, users_in, write_users};
use crate::support::letters::{ANN, are_these, from_ann};
use crate::support::lmtp_client::LmtpClient;
use crate::support::site::Site;
use crate::support::{TempRoot, set_mode, unix_user};

/// Users in a file.
fn users(folder: &TempRoot, accounts: &[&str]) -> String {
    let file = folder.join("users");
    write_users(&file, &[accounts, &["rig-probe"]].concat());
    format!("auth_cache_size = 0\n{}", users_in(&file))
}

/// Dovecot's own way: the answer to a failed login comes two seconds later, and all others from the
/// same address wait.
const PENALTY: &str = "auth_failure_delay = 2 secs\n\
     service anvil {\n  unix_listener anvil-auth-penalty {\n    mode = 0600\n  }\n}\n";

fn at(name: &str) -> String {
    format!("{name}@mail.axial.net")
}

/// 200 messages to five accounts that are not there beside 40 to two that are, on eight
/// connections.
#[test]
fn two_hundred_mails_to_nobody_hold_nobody_up() {
    let folder = TempRoot::new();
    let dovecot = Dovecot::start_with_users(&(users(&folder, &["doug", "scuba"]) + PENALTY));
    let site = Site::with(dovecot);
    let lmtp = site.server("");
    let send = |to: &str, name: &str| {
        let mut client = LmtpClient::welcome(&lmtp.socket());
        let replies = client.deliver(ANN, &[&at(to)], from_ann(name)).expect("a reply");
        client.quit();
        replies[0].clone()
    };
    for account in ["doug", "scuba"] {
        assert!(send(account, &format!("first.{account}")).is_ok());
    }
    thread::scope(|scope| {
        for connection in 0..5 {
            let send = &send;
            scope.spawn(move || {
                for number in 0..40 {
                    let reply =
                        send(&format!("ghost{connection}"), &format!("{connection}.{number}"));
                    assert_eq!(reply.code / 100, 4, "{reply}");
                }
            });
        }
        for account in ["doug", "scuba"] {
            let send = &send;
            scope.spawn(move || {
                for number in 0..20 {
                    let reply = send(account, &format!("{account}.{number}"));
                    assert!(reply.is_ok(), "{reply}");
                }
            });
        }
    });
    for account in ["doug", "scuba"] {
        let names = (0..20).map(|number| from_ann(&format!("{account}.{number}")));
        let all = names.chain([from_ann(&format!("first.{account}"))]);
        are_these(account, &site.dovecot.messages(account, "INBOX"), all);
    }
    // Of 200 messages few have come to a login that failed, and no login waits for that.
    let log = fs::read_to_string(site.dovecot.config_file().with_file_name("dovecot.log"));
    let log = log.expect("a log");
    let failed = log.matches("(authorization failed, ").count();
    assert!((5..=25).contains(&failed), "{failed} logins failed: {log}");
    let penalties = site.dovecot.doveadm(&["penalty"]);
    assert!(!penalties.contains("127.0.0.1"), "{penalties}");
}

/// The directory is asked in vain for the first of them; one that it lists needs no question.
#[test]
fn where_the_userdb_is_away_those_that_are_listed_get_their_mail() {
    let site = Site::embedded();
    let lmtp = site.server(&format!(
        "[directory]\ndomains = [\"mail.axial.net\"]\nuserdb = \"unix:{}\"\n\
         accounts = {{ \"scuba@mail.axial.net\" = \"scuba\" }}\n",
        site.root.join("nowhere").display()
    ));
    let mut client = lmtp.client();
    let to = ["doug", "lisa", "scuba+x", "scuba"].map(at);
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    let replies = client.deliver(ANN, &to, from_ann("one")).expect("replies");
    let codes: Vec<u16> = replies.iter().map(|reply| reply.code).collect();
    assert_eq!(codes, [451, 451, 250, 250], "{replies:?}");
    site.inbox_has("scuba", [from_ann("one")]);
}

#[test]
fn who_is_unknown_is_told_at_rcpt_and_others_of_the_message_get_it() {
    let folder = TempRoot::new();
    let dovecot = Dovecot::start_with_users(&users(&folder, &["doug", "scuba"]));
    let site = Site::with(dovecot);
    let socket = site.dovecot.userdb_socket();
    let lmtp = site.server(&format!(
        "[directory]\ndomains = [\"mail.axial.net\"]\nuserdb = \"unix:{}\"\n",
        socket.display()
    ));
    let send = |to: &[&str], name: &str| {
        let mut client = LmtpClient::welcome(&lmtp.socket());
        let to: Vec<String> = to.iter().map(|to| at(to)).collect();
        let to: Vec<&str> = to.iter().map(String::as_str).collect();
        let replies = client.deliver(ANN, &to, from_ann(name)).expect("replies");
        let codes: Vec<u16> = replies.iter().map(|reply| reply.code).collect();
        let texts: String = replies.iter().map(|reply| format!("{reply}\n")).collect();
        (codes, texts)
    };
    let (codes, texts) = send(&["ghost", "doug", "Scuba+x"], "one");
    assert_eq!(codes, [550, 250, 250], "{texts}");
    assert!(texts.contains("550 5.1.1 unknown recipient ghost@mail.axial.net"), "{texts}");
    // Doug is gone from the users; Scuba, who comes after him, gets the message.
    users(&folder, &["scuba"]);
    site.dovecot.wait_until_unknown("doug");
    let (codes, texts) = send(&["doug", "scuba"], "two");
    assert_eq!(codes, [451, 250], "{texts}");
    assert!(texts.contains("4.3.5 account=doug has mail on record and is unknown now"), "{texts}");
    let told = Exposition::parse(&lmtp.metrics());
    assert_eq!(told.value("onedrop_accounts_gone_total"), 1.0);
    assert!(lmtp.log().contains("account=doug has mail on record"), "{}", lmtp.log());
    are_these("scuba", &site.dovecot.messages("scuba", "INBOX"), ["one", "two"].map(from_ann));
    // A socket for others alone: it says what to set.
    set_mode(&socket, 0o600);
    assert_ne!(unix_user(MAIL_USER).uid.as_raw(), 0);
    drop(lmtp);
    let lmtp = site.server(&format!(
        "[directory]\ndomains = [\"mail.axial.net\"]\nuserdb = \"unix:{}\"\n",
        socket.display()
    ));
    let mut client = LmtpClient::unix(&lmtp.socket(), Duration::from_secs(60)).expect("a server");
    for command in ["LHLO me", &format!("MAIL FROM:<{ANN}>")] {
        assert!(client.command(command).expect("a reply").is_ok());
    }
    let reply = client.command(&format!("RCPT TO:<{}>", at("scuba"))).expect("a reply");
    assert_eq!(reply.code, 451, "{reply}");
    assert!(reply.text.contains("4.3.5 directory.userdb: "), "{reply}");
    assert!(reply.text.contains("unix_listener auth-userdb { mode = 0660, group = "), "{reply}");
}
