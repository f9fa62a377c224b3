//! `onedrop deliver` that hands its message to a running `onedrop lmtp`, beside what else hands a
//! message to a warm server: whole processes, and Postfix's own delivery agents. dovecot-lda, which
//! reads its settings each time, is there to compare with other tables; a server that runs already
//! is no match for it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::load::{LOCAL_PARTS, NO_PLUGINS, TUNED_LMTP};
use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::postfix::{DOMAIN, Postfix, PostfixSpec};
use crate::support::postgres::Postgres;
use crate::table::{Contender, Line, ROUNDS, compare};
use crate::world::{Bench, LISA, MESSAGE_BYTES, STRANGER, lda, message};

pub fn run() {
    let bench = Bench::new();
    let settings = format!("{LOCAL_PARTS}{TUNED_LMTP}{NO_PLUGINS}");
    let dovecot = Dovecot::start_high_performance_with(&settings);
    let postgres = Postgres::start();
    let direct = bench.imap_config("socket", &postgres, &dovecot);
    bench.migrate(&direct);
    let ledger = format!("url = \"{}\"", postgres.url_socket());
    let server = |name: &str, store: &str| {
        let lmtp = Launch::of(&bench.config(name, &ledger, store)).start();
        let via = format!("{store}\n[deliver]\nvia = \"{}\"", lmtp.socket().display());
        (bench.config(&format!("via-{name}"), &ledger, &via), lmtp)
    };
    let (imap, imap_server) = server("imap", &bench.imap_store(&dovecot));
    let (maildir, maildir_server) = server("maildir", &bench.maildir_store(&dovecot));

    println!("Whole processes:\n");
    let mut contenders = [
        Contender::new(
            "onedrop deliver, via onedrop lmtp, IMAP",
            bench.onedrop(&imap, "scuba", STRANGER),
        ),
        Contender::new(
            "onedrop deliver, via onedrop lmtp, Dovecot's Maildirs",
            bench.onedrop(&maildir, "zoe", STRANGER),
        ),
        Contender::new("by IMAP with a copy in Sent", bench.onedrop(&imap, "doug", LISA)),
        Contender::new(
            "onedrop deliver, Postgres + IMAP by itself",
            bench.onedrop(&direct, "otto", STRANGER),
        ),
        Contender::new(
            "smtp-source -L to Dovecot's lmtp, tuned",
            bare_client(&dovecot.lmtp_socket(), "bare"),
        ),
        Contender::new("dovecot-lda", lda(dovecot.config_file(), "lda")),
    ];
    let lines = [
        Line { ours: 0, peer: 4, target: None },
        Line { ours: 1, peer: 4, target: None },
        Line { ours: 0, peer: 3, target: None },
        Line { ours: 0, peer: 5, target: None },
        Line { ours: 1, peer: 5, target: None },
    ];
    compare(&mut contenders, ROUNDS, &lines);

    println!(
        "\nPostfix's own delivery agents, one message at a time (connection and transmission, as \
         Postfix logs them):\n"
    );
    let agents = Agents::start(&bench, &maildir, &dovecot, &maildir_server);
    let imap_agents = Agents::start(&bench, &imap, &dovecot, &imap_server);
    let mut contenders = [
        Contender::new("pipe(8), onedrop deliver via onedrop lmtp, IMAP", || {
            imap_agents.deliver("pipe")
        }),
        Contender::new("pipe(8), the same, Dovecot's Maildirs", || agents.deliver("pipe")),
        Contender::new("lmtp(8) to onedrop lmtp, IMAP", || imap_agents.deliver("ours")),
        Contender::new("lmtp(8) to onedrop lmtp, Dovecot's Maildirs", || agents.deliver("ours")),
        Contender::new("lmtp(8) to Dovecot's lmtp, tuned", || agents.deliver("dovecots")),
    ];
    let lines = [0, 1, 2, 3].map(|ours| Line { ours, peer: 4, target: None });
    compare(&mut contenders, ROUNDS, &lines);
}

/// A process that does as little as can be done: it makes a message of the same size and hands it
/// over.
fn bare_client<'a>(socket: &Path, account: &'a str) -> impl FnMut() -> Duration + 'a {
    let socket = format!("unix:{}", socket.display());
    move || {
        let mut command = Command::new("/usr/sbin/smtp-source");
        command.args([
            "-L",
            "-M",
            "bench.example",
            "-f",
            STRANGER,
            "-m",
            "1",
            "-l",
            &MESSAGE_BYTES.to_string(),
        ]);
        command.args(["-t", &format!("{account}@{DOMAIN}"), &socket]).stdin(Stdio::null());
        let began = Instant::now();
        let output = command.output().expect("smtp-source");
        let took = began.elapsed();
        assert!(output.status.success() && output.stderr.is_empty(), "{command:?}: {output:?}");
        took
    }
}

/// A Postfix that hands `pipe@` to `onedrop deliver`, `ours@` to `onedrop lmtp` and `dovecots@` to
/// Dovecot's server.
struct Agents(Postfix);

impl Agents {
    fn start(bench: &Bench, config: &Path, dovecot: &Dovecot, lmtp: &Lmtp) -> Agents {
        let transports =
            [("ours", lmtp.socket()), ("dovecots", dovecot.lmtp_socket())].map(|(name, socket)| {
                format!("{{ {name}@{DOMAIN} = lmtp:unix:{} }}", socket.display())
            });
        let main_cf = format!(
            "delay_logging_resolution_limit = 6\ntransport_maps = inline:{{ {} }}\n",
            transports.join(", ")
        );
        let user = MAIL_USER.to_owned();
        let config = Some(config.to_path_buf());
        Agents(Postfix::start(&PostfixSpec {
            config,
            user,
            main_cf,
            ..PostfixSpec::new(&bench.onedrop)
        }))
    }

    /// Sends a message and returns how long its delivery agent took: the last two of
    /// `delays=a/b/c/d`, connection and transmission.
    fn deliver(&self, account: &str) -> Duration {
        let Agents(postfix) = self;
        let queue_id = postfix.send(
            STRANGER,
            &[&format!("{account}@{DOMAIN}")],
            &message(STRANGER, MESSAGE_BYTES),
        );
        let line = postfix.wait_for_log(&format!(" {queue_id}: to=<"), Duration::from_secs(60));
        assert!(line.contains(" status=sent "), "{line}");
        let delays = line
            .split_once(", delays=")
            .and_then(|(_, rest)| rest.split_once(','))
            .map(|(delays, _)| delays);
        let delays = delays.unwrap_or_else(|| panic!("no delays: {line}"));
        let secs: Vec<f64> =
            delays.split('/').map(|delay| delay.parse().expect("seconds")).collect();
        Duration::from_secs_f64(secs.iter().skip(2).sum())
    }
}
