//! How sessions with an IMAP server begin, against real servers: certificates, whose fault a refused login is, and whose
//! mailboxes a session shows.

mod support;

use std::fs;
use std::time::{Duration, Instant};

use onedrop::message::DedupBy;
use onedrop::store::Store;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use support::TempRoot;
use support::dovecot::Dovecot;

fn settings(dovecot: &Dovecot) -> ImapSettings {
    ImapSettings {
        host: "127.0.0.1".to_owned(),
        port: dovecot.imap_port(),
        tls: Tls::None,
        ca_file: None,
        user: dovecot.master_user().to_owned(),
        password: dovecot.password().into(),
        create_mailboxes: true,
        dedup_by: DedupBy::Content,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn certificates_that_could_not_be_read_are_read_at_the_next_login() {
    let (dovecot, folder) = (Dovecot::start(), TempRoot::new());
    let ca_file = folder.join("ca.pem");
    let implicit = ImapSettings {
        host: "localhost".to_owned(),
        port: dovecot.imaps_port(),
        tls: Tls::Implicit,
        ca_file: Some(ca_file.clone()),
        ..settings(&dovecot)
    };
    let mut store = ImapStore::new(implicit);
    let refused = store.check("doug", soon()).expect_err("there are no certificates").to_string();
    assert!(refused.contains("CA file") && refused.contains("ca.pem"), "{refused}");
    fs::write(&ca_file, "-----BEGIN CERTIFICATE-----\nnot yet").expect("half a file");
    let refused = store.check("doug", soon()).expect_err("half a file").to_string();
    assert!(refused.contains("ca.pem") || refused.contains("no root certificates"), "{refused}");
    fs::copy(dovecot.ca_file(), &ca_file).expect("the certificate");
    store.check("doug", soon()).expect("the certificates are there now");
}
