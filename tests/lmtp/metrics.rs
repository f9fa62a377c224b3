//! What `onedrop lmtp` counts: after a known sequence of deliveries each counter has exactly its
//! value, and the text is what Prometheus reads.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::libc;

use crate::exposition::Exposition;
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::lmtp_client::{LmtpClient, Reply};
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::Site;
use crate::support::trial::LETTERS;
use crate::support::wait_until;

const ANN: &str = "ann@elsewhere.example";
const SCUBA: &str = "scuba@mail.axial.net";
const LONG: Duration = Duration::from_secs(60);

fn letter(name: &str, body: &str) -> String {
    format!("From: {ANN}\nSubject: {name}\nMessage-ID: <{name}@x>\n\n{body}\n")
}

#[track_caller]
fn deliver(client: &mut LmtpClient, to: &[&str], message: &str) -> Vec<u16> {
    let replies = client.deliver(ANN, to, message.as_bytes()).expect("replies");
    let codes: Vec<u16> = replies.iter().map(|reply| reply.code).collect();
    if codes.iter().all(|code| *code == 550) {
        assert!(client.command("RSET").expect("a reply").is_ok(), "{replies:?}");
    }
    codes
}

fn scrape(lmtp: &Lmtp) -> Exposition {
    Exposition::parse(&lmtp.metrics())
}

/// How often each phase was measured.
fn phases(told: &Exposition) -> [f64; 4] {
    ["lock", "record", "append", "commit"]
        .map(|phase| told.value(&format!("onedrop_phase_seconds_count{{phase=\"{phase}\"}}")))
}

/// Waits until nothing is in use: how a delivery ended may be put on record after its reply.
#[track_caller]
fn at_rest(lmtp: &Lmtp) -> Exposition {
    let rest = || {
        let told = scrape(lmtp);
        let used = told
            .with_prefix("onedrop_pool_sessions")
            .into_iter()
            .filter(|line| line.contains("\"used\""));
        used.into_iter().all(|line| line.ends_with(" 0"))
    };
    assert!(wait_until(LONG, rest), "{}", lmtp.metrics());
    scrape(lmtp)
}

#[test]
fn each_counter_is_exactly_what_happened() {
    let site = Site::embedded();
    site.remember_for_ever();
    let lmtp = site.server("[limits]\nmessage_bytes = 10000\n");
    let nothing = scrape(&lmtp);
    assert_eq!(phases(&nothing), [0.0; 4]);
    assert_eq!(nothing.with_prefix("onedrop_deliveries_total"), [""; 0]);
    let mut client = lmtp.client();
    // Stored; already there; found by a look after a crash between the append and its record.
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("one", "body")), [250]);
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("one", "body")), [250]);
    site.sqlite()
        .execute_batch(
            "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL, \
                        in_doubt = 1, leased_until = 1",
        )
        .expect("SQL");
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("one", "body")), [250]);
    // Two recipients of one message; an unknown one; one that cannot be stored; one too large.
    assert_eq!(
        deliver(&mut client, &[SCUBA, "doug@mail.axial.net"], &letter("two", "body")),
        [250, 250]
    );
    assert_eq!(deliver(&mut client, &["who@elsewhere.example"], &letter("three", "body")), [550]);
    site.block("blocked");
    assert_eq!(deliver(&mut client, &["blocked@mail.axial.net"], &letter("four", "body")), [451]);
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("five", &"body\n".repeat(3000))), [552]);
    // Another message under a Message-ID that is taken: twice, and it counts once.
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("one", "another body")), [250]);
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("one", "another body")), [250]);
    let told = at_rest(&lmtp);
    assert_eq!(
        told.with_prefix("onedrop_deliveries_total"),
        [
            "{outcome=\"delivered\",reason=\"delivered\",status=\"2.0.0\"} 7",
            "{outcome=\"permfail\",reason=\"too_large\",status=\"5.3.4\"} 1",
            "{outcome=\"permfail\",reason=\"unknown_user\",status=\"5.1.1\"} 1",
            "{outcome=\"tempfail\",reason=\"store_down\",status=\"4.3.0\"} 1",
        ]
    );
    assert_eq!(
        told.with_prefix("onedrop_copies_total"),
        ["{how=\"already_there\"} 2", "{how=\"found\"} 1", "{how=\"stored\"} 4"]
    );
    for (counter, count) in [
        ("collisions", 1.0),
        ("contention_waits", 0.0),
        ("in_doubt", 0.0),
        ("connections_refused", 0.0),
    ] {
        assert_eq!(told.value(&format!("onedrop_{counter}_total")), count, "{counter}");
    }
    // A turn for each copy that was found or is one of two, a record for each message, no append or
    // receipt for what was there.
    assert_eq!(phases(&told), [3.0, 7.0, 5.0, 5.0]);
    assert_eq!(told.value("onedrop_connections"), 1.0);
    assert_eq!(site.inbox("scuba").len(), 3);
    client.quit();
    assert!(wait_until(LONG, || scrape(&lmtp).value("onedrop_connections") == 0.0));
}

/// Whether a delivery pauses between two tries to take a lock: nothing else in a client's thread
/// sleeps.
fn waits_for_a_lock(lmtp: &Lmtp) -> bool {
    let sleep = format!("{} ", libc::SYS_clock_nanosleep);
    let tasks = fs::read_dir(format!("/proc/{}/task", lmtp.pid())).expect("the server's threads");
    tasks.flatten().any(|task| {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        read("comm") == "client\n" && read("syscall").starts_with(&sleep)
    })
}

/// Another delivery has the message's lock: the wait is counted, whether the delivery then succeeds
/// or not.
#[test]
fn contention_is_counted_and_pools_show_what_is_in_use() {
    let site = Site::embedded();
    site.remember_for_ever();
    let mut lmtp = site.server("[lock]\nwait_secs = 20\n");
    let mut client = lmtp.client();
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("first", "body")), [250]);
    let before = at_rest(&lmtp);
    assert_eq!(before.value("onedrop_contention_waits_total"), 0.0);
    let sessions = |told: &Exposition| told.with_prefix("onedrop_pool_sessions");
    let expected = |ledger: [u32; 2], store: [u32; 2]| {
        let pools = [("ledger", ledger), ("store", store)];
        pools
            .map(|(pool, [idle, used])| {
                [("idle", idle), ("used", used)]
                    .map(|(state, count)| format!("{{pool=\"{pool}\",state=\"{state}\"}} {count}"))
            })
            .concat()
    };
    // A Maildir has no sessions; only turns are counted.
    assert_eq!(sessions(&before), expected([1, 0], [0, 0]));

    let message = letter("held", "body");
    let held = site.hold(message.as_bytes());
    let accepted = client.begin(ANN, &[SCUBA]).expect("replies");
    client.send_message(&message).expect("a message");
    assert!(wait_until(LONG, || waits_for_a_lock(&lmtp)), "{}", lmtp.log());
    // Each try takes a session: a delivery keeps none while it waits for another delivery.
    let at_rest_meanwhile = || sessions(&scrape(&lmtp)) == expected([1, 0], [0, 0]);
    assert!(wait_until(LONG, at_rest_meanwhile), "{}", lmtp.metrics());
    drop(held);
    assert!(client.finish(accepted).expect("a reply").iter().all(Reply::is_ok));
    let after = at_rest(&lmtp);
    let waits = after.value("onedrop_contention_waits_total");
    assert!(waits >= 1.0, "{}", lmtp.metrics());
    assert_eq!(phases(&after).map(|count| count as u32), [2, 2, 2, 2], "a wait is a lock's time");
    // A Maildir has no sessions to keep.
    assert_eq!(sessions(&after), expected([1, 0], [0, 0]));
    // A delivery that is alone does not wait.
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("alone", "body")), [250]);
    assert_eq!(at_rest(&lmtp).value("onedrop_contention_waits_total"), waits);

    // Now in vain.
    site.config("server", "[lock]\nwait_secs = 1\n");
    lmtp.reload();
    lmtp.wait_for_log("was read again");
    let message = letter("in vain", "body");
    let held = site.hold(message.as_bytes());
    assert_eq!(deliver(&mut client, &[SCUBA], &message), [451]);
    drop(held);
    let told = at_rest(&lmtp);
    assert!(told.value("onedrop_contention_waits_total") > waits, "{}", lmtp.metrics());
    let ends = told.with_prefix("onedrop_deliveries_total{outcome=\"tempfail\"");
    assert_eq!(ends, [",reason=\"contended\",status=\"4.3.0\"} 1"]);
}

/// A server asks the ledger for what no counter has, and puts on record that its host is there.
#[test]
fn the_ledgers_state_is_served_as_gauges() {
    let site = Site::embedded();
    site.remember_for_ever();
    let job = "[jobs.report]\nevery = \"1h\"\ncommand = [\"true\"]\n";
    let lmtp = site.server("");
    assert_eq!(deliver(&mut lmtp.client(), &[SCUBA], &letter("one", "body")), [250]);
    drop(lmtp);
    site.sqlite()
        .execute_batch(
            "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                 in_doubt = 1, leased_until = 1, lease_ms = 1000",
        )
        .expect("a lease without an end");
    let mut lmtp = site.server(job);
    let is_known = || scrape(&lmtp).value("onedrop_ledger_up") == 1.0;
    assert!(wait_until(LONG, is_known), "{}", lmtp.metrics());
    let told = scrape(&lmtp);
    for (gauge, value) in [
        (concat!("build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
        ("schema_version", onedrop::ledger::SCHEMA_VERSION as f64),
        ("store_up", 1.0),
        ("jobs_config_ok", 1.0),
        ("unverified_seconds", 0.0),
        ("copies_in_doubt", 0.0),
        ("leases_without_end", 1.0),
        ("sent_waiting", 0.0),
        ("job_errors{name=\"report\"}", 0.0),
        ("job_last_success_timestamp_seconds{name=\"report\"}", 0.0),
        ("job_overdue_seconds{name=\"report\"}", 0.0),
        ("job_on_record{name=\"report\"}", 0.0),
    ] {
        assert_eq!(told.value(&format!("onedrop_{gauge}")), value, "{gauge}");
    }
    assert!(told.value("onedrop_status_timestamp_seconds") > 1_600_000_000.0);
    let hosts = site.ledger("SELECT host || ' ' || program_version FROM onedrop_host");
    let host = nix::unistd::gethostname().expect("a name").into_string().expect("text");
    assert_eq!(hosts, [format!("{host} {}", env!("CARGO_PKG_VERSION"))]);
    // One that takes mail is up, also where its figures cannot be read.
    lmtp.stop();
    let hidden = "ALTER TABLE onedrop_job RENAME TO hidden";
    site.sqlite().execute_batch(hidden).expect("a table that is out of reach");
    let mut lmtp = site.server(job);
    let is_told = || scrape(&lmtp).value("onedrop_store_up") == 1.0;
    assert!(wait_until(LONG, is_told), "{}", lmtp.metrics());
    let told = scrape(&lmtp);
    assert_eq!(
        ["ledger_up", "schema_version"].map(|name| told.value(&format!("onedrop_{name}"))),
        [1.0, 0.0]
    );
    // One that can only be read takes none, as where its disk is full.
    lmtp.stop();
    let full = "CREATE TRIGGER full BEFORE INSERT ON onedrop_host
                BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END";
    site.sqlite().execute_batch(full).expect("a ledger that takes nothing");
    let mut lmtp = site.server(job);
    let is_told = || scrape(&lmtp).value("onedrop_store_up") == 1.0;
    assert!(wait_until(LONG, is_told), "{}", lmtp.metrics());
    assert_eq!(scrape(&lmtp).value("onedrop_ledger_up"), 0.0);
    // The ledger is away when the next server starts, and its jobs cannot be read.
    lmtp.stop();
    let broken = "[ledger]\nurl = \"sqlite:///proc/nowhere/ledger.db\"\n\
                  [jobs.report]\nevery = \"often\"\ncommand = [\"true\"]\n";
    let lmtp = site.server(broken);
    let is_told = || scrape(&lmtp).value("onedrop_store_up") == 1.0;
    assert!(wait_until(LONG, is_told), "{}", lmtp.metrics());
    assert_eq!(
        ["ledger_up", "jobs_config_ok"].map(|name| scrape(&lmtp).value(&format!("onedrop_{name}"))),
        [0.0, 0.0]
    );
}

/// The directory cannot say whose they are: both are put off, the second without another query.
#[test]
fn recipients_that_cannot_be_looked_up_are_counted() {
    let site = Site::embedded();
    let lmtp =
        site.server("[directory]\nquery = \"SELECT login FROM nowhere WHERE address = $1\"\n");
    let mut client = lmtp.client();
    let replies = client.deliver(ANN, &[SCUBA, "doug@mail.axial.net"], b"").expect("replies");
    assert!(replies.iter().all(|reply| reply.code == 451), "{replies:?}");
    let told = scrape(&lmtp);
    let ends = told.with_prefix("onedrop_deliveries_total");
    assert_eq!(ends, ["{outcome=\"tempfail\",reason=\"ledger_refused\",status=\"4.3.0\"} 2"]);
}

/// The mail server takes a copy and its answer is lost: a doubt; later a look finds the copy.
#[test]
fn a_lease_in_doubt_is_counted_and_so_is_the_look_that_settles_it() {
    let site = Site::with_servers();
    let proxy = Proxy::start(Upstream::Imap(site.dovecot.imap_port()));
    let store = format!("store.url = \"imap://127.0.0.1:{}\"\n", proxy.port());
    let short =
        "[lock]\nwait_secs = 1\nlease_secs = 14\n[limits]\ndeadline_secs = 12\nanswer_secs = 6\n";
    let lmtp = site.server(&format!("{store}{LETTERS}{short}"));
    let mut client = lmtp.client();
    proxy.plan(Stage::Answer, Fault::Hold);
    let message = letter("doubt", "body");
    let accepted = client.begin(ANN, &[SCUBA]).expect("replies");
    client.send_message(&message).expect("a message");
    proxy.wait_reached();
    let told = scrape(&lmtp);
    // No delivery keeps a session with the ledger while the mail server takes its time.
    for (pool, used) in [("ledger", 0.0), ("store", 1.0)] {
        assert_eq!(
            told.value(&format!("onedrop_pool_sessions{{pool=\"{pool}\",state=\"used\"}}")),
            used,
            "{pool}"
        );
    }
    assert_eq!(client.finish(accepted).expect("a reply")[0].code, 451);
    let told = at_rest(&lmtp);
    assert_eq!(told.value("onedrop_in_doubt_total"), 1.0);
    assert_eq!(told.with_prefix("onedrop_copies_total{how=\"found\"}"), [" 0"]);
    // A session that failed is not kept.
    assert_eq!(told.value("onedrop_pool_sessions{pool=\"store\",state=\"idle\"}"), 0.0);
    proxy.heal();
    let mut code = 0;
    assert!(
        wait_until(LONG, || {
            code = deliver(&mut client, &[SCUBA], &message)[0];
            code == 250
        }),
        "{code}"
    );
    let told = at_rest(&lmtp);
    assert_eq!(
        told.with_prefix("onedrop_copies_total"),
        ["{how=\"already_there\"} 0", "{how=\"found\"} 1", "{how=\"stored\"} 0"]
    );
    assert_eq!(told.value("onedrop_in_doubt_total"), 1.0);
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 1);
}

fn connect(lmtp: &Lmtp) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", lmtp.metrics_port())).expect("a metrics address");
    stream.set_read_timeout(Some(LONG)).expect("socket");
    stream
}

/// All that is answered to `request`.
fn ask(lmtp: &Lmtp, request: &str) -> String {
    let mut stream = connect(lmtp);
    stream.write_all(request.as_bytes()).expect("a question");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

/// There are eight places; a silent client gives its own up where another needs it, and after two
/// seconds (`crates/admin/src/http.rs`).
#[test]
fn silent_clients_leave_their_places_to_others() {
    let site = Site::embedded();
    let lmtp = site.server("");
    let silent: Vec<TcpStream> = (0..3 * 8).map(|_| connect(&lmtp)).collect();
    assert!(ask(&lmtp, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
    for mut one in silent {
        assert_eq!(one.read(&mut [0; 8]).expect("the end"), 0, "it was turned away");
    }
}

#[test]
fn only_metrics_are_served_and_slow_clients_do_not_block_others() {
    let site = Site::embedded();
    let lmtp = site.server("");
    for path in ["/", "/metric", "/metrics/x", "/metricsx", "//metrics"] {
        let said = ask(&lmtp, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(
            said.starts_with("HTTP/1.1 404 Not Found\r\n") && !said.contains("onedrop_"),
            "{path}: {said}"
        );
    }
    for request in ["GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "GET /metrics?x=1 HTTP/1.0\r\n\r\n"]
    {
        let said = ask(&lmtp, request);
        let (head, body) = said.split_once("\r\n\r\n").expect("a head and a body");
        assert!(
            ["1.0", "1.1"].iter().any(|version| head.starts_with(&format!(
                "HTTP/{version} 200 OK\r\nContent-Type: text/plain; version=0.0.4; \
                 charset=utf-8\r\n"
            ))),
            "{head}"
        );
        assert!(
            format!("{head}\r\n").contains(&format!("\r\nContent-Length: {}\r\n", body.len())),
            "{head}"
        );
        Exposition::parse(body);
    }
    // Clients that say nothing, that do not come to an end, that say too much, that are gone.
    let mut slow = [connect(&lmtp), connect(&lmtp), connect(&lmtp)];
    drop(connect(&lmtp));
    slow[1].write_all(b"GET /metrics HTTP/1.1\r\nHo").expect("a part");
    let _ = slow[2].write_all(&[b'x'; 100_000]);
    let began = Instant::now();
    let mut client = lmtp.client();
    assert_eq!(deliver(&mut client, &[SCUBA], &letter("meanwhile", "body")), [250]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let said = ask(&lmtp, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
    // Two seconds each for the first two.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn an_address_that_is_taken_keeps_no_mail_waiting() {
    let site = Site::embedded();
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("an address");
    let config = site.config(
        "etc",
        &format!("[directory]\ndomains = [\"mail.axial.net\"]\n[lmtp]\nmetrics = \"{address}\"\n"),
    );
    let lmtp = Launch::of(&config).bare().start();
    assert_eq!(deliver(&mut lmtp.client(), &[SCUBA], &letter("taken", "body")), [250]);
    lmtp.wait_for_log(&format!("lmtp.metrics {address}: "));
}
