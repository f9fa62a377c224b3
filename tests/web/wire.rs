//! What the server answers on the wire, to clients of every kind.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};
use onedrop::config::Config;
use onedrop::hook::{Call, Hook};
use onedrop::http::{self, HttpLimits};
use onedrop::ledger::LedgerError;
use onedrop::ledger::memory::MemoryLedger;
use onedrop::net::listener::Listener;
use onedrop::web::{self, PagesState as Pages};

use crate::served::{Answer, Served};
use crate::support::site::{Files, Site, deliver, delivered};
use crate::support::{free_port, letters, set_mode, wait_until};

const SCUBA: &str = "scuba@mail.axial.net";
pub const LONG: Duration = Duration::from_secs(60);

/// What a page says that was begun, and not ended.
pub const CUT_OFF: &str =
    "Looking for rows. If this text stays, the page was cut off: load it again.";

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; \
    form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The pages in this process, of a ledger in memory.
pub struct InProcess {
    pub port: u16,
    /// What it serves.
    pub pages: Arc<Pages>,
    stop: UnixStream,
    server: thread::JoinHandle<std::io::Result<()>>,
}

impl InProcess {
    pub fn start(hook: Arc<dyn Hook<LedgerError>>) -> InProcess {
        InProcess::with(&Config::default(), web::LIMITS, hook)
    }

    pub fn with(
        config: &Config,
        limits: HttpLimits,
        hook: Arc<dyn Hook<LedgerError>>,
    ) -> InProcess {
        let ledger = Arc::new(MemoryLedger::default().with_hook(hook));
        let site = Arc::new(Pages::new(config, ledger, None, "mx1".to_owned()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let listener = Listener::Tcp(listener).prepared().expect("a listener");
        let (stop, stopped) = UnixStream::pair().expect("a pair");
        let router = web::router(Arc::clone(&site));
        let server = thread::spawn(move || {
            http::run(vec![listener], router, limits, web::AT_A_TIME, stopped)
        });
        InProcess { port, pages: site, stop, server }
    }

    /// Asks, and does not wait for the answer.
    pub fn ask(&self, path: &str) -> TcpStream {
        let mut client = TcpStream::connect(("127.0.0.1", self.port)).expect("a server");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.write_all(request.as_bytes()).expect("a server");
        client
    }

    pub fn get(&self, path: &str) -> Answer {
        let mut answer = Vec::new();
        self.ask(path).read_to_end(&mut answer).expect("an answer");
        Answer::of(&answer)
    }

    pub fn end(self) {
        drop(self.stop);
        self.server.join().expect("a server that ends").expect("a good end");
    }
}

/// Clients that say nothing, three times as many as there are places, and the limits let them: who
/// asks is answered while they are there.
#[test]
fn silent_clients_keep_nobody_waiting() {
    let limits = HttpLimits { head: 10 * LONG, whole: 10 * LONG, ..web::LIMITS };
    let served = InProcess::with(&Config::default(), limits, Arc::new(()));
    let connect = || {
        let client = TcpStream::connect(("127.0.0.1", served.port)).expect("a server");
        client.set_read_timeout(Some(LONG)).expect("a socket");
        client
    };
    let silent: Vec<_> = (0..3 * limits.places).map(|_| connect()).collect();
    for path in ["/healthz", "/", "/jobs", "/healthz"] {
        let mut client = connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.write_all(request.as_bytes()).expect("a server");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("an answer");
        assert_eq!(Answer::of(&answer).status, 200, "{path}");
    }
    // Those that came first gave their places up, and the newest are still there.
    let mut silent = silent.into_iter();
    assert_eq!(silent.next().expect("a client").read(&mut [0]).expect("an end"), 0);
    let newest = silent.next_back().expect("a client");
    newest.set_nonblocking(true).expect("a socket");
    assert!(newest.peek(&mut [0]).is_err(), "it is not closed");
    drop((newest, silent));
    served.end();
}

/// Of silent clients those of the address go that has the most; who has asked is silent no more.
#[test]
fn who_has_asked_keeps_the_place_and_so_does_who_takes_few() {
    let limits = HttpLimits { places: 4, head: 10 * LONG, whole: 10 * LONG };
    let waits = WaitsAt::call("jobs");
    let served = InProcess::with(&Config::default(), limits, waits.clone());
    let mut asked = served.ask("/jobs");
    assert!(wait_until(LONG, || waits.waiting() == 1));
    let from = |host: u8| {
        let (family, kind) = (AddressFamily::Inet, SockType::Stream);
        let client = socket::socket(family, kind, SockFlag::empty(), None).expect("a socket");
        let own = SockaddrIn::new(127, 0, 0, host, 0);
        socket::bind(client.as_raw_fd(), &own).expect("an address of this host's");
        let server = SockaddrIn::new(127, 0, 0, 1, served.port);
        socket::connect(client.as_raw_fd(), &server).expect("a server");
        let client = TcpStream::from(client);
        client.set_read_timeout(Some(LONG)).expect("a socket");
        client
    };
    let few = from(2);
    let many: Vec<_> = (0..3 * limits.places).map(|_| from(1)).collect();
    // The oldest of them is the first to go, and the youngest to come has been seen by then.
    for mut one in many.iter().take(2 * limits.places) {
        assert_eq!(one.read(&mut [0]).expect("an end"), 0);
    }
    few.set_nonblocking(true).expect("a socket");
    assert!(few.peek(&mut [0]).is_err(), "it is not closed");
    waits.goes_on.store(true, Ordering::SeqCst);
    let mut answer = Vec::new();
    asked.read_to_end(&mut answer).expect("an answer");
    assert_eq!(Answer::of(&answer).status, 200);
    drop((few, many));
    served.end();
}

fn site() -> Site<Files> {
    let site = Site::embedded();
    site.remember_for_ever();
    site
}

#[test]
fn every_answer_has_the_fields_that_keep_browsers_in_bounds() {
    let site = site();
    let config = site.config("web", "[web]\nhosts = [\"status.example\"]\n");
    let served = Served::start(&config, &[]);
    let host = |host: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        Answer::of(&served.send(request.as_bytes()).expect("an answer"))
    };
    let method = |method: &str| {
        let request =
            format!("{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        Answer::of(&served.send(request.as_bytes()).expect("an answer"))
    };
    for (answer, status) in [
        (served.get("/"), 200),
        (served.get("/style.css"), 200),
        (served.get("/healthz"), 200),
        (served.get("/nope"), 404),
        (served.get("/m/1"), 404),
        (served.get("/m/../../etc/passwd"), 404),
        (served.get("/m/9999999999999999999999"), 404),
        (served.get("/search?q=%00%ff&by=sender"), 200),
        (served.get("/search?q=%00%ff"), 200),
        (served.get("/search?before=x"), 400),
        (host("status.example"), 200),
        (host("STATUS.example:8443"), 200),
        (host("evil.example"), 421),
        (host("localhost.evil.example"), 421),
        (method("POST"), 405),
        (method("PUT"), 405),
        (method("DELETE"), 405),
        (method("OPTIONS"), 405),
        (method("TRACE"), 405),
    ] {
        assert_eq!(answer.status, status, "{answer:?}");
        for (name, value) in [
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.field(name), Some(value), "{name}: {answer:?}");
        }
        if status == 405 {
            assert_eq!(answer.field("allow"), Some("GET, HEAD"));
        }
        // Nothing in a page could be run, or come from elsewhere.
        for word in ["<script", "style=", "onclick", "http://", "https://", "javascript:"] {
            assert!(!answer.body.contains(word), "{word}: {answer:?}");
        }
    }
    let head = b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = Answer::of(&served.send(head).expect("an answer"));
    assert_eq!((answer.status, answer.body.as_str()), (200, ""));
    assert!(answer.field("content-length").is_some_and(|length| length != "0"), "{answer:?}");
    let without = Answer::of(&served.send(b"GET / HTTP/1.0\r\n\r\n").expect("an answer"));
    assert_eq!(without.status, 421, "{without:?}");
}

/// A proxy that still sends a body when the connection ends reports that, not our answer.
#[test]
fn who_sends_a_body_gets_the_answer() {
    let limits = HttpLimits { head: LONG, whole: LONG, ..web::LIMITS };
    let pages = InProcess::with(&Config::default(), limits, Arc::new(()));
    // More than sockets hold: it cannot be sent where it is not read.
    let long = "x".repeat(8 << 20);
    for (method, body, status) in [("POST", "x=1", 405), ("GET", "x=1", 200), ("POST", &long, 405)]
    {
        let mut client = TcpStream::connect(("127.0.0.1", pages.port)).expect("a server");
        let head = format!(
            "{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.write_all(head.as_bytes()).expect("a server");
        client.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
        let early = client.read(&mut [0; 64]);
        assert!(early.is_err(), "{method}: an answer before the body");
        client.set_read_timeout(None).expect("a socket");
        client.write_all(body.as_bytes()).expect("a server that reads");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("an answer");
        assert_eq!(Answer::of(&answer).status, status, "{method}");
    }
}

#[test]
fn a_password_is_asked_for_where_one_is_set() {
    let site = site();
    let config = site.config("web", "[web]\npassword_file = \"$DIR/web.password\"\n");
    let file = config.with_file_name("web.password");
    fs::write(&file, "s3cret\n").expect("a file");
    set_mode(&file, 0o640);
    let mut refused = Served::begin(&config, &["--listen", "127.0.0.1:0"], 0);
    assert!(wait_until(LONG, || refused.server.ended()), "open to its group");
    assert_eq!(refused.server.status().and_then(|status| status.code()), Some(75));
    let log = fs::read_to_string(&refused.log).expect("log");
    assert!(log.contains("web.password_file") && log.contains("0640"), "{log}");
    // Deliveries need not be able to read it.
    delivered(&config, &["-d", SCUBA], letters::from_ann("one").as_bytes());
    set_mode(&file, 0o600);
    let served = Served::start(&config, &[]);
    let asked = |password: &str| {
        let value = crate::support::imap::base64(format!("me:{password}").as_bytes());
        served.get_with("/", &format!("Authorization: Basic {value}\r\n"))
    };
    // A wrong one is answered late, so that guessing takes its time; and the log has it.
    let began = Instant::now();
    let wrong = [asked("s3cre"), asked("s3cret!"), asked("")];
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    let log = fs::read_to_string(&served.log).expect("log");
    let told: Vec<_> = log.lines().filter(|line| line.contains("a wrong password")).collect();
    assert_eq!(told.len(), 1, "{log}");
    // Probes need it as well.
    for answer in wrong.into_iter().chain([served.get("/"), served.get("/healthz")]) {
        assert_eq!(answer.status, 401, "{answer:?}");
        let ask = answer.field("www-authenticate").unwrap_or_default();
        assert!(ask.starts_with("Basic realm="), "{answer:?}");
        assert!(!answer.body.contains("Onedrop on"), "{answer:?}");
    }
    assert_eq!(asked("s3cret").status, 200);
}

#[test]
fn what_is_too_long_or_too_slow_is_cut_and_others_are_served() {
    let site = site();
    let served = Served::start(&site.config("web", ""), &[]);
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(20_000));
    let answer = Answer::of(&served.send(long.as_bytes()).expect("an answer"));
    assert!([414, 431].contains(&answer.status), "{answer:?}");
    let fields = "X-Many: 1\r\n".repeat(500);
    let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let answer = Answer::of(&served.send(request.as_bytes()).expect("an answer"));
    assert_eq!(answer.status, 431, "{answer:?}");
    // One byte at a time, for as long as it is read; and silent ones.
    let mut silent: Vec<_> = (0..20).map(|_| served.connect()).collect();
    let mut slow = served.connect();
    let began = Instant::now();
    let cut = loop {
        if slow.write_all(b"G").is_err() {
            break true;
        }
        if began.elapsed() > LONG {
            break false;
        }
        thread::sleep(Duration::from_millis(50));
    };
    assert!(cut, "a client that drips its head is never cut");
    for client in &mut silent {
        let mut said = Vec::new();
        let _ = client.read_to_end(&mut said);
        assert!(!String::from_utf8_lossy(&said).contains("200 OK"));
    }
    assert_eq!(served.get("/").status, 200);
}

#[test]
fn a_unix_socket_is_for_its_group_and_goes_with_the_server() {
    let site = site();
    let config = site.config("web", "[web]\nlisten = \"unix:$DIR/web.sock\"\n");
    let socket = config.with_file_name("web.sock");
    let mut served = Served::begin(&config, &[], 0);
    assert!(wait_until(LONG, || UnixStream::connect(&socket).is_ok()));
    let mode = socket.metadata().expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let mut client = UnixStream::connect(&socket).expect("a server");
    client.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a server");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an answer");
    let answer = Answer::of(&answer);
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
    served.server.stop(Signal::SIGTERM);
    assert_eq!(served.server.status().and_then(|status| status.code()), Some(0));
    assert!(!socket.exists());
}

#[test]
fn nothing_listens_unless_it_is_asked_for() {
    let site = site();
    let mut served = Served::begin(&site.config("web", ""), &[], 0);
    assert!(wait_until(LONG, || served.server.ended()));
    assert_eq!(served.server.status().and_then(|status| status.code()), Some(75));
    let log = fs::read_to_string(&served.log).expect("log");
    assert!(log.contains("nowhere to listen"), "{log}");
}

#[test]
fn what_is_doubtful_is_logged_at_the_start() {
    let site = site();
    let open = "is open to other hosts, and the pages say who wrote to whom";
    let logged = |more: &str, args: &[&str]| {
        let config = site.config("web", more);
        let _ = fs::remove_file(config.with_file_name("web.log"));
        let served = Served::begin(&config, args, 0);
        let log = || fs::read_to_string(&served.log).unwrap_or_default();
        assert!(wait_until(LONG, || log().contains("serves pages")), "{}", log());
        log()
    };
    let port = free_port();
    let everywhere = format!("0.0.0.0:{port}");
    let configured = format!("[web]\nlisten = \"{everywhere}\"\n");
    // Whoever says where; and of what is not listened at, nothing is said.
    let here = "127.0.0.1:0";
    for (log, is_open) in [
        (logged(&configured, &[]), true),
        (logged("", &["--listen", &everywhere]), true),
        (logged(&configured, &["--listen", here]), false),
        (logged("", &["--listen", here]), false),
    ] {
        assert_eq!(log.matches(open).count(), usize::from(is_open), "{log}");
        assert!(!is_open || log.contains(&everywhere), "{log}");
    }
    let log = logged("[pool]\nledger = 1\n", &["--listen", here]);
    assert!(log.contains("configuration: ") && log.contains("pool.ledger"), "{log}");
    let log = logged("[jobs.bare]\nevery = \"1h\"\n", &["--listen", here]);
    let says = "until that is mended the pages judge no job";
    assert!(log.contains("jobs.bare") && log.contains(says), "{log}");
}

#[test]
fn a_ledger_that_is_not_there_is_told_and_not_made() {
    let site = Site::embedded();
    let served = Served::start(&site.config("web", ""), &[]);
    let answer = served.get("/healthz");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.starts_with("ledger: "), "{answer:?}");
    let answer = served.get("/");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("The ledger does not answer"), "{answer:?}");
    assert!(!site.root.join("ledger.db").exists());
}

/// Keeps those who ask this waiting, and counts them.
pub struct WaitsAt {
    call: &'static str,
    waiting: AtomicUsize,
    pub goes_on: AtomicBool,
    /// Then they get no answer.
    fails: AtomicBool,
}

impl WaitsAt {
    pub fn call(call: &'static str) -> Arc<WaitsAt> {
        let [goes_on, fails] = [false, false].map(AtomicBool::new);
        Arc::new(WaitsAt { call, waiting: AtomicUsize::new(0), goes_on, fails })
    }

    /// One that waits for nothing, and fails.
    pub fn failing(call: &'static str) -> Arc<WaitsAt> {
        let waits = WaitsAt::call(call);
        waits.goes_on.store(true, Ordering::SeqCst);
        waits.fails.store(true, Ordering::SeqCst);
        waits
    }

    /// From now on they get their answer.
    pub fn goes_well(&self) {
        self.fails.store(false, Ordering::SeqCst);
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}

impl Hook<LedgerError> for WaitsAt {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        if call.name == self.call {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _ = wait_until(LONG * 3, || self.goes_on.load(Ordering::SeqCst));
            if self.fails.load(Ordering::SeqCst) {
                return Err(LedgerError::Unavailable("on purpose".to_owned()));
            }
        }
        Ok(())
    }
}

#[test]
fn questions_of_clients_that_are_gone_count_until_they_end() {
    let waits = WaitsAt::call("jobs");
    let served = InProcess::start(waits.clone());
    let asking: Vec<_> = (0..web::QUESTIONS).map(|_| served.ask("/jobs")).collect();
    assert!(wait_until(LONG, || waits.waiting() == web::QUESTIONS));
    drop(asking);
    for _ in 0..2 {
        let answer = served.get("/locks");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains("too many pages"), "{answer:?}");
    }
    waits.goes_on.store(true, Ordering::SeqCst);
    assert!(wait_until(LONG, || served.get("/locks").status == 200));
    assert_eq!(waits.waiting(), web::QUESTIONS);
    served.end();
}

#[test]
fn what_stands_above_the_rows_comes_before_they_are_found() {
    for (path, fails) in [
        ("/failures?q=scuba", false),
        ("/search?q=scuba&by=sender", false),
        ("/search?q=scuba&by=sender", true),
    ] {
        let waits = WaitsAt::call("last_row");
        waits.fails.store(fails, Ordering::SeqCst);
        let served = InProcess::start(waits.clone());
        let mut client = served.ask(path);
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        while !text(&bytes).contains(CUT_OFF) {
            let count = client.read(&mut piece).expect("the beginning");
            assert!(count > 0, "{}", text(&bytes));
            bytes.extend_from_slice(&piece[..count]);
        }
        assert!(wait_until(LONG, || waits.waiting() == 1));
        // Nothing follows it as yet, so it is shown (`style.css`).
        let begun = text(&bytes);
        let (begins, looking) = begun.split_once("<main ").expect("where the content begins");
        assert!(begins.contains("</header>"), "{begun}");
        let looking = looking.trim_end_matches("\r\n");
        let expected =
            format!("id=\"main\" tabindex=\"-1\">\n<p class=\"looking\">{CUT_OFF}</p>\n");
        assert_eq!(looking, expected);
        waits.goes_on.store(true, Ordering::SeqCst);
        client.read_to_end(&mut bytes).expect("the rest");
        let answer = Answer::of(&bytes);
        // What hides it is beside it.
        let rest = answer.body.split_once(&expected).expect("the same").1;
        assert!(rest.trim_start_matches(|c| c != '<').starts_with("<h1>"), "{rest}");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.field("content-security-policy"), Some(POLICY));
        for once in
            ["<!DOCTYPE html>", "value=\"scuba\"", "</header>", "<main ", "</main>", "</html>"]
        {
            assert_eq!(answer.body.matches(once).count(), 1, "{once}: {answer:?}");
        }
        assert_eq!(answer.body.contains("The ledger does not answer"), fails, "{answer:?}");
        served.end();
    }
}

struct PanicsAtJobs(Arc<AtomicBool>);

impl Hook<LedgerError> for PanicsAtJobs {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        assert!(!(call.name == "jobs" && self.0.load(Ordering::SeqCst)), "on purpose");
        Ok(())
    }
}

#[test]
fn a_panic_ends_one_request_alone() {
    let panics = Arc::new(AtomicBool::new(true));
    let served = InProcess::start(Arc::new(PanicsAtJobs(Arc::clone(&panics))));
    let get = |path: &str| served.get(path);
    for _ in 0..web::QUESTIONS * 2 {
        let answer = get("/jobs");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains("internal error"), "{answer:?}");
        assert!(!answer.body.contains("on purpose"), "{answer:?}");
    }
    assert_eq!(get("/locks").status, 200);
    panics.store(false, Ordering::SeqCst);
    assert_eq!(get("/jobs").status, 200);
    served.end();
}

#[test]
fn beside_a_hundred_clients_deliveries_succeed_and_each_client_gets_a_page() {
    const MESSAGES: usize = 20;
    let site = site();
    let config = site.config("web", "");
    delivered(&config, &["-d", SCUBA], letters::from_ann("first").as_bytes());
    let served = Served::start(&config, &[]);
    let stop = AtomicBool::new(false);
    let letters: Vec<String> =
        (0..MESSAGES).map(|at| letters::one_of_many("clients", at)).collect();
    let pages = thread::scope(|scope| {
        let clients: Vec<_> = (0..100)
            .map(|at| {
                let (served, stop) = (&served, &stop);
                scope.spawn(move || {
                    let paths = ["/", "/failures", "/search?q=scuba", "/doubts", "/m/1", "/locks"];
                    let (mut answered, mut at) = (0, at);
                    let began = Instant::now();
                    while !stop.load(Ordering::SeqCst) || answered == 0 {
                        // Each sees a page: none is kept out by the others.
                        assert!(began.elapsed() < LONG * 4, "no page for client {at}");
                        at += 1;
                        let path = paths[at % paths.len()];
                        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                        // One that waits too long for a place is turned away.
                        let Ok(answer) = served.send(request.as_bytes()) else { continue };
                        if answer.is_empty() {
                            continue;
                        }
                        let answer = Answer::of(&answer);
                        assert!([200, 303, 503].contains(&answer.status), "{answer:?}");
                        let whole = answer.body.len().to_string();
                        let body = match answer.field("transfer-encoding") {
                            // One that was begun has its end.
                            Some(_) => answer.body.strip_suffix("\r\n0\r\n\r\n"),
                            None => {
                                let length = answer.field("content-length");
                                Some(&*answer.body).filter(|_| length == Some(&*whole))
                            }
                        };
                        let body = body.unwrap_or_else(|| panic!("cut short: {answer:?}"));
                        let is_page = body.trim_end().ends_with("</html>");
                        assert!(is_page || answer.status == 303, "{answer:?}");
                        let is_made = !body.contains("could not be made");
                        answered += usize::from(answer.status == 200 && is_made);
                    }
                    answered
                })
            })
            .collect();
        for letter in &letters {
            let output = deliver(&config, &["-d", SCUBA], letter.as_bytes());
            assert!(output.status.success(), "{output:?}");
        }
        stop.store(true, Ordering::SeqCst);
        clients.into_iter().map(|client| client.join().expect("a client")).collect::<Vec<usize>>()
    });
    assert!(pages.iter().all(|pages| *pages > 0), "{pages:?}");
    let first = letters::from_ann("first");
    site.inbox_has("scuba", letters.iter().chain([&first]));
}
