//! "Delivered" survives a power failure: files, folders, links, records and receipts reach the disk
//! in the order that `deliver` and the Maildir store promise. SIGKILL cannot show that, since
//! the kernel keeps what was written; here the real binary runs under strace(1), and what its calls
//! would leave after a power failure is worked out. The receipt of a recipient's own copy need not
//! be there yet: `receipts.rs` has what is left without it.

mod errors;
mod maildir;
mod receipts;
use std::fs::{self, File};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::disk::Disk;
use crate::strace::{self, Call};
use crate::support::lmtp::Launch;
use crate::support::postgres::Postgres;
use crate::support::site::{Files, Site, delivered, run};
use crate::support::{TempRoot, onedrop_path, remove_variables, wait_until};

/// What changes files and folders, and what goes to servers.
const CALLS: &str = "trace=write,writev,pwrite64,pwritev,ftruncate,fallocate,utimensat,fsync,\
                     fdatasync,link,linkat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,\
                     openat,sendto,recvfrom,exit_group";
const HERE: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n[sent]\ntrust = \
                    \"authenticated\"\n\
                    authserv_id = \"mail.axial.net\"\n";
const MESSAGE: &[u8] = b"Authentication-Results: mail.axial.net; dmarc=pass \
                         header.from=mail.axial.net\n\
                         From: lisa@mail.axial.net\nTo: scuba@mail.axial.net\nSubject: kept\n\
                         Message-ID: <kept@x>\n\nbody\n";
/// From elsewhere: one copy.
const FROM_ELSEWHERE: &[u8] =
    b"From: ann@elsewhere.example\nTo: scuba@mail.axial.net\nMessage-ID: <elsewhere@x>\n\nbody\n";

const DELIVER: [&str; 3] = ["deliver", "-d", "scuba@mail.axial.net"];

/// The files in a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path()).collect()
}

/// A run of ours under strace.
struct Traced {
    output: Output,
    calls: Vec<Call>,
}

impl Traced {
    fn run(
        root: &TempRoot,
        config: &Path,
        args: &[&str],
        stdin: Option<&[u8]>,
        inject: &[&str],
    ) -> Traced {
        let log = root.join("trace");
        let mut command = Command::new("strace");
        remove_variables(&mut command);
        command.args(["-f", "-y", "-s", "4000", "-e", "signal=none", "-e", CALLS, "-o"]).arg(&log);
        for inject in inject {
            command.args(["-e", inject]);
        }
        command.arg(onedrop_path()).args(args).arg("--config").arg(config);
        command.stdin(match stdin {
            Some(stdin) => Stdio::from(File::open(root.write("stdin", stdin)).expect("message")),
            None => Stdio::null(),
        });
        let output = command.output().expect("strace");
        let trace = fs::read(&log).expect("trace");
        Traced { output, calls: strace::calls(&String::from_utf8_lossy(&trace)) }
    }

    /// One that must succeed.
    #[track_caller]
    fn well(root: &TempRoot, config: &Path, args: &[&str], stdin: Option<&[u8]>) -> Traced {
        let traced = Traced::run(root, config, args, stdin, &[]);
        assert!(traced.output.status.success(), "{:?}", traced.output);
        traced
    }

    fn all(&self, is: impl Fn(&Call) -> bool) -> Vec<&Call> {
        self.calls.iter().filter(|call| is(call)).collect()
    }

    /// The calls that gave copies their names in a mailbox.
    fn links(&self) -> Vec<&Call> {
        self.all(|call| matches!(&*call.name, "link" | "linkat") && call.worked())
    }

    /// The first write to the file without a name that this links, and its first sync.
    #[track_caller]
    fn written_and_synced(&self, link: &Call) -> (&Call, &Call) {
        let fd = link.quoted(0).rsplit('/').next().unwrap_or_default();
        let opened = self.all(|call| {
            call.name == "openat"
                && call.ended < link.began
                && call.returned().is_some_and(|(returned, _)| returned.to_string() == fd)
        });
        let opened = opened.last().unwrap_or_else(|| panic!("{link:?} is of no file"));
        let first = |name: &str| {
            self.first_after(opened.ended, |call| {
                call.name == name && call.args.starts_with(&format!("{fd}<"))
            })
            .unwrap_or_else(|| panic!("no {name} before {link:?}"))
        };
        (first("write"), first("fsync"))
    }

    /// Panics unless Postgres was sent `what` before `moment`, and said by then that it is
    /// committed: ready for the next, in no transaction (ReadyForQuery in the protocol's message
    /// formats).
    #[track_caller]
    fn assert_answered(&self, what: &str, moment: usize) {
        let asked = self
            .all(|call| call.name == "sendto" && call.args.contains(what) && call.began < moment);
        let asked = asked.last().unwrap_or_else(|| panic!("{what} was not sent by line {moment}"));
        let answers = self.all(|call| {
            call.name == "recvfrom"
                && call.on() == asked.on()
                && call.began > asked.began
                && call.ended < moment
        });
        let is_ready = answers.iter().any(|call| call.args.contains("Z\\0\\0\\0\\5I"));
        assert!(is_ready, "{what} was not committed by line {moment}: {answers:?}");
    }

    /// The first call of this kind that began after `moment`.
    fn first_after(&self, moment: usize, is: impl Fn(&Call) -> bool) -> Option<&Call> {
        self.calls.iter().find(|call| call.began > moment && is(call))
    }
}

/// A ledger and a store in folders that are not there yet.
struct Fresh {
    site: Site<Files>,
    config: PathBuf,
}

impl Deref for Fresh {
    type Target = Site<Files>;

    fn deref(&self) -> &Site<Files> {
        &self.site
    }
}

impl Fresh {
    fn new() -> Fresh {
        let site = Site::embedded();
        let config = site.config("etc", &Fresh::settings(&site.root));
        Fresh { site, config }
    }

    /// In use for long: nothing makes a delivery look before it writes.
    fn in_use() -> Fresh {
        let site = Fresh::new();
        delivered(&site.config, &DELIVER[1..], MESSAGE);
        let ledger =
            rusqlite::Connection::open(site.root.join("ledger/here/ledger.db")).expect("ledger");
        let sql = "UPDATE onedrop_ledger SET remembers_since = -1e15";
        assert_eq!(ledger.execute(sql, []).expect("update"), 1);
        site
    }

    fn settings(root: &Path) -> String {
        let at = root.display();
        format!(
            "ledger.url = \"sqlite://{at}/ledger/here/ledger.db\"\nstore.url = \
             \"maildir://{at}/mail/here\"\n{HERE}"
        )
    }

    fn wal(&self) -> PathBuf {
        self.root.join("ledger/here/ledger.db-wal")
    }

    /// Whether a path was there before a run, which made all others.
    fn old(&self) -> impl Fn(&Path) -> bool + use<> {
        let mut old = Vec::new();
        let mut folders = vec![self.root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("folder") {
                let path = entry.expect("entry").path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                old.push(path);
            }
        }
        move |path: &Path| old.iter().any(|old| old == path)
    }

    fn is_wal_write(&self, call: &Call) -> bool {
        call.name == "pwrite64" && Path::new(call.on()) == self.wal()
    }

    /// Delivers, and judges the order of what it did.
    #[track_caller]
    fn deliver(&self, message: &[u8], copies: usize) {
        let old = self.old();
        let run = Traced::well(&self.root, &self.config, &DELIVER, Some(message));
        assert_eq!(run.links().len(), copies);
        self.judge(&run, &old);
    }

    /// The calls without what other threads wrote to the ledger: a server puts on record that it
    /// runs while it delivers.
    fn as_done_by(&self, thread: u32, run: &Traced) -> Vec<Call> {
        run.all(|call| call.thread == thread || !self.is_wal_write(call))
            .into_iter()
            .cloned()
            .collect()
    }

    /// What must hold of each copy that a run has linked, whether the run went well or not.
    #[track_caller]
    fn judge(&self, run: &Traced, old: &dyn Fn(&Path) -> bool) {
        let wal = self.wal();
        for link in run.links() {
            let copy = PathBuf::from(link.quoted(1));
            let calls = self.as_done_by(link.thread, run);
            // The record is committed, and the ledger is where it will be looked for.
            let before = Disk::at(&calls, link.began, old);
            assert!(
                calls.iter().any(|call| self.is_wal_write(call) && call.ended < link.began),
                "no record"
            );
            before.assert_keeps(&wal, "the ledger before the link");
            assert!(
                before.lost_names(&wal.with_file_name("ledger.db")).is_empty(),
                "the ledger's name before the link"
            );
            // All of the copy is on disk when it gets its name.
            let linked = Disk::at(&calls, link.ended + 1, old);
            assert!(
                linked.keeps_content(&copy),
                "{} is linked before it is synced",
                copy.display()
            );
            // Its name is, before the receipt goes into the ledger. Where that failed, what goes
            // there is that it failed.
            let receipt = calls.iter().find(|call| {
                call.began > link.ended && (self.is_wal_write(call) || call.was_injected())
            });
            if let Some(receipt) = receipt.filter(|receipt| !receipt.was_injected()) {
                Disk::at(&calls, receipt.began, old)
                    .assert_keeps(&copy, "the copy before its receipt");
            }
        }
        // Nothing is said before it is so.
        if let Some(said) =
            run.all(|call| call.name == "write" && call.quoted(0).starts_with("stored ")).first()
        {
            let disk = Disk::at(&run.calls, said.began, old);
            for link in run.links() {
                let copy = Path::new(link.quoted(1));
                // That of a recipient's own copy may be lost: a look finds the copy.
                if link.quoted(1).contains("/.Sent/") {
                    Disk::at(&self.as_done_by(link.thread, run), said.began, old)
                        .assert_keeps(&wal, "the receipt in Sent before it is said");
                }
                // A copy in Sent that the disk left in doubt defers no recipient: its bytes are
                // kept in the ledger.
                let is_kept =
                    link.quoted(1).contains("/.Sent/") && run.calls.iter().any(Call::was_injected);
                if !is_kept {
                    disk.assert_keeps(copy, "the copy before it is said to be stored");
                }
            }
        }
    }
}

#[test]
fn copies_folders_and_receipts_of_a_new_ledger_and_new_maildirs_are_on_disk_in_their_order() {
    Fresh::new().deliver(MESSAGE, 2);
}

/// The second finds ledger and folders: what others made may not be on disk yet, what this one
/// writes must be.
#[test]
fn a_second_delivery_keeps_the_order_as_well() {
    let site = Fresh::new();
    site.deliver(FROM_ELSEWHERE, 1);
    site.deliver(MESSAGE, 2);
}

/// Another delivery has made the folders and was killed before it synced them.
#[test]
fn folders_that_another_made_just_now_are_on_disk_before_the_receipt() {
    let site = Fresh::new();
    let old = site.old();
    for sub in ["tmp", "cur", "new"] {
        fs::create_dir_all(site.root.join("mail/here/scuba/Maildir").join(sub)).expect("folder");
    }
    let run = Traced::well(&site.root, &site.config, &DELIVER, Some(FROM_ELSEWHERE));
    let [link] = run.links()[..] else { panic!("{:?}", run.links()) };
    let receipt = run.first_after(link.ended, |call| site.is_wal_write(call)).expect("a receipt");
    let is_synced = |folder: &str| {
        let folder = site.root.join(folder);
        run.calls.iter().any(|call| {
            call.name == "fsync"
                && Path::new(call.on()) == folder
                && call.worked()
                && call.ended < receipt.began
        })
    };
    for folder in ["mail/here/scuba/Maildir", "mail/here/scuba", "mail/here", "mail", ""] {
        assert!(is_synced(folder.trim_end_matches('/')), "{folder}/ is not synced");
    }
    site.judge(&run, &old);
}

/// `onedrop lmtp` under strace, with one message after the other for one recipient, each until it
/// is taken.
fn serve(config: &Path, inject: &[&str], messages: &[String]) -> (Traced, usize) {
    let log = config.with_file_name("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "4000", "-e", "signal=none", "-e", CALLS, "-o"]).arg(&log);
    for inject in inject {
        strace.args(["-e", inject]);
    }
    let mut server = Launch::of(config).bare().by(&strace).start();
    let mut client = server.client();
    let mut deferred = 0;
    for message in messages {
        let taken = wait_until(Duration::from_secs(30), || {
            for command in ["MAIL FROM:<ann@elsewhere.example>", "RCPT TO:<scuba@mail.axial.net>"] {
                assert!(client.command(command).expect("an answer").is_ok(), "{command}");
            }
            assert_eq!(client.command("DATA").expect("an answer").code, 354);
            let is_taken = client.command(&format!("{message}.")).expect("an answer").is_ok();
            deferred += usize::from(!is_taken);
            is_taken
        });
        assert!(taken, "{message} is not taken");
    }
    drop(client);
    let status = server.stop_traced();
    let calls = strace::calls(&String::from_utf8_lossy(&fs::read(&log).expect("trace")));
    (Traced { output: Output { status, stdout: Vec::new(), stderr: Vec::new() }, calls }, deferred)
}

fn letter(name: &str) -> String {
    format!("From: ann@elsewhere.example\r\nMessage-ID: <{name}@x>\r\n\r\n{name}\r\n")
}

#[test]
fn the_lmtp_server_keeps_the_order_too() {
    server_keeps_the_order(&Fresh::new());
}

/// Where it need not look it writes before the record, and another thread syncs beside that.
#[test]
fn a_server_that_writes_before_the_record_keeps_the_order() {
    let site = Fresh::in_use();
    let run = server_keeps_the_order(&site);
    for link in run.links() {
        let (written, synced) = run.written_and_synced(link);
        let recorded = run.first_after(written.began, |call| site.is_wal_write(call));
        assert!(recorded.is_some_and(|record| record.began < link.began), "no record after it");
        assert_ne!(synced.thread, link.thread, "{link:?} is of a copy that no helper has synced");
    }
}

#[track_caller]
fn server_keeps_the_order(site: &Fresh) -> Traced {
    let old = site.old();
    let messages = ["one", "two", "three"].map(letter);
    let (run, _) = serve(&site.config, &[], &messages);
    let links = run.links();
    assert_eq!(links.len(), messages.len());
    site.judge(&run, &old);
    for link in links {
        let replied = run.first_after(link.ended, |call| {
            call.name != "recvfrom" && call.args.contains("\"250 2")
        });
        let replied = replied.unwrap_or_else(|| panic!("no reply after {link:?}"));
        let calls = site.as_done_by(link.thread, &run);
        assert!(
            calls.iter().any(|call| {
                site.is_wal_write(call) && call.began > link.ended && call.ended < replied.began
            }),
            "no receipt before the reply"
        );
        let disk = Disk::at(&calls, replied.began, &old);
        disk.assert_keeps(Path::new(link.quoted(1)), "the copy before the reply");
    }
    run
}

/// The server syncs a copy beside its record, in a thread of its own: what that hears, the delivery
/// must hear. The first sync of each thread fails: that of a copy, and then that of a mailbox'
/// folder.
#[test]
fn the_lmtp_server_believes_no_sync_that_failed() {
    let (postgres, site) = (Postgres::shared_and_empty(), Site::embedded());
    let config = with_postgres(&postgres, &site, HERE);
    // Makes the folders.
    delivered(&config, &DELIVER[1..], FROM_ELSEWHERE);
    let letter = letter("sync");
    let (run, deferred) =
        serve(&config, &["inject=fsync:error=EIO:when=1"], std::slice::from_ref(&letter));
    assert!(deferred > 0 && run.calls.iter().any(Call::was_injected), "nothing failed");
    let failed = run.all(|call| call.was_injected() && call.on().contains("/Maildir/tmp/"));
    assert!(!failed.is_empty(), "no copy's sync failed");
    for link in run.links() {
        let copy = PathBuf::from(link.quoted(1));
        let disk = Disk::at(&run.calls, link.began + 1, |_| false);
        assert!(disk.keeps_content(&copy), "{} is linked though its sync failed", copy.display());
        let linked = Disk::at(&run.calls, link.ended + 1, |_| false);
        assert!(linked.keeps_content(&copy), "{} is linked though its sync failed", copy.display());
    }
    let inbox = site.inbox("scuba");
    let ours = inbox.iter().filter(|copy| String::from_utf8_lossy(copy).contains("<sync@x>"));
    let ours: Vec<String> =
        ours.map(|copy| String::from_utf8_lossy(copy).replace('\n', "\r\n")).collect();
    assert!(ours.len() == 1 && ours[0].ends_with(&letter), "{ours:?}");
}

/// The file of a double is gone for good before it is said so, and before any later run puts one
/// copy on record.
#[test]
fn a_double_that_was_taken_out_stays_out() {
    let site = Fresh::new();
    site.deliver(FROM_ELSEWHERE, 1);
    let maildir = site.root.join("mail/here/scuba/Maildir");
    let [copy] = &entries(&maildir.join("new"))[..] else { panic!("one copy") };
    // A reader has renamed the first, and a delivery that was late has linked its own: it was
    // leased more than once.
    let read = maildir
        .join("cur")
        .join(format!("{}:2,S", copy.file_name().expect("a name").to_string_lossy()));
    fs::copy(copy, &read).expect("a double");
    let date = fs::metadata(copy).and_then(|copy| copy.modified()).expect("a date");
    File::open(&read).and_then(|read| read.set_modified(date)).expect("a date");
    let ledger =
        rusqlite::Connection::open(site.root.join("ledger/here/ledger.db")).expect("ledger");
    ledger.execute("UPDATE onedrop_copy SET epoch = 2", []).expect("a second lease");
    drop(ledger);
    let old = site.old();
    let run =
        Traced::run(&site.root, &site.config, &["verify", "--repair", "--since", "1h"], None, &[]);
    let left = [entries(&maildir.join("new")), entries(&maildir.join("cur"))].concat();
    assert_eq!(left.len(), 1, "{left:?}, {:?}", run.output);
    let is_mail = |call: &Call| ["/new/", "/cur/"].iter().any(|sub| call.quoted(0).contains(sub));
    let removed = run.all(|call| call.name.starts_with("unlink") && call.worked() && is_mail(call));
    let [removed] = removed[..] else { panic!("{removed:?}") };
    let double = PathBuf::from(removed.quoted(0));
    let said =
        run.all(|call| call.name == "write" && call.quoted(0).starts_with("repaired double"));
    let lost =
        Disk::at(&run.calls, said.first().expect("a word of it").began, &old).lost_names(&double);
    assert!(lost.is_empty(), "{lost:?} would stand there again");
}

/// A configuration with a migrated ledger on a server, and Maildirs under `mail/`.
fn with_postgres(postgres: &Postgres, site: &Site<Files>, more: &str) -> PathBuf {
    let config = site.config("etc", &format!("ledger.url = \"{}\"\n{more}", postgres.url_socket()));
    let migrated = run(&config, &["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");
    config
}

/// The ledger on a server, the copies here: the record is committed before a link, and the receipt
/// is sent after the sync.
#[test]
fn with_postgres_files_are_on_disk_before_the_receipt_is_sent() {
    let (postgres, site) = (Postgres::shared_and_empty(), Site::embedded());
    let root = &site.root;
    let config = with_postgres(&postgres, &site, HERE);
    for (message, copies) in [(FROM_ELSEWHERE, 1), (MESSAGE, 2)] {
        let is_old = root.join("mail").exists();
        let run = Traced::well(root, &config, &DELIVER, Some(message));
        let old = |path: &Path| {
            is_old
                && !path.to_string_lossy().contains(".Sent")
                && !path.to_string_lossy().contains("lisa")
        };
        assert_eq!(run.links().len(), copies);
        for link in run.links() {
            let copy = PathBuf::from(link.quoted(1));
            assert!(
                Disk::at(&run.calls, link.ended + 1, old).keeps_content(&copy),
                "linked before it is synced"
            );
            run.assert_answered("onedrop_record(", link.began);
            let receipt = run.first_after(link.ended, |call| {
                call.name == "sendto" && call.args.contains("onedrop_confirm(")
            });
            let receipt = receipt.expect("a receipt");
            Disk::at(&run.calls, receipt.began, old)
                .assert_keeps(&copy, "the copy before its receipt");
        }
        let said =
            run.all(|call| call.name == "write" && call.quoted(0).starts_with("stored "))[0].began;
        run.assert_answered("onedrop_confirm(", said);
    }
}

/// No last bytes of an APPEND before the record is committed, no receipt before the server has
/// answered, no word of it before the receipt is committed.
#[test]
fn with_postgres_and_imap_each_step_has_its_answer_before_the_next() {
    let site = Site::with_servers();
    let config = site.config("order", HERE);
    let run = Traced::well(&site.root, &config, &DELIVER, Some(MESSAGE));
    let stored = run.all(|call| call.name == "recvfrom" && call.args.contains("APPENDUID"));
    assert_eq!(stored.len(), 2);
    for stored in stored {
        let sent = run.all(|call| {
            call.name == "sendto" && call.on() == stored.on() && call.began < stored.began
        });
        let last_bytes = sent.last().expect("last bytes");
        assert!(last_bytes.args.contains("\\r\\n\", "), "{last_bytes:?}");
        run.assert_answered("onedrop_record(", last_bytes.began);
        let is_receipt =
            |call: &Call| call.name == "sendto" && call.args.contains("onedrop_confirm(");
        let receipt = run.first_after(last_bytes.began, is_receipt).expect("a receipt");
        assert!(receipt.began > stored.ended, "{receipt:?}");
    }
    let said =
        run.all(|call| call.name == "write" && call.quoted(0).starts_with("stored "))[0].began;
    run.assert_answered("onedrop_confirm(", said);
}

/// A commit that a server may forget must not let a copy be written, nor take anything out:
/// whatever the server's default, and also where we open the transactions since its default
/// isolation is another.
#[test]
fn commits_are_durable_whatever_the_server_has_for_a_default() {
    for isolation in ["read committed", "repeatable read"] {
        let postgres = Postgres::shared_and_empty();
        for default in [
            "synchronous_commit = off".to_owned(),
            format!("default_transaction_isolation = '{isolation}'"),
        ] {
            postgres.psql(&format!("ALTER DATABASE {} SET {default}", postgres.database()));
        }
        let site = Site::embedded();
        let config = with_postgres(&postgres, &site, HERE);
        postgres.remember_for_ever();
        postgres.psql(
            "CREATE TABLE seen (what text, setting text); GRANT ALL ON seen TO onedrop; CREATE \
             FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen \
             VALUES (concat_ws(' ', TG_TABLE_NAME, TG_OP, to_jsonb(NEW)->>'mailbox'), \
             current_setting('synchronous_commit')); RETURN NULL; END $$;",
        );
        // At the commit, which is what waits.
        for table in ["onedrop_message", "onedrop_copy"] {
            postgres.psql(&format!(
                "CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON {table} DEFERRABLE \
                 INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()"
            ));
        }
        let said = delivered(&config, &["-d", "scuba@mail.axial.net"], MESSAGE);
        assert!(said.starts_with("stored "), "{said}");
        let seen = postgres.psql("SELECT DISTINCT what || ' ' || setting FROM seen ORDER BY 1");
        let wanted = [
            "onedrop_copy INSERT INBOX on",
            "onedrop_copy INSERT Sent on",
            // The receipt of a recipient's own copy, which a look would find.
            "onedrop_copy UPDATE INBOX off",
            "onedrop_copy UPDATE Sent on",
            "onedrop_message INSERT on",
        ];
        assert_eq!(seen.lines().collect::<Vec<_>>(), wanted, "{isolation}");
        // What verify puts on record, in transactions of the program's own: a second look at a copy
        // that was leased twice.
        let aside = "UPDATE onedrop_copy SET epoch = 2, placed_at = placed_at - interval '1 hour'";
        postgres.psql(aside);
        postgres.psql("TRUNCATE seen");
        let verified = run(&config, &["verify", "--repair", "--since", "2h"]);
        assert!(verified.status.success(), "{verified:?}");
        let seen = postgres.psql("SELECT DISTINCT what || ' ' || setting FROM seen ORDER BY 1");
        let wanted = ["onedrop_copy UPDATE INBOX on", "onedrop_copy UPDATE Sent on"];
        assert_eq!(seen.lines().collect::<Vec<_>>(), wanted, "{isolation}");
    }
}
