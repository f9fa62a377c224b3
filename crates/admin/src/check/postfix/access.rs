//! What a program that Postfix starts may read, write and connect to, with the user and group of
//! the transport. As root, `check` asks the kernel through a child with exactly these ids; as any
//! other user it reads the mode bits, which do not show ACLs.

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nix::unistd::{Gid, Group, User, geteuid, getgrouplist};

use crate::check::program;
use onedrop_core::directory::FolderTemplate;
use onedrop_site::config::{Config, LedgerUrl, StoreUrl};

/// The ids with which Postfix runs a program.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    /// The name that an administrator writes.
    name: String,
    uid: u32,
    gid: u32,
    /// Beside `gid`.
    groups: Vec<u32>,
    /// Whether `user=` may name a group as well.
    takes_group: bool,
}

/// How a delivery uses a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathAccess {
    Search,
    Read,
    Write,
}

impl PathAccess {
    /// The word for it, its mode bit, and its flag of test(1).
    fn forms(self) -> (&'static str, u32, &'static str) {
        match self {
            PathAccess::Search => ("enter", 0o1, "x"),
            PathAccess::Read => ("read", 0o4, "r"),
            PathAccess::Write => ("write to", 0o2, "w"),
        }
    }
}

/// A path that a delivery needs.
#[derive(Debug, Clone)]
pub(super) struct RequiredPath {
    what: &'static str,
    path: PathBuf,
    need: PathAccess,
}

impl RequiredPath {
    fn new(what: &'static str, path: &Path, need: PathAccess) -> RequiredPath {
        RequiredPath { what, path: resolved(path), need }
    }

    /// Every access that it needs: the folders from the root on, then the path itself.
    fn steps(&self) -> Vec<(PathAccess, PathBuf)> {
        let folders = self.path.ancestors().skip(1);
        let mut steps: Vec<_> =
            folders.map(|folder| (PathAccess::Search, folder.to_owned())).collect();
        steps.reverse();
        steps.push((self.need, self.path.clone()));
        steps
    }
}

impl Credentials {
    /// The credentials of a command that pipe(8) runs by `user=USER[:GROUP]`: one group.
    ///
    /// # Errors
    /// A sentence: why pipe(8) runs nothing as `user`.
    pub(super) fn of_pipe(user: Option<&str>, mail_owner: &str) -> Result<Credentials, String> {
        let user = user.ok_or("no user=; pipe(8) needs one")?;
        let owner = Credentials::of(mail_owner);
        let why = match Credentials::of(user) {
            None => "there is no such user or group on this host",
            Some(one) if one.uid == 0 || one.gid == 0 => {
                "pipe(8) runs nothing with the rights of root or group 0"
            }
            Some(one)
                if owner.as_ref().is_some_and(|of| of.uid == one.uid || of.gid == one.gid) =>
            {
                "pipe(8) runs nothing with the rights of the mail system's owner"
            }
            Some(one) => return Ok(one),
        };
        Err(format!("user={user}: {why}"))
    }

    /// The credentials of Postfix's own unprivileged programs: with all groups of the user.
    pub(super) fn of_daemon(user: &str) -> Option<Credentials> {
        let one = Credentials::of(user)?;
        let groups = getgrouplist(&CString::new(user).ok()?, one.gid.into()).unwrap_or_default();
        let groups = groups.into_iter().map(Gid::as_raw).filter(|group| *group != one.gid);
        Some(Credentials { groups: groups.collect(), takes_group: false, ..one })
    }

    /// `USER[:GROUP]`; `None`: there is no such user or group.
    fn of(user: &str) -> Option<Credentials> {
        let (name, group) = user.split_once(':').unwrap_or((user, ""));
        let known = User::from_name(name).ok()??;
        let gid = match group {
            "" => known.gid,
            group => Group::from_name(group).ok()??.gid,
        };
        let (name, uid, gid) = (user.to_owned(), known.uid.as_raw(), gid.as_raw());
        Some(Credentials { name, uid, gid, groups: Vec::new(), takes_group: true })
    }

    /// What of `wanted` this user may not, a phrase each; nothing if that is unknown.
    pub(super) fn lacks(&self, wanted: &[RequiredPath], until: Instant) -> Vec<String> {
        let asked = (geteuid().is_root() && self.groups.is_empty())
            .then(|| self.refused_by_the_kernel(wanted, until))
            .flatten();
        let may = |(need, path): &(PathAccess, PathBuf)| match &asked {
            Some(refused) => !refused.contains(&argument(*need, path)),
            // A path without metadata counts as allowed.
            None => path.metadata().map_or(true, |found| self.may(&found, *need)),
        };
        let lack = |wanted: &RequiredPath| {
            let (need, path) = wanted.steps().into_iter().find(|step| !may(step))?;
            Some(self.lack(wanted, need, &path))
        };
        wanted.iter().filter_map(lack).collect()
    }

    fn lack(&self, wanted: &RequiredPath, need: PathAccess, path: &Path) -> String {
        let (verb, ..) = wanted.need.forms();
        let at = wanted.path.display();
        let mut text = format!("{} cannot {verb} {} {at}", self.name, wanted.what);
        if path != wanted.path {
            text += &format!(": {} is closed", path.display());
        }
        if let Some(group) = self.helpful_group(path, need) {
            let user = self.name.split(':').next().unwrap_or_default();
            text += &format!(" (its group may: user={user}:{group})");
        }
        text
    }

    /// The group that would help, if it is not root's.
    fn helpful_group(&self, path: &Path, need: PathAccess) -> Option<String> {
        let found = path.metadata().ok()?;
        let with = Credentials { gid: found.gid(), ..self.clone() };
        let helps = self.takes_group
            && found.gid() != 0
            && found.uid() != self.uid
            && with.may(&found, need);
        let group = helps.then(|| Group::from_gid(found.gid().into()).ok().flatten())?;
        group.map(|group| group.name)
    }

    /// By the mode bits (path_resolution(7)): the first class that fits decides.
    fn may(&self, found: &Metadata, need: PathAccess) -> bool {
        let (_, bit, _) = need.forms();
        let shift = if found.uid() == self.uid {
            6
        } else if found.gid() == self.gid || self.groups.contains(&found.gid()) {
            3
        } else {
            0
        };
        self.uid == 0 || found.mode() >> shift & bit != 0
    }

    /// The accesses that the kernel refuses to a child with these ids, each as its [`argument`];
    /// `None` if it cannot be asked.
    fn refused_by_the_kernel(
        &self,
        wanted: &[RequiredPath],
        until: Instant,
    ) -> Option<BTreeSet<OsString>> {
        const ASK: &str =
            r#"for one; do test "-${one%%:*}" "${one#*:}" || printf '%s\0' "$one"; done"#;
        let steps: BTreeSet<_> = wanted.iter().flat_map(RequiredPath::steps).collect();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", ASK, "sh"]);
        command.args(steps.iter().map(|(need, path)| argument(*need, path)));
        // As root, std also drops our own supplementary groups when it changes the user.
        command.uid(self.uid).gid(self.gid).current_dir("/").env_clear();
        let refused = program::output(&mut command, until).ok()?;
        Some(refused.split('\0').map(OsString::from).collect())
    }
}

/// An access as an argument of the child that asks the kernel.
fn argument(need: PathAccess, path: &Path) -> OsString {
    let (_, _, flag) = need.forms();
    let mut argument = OsString::from(format!("{flag}:"));
    argument.push(path);
    argument
}

/// The paths that a delivery with this configuration file needs; `config` if it is known.
pub(super) fn wanted(file: &Path, config: Option<&Config>) -> Vec<RequiredPath> {
    const FOLDER: &str = "the configuration's folder";
    let read = |path: &Path| RequiredPath::new("the configuration", path, PathAccess::Read);
    let mut wanted = vec![read(file)];
    let fragments = file.with_file_name("conf.d");
    if fragments.is_dir() {
        wanted.push(RequiredPath::new(FOLDER, &fragments, PathAccess::Read));
        wanted.push(RequiredPath::new(FOLDER, &fragments, PathAccess::Search));
        let files = std::fs::read_dir(&fragments).into_iter().flatten();
        let files = files.filter_map(|entry| Some(entry.ok()?.path()));
        let is_fragment =
            |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
        wanted.extend(files.filter(is_fragment).map(|path| read(&path)));
    }
    wanted.extend(config.map(named_by).unwrap_or_default());
    // Other findings report missing files.
    let is_there =
        |path: &Path| !matches!(path.metadata(), Err(error) if error.kind() == ErrorKind::NotFound);
    wanted.retain(|wanted| wanted.path.is_absolute() && is_there(&wanted.path));
    wanted
}

fn named_by(config: &Config) -> Vec<RequiredPath> {
    let (ledger, store, directory) = (&config.ledger, &config.store, &config.directory);
    let files = [
        ("ledger.password_file", &ledger.password_file),
        ("ledger.ca_file", &ledger.ca_file),
        ("store.password_file", &store.password_file),
        ("store.ca_file", &store.ca_file),
        ("directory.password_file", &directory.password_file),
        ("directory.ca_file", &directory.ca_file),
    ];
    let read = |what, path: &Path| RequiredPath::new(what, path, PathAccess::Read);
    let mut wanted = Vec::new();
    for (what, path) in files {
        wanted.extend(path.as_deref().map(|path| read(what, path)));
    }
    if let Some(LedgerUrl::Sqlite { path }) = &directory.url {
        wanted.push(read("directory.url", path));
    }
    let write = |what, path: &Path| RequiredPath::new(what, path, PathAccess::Write);
    if let LedgerUrl::Sqlite { path } = &ledger.url {
        // SQLite creates files beside it.
        let folder = nearest(path.parent().unwrap_or(Path::new("")));
        wanted.extend([write("the ledger's folder", folder), write("the ledger", path)]);
    }
    if let StoreUrl::Maildir { root } = store.kind()
        && store.create_mailboxes
        && let Ok(place) = FolderTemplate::parse(&root)
    {
        wanted.push(write("the Maildirs' folder", nearest(place.root())));
    }
    wanted.extend(directory.userdb.as_deref().map(|path| write("directory.userdb", path)));
    wanted.extend(config.deliver.via.as_deref().map(socket));
    wanted
}

/// A Unix socket to connect to, which takes the right to write (unix(7)).
pub(super) fn socket(path: &Path) -> RequiredPath {
    RequiredPath::new("the LMTP server's socket", path, PathAccess::Write)
}

/// The path without symbolic links, if it can be resolved.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The file's canonical name, if it can be resolved, else its absolute one.
pub(super) fn canonical(file: &Path) -> PathBuf {
    file.canonicalize().or_else(|_| std::path::absolute(file)).unwrap_or_else(|_| file.to_owned())
}

/// The folder, or the nearest existing one above it.
fn nearest(folder: &Path) -> &Path {
    folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"))
}
