//! "Delivered" survives a power failure: files, folders, links, records and receipts reach the disk in the order that
//! `deliver.rs` and the Maildir store promise. SIGKILL cannot show that, since the kernel keeps what was written; here the
//! real binary runs under strace(1), and what its calls would leave after a power failure is worked out.

#[path = "faults/disk.rs"]
mod disk;
#[path = "faults/strace.rs"]
mod strace;
mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use disk::Disk;
use strace::Call;
use support::{TempRoot, onedrop_path};

/// What changes files and folders, and what goes to servers.
const CALLS: &str = "trace=write,writev,pwrite64,pwritev,ftruncate,fallocate,utimensat,fsync,fdatasync,link,linkat,unlink,\
                     unlinkat,rename,renameat,renameat2,mkdir,mkdirat,openat,sendto,recvfrom,exit_group";
const HERE: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n[sent]\ntrust = \"authenticated\"\n\
                    authserv_id = \"mail.axial.net\"\n";
const MESSAGE: &[u8] = b"Authentication-Results: mail.axial.net; dmarc=pass header.from=mail.axial.net\n\
    From: lisa@mail.axial.net\nTo: scuba@mail.axial.net\nSubject: kept\nMessage-ID: <kept@x>\n\nbody\n";
/// From elsewhere: one copy, which is written before its record and synced beside it.
const FROM_ELSEWHERE: &[u8] =
    b"From: ann@elsewhere.example\nTo: scuba@mail.axial.net\nMessage-ID: <elsewhere@x>\n\nbody\n";

/// A run of ours under strace.
struct Traced {
    output: Output,
    calls: Vec<Call>,
}

impl Traced {
    fn run(root: &TempRoot, config: &Path, args: &[&str], stdin: Option<&[u8]>, inject: &[&str]) -> Traced {
        let log = root.join("trace");
        let mut command = Command::new("strace");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ONEDROP_")) {
            command.env_remove(name);
        }
        command.args(["-f", "-y", "-s", "300", "-e", "signal=none", "-e", CALLS, "-o"]).arg(&log);
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

    /// The first call of this kind that began after `moment`.
    fn first_after(&self, moment: usize, is: impl Fn(&Call) -> bool) -> Option<&Call> {
        self.calls.iter().find(|call| call.began > moment && is(call))
    }
}

/// A ledger and a store in folders that are not there yet.
struct Embedded {
    root: TempRoot,
    config: PathBuf,
}

impl Embedded {
    fn new() -> Embedded {
        let root = TempRoot::new();
        let text = format!(
            "[ledger]\nurl = \"sqlite://{0}/ledger/here/ledger.db\"\n[store]\nurl = \"maildir://{0}/mail/here\"\n{HERE}",
            root.display()
        );
        let config = root.write("onedrop.toml", text);
        Embedded { root, config }
    }

    fn wal(&self) -> PathBuf {
        self.root.join("ledger/here/ledger.db-wal")
    }

    /// What was there before a run, to tell what the run made.
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
        let run = Traced::well(&self.root, &self.config, &["deliver", "-d", "scuba@mail.axial.net"], Some(message));
        assert_eq!(run.links().len(), copies);
        self.judge(&run, &old);
    }

    /// What must hold of each copy that a run has linked, whether the run went well or not.
    #[track_caller]
    fn judge(&self, run: &Traced, old: &dyn Fn(&Path) -> bool) {
        let wal = self.wal();
        for link in run.links() {
            let copy = PathBuf::from(link.quoted(1));
            // The record is committed, and the ledger is where it will be looked for.
            let before = Disk::at(&run.calls, link.began, old);
            assert!(run.calls.iter().any(|call| self.is_wal_write(call) && call.ended < link.began), "no record");
            before.assert_keeps(&wal, "the ledger before the link");
            assert!(
                before.lost_names(&wal.with_file_name("ledger.db")).is_empty(),
                "the ledger's name before the link"
            );
            // All of the copy is on disk when it gets its name.
            let linked = Disk::at(&run.calls, link.ended + 1, old);
            assert!(linked.keeps_content(&copy), "{} is linked before it is synced", copy.display());
            // Its name is, before the receipt goes into the ledger.
            if let Some(receipt) = run.first_after(link.ended, |call| self.is_wal_write(call)) {
                Disk::at(&run.calls, receipt.began, old).assert_keeps(&copy, "the copy before its receipt");
            }
        }
        // Nothing is said before it is so.
        if let Some(said) = run.all(|call| call.name == "write" && call.quoted(0).starts_with("stored ")).first() {
            let disk = Disk::at(&run.calls, said.began, old);
            disk.assert_keeps(&wal, "the receipts before they are said");
            for link in run.links() {
                disk.assert_keeps(Path::new(link.quoted(1)), "the copy before it is said to be stored");
            }
        }
    }
}

#[test]
fn copies_folders_and_receipts_of_a_new_ledger_and_new_maildirs_are_on_disk_in_their_order() {
    Embedded::new().deliver(MESSAGE, 2);
}

#[test]
fn a_copy_that_is_written_before_its_record_is_on_disk_before_it_is_linked() {
    let site = Embedded::new();
    site.deliver(FROM_ELSEWHERE, 1);
}

/// The second finds ledger and folders: what others made may not be on disk yet, what this one writes must be.
#[test]
fn a_second_delivery_keeps_the_order_as_well() {
    let site = Embedded::new();
    site.deliver(FROM_ELSEWHERE, 1);
    site.deliver(MESSAGE, 2);
}
