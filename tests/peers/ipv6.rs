//! IPv6 on real sockets: a ledger, a mail server, the LMTP server's own address and that of its
//! metrics, all on [::1], where nothing listens on 127.0.0.1.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::dovecot::Dovecot;
use crate::support::lmtp::Launch;
use crate::support::lmtp_client::LmtpClient;
use crate::support::postgres::Postgres;
use crate::support::site::{Site, delivered, run};
use crate::support::{TempRoot, free_port};

const PATIENCE: Duration = Duration::from_secs(30);

fn here(port: u16) -> SocketAddr {
    (Ipv6Addr::LOCALHOST, port).into()
}

#[test]
fn ledger_store_lmtp_and_metrics_speak_ipv6() {
    let root = TempRoot::new();
    let access =
        root.write("pg_hba.conf", "local all all trust\nhost all onedrop ::1/128 scram-sha-256\n");
    let postgres = Postgres::start_with(&format!(
        "listen_addresses = '::1'\nhba_file = '{}'",
        access.display()
    ));
    let site = Site::of(postgres, Dovecot::start_high_performance_on(&["::1"]), root);
    let (lmtp, metrics) = (free_port(), free_port());
    let more = format!(
        "[ledger]\nurl = \"postgres://onedrop@[::1]:{}/onedrop\"\npassword_file = \
         \"$DIR/ledger.password\"\n\
         [store]\nurl = \"imap://[::1]:{}\"\n\
         [lmtp]\nlisten = [\"[::1]:{lmtp}\"]\nmetrics = \"[::1]:{metrics}\"\n",
        site.postgres.port(),
        site.dovecot.imap_port(),
    );
    let config = site.config("etc", &more);
    assert!(
        TcpStream::connect(("127.0.0.1", site.postgres.port())).is_err(),
        "the ledger has an IPv4 address too"
    );
    let migrated = run(&config, &["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");

    let by_pipe = "From: ann@elsewhere.example\nMessage-ID: <pipe@x>\n\nby pipe\n";
    delivered(&config, &["-d", "scuba@mail.axial.net"], by_pipe.as_bytes());

    let server = Launch::of(&config).where_configured().start_when(|| {
        TcpStream::connect(here(lmtp)).is_ok() && TcpStream::connect(here(metrics)).is_ok()
    });
    assert!(TcpStream::connect(("127.0.0.1", lmtp)).is_err(), "the server has an IPv4 address too");
    let mut client = LmtpClient::tcp_at(here(lmtp), PATIENCE).expect("a server");
    assert_eq!(client.greeting.code, 220, "{}", client.greeting);
    for command in
        ["LHLO test.example", "MAIL FROM:<ann@elsewhere.example>", "RCPT TO:<scuba@mail.axial.net>"]
    {
        let reply = client.command(command).expect("an answer");
        assert!(reply.is_ok(), "{command}: {reply}");
    }
    assert_eq!(client.command("DATA").expect("an answer").code, 354);
    let by_lmtp = "From: ann@elsewhere.example\r\nMessage-ID: <lmtp@x>\r\n\r\nby LMTP\r\n";
    let reply = client.command(&format!("{by_lmtp}.")).expect("an answer");
    assert!(reply.is_ok(), "{reply}");

    let inbox = site.dovecot.messages("scuba", "INBOX");
    assert_eq!(inbox.len(), 2, "{}", server.log());
    assert_eq!(inbox[0], by_pipe.replace('\n', "\r\n").as_bytes());
    let second = String::from_utf8_lossy(&inbox[1]).into_owned();
    assert!(
        second.starts_with("Return-Path: <ann@elsewhere.example>\r\n") && second.ends_with(by_lmtp),
        "{second}"
    );
    let placed = "SELECT count(*) FROM onedrop_copy WHERE placed_at IS NOT NULL";
    assert_eq!(site.postgres.psql(placed), "2");

    let mut stream = TcpStream::connect(here(metrics)).expect("metrics");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
        .expect("a request");
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("an answer");
    assert!(told.starts_with("HTTP/1.1 200 ") && told.contains("onedrop_"), "{told}");
}
