//! Messages of a corpus of other projects' test suites, delivered each way: one copy, byte for
//! byte, also where it comes again. Of each way a sample: all are delivered where they are replayed
//! (`replay_corpus.rs`).

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use onedrop::lock_key::{self, Hash};
use onedrop::message::{Bytes, DedupBy, Message};
use sha2::{Digest, Sha256};

use crate::sample::sample;
use crate::support::corpus::corpus;
use crate::support::dovecot::Dovecot;
use crate::support::imap::over_imap;
use crate::support::mariadb::Mariadb;
use crate::support::set_mode;
use crate::support::site::{Site, delivered, run};

const DIRECTORY: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n[sent]\ntrust = \"never\"\n";
const WORKERS: usize = 4;
/// Messages of a sample of about six hundred.
const SAMPLE: usize = 40;

/// The bytes as they come to standard input. No input at all looks like a message that was
/// cut short: there, what pipe(8) prepends.
pub fn input(file: &Path) -> Vec<u8> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if bytes.is_empty() { b"Return-Path: <>\nDelivered-To: x\n".to_vec() } else { bytes }
}

/// What must stand in a mailbox: without a leading mbox line.
pub fn own_copy(input: &[u8]) -> &[u8] {
    match input.strip_prefix(b"From ") {
        // "From : ..." is a field in RFC 5322's obsolete syntax (section 4.5).
        Some(rest) if !rest.trim_ascii_start().starts_with(b":") => {
            let end = input.iter().position(|byte| *byte == b'\n').map_or(input.len(), |at| at + 1);
            let (line, behind) = input.split_at(end);
            // Alone, or with CRs in it, it is the message's own.
            let is_own = behind.is_empty()
                || line.windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n');
            if is_own { input } else { behind }
        }
        _ => input,
    }
}

/// Delivers each file to an account of its own, twice, on several threads.
fn deliver_each(files: &[PathBuf], config: &Path) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(file) = files.get(n) else { return };
                    let message = input(file);
                    let recipient = format!("{}@mail.axial.net", account(n));
                    let first = delivered(config, &["-d", &recipient], &message);
                    assert!(first.starts_with("stored "), "{}: {first}", file.display());
                    let second = delivered(config, &["-d", &recipient], &message);
                    assert!(second.starts_with("already there "), "{}: {second}", file.display());
                }
            });
        }
    });
}

/// What makes it one message with another.
pub fn identity(message: &[u8]) -> (Hash, Hash) {
    let message = Message::new(Bytes::Memory(message.to_vec()), DedupBy::Content);
    let identity = message.identity();
    (identity.id_hash, identity.digest)
}

fn account(n: usize) -> String {
    format!("c{n}")
}

/// Every message goes there where they are replayed (`replay_corpus.rs`).
#[test]
fn messages_of_the_corpus_through_sqlite_and_maildir() {
    let Some(files) = corpus() else { return };
    let files = sample(files, 2 * SAMPLE, |_| false);
    let site = Site::embedded();
    deliver_each(&files, &site.config("etc", DIRECTORY));
    for (n, file) in files.iter().enumerate() {
        let stored = site.inbox(&account(n));
        assert!(stored == [own_copy(&input(file))], "{} is not as it came", file.display());
        let tmp = site.root.join("mail").join(account(n)).join("Maildir/tmp");
        assert_eq!(fs::read_dir(tmp).expect("tmp/").count(), 0);
    }
}

/// Of those that are one message the ledger keeps the first one's bytes: no other is asked for.
#[test]
fn messages_of_the_corpus_through_mariadb_and_maildir() {
    let Some(files) = corpus() else { return };
    let mut seen = HashSet::new();
    let mut files = sample(files, SAMPLE, |_| false);
    files.retain(|file| seen.insert(identity(&input(file))));
    let (site, mariadb) = (Site::embedded(), Mariadb::shared());
    let password = site.root.write("ledger.password", mariadb.password());
    set_mode(&password, 0o600);
    let url = mariadb.url_socket();
    let (password, ledger) = (password.display(), format!("url = \"{url}\"\nkeep_raw = true"));
    let more = format!("[ledger]\n{ledger}\npassword_file = \"{password}\"\n{DIRECTORY}");
    let config = site.config("etc", &more);
    let migrated = run(&config, &["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");
    deliver_each(&files, &config);
    for (n, file) in files.iter().enumerate() {
        let (message, stored) = (input(file), site.inbox(&account(n)));
        assert!(stored == [own_copy(&message)], "{} is not as it came", file.display());
        let raw = mariadb.sql(&format!(
            "SET group_concat_max_len = 100000000;
             SELECT SHA2(GROUP_CONCAT(r.bytes ORDER BY r.position SEPARATOR ''), 256)
             FROM onedrop_raw r JOIN onedrop_copy c USING (message_id)
             WHERE c.account = '{}'",
            account(n)
        ));
        let sha256 = lock_key::hex(&Sha256::digest(&message));
        assert_eq!(raw, sha256, "{}: what is kept", file.display());
    }
    let of_all = mariadb.sql(
        "SELECT COUNT(*) = COUNT(placed_at), SUM(epoch > 1), (SELECT COUNT(*) FROM onedrop_message)
         FROM onedrop_copy",
    );
    assert_eq!(of_all, format!("1\t0\t{}", files.len()));
}

#[test]
fn messages_of_the_corpus_through_postgres_and_imap() {
    let Some(files) = corpus() else { return };
    let files = sample(files, SAMPLE, |_| false);
    // A Maildir with LF cannot hold each of these byte for byte: Dovecot drops a CR that is the
    // last byte.
    let site = Site::with(Dovecot::shared_that_keeps_line_ends());
    let config = site.config("etc", DIRECTORY);
    deliver_each(&files, &config);
    let mut different = Vec::new();
    for (n, file) in files.iter().enumerate() {
        let stored = site.dovecot.messages(&account(n), "INBOX");
        assert_eq!(stored.len(), 1, "{}", file.display());
        let message = input(file);
        if stored[0] != over_imap(own_copy(&message)) {
            let tail = |bytes: &[u8]| {
                String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(20)..]).into_owned()
            };
            let tails = (tail(&stored[0]), tail(&message));
            different.push(format!(
                "{}: {} and {} bytes, {tails:?}",
                file.display(),
                stored[0].len(),
                message.len()
            ));
        }
    }
    assert!(different.is_empty(), "not as they came: {different:#?}");
    let counts = site.postgres.psql(
        "SELECT count(*) FILTER (WHERE placed_at IS NULL) || ' ' || count(*) FROM onedrop_copy",
    );
    assert_eq!(counts, format!("0 {}", files.len()));
}
