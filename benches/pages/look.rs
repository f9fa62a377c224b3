//! How long `onedrop status` takes as a whole process, and the first byte of each page.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::engine::Site;
use crate::is_short;
use crate::rows::{BUSY, Month};
use crate::support::dovecot::MAIL_USER;
use crate::support::free_port;
use crate::support::server::{Server, guarded, tail};
use crate::table::{Times, ms};

/// Milliseconds.
const STATUS: f64 = 100.0;
const PAGE: f64 = 50.0;

fn rounds() -> usize {
    if is_short() { 5 } else { 20 }
}

fn verdict(value: f64, limit: f64) -> &'static str {
    if value <= limit { "met" } else { "MISSED" }
}

pub fn status(site: &Site) {
    let timed = |args: &[&str]| -> (Duration, Output) {
        let mut command = site.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let began = Instant::now();
        let output = command.spawn().and_then(|child| child.wait_with_output()).expect("status");
        let took = began.elapsed();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        (took, output)
    };
    let said = timed(&["status"]).1;
    println!("\n```\n{}```\n", String::from_utf8_lossy(&said.stdout));
    println!("| whole process, {} runs | median ms | worst ms | limit |", rounds());
    println!("|---|---:|---:|---|");
    for args in [&["status"][..], &["status", "--json"], &["--version"]] {
        // The last one is what a process takes that asks nothing.
        let args = if args == ["--version"] { &["status", "--help"] } else { args };
        let mut times: Vec<Duration> = (0..rounds()).map(|_| timed(args).0).collect();
        times.sort();
        let (median, worst) = of(times);
        let limit = format!("{STATUS} ms: {}", verdict(median, STATUS));
        println!("| `onedrop {}` | {median:.1} | {worst:.1} | {limit} |", args.join(" "));
    }
}

fn of(times: Vec<Duration>) -> (f64, f64) {
    let worst = times.iter().copied().max().map_or(0.0, ms);
    (Times::of(times).median_ms(), worst)
}

/// `onedrop web` on a port of its own.
pub struct Web {
    _server: Server,
    port: u16,
}

impl Web {
    pub fn start(site: &Site) -> Web {
        let port = free_port();
        let log = site.config.with_file_name("web.log");
        let mut command = guarded("/usr/bin/nice", Some(MAIL_USER), Signal::SIGKILL);
        // As its unit has it.
        command.args(["-n", "10"]).arg(site.program());
        command.arg("web").arg("--config").arg(&site.config);
        command.args(["--listen", &format!("127.0.0.1:{port}")]).current_dir("/");
        let file = std::fs::File::create(&log).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let mut server = Server::start("onedrop web", command, Signal::SIGTERM, &log);
        let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        server.wait_ready(listens);
        Web { _server: server, port }
    }

    /// The status, and the time to the first byte; of an answer that is none, its text.
    pub fn get(&self, path: &str) -> std::io::Result<(u16, Duration, String)> {
        let began = Instant::now();
        let mut client = TcpStream::connect(("127.0.0.1", self.port))?;
        client.set_read_timeout(Some(Duration::from_secs(30)))?;
        write!(client, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut head = [0; 512];
        let count = client.read(&mut head)?;
        let first = began.elapsed();
        let status = std::str::from_utf8(&head[..count.min(12)]).ok();
        let status = status.and_then(|line| line.get(9..12)?.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other("no status"))?;
        let mut rest = String::new();
        client.read_to_string(&mut rest)?;
        Ok((status, first, rest))
    }
}

/// What it is, and its path.
pub fn kinds(site: &Site) -> Vec<(&'static str, String)> {
    let (messages, attempts) = (site.messages, site.attempts);
    let user = Month::account(messages / 2 + 1);
    let busy = Month::address(BUSY);
    let id = Month::message_id(messages / 3).replace('<', "%3C").replace('>', "%3E");
    let search = |q: &str| format!("/search?q={q}");
    vec![
        ("front page", "/".to_owned()),
        ("search by Message-ID", search(&id)),
        ("by queue id", search(&Month::queue_id(messages / 4 + 1))),
        ("by recipient", search(&Month::address(&user))),
        ("by account", search(&user)),
        ("by recipient with a tenth of all mail", search(&busy)),
        ("the same, second page", format!("{}&before={}", search(&busy), messages - 500)),
        ("the same, in the middle", format!("{}&before={}", search(&busy), messages / 2)),
        ("the same, last page", format!("{}&before=400", search(&busy))),
        ("by account with a tenth of all mail", search(BUSY)),
        ("the same, in the middle", format!("{}&before={}", search(BUSY), messages / 2)),
        ("by a name that nobody has", search("nobody@mail.axial.net")),
        ("by a part of many senders", format!("{}&by=sender", search("lists.example"))),
        ("the same, in the middle", {
            format!("{}&by=sender&before={}", search("lists.example"), messages / 2)
        }),
        ("by a part of many subjects", format!("{}&by=subject", search("the+subject"))),
        ("by one sender of 10,000", format!("{}&by=sender", search("someone.4711@"))),
        ("by a subject that nobody wrote", format!("{}&by=subject", search("no+such+subject"))),
        ("story", format!("/m/{}", messages / 2 + 1)),
        ("story of a copy in doubt", format!("/m/{}", messages / 20_000 * 20_000 - 10)),
        ("failures", "/failures".to_owned()),
        ("failures, in the middle", format!("/failures?before={}", attempts / 2)),
        ("failures by reason", "/failures?reason=store_down".to_owned()),
        ("failures by a name", format!("/failures?q={}", Month::address(&user))),
        ("doubts", "/doubts".to_owned()),
        ("doubts, second page", "/doubts?before=100000".to_owned()),
        ("doubts of late, second page", format!("/doubts?after={}", messages - 30_000)),
        ("locks", "/locks".to_owned()),
        ("jobs", "/jobs".to_owned()),
        ("hosts", "/hosts".to_owned()),
        ("health", "/healthz".to_owned()),
    ]
}

pub fn pages(site: &Site) {
    println!(
        "\n| page: ms to the first byte | first after a start | median of {} | worst | limit |",
        rounds()
    );
    println!("|---|---:|---:|---:|---|");
    let kinds = kinds(site);
    let mut firsts = Vec::new();
    for (what, path) in &kinds {
        let web = Web::start(site);
        let (status, first, text) = web.get(path).expect(path);
        assert!([200, 303].contains(&status), "{what}: {path}: {status}: {text}");
        firsts.push(ms(first));
    }
    let web = Web::start(site);
    // The last day is counted within seconds.
    thread::sleep(Duration::from_secs(3));
    for ((what, path), first) in kinds.iter().zip(firsts) {
        let times = (0..rounds()).map(|_| web.get(path).expect(path).1).collect();
        let (median, worst) = of(times);
        let limit = format!("{PAGE} ms: {}", verdict(median, PAGE));
        println!("| {what} | {first:.1} | {median:.1} | {worst:.1} | {limit} |");
    }
    let log = tail(&site.config.with_file_name("web.log"));
    assert!(!log.contains("panic"), "{log}");
}
