//! The folder above all Maildirs, and its mark. A file system that is not mounted leaves an empty
//! folder, or another one, in its place: mail written there is on record as placed, and hidden as
//! soon as the file system is back. So `migrate` leaves a file with a random value in the root and
//! puts the value on record, and no delivery writes below a root whose mark the ledger does not
//! know. Only `migrate` makes the root.
//!
//! A ledger may have several roots, as hosts with disks of their own do. Where `migrate` may not
//! write the root (`/home`), it is not marked, and a ledger without any mark demands none:
//! deliveries cannot make anything there either. Marks are on record among the proofs of ways into
//! the store ([`Way`]).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::unistd::{AccessFlags, access};

use crate::deliver::Failure;
use crate::ledger::{LedgerError, Proofs, RandomValue, of_the_ledger};
use crate::lock_key;
use crate::login::Way;
use crate::os::durable::sync_way_to;
use crate::os::owner;
use crate::store::StoreError;

/// The file in the root. No account's folder begins with a dot.
const MARK: &str = ".onedrop";

/// In the file, before the value.
const LINE: &str = "mail root of the ledger that knows ";

/// Longest file that can be a mark.
const LONGEST: u64 = 1024;

/// What is found at a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailRoot {
    Missing,
    Unmarked,
    Marked(String),
}

impl MailRoot {
    /// Looks at `root`.
    ///
    /// # Errors
    /// A sentence: what keeps it from being seen.
    pub fn find(root: &Path) -> Result<MailRoot, String> {
        let at = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
        match fs::metadata(as_folder(root)) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(format!("{} is no folder", root.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MailRoot::Missing),
            Err(error) => return Err(at(root, &error)),
        }
        let path = root.join(MARK);
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(LONGEST).read_to_string(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MailRoot::Unmarked),
            Err(error) => return Err(at(&path, &error)),
        }
        let value = text.lines().find_map(|line| line.strip_prefix(LINE)).map(str::trim);
        match value.filter(|value| !value.is_empty()) {
            Some(value) => Ok(MailRoot::Marked(value.to_owned())),
            None => Err(format!("{} is not a mark that \"onedrop migrate\" made", path.display())),
        }
    }

    /// Whether the ledger knows what was found at `root`.
    ///
    /// # Errors
    /// [`StoreError::Setup`]: it does not, so nothing is written there.
    pub fn is_known(
        &self,
        root: &Path,
        ledger: &(impl Proofs + ?Sized),
        until: Instant,
    ) -> Result<(), Failure> {
        self.is_one_of(root, &|way| ledger.is_proven(way, until))
    }

    fn is_one_of(&self, root: &Path, is_proven: OnRecord<'_>) -> Result<(), Failure> {
        let (shown, mark) = (root.display(), root.join(MARK));
        let mark = mark.display();
        let why = match self {
            MailRoot::Missing => {
                let accept = if is_proven(&marks())? { " --accept-config" } else { "" };
                format!(
                    "{shown} is not there: if its file system is not mounted, mount it; a new one \
                     is made by \"onedrop migrate{accept}\""
                )
            }
            MailRoot::Unmarked if !is_proven(&marks())? => return Ok(()),
            MailRoot::Unmarked => format!(
                "{shown} lacks the mark {mark} of this ledger: if its file system is not mounted, \
                 mount it; if it is the right folder, \"onedrop migrate --accept-config\" marks it"
            ),
            MailRoot::Marked(value) if is_proven(&of(value))? => return Ok(()),
            MailRoot::Marked(_) => format!(
                "{shown} belongs to another ledger, by its mark {mark}: see ledger.url and \
                 store.url; if it is the right folder, \"onedrop migrate --accept-config\" takes \
                 it over"
            ),
        };
        Err(StoreError::Setup(why).into())
    }
}

/// Whether the ledger has it on record.
type OnRecord<'a> = &'a dyn Fn(&Way) -> Result<bool, LedgerError>;

/// What [`mark`] does about a root.
enum MarkStep {
    Nothing,
    /// Another ledger's mark is put on record.
    Accept(String),
    Mark,
    /// Why this user marks nothing.
    Leave(String),
}

impl MarkStep {
    /// # Errors
    /// Those of [`mark`].
    fn of(
        root: &Path,
        accept: bool,
        demands: bool,
        is_proven: OnRecord<'_>,
    ) -> Result<MarkStep, String> {
        let is_known = |value: &str| is_proven(&of(value)).map_err(of_the_ledger);
        Ok(match MailRoot::find(root)? {
            MailRoot::Marked(value) if is_known(&value)? => MarkStep::Nothing,
            MailRoot::Marked(value) if accept => MarkStep::Accept(value),
            MailRoot::Missing | MailRoot::Unmarked if accept || !demands => {
                may_be_marked(root).map_or_else(MarkStep::Leave, |()| MarkStep::Mark)
            }
            found => match found.is_one_of(root, is_proven) {
                Ok(()) => MarkStep::Nothing,
                Err(failure) => return Err(failure.to_string()),
            },
        })
    }
}

/// A sentence: what [`mark`] would do, without `accept`. `is_bare`: the ledger has no schema yet.
///
/// # Errors
/// The same.
pub fn planned_mark(
    root: &Path,
    is_bare: bool,
    ledger: &(impl Proofs + ?Sized),
    until: Instant,
) -> Result<Option<String>, String> {
    let is_proven = |way: &Way| if is_bare { Ok(false) } else { ledger.is_proven(way, until) };
    let demands = is_proven(&marks()).map_err(of_the_ledger)?;
    let (shown, is_there) = (root.display(), fs::exists(as_folder(root)).unwrap_or(true));
    Ok(match MarkStep::of(root, false, demands, &is_proven)? {
        MarkStep::Nothing | MarkStep::Accept(_) => None,
        MarkStep::Mark if is_there => Some(format!("would mark {shown} as this ledger's")),
        MarkStep::Mark => Some(format!("would make {shown} and mark it as this ledger's")),
        MarkStep::Leave(why) => Some(format!("would not mark {shown}: {why}")),
    })
}

/// Makes the root where the ledger knows none yet, and marks it; a root that the ledger does not
/// know only if `accept` says that it is the right one. Returns a sentence: what was done.
///
/// A crash leaves a value on record that no root has, or a marked root of a ledger that does not
/// demand marks yet: the next call goes on.
///
/// # Errors
/// The ledger demands a mark, and the root lacks it; or one of them cannot be written.
pub fn mark(
    root: &Path,
    accept: bool,
    host: &str,
    ledger: &(impl Proofs + ?Sized),
    until: Instant,
) -> Result<Option<String>, String> {
    let is_proven = |way: &Way| ledger.is_proven(way, until);
    let demands = is_proven(&marks()).map_err(of_the_ledger)?;
    let note = |way: &Way| ledger.note_proof(way, true, host, until).map_err(of_the_ledger);
    let shown = root.display();
    let done = match MarkStep::of(root, accept, demands, &is_proven)? {
        MarkStep::Nothing => None,
        MarkStep::Accept(value) => {
            note(&of(&value))?;
            Some(format!("{shown} belongs to this ledger now"))
        }
        MarkStep::Leave(why) => return Ok(Some(format!("{shown} is not marked: {why}"))),
        MarkStep::Mark => {
            let value = lock_key::hex(&RandomValue::default().array());
            note(&of(&value))?;
            write(root, &value).map_err(|error| format!("{shown}: {error}"))?;
            Some(format!("{shown} is marked as this ledger's"))
        }
    };
    if !demands {
        note(&marks())?;
    }
    Ok(done)
}

/// Why this user is not to mark it, or cannot.
fn may_be_marked(root: &Path) -> Result<(), String> {
    if let Some(why) = owner::keeps_root_out(&root.join(MARK)) {
        return Err(why);
    }
    match fs::exists(as_folder(root)) {
        Ok(true) if !is_ours(root) => {
            Err("this user may not write it, and so makes nothing in it".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether this user may make something in the root.
fn is_ours(root: &Path) -> bool {
    access(&as_folder(root), AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Makes the root, if it is not there, and its mark, which is whole and durable or not there.
fn write(root: &Path, value: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(as_folder(root))?;
    let (path, new) = (root.join(MARK), root.join(format!("{MARK}.{}", std::process::id())));
    let mut options = OpenOptions::new();
    // Whoever delivers reads it.
    let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(&new)?;
    let text = format!(
        "{LINE}{value}\n\nWithout this file Onedrop takes the file system for one that is not \
         mounted. Keep it with the mail.\n"
    );
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let placed = written.and_then(|()| fs::rename(&new, &path));
    if placed.is_err() {
        // Perhaps it is not there.
        let _ = fs::remove_file(&new);
    }
    placed.and_then(|()| sync_way_to(&as_folder(root)))
}

/// On record where a root has this value.
fn of(value: &str) -> Way {
    Way { server: format!("mail root {value}"), ..marks() }
}

/// On record where the ledger demands a mark.
fn marks() -> Way {
    let (server, form) = ("mail roots".to_owned(), "maildir".to_owned());
    Way { server, login_user: String::new(), form }
}

/// An empty path is the working folder.
fn as_folder(root: &Path) -> PathBuf {
    if root.as_os_str().is_empty() { PathBuf::from(".") } else { root.to_owned() }
}
