//! Many mailboxes with many messages each on a real Dovecot, of which some are on record in
//! Postgres as of the last two days; a few of those stand twice and a few are in doubt. One mailbox
//! is filled by IMAP; the others are copies of its folder (mdbox), with other names in it.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onedrop::message::{DedupBy, Message};

use crate::dovecot::{Dovecot, MAIL_USER};
use crate::site::{Site, delivered};
use crate::{chown_recursive, onedrop, unix_user};

/// How much there is.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub mailboxes: usize,
    /// In each.
    pub messages: usize,
    /// Of these, the newest are on record.
    pub on_record: usize,
    /// Mailboxes in which one message on record stands twice.
    pub doubles: usize,
    /// Other mailboxes, in which one is in doubt.
    pub doubts: usize,
}

/// What a run of `onedrop verify` came to.
#[derive(Debug)]
pub struct Run {
    pub took: Duration,
    /// The most that it had in memory.
    pub kilobytes: u64,
    pub code: Option<i32>,
    /// `level topic`, one each.
    pub findings: Vec<String>,
    pub said: String,
}

/// A site filled to a scale.
pub struct Prepared {
    pub site: Site,
    config: PathBuf,
    pub scale: Scale,
}

/// Of the first account, wherever it stands; all names are as long.
const FIRST: &str = "user0000";

impl Prepared {
    pub fn new(scale: Scale) -> Prepared {
        let mdbox = "mail_location = mdbox:~/mdbox\nmail_fsync = never\n";
        let site = Site::with(Dovecot::start_high_performance_with(mdbox));
        let prepared = Prepared { config: site.config("verify", ""), site, scale };
        let validity = prepared.fill_the_first();
        prepared.copy_to_the_others();
        prepared.put_on_record(validity);
        prepared
    }

    fn account(n: usize) -> String {
        format!("user{n:04}")
    }

    fn message(account: &str, n: usize) -> Vec<u8> {
        let filling = "Nobody reads this line, but it takes its room in the file.\r\n".repeat(5);
        format!(
            "From: a@b\r\nTo: {account}@mail.axial.net\r\nSubject: message {n:06}\r\nDate: Sat, 21 \
             Nov 2026 10:00:00 +0000\r\nMessage-ID: <{n:06}.{account}@example.org>\r\n\r\n{filling}"
        )
        .into_bytes()
    }

    /// When message `n` came, in seconds since 1970: those on record within the last 46 hours, and
    /// the others from a hundred hours ago on.
    fn came(&self, now: u64, n: usize) -> u64 {
        let first = self.scale.messages - self.scale.on_record;
        match n.checked_sub(first) {
            Some(at) => now - 46 * 3600 + at as u64 * 40 * 3600 / self.scale.on_record as u64,
            None => now - 100 * 3600 - (first - n) as u64 * 60,
        }
    }

    fn append(&self, account: &str, secs: u64, message: &[u8]) {
        let mut session = self.site.dovecot.session(account);
        let answer = session.append("INBOX", &date(secs), message).expect("append");
        assert!(answer.is_ok(), "{answer:?}");
    }

    /// Returns the mailbox's UIDVALIDITY.
    fn fill_the_first(&self) -> u32 {
        let now = whole_now();
        fs::write(self.site.root.join("now"), now.to_string()).expect("a note");
        let mut session = self.site.dovecot.session(FIRST);
        for n in 0..self.scale.messages {
            let message = Self::message(FIRST, n);
            let date = date(self.came(now, n));
            let answer = session.append("INBOX", &date, &message).expect("append");
            assert!(answer.is_ok(), "{answer:?}");
        }
        let answer = session.command("EXAMINE INBOX").expect("EXAMINE");
        let validity = answer.untagged.iter().find_map(|line| {
            let rest = line.text.split_once("[UIDVALIDITY ")?.1;
            rest.split(']').next()?.parse().ok()
        });
        // As a mail program does when it first shows the mailbox: the server keeps what it asks.
        let fetch = "FETCH 1:* (FLAGS BODY.PEEK[HEADER.FIELDS (MESSAGE-ID SUBJECT)])";
        assert!(session.command(fetch).expect("FETCH").is_ok());
        session.command("LOGOUT").expect("LOGOUT");
        validity.expect("a UIDVALIDITY")
    }

    fn copy_to_the_others(&self) {
        let root = self.site.dovecot.mail_root();
        for n in 1..self.scale.mailboxes {
            copy(&root.join(FIRST), &root.join(Self::account(n)), &Self::account(n));
        }
        chown_recursive(&root, MAIL_USER);
    }

    /// Makes rows like that of a copy that was delivered.
    fn put_on_record(&self, validity: u32) {
        let args = ["-d", "scuba@mail.axial.net", "-f", "a@b"];
        delivered(&self.config, &args, b"Message-ID: <model@x>\n\nmodel\n");
        let now: u64 = fs::read_to_string(self.site.root.join("now"))
            .ok()
            .and_then(|now| now.parse().ok())
            .expect("a number");
        let Scale { mailboxes, messages, on_record, doubles, doubts } = self.scale;
        let mut lines = String::new();
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        for box_ in 0..mailboxes {
            let account = Self::account(box_);
            for n in messages - on_record..messages {
                let bytes = Self::message(&account, n);
                let message = Message::new(bytes.clone(), DedupBy::Content);
                let identity = message.identity();
                let is_odd = n == messages - on_record / 2 - 1;
                let kind = match box_ {
                    _ if !is_odd => "clean",
                    box_ if box_ < doubles => "double",
                    box_ if box_ < doubles + doubts => "doubt",
                    _ => "clean",
                };
                let came = self.came(now, n);
                if kind == "double" {
                    self.append(&account, came, &bytes);
                }
                lines.push_str(&format!(
                    "{}\t{account}\t\\\\x{}\t\\\\x{}\t\\\\x{}\t{}\t{came}\t{}\t{kind}\n",
                    box_ * messages + n + 1,
                    hex(identity.message_id.as_deref().unwrap_or_default()),
                    hex(&identity.id_hash),
                    hex(&identity.digest),
                    bytes.len(),
                    n + 1,
                ));
            }
        }
        let file = self.site.postgres.socket_dir().join("rows");
        fs::write(&file, lines).expect("rows");
        self.site.postgres.psql(
            &ROWS
                .replace("{file}", &file.display().to_string())
                .replace("{validity}", &validity.to_string()),
        );
    }

    /// Runs `onedrop verify --since 48h --json` with `args`.
    pub fn verify(&self, args: &[&str]) -> Run {
        let out = self.site.root.join("out");
        let mut command = onedrop();
        command.args(["verify", "--since", "48h", "--json", "--config"]).arg(&self.config);
        command.args(args).stdin(Stdio::null());
        command.stdout(fs::File::create(&out).expect("a file")).stderr(Stdio::piped());
        let user = unix_user(MAIL_USER);
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        let began = Instant::now();
        let mut child = command.spawn().expect("onedrop");
        let status = format!("/proc/{}/status", child.id());
        let mut kilobytes = 0;
        while child.try_wait().expect("our child").is_none() {
            let peak = fs::read_to_string(&status).ok().and_then(|status| {
                let rest = status.split_once("VmHWM:")?.1;
                rest.split_whitespace().next()?.parse::<u64>().ok()
            });
            kilobytes = kilobytes.max(peak.unwrap_or(0));
            thread::sleep(Duration::from_millis(5));
        }
        let took = began.elapsed();
        let output = child.wait_with_output().expect("the end");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let json = fs::read_to_string(&out).expect("findings");
        let findings: Vec<serde_json::Value> =
            serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {said}"));
        let findings = findings
            .iter()
            .map(|one| format!("{} {}", one["level"], one["topic"]).replace('"', ""));
        let findings = findings.collect();
        Run { took, kilobytes, code: output.status.code(), findings, said }
    }
}

fn whole_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// The date in APPEND's form.
fn date(secs: u64) -> String {
    let time = chrono::DateTime::from_timestamp(secs as i64, 0).expect("a time");
    format!("\"{}\"", time.format("%d-%b-%Y %H:%M:%S +0000"))
}

/// Copies a folder, with the other name in its files.
fn copy(from: &Path, to: &Path, name: &str) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to, name);
        } else if path.is_file() {
            let mut bytes = fs::read(&path).expect("a file");
            let places: Vec<usize> = memchr::memmem::find_iter(&bytes, FIRST.as_bytes()).collect();
            for at in places {
                bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
            }
            fs::write(&to, bytes).expect("a file");
        }
    }
}

const ROWS: &str = "
CREATE TEMP TABLE given (n bigint, account text, message_id text, id_hash text, digest text,
                         size_bytes bigint, came bigint, uid bigint, kind text);
COPY given FROM '{file}';
INSERT INTO onedrop_message OVERRIDING SYSTEM VALUE
SELECT (jsonb_populate_record(m, jsonb_build_object(
    'id', m.id + n, 'message_id', g.message_id, 'id_hash', g.id_hash, 'digest', g.digest,
    'size_bytes', g.size_bytes, 'recorded_at', to_timestamp(g.came)))).*
FROM onedrop_message m, given g ORDER BY g.came;
INSERT INTO onedrop_copy OVERRIDING SYSTEM VALUE
SELECT (jsonb_populate_record(c, jsonb_build_object(
    'id', c.id + n, 'message_id', c.message_id + n, 'account', g.account,
    'value', uuid_send(gen_random_uuid())::text,
    'receipt_kind', 'uid', 'receipt', '{validity}/' || g.uid,
    'placed_at', to_timestamp(g.came), 'epoch', CASE kind WHEN 'double' THEN 2 ELSE 1 END)
    || CASE kind WHEN 'doubt' THEN jsonb_build_object(
        'placed_at', NULL, 'receipt_kind', NULL, 'receipt', NULL, 'in_doubt', true,
        'leased_until', to_timestamp(g.came + 90)) ELSE '{}' END)).*
FROM onedrop_copy c, given g ORDER BY g.came;
DELETE FROM onedrop_copy WHERE account = 'scuba';
DELETE FROM onedrop_message WHERE message_id = '<model@x>';
DO $$ BEGIN IF to_regclass('onedrop_unsettled') IS NOT NULL THEN
    INSERT INTO onedrop_unsettled SELECT id, placed_at FROM onedrop_copy WHERE epoch > 1;
END IF; END $$;
ANALYZE onedrop_message, onedrop_copy;";
