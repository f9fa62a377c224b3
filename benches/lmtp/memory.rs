//! Resident memory of the server: at rest, with idle and busy connections, and with large messages
//! at once. What it allocated (RssAnon) and the files it has mapped (RssFile, its program first of
//! all) apart.

use std::sync::Mutex;
use std::thread;

use crate::load::{self, Clients, LOCAL_PARTS, Peer, Target};
use crate::support::dovecot::Dovecot;
use crate::support::lmtp::{Launch, Lmtp, Resident};
use crate::support::lmtp_client::LmtpClient;
use crate::support::postgres::Postgres;
use crate::world::{Bench, STRANGER};

const IDLE: [usize; 3] = [10, 100, 1000];
const BUSY: usize = 50;
const LARGE_BYTES: usize = 100_000_000;
const LARGE: usize = 20;

pub fn run() {
    let bench = Bench::new();
    let dovecot = Dovecot::start_high_performance_with(LOCAL_PARTS);
    let postgres = Postgres::start();
    let ledger = format!("url = \"{}\"", postgres.url_socket());
    let roomy = format!("{}\n[lmtp]\nconnections = 2000", bench.imap_store(&dovecot));
    let config = bench.config("socket", &ledger, &roomy);
    bench.migrate(&config);
    println!("| the server with | anonymous MB | files MB |\n|---|---:|---:|");
    let lmtp = Launch::of(&config).start();
    line("nothing to do", lmtp.resident());
    let mut idle = Vec::new();
    for count in IDLE {
        while idle.len() < count {
            idle.push(lmtp.client());
        }
        line(&format!("{count} idle connections"), lmtp.resident());
    }
    drop(idle);
    let peer = Peer { name: "onedrop lmtp", socket: lmtp.socket(), tag: "busy" };
    let target = Target::Many(peer.tag.to_owned());
    let clients = Clients { sessions: BUSY, kept: true };
    let (_, most) = lmtp.resident_during(|| load::send(&peer, &dovecot, &target, clients, 2000));
    line(&format!("{BUSY} busy connections, at most"), most);
    line("nothing to do after that", lmtp.resident());
    drop(lmtp);

    let lmtp = Launch::of(&config).start();
    let (answers, most) = lmtp.resident_during(|| large_messages(&lmtp));
    let megabytes = LARGE_BYTES / 1_000_000;
    line(&format!("{LARGE} messages of {megabytes} MB at once, at most"), most);
    line("nothing to do after that", lmtp.resident());
    println!("\nAnswers to the large ones: {}", answers.join(", "));
}

fn line(what: &str, resident: Resident) {
    let megabytes = |kb: u64| kb as f64 * 1024.0 / 1_000_000.0;
    println!(
        "| {what} | {:.1} | {:.1} |",
        megabytes(resident.anon_kb),
        megabytes(resident.file_kb)
    );
}

/// A large message over each of many connections at the same time; the answers, which may be that
/// it is too much.
fn large_messages(lmtp: &Lmtp) -> Vec<String> {
    let filling = b"The quick brown fox jumps over the lazy dog, and over it once again ...\r\n"
        .repeat(10_000);
    let answers = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..LARGE {
            let (filling, answers) = (&filling, &answers);
            scope.spawn(move || {
                let answer = large_message(lmtp.client(), number, filling);
                let answer = answer.unwrap_or_else(|error| error.to_string());
                answers.lock().expect("no panic holds it").push(answer);
            });
        }
    });
    let mut answers = answers.into_inner().expect("no panic held it");
    answers.sort();
    answers
}

fn large_message(mut client: LmtpClient, number: usize, filling: &[u8]) -> std::io::Result<String> {
    let recipient = format!("large{number}@mail.axial.net");
    let accepted = client.begin(STRANGER, &[&recipient])?;
    client.send(
        format!("From: {STRANGER}\r\nMessage-ID: <large.{number}@bench.example>\r\n\r\n")
            .as_bytes(),
    )?;
    for _ in 0..LARGE_BYTES / filling.len() {
        client.send(filling)?;
    }
    client.send(b".\r\n")?;
    let replies = client.finish(accepted)?;
    Ok(replies.first().map_or_else(String::new, |reply| reply.code.to_string()))
}
