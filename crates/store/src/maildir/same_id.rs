//! Files that a mail program, or its server, put into the Maildir for a message that it sent: known
//! by the message's first Message-ID. Only files that came, or were renamed, since a time that the
//! caller gives are opened (their ctime says so, whatever date they were given).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::at;
use super::copies::{LISTINGS, entries, is_named, is_trashed, modified};
use onedrop_core::store::{CopySearch, FoundCopy, Naming, Proof, Receipt, StoreError};

/// A header is read in pieces of this size,
const PIECE: u64 = 16 * 1024;
/// and no further than this.
const LONGEST_HEADER: usize = 1024 * 1024;

/// The files that are not called `name`, the copy's own, and hold the sought message.
///
/// # Errors
/// A folder cannot be read, or files are being renamed all the time.
pub fn find(
    folder: &Path,
    name: &str,
    sought: &CopySearch<'_>,
) -> Result<Vec<FoundCopy>, StoreError> {
    let since = sought.since.unwrap_or(UNIX_EPOCH);
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    'listings: for _ in 0..LISTINGS {
        // By the name that lasts: a reader that renames a file may show it twice.
        let mut found = BTreeMap::new();
        for sub in ["new", "cur"] {
            let sub = folder.join(sub);
            for entry in entries(&sub)? {
                let path = sub.join(&entry);
                let lasting = entry.split(':').next().unwrap_or_default();
                if is_named(&entry, name) || found.contains_key(lasting) {
                    continue;
                }
                let proof = match proof(&path, since, sought) {
                    Ok(None) => continue,
                    Ok(Some(proof)) => proof,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue 'listings,
                    Err(error) => return Err(at(&path, &error)),
                };
                let copy = FoundCopy {
                    receipt: Receipt::name(lasting),
                    naming: Naming::Shared,
                    has_our_date: modified(&path)? == Some(sought.recorded_at),
                    marked_deleted: is_trashed(&entry),
                    is_wrapped: false,
                    proof,
                    handed: None,
                };
                found.insert(lasting.to_owned(), copy);
            }
        }
        return Ok(found.into_values().take(sought.at_most).collect());
    }
    let text = format!("{}: files are being renamed all the time", folder.display());
    Err(StoreError::NotStored(text))
}

/// What the file at `path` is, if it came since then and holds the sought message.
fn proof(path: &Path, since: u64, sought: &CopySearch<'_>) -> io::Result<Option<Proof>> {
    let facts = fs::metadata(path)?;
    if !facts.is_file() || u64::try_from(facts.ctime()).is_ok_and(|ctime| ctime < since) {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    let has_id = sought.identity.message_id.is_some();
    while has_id && bytes.len() < LONGEST_HEADER && !has_header(&bytes) {
        if file.by_ref().take(PIECE).read_to_end(&mut bytes)? == 0 {
            break;
        }
    }
    if has_id && !sought.identity.has_same_id(&bytes) {
        return Ok(None);
    }
    let most = sought.size_bytes.end().saturating_add(LONGEST_HEADER as u64);
    file.take(most).read_to_end(&mut bytes)?;
    Ok(match sought.identity.is_that_of(&bytes) {
        true => Some(Proof::SameContent),
        false => has_id.then_some(Proof::SameId),
    })
}

/// Whether the empty line that ends a header is in `bytes`.
fn has_header(bytes: &[u8]) -> bool {
    [&b"\n\n"[..], b"\n\r\n"].iter().any(|end| memchr::memmem::find(bytes, end).is_some())
}
