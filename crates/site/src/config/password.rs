//! Reading files that the configuration names: a password, which only its owner may read, and a
//! CA's certificate.
//!
//! Only regular files are opened: a delivery's stdin is the message, and a pipe could wait for
//! ever. The password's file is judged and read through one open file, so what was judged is what
//! was read.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use nix::unistd::{User, geteuid};
use secrecy::SecretString;
use secrecy::zeroize::Zeroizing;

use super::problem::{shown_io, shown_path};

/// Longest password file, in bytes.
const LONGEST: u64 = 4096;

/// Reads a password; one trailing newline does not belong to it.
///
/// # Errors
/// What is wrong with the file, without what it holds.
pub(super) fn read(
    path: &Path,
    credentials_directory: Option<&Path>,
) -> Result<SecretString, String> {
    let shown = shown_path(path);
    let failed = |error: io::Error| format!("{shown}: {}", shown_io(&error));
    let file = open_regular(path).map_err(|why| format!("{shown}: {why}"))?;
    // systemd guards its credentials by the folder and by ACLs, which show up as permissions of the
    // group.
    if !credentials_directory.is_some_and(|folder| is_under(path, folder)) {
        is_closed(path, &file.metadata().map_err(failed)?)?;
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST as usize + 1));
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match str::from_utf8(line) {
        _ if bytes.len() as u64 > LONGEST => Err(format!("{shown} is too long for a password")),
        Err(_) => Err(format!("{shown} is not UTF-8")),
        Ok("") => Err(format!("{shown} is empty")),
        Ok(password) if password.contains('\n') => Err(format!("{shown} holds more than one line")),
        Ok(password) if password.contains('\0') => Err(format!("{shown} holds a NUL")),
        Ok(password) => Ok(password.into()),
    }
}

/// What is wrong with a password's file; of one that this user may not read, what can be seen from
/// outside.
pub fn fault(path: &Path) -> Option<String> {
    let is_hidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    match fs::metadata(path) {
        Ok(found) if found.is_file() && File::open(path).as_ref().is_err_and(is_hidden) => {
            is_closed(path, &found).err()
        }
        Err(error) if is_hidden(&error) => None,
        _ => read(path, None).err(),
    }
}

/// # Errors
/// Others than its owner may read it.
fn is_closed(path: &Path, found: &Metadata) -> Result<(), String> {
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let shown = shown_path(path);
    Err(format!("{shown} is open to group or others (mode {mode:04o}; expected 0600 or 0400)"))
}

/// Opens a regular file: not a folder, a pipe or a terminal.
///
/// # Errors
/// A sentence that says why not.
pub(super) fn open_regular(path: &Path) -> Result<File, String> {
    let explained = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => format!("{} to {}", shown_io(&error), shown_user()),
        _ => shown_io(&error),
    };
    if !fs::metadata(path).map_err(explained)?.is_file() {
        return Err("not a regular file".to_owned());
    }
    File::open(path).map_err(explained)
}

/// Whose rights count: `the user onedrop`.
fn shown_user() -> String {
    let uid = geteuid();
    match User::from_uid(uid) {
        Ok(Some(user)) => format!("the user {}", user.name),
        _ => format!("user id {uid}"),
    }
}

fn is_under(path: &Path, folder: &Path) -> bool {
    path.starts_with(folder) && !path.components().any(|part| part == Component::ParentDir)
}
