//! The files of one copy. Its key names it, so there is one; a second one stands where a delivery
//! was late and a reader had renamed the first. The one that is to stay goes by the bare name, any
//! other by folder and file, so that a removal can mean one file alone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::at;
use super::lock::{CopyLock, LOCKS};
use onedrop_core::lock_key;
use onedrop_core::os::durable::sync_folder;
use onedrop_core::os::owner;
use onedrop_core::store::{CopySearch, FoundCopy, Naming, Proof, Receipt, StoreError};

/// A change of a folder older than that is on the disk.
const WRITTEN_BACK: Duration = Duration::from_secs(3600);

/// What a file is called that is being taken out.
const ASIDE: &str = ".double";

/// How often to list a folder in which others rename what is listed.
pub const LISTINGS: usize = 5;

/// The files called `name`, and last the one that goes by that name: not marked as deleted if there
/// is such a one, then with our date, then in `cur/`, where a reader has had it longest.
///
/// # Errors
/// A folder cannot be read, or files are being renamed all the time.
pub fn find(
    folder: &Path,
    name: &str,
    sought: &CopySearch<'_>,
) -> Result<Vec<FoundCopy>, StoreError> {
    let names = [name.to_owned()];
    let found = find_all(folder, &names, std::slice::from_ref(sought))?;
    Ok(found.into_iter().flatten().collect())
}

/// Does what [`find`] does for several names; the folder is listed once, but for names whose files
/// are being renamed.
///
/// # Errors
/// Those of [`find`].
pub fn find_all(
    folder: &Path,
    names: &[String],
    sought: &[CopySearch<'_>],
) -> Result<Vec<Vec<FoundCopy>>, StoreError> {
    let mut found: Vec<Option<Vec<FoundCopy>>> = vec![None; names.len()];
    let mut newly_named = BTreeSet::new();
    // A reader moves files from new/ to cur/ and never back. One that changes flags renames in
    // cur/, and a listing may then miss both names, or show one file twice; what is gone when all
    // have been listed is there under another name.
    for _ in 0..LISTINGS {
        let open = found.iter().zip(names).filter(|(found, _)| found.is_none());
        let wanted: HashSet<&str> = open.map(|(_, name)| name.as_str()).collect();
        if wanted.is_empty() {
            break;
        }
        let mut files: HashMap<String, Vec<File>> = HashMap::new();
        for file in self::files(folder, |entry| wanted.contains(base(entry)))? {
            files.entry(base(&file.1).to_owned()).or_default().push(file);
        }
        for ((found, name), sought) in found.iter_mut().zip(names).zip(sought) {
            if found.is_none() {
                let files = files.get(name.as_str()).map_or(&[][..], Vec::as_slice);
                *found = standing(folder, name, files, sought, &mut newly_named)?;
            }
        }
    }
    // The caller may put a copy on record, and the process that linked it may have died before it
    // synced its name.
    for sub in newly_named {
        sync_folder(&folder.join(sub)).map_err(|error| at(&folder.join(sub), &error))?;
    }
    let renamed = |name: &String| {
        let text = format!("{}: {name} is being renamed all the time", folder.display());
        StoreError::NotStored(text)
    };
    let found = found.into_iter().zip(names);
    found.map(|(found, name)| found.ok_or_else(|| renamed(name))).collect()
}

/// What stands of the files called `name`; `None` if one of them is renamed or gone by now. Adds
/// the folders in which one has its name for a short time only.
fn standing(
    folder: &Path,
    name: &str,
    files: &[File],
    sought: &CopySearch<'_>,
    newly_named: &mut BTreeSet<&'static str>,
) -> Result<Option<Vec<FoundCopy>>, StoreError> {
    let mut standing = Vec::new();
    for (sub, entry) in files {
        let path = folder.join(sub).join(entry);
        let Some(date) = modified(&path)? else { return Ok(None) };
        if is_newly_named(&path) {
            newly_named.insert(sub);
        }
        standing.push(FoundCopy {
            has_our_date: date == sought.recorded_at,
            marked_deleted: is_trashed(entry),
            is_wrapped: false,
            receipt: Receipt::name(format!("{sub}/{entry}")),
            naming: Naming::Passing,
            proof: Proof::Equal,
            handed: None,
        });
    }
    let worth = |one: &FoundCopy| (!one.marked_deleted, one.has_our_date);
    // The last of several that are worth the same.
    if let Some((at, _)) = standing.iter().enumerate().max_by_key(|(_, one)| worth(one)) {
        let keeper = standing.remove(at);
        standing.push(FoundCopy { receipt: Receipt::name(name), naming: Naming::Shared, ..keeper });
    }
    // A caller that wants one wants the name that lasts.
    let skip = standing.len().saturating_sub(sought.at_most);
    Ok(Some(standing.split_off(skip)))
}

/// Takes out the file `double` (`new/FILE`, `cur/FILE`) if another file called `keeper`, of the
/// same date, stands beside it; or all files called `double`, if a file of another name, called
/// `keeper`, stands beside them. It goes out of the way before the keeper is looked for: where two
/// processes each take the other's keeper for the double, at least one finds none, and puts back
/// what it took. What a crash in between leaves, [`undo_killed_removals`] puts back.
///
/// # Errors
/// It stands as before, or a reader has renamed it.
pub fn remove_double(folder: &Path, double: &str, keeper: &str) -> Result<(), StoreError> {
    let is_name = |name: &str| !name.is_empty() && !name.contains('/');
    let are_two = !is_named(double, keeper) && !is_named(keeper, double);
    if is_name(double) && is_name(keeper) && are_two {
        let files = files(folder, |entry| is_named(entry, double))?;
        if files.is_empty() {
            return Err(StoreError::NotStored(format!("{double} is gone by now")));
        }
        return files
            .iter()
            .try_for_each(|(sub, file)| take_out(folder, sub, file, (keeper, false)));
    }
    let is_one = |file: &str| is_named(file, keeper) && !keeper.is_empty() && !file.contains('/');
    let Some((sub @ ("new" | "cur"), file)) =
        double.split_once('/').filter(|(_, file)| is_one(file))
    else {
        return Err(StoreError::NotStored(format!(
            "{double} does not name one file of two called {keeper}"
        )));
    };
    take_out(folder, sub, file, (keeper, true))
}

/// Takes out `sub/file` if the keeper stands, which may have to be of the same date.
fn take_out(
    folder: &Path,
    sub: &str,
    file: &str,
    (keeper, has_same_date): (&str, bool),
) -> Result<(), StoreError> {
    let _lock = removal_lock(folder)?;
    let path = folder.join(sub).join(file);
    let renamed =
        || StoreError::NotStored(format!("{sub}/{file} is gone or renamed by now, try again"));
    let date = modified(&path)?.ok_or_else(renamed)?;
    let aside = folder.join("tmp").join(format!("{file}.{}{ASIDE}", std::process::id()));
    fs::hard_link(&path, &aside).map_err(|error| at(&aside, &error))?;
    if let Err(error) = fs::remove_file(&path) {
        let _ = fs::remove_file(&aside);
        return Err(if error.kind() == io::ErrorKind::NotFound {
            renamed()
        } else {
            at(&path, &error)
        });
    }
    let gone = || {
        let text = format!("{keeper}, which was to stay, is gone or marked as deleted");
        StoreError::NotStored(text)
    };
    let date = has_same_date.then_some(date);
    let kept = stands(folder, keeper, date).and_then(|is| is.then_some(()).ok_or_else(gone));
    if kept.is_err()
        && let Err(error) = fs::hard_link(&aside, &path)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(StoreError::NotStored(format!(
            "what was to stay is gone, and the double waits as {}: {error}",
            aside.display()
        )));
    }
    fs::remove_file(&aside).map_err(|error| at(&aside, &error))?;
    // Durable before the ledger records that there is one copy.
    kept.and(sync_folder(&folder.join(sub)).map_err(|error| at(folder, &error)))
}

/// Held while a double is out of the way.
fn removal_lock(folder: &Path) -> Result<CopyLock, StoreError> {
    if let Some(why) = owner::keeps_root_out(folder) {
        return Err(StoreError::Setup(why));
    }
    let key = lock_key::name_hash("onedrop removal");
    let lock = CopyLock::try_take(folder, &key).map_err(|error| at(&folder.join(LOCKS), &error))?;
    lock.ok_or_else(|| {
        let text = format!("{}: another takes a double out, try again", folder.display());
        StoreError::NotStored(text)
    })
}

/// Puts back what a removal that was killed has left out of the way, unless it may go by the rule
/// of [`take_out`]: the copy is as before, and is judged anew.
///
/// # Errors
/// It is left where it is, so what stands in the mailbox is not known: another may be at it, and
/// root takes nothing out of another's mailbox.
pub fn undo_killed_removals(folder: &Path) -> Result<(), StoreError> {
    let tmp = folder.join("tmp");
    let entries = entries(&tmp)?;
    let left = entries.iter().filter_map(|entry| {
        let (file, pid) = entry.strip_suffix(ASIDE)?.rsplit_once('.')?;
        (is_number(pid) && !base(file).is_empty()).then(|| (file, tmp.join(entry)))
    });
    let mut left = left.peekable();
    if left.peek().is_none() {
        return Ok(());
    }
    let _lock = removal_lock(folder)?;
    left.try_for_each(|(file, aside)| undo_killed_removal(folder, file, &aside))
}

fn undo_killed_removal(folder: &Path, file: &str, aside: &Path) -> Result<(), StoreError> {
    // Where it is gone, who took it out has ended meanwhile.
    let Some(date) = modified(aside)? else { return Ok(()) };
    if !stands(folder, base(file), Some(date))? {
        let sub = if file.contains(":2,") { "cur" } else { "new" };
        let target = folder.join(sub).join(file);
        match fs::hard_link(aside, &target) {
            Ok(()) => {
                tracing::warn!(file = %target.display(), "put back after a removal was killed");
                sync_folder(&folder.join(sub)).map_err(|error| at(folder, &error))?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let number = |path: &Path| fs::metadata(path).map(|file| file.ino()).ok();
                // Another file has its name by now: this one may be the only one of its kind.
                if number(aside) != number(&target) {
                    return Ok(());
                }
            }
            Err(error) => return Err(at(&target, &error)),
        }
    }
    match fs::remove_file(aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(aside, &error)),
        _ => Ok(()),
    }
}

/// Whether a file called `name` is there, of that date if one is given, and not marked as deleted.
fn stands(folder: &Path, name: &str, date: Option<SystemTime>) -> Result<bool, StoreError> {
    for (sub, entry) in files(folder, |entry| is_named(entry, name))? {
        let is_date = |found: SystemTime| date.is_none_or(|date| date == found);
        if !is_trashed(&entry) && modified(&folder.join(sub).join(&entry))?.is_some_and(is_date) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `new` or `cur`, and the file's name.
type File = (&'static str, String);

/// The files that `is_wanted` takes by their names, those in `cur/` last. Some may be gone.
fn files(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<File>, StoreError> {
    let mut files = Vec::new();
    for (sub, listings) in [("new", 1), ("cur", 2)] {
        let mut wanted = BTreeSet::new();
        for _ in 0..listings {
            let entries = entries(&folder.join(sub))?;
            wanted.extend(entries.into_iter().filter(|entry| is_wanted(entry)));
        }
        files.extend(wanted.into_iter().map(|entry| (sub, entry)));
    }
    Ok(files)
}

/// The names, without what a reader adds to them, that are a time and `key`.
pub fn names_with(folder: &Path, key: &str) -> Result<BTreeSet<String>, StoreError> {
    let mut names = BTreeSet::new();
    // As above: a reader may rename what is listed.
    for sub in ["new", "cur", "cur"] {
        for entry in entries(&folder.join(sub))? {
            let name = entry.split([':', ',']).next().unwrap_or_default();
            if name.split_once('.').is_some_and(|(time, rest)| rest == key && is_number(time)) {
                names.insert(name.to_owned());
            }
        }
    }
    Ok(names)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The date of a file; `None` when there is none.
pub fn modified(path: &Path) -> Result<Option<SystemTime>, StoreError> {
    match fs::metadata(path).and_then(|file| file.modified()) {
        Ok(date) => Ok(Some(date)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path, &error)),
    }
}

/// Whether the file has had its name for less than an hour, after which every system has written it
/// back; also where that is not known.
fn is_newly_named(path: &Path) -> bool {
    let changed = fs::metadata(path).ok().and_then(|file| u64::try_from(file.ctime()).ok());
    let since = changed
        .and_then(|secs| (SystemTime::UNIX_EPOCH + Duration::from_secs(secs)).elapsed().ok());
    since.is_none_or(|since| since < WRITTEN_BACK)
}

/// File names in a folder; a folder that does not exist has none.
pub fn entries(folder: &Path) -> Result<Vec<String>, StoreError> {
    let list = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list.map_err(|error| at(folder, &error))?,
    };
    list.map(|entry| {
        Ok(entry.map_err(|error| at(folder, &error))?.file_name().to_string_lossy().into_owned())
    })
    .collect()
}

/// Whether a file is the one called `name`, whatever flags or fields a reader has added to it.
pub fn is_named(entry: &str, name: &str) -> bool {
    entry.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', ',']))
}

/// What a file of ours is called, without the flags or fields that a reader has added.
fn base(entry: &str) -> &str {
    entry.split([':', ',']).next().unwrap_or_default()
}

/// Whether a reader has marked the file as deleted (flag T).
pub fn is_trashed(entry: &str) -> bool {
    entry.split_once(":2,").is_some_and(|(_, flags)| flags.contains('T'))
}
