//! What a program that Postfix starts may read, write and connect to, with the user and group of
//! the transport. As root, `check` asks the kernel through a child with exactly these ids; as any
//! other user it reads the mode bits, which do not show ACLs.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nix::unistd::{Group, User};

use crate::check::program;
use crate::config::{Config, LedgerUrl, StoreUrl};
use crate::directory::FolderTemplate;

/// The ids with which Postfix runs a program.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    /// As an administrator writes it.
    pub(super) name: String,
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

/// A path that a delivery needs.
#[derive(Debug, Clone)]
pub(super) struct RequiredPath {
    what: &'static str,
    path: PathBuf,
    need: PathAccess,
}

impl Credentials {
    /// As pipe(8) runs its command by `user=USER[:GROUP]`: one group. `None`: there is no such
    /// user.
    pub(super) fn of_pipe(user: &str) -> Option<Credentials> {
        let (name, group) = user.split_once(':').unwrap_or((user, ""));
        let known = User::from_name(name).ok()??;
        let gid = match group {
            "" => known.gid,
            group => Group::from_name(group).ok()??.gid,
        };
        let name = user.to_owned();
        Some(Credentials {
            name,
            uid: known.uid.as_raw(),
            gid: gid.as_raw(),
            groups: Vec::new(),
            takes_group: true,
        })
    }

    /// As Postfix's own unprivileged programs run: with all groups of the user.
    pub(super) fn of_daemon(user: &str) -> Option<Credentials> {
        let one = Credentials::of_pipe(user)?;
        let name = std::ffi::CString::new(user).ok()?;
        let groups = nix::unistd::getgrouplist(&name, one.gid.into()).unwrap_or_default();
        let groups =
            groups.into_iter().map(nix::unistd::Gid::as_raw).filter(|group| *group != one.gid);
        Some(Credentials { groups: groups.collect(), takes_group: false, ..one })
    }

    /// What of `wanted` this user may not, each in words; nothing if that is unknown.
    pub(super) fn lacks(&self, wanted: &[RequiredPath], until: Instant) -> Vec<String> {
        let asked = (nix::unistd::geteuid().is_root() && self.groups.is_empty())
            .then(|| self.refused_by_the_kernel(wanted, until))
            .flatten();
        let may = |path: &Path, need| match &asked {
            Some(refused) => !refused.contains(&(need, path.to_owned())),
            // A path without metadata counts as allowed.
            None => path.metadata().map_or(true, |found| self.may(&found, need)),
        };
        let lack = |wanted: &RequiredPath| {
            let steps = steps(&wanted.path, wanted.need);
            let (need, path) = steps.into_iter().find(|(need, path)| !may(path, *need))?;
            Some(self.lack(wanted, need, &path))
        };
        wanted.iter().filter_map(lack).collect()
    }

    fn lack(&self, wanted: &RequiredPath, need: PathAccess, path: &Path) -> String {
        let verb = match wanted.need {
            PathAccess::Search => "enter",
            PathAccess::Read => "read",
            PathAccess::Write => "write to",
        };
        let at = wanted.path.display();
        let text = format!("{} cannot {verb} {} {at}", self.name, wanted.what);
        let where_it_ends = if path == wanted.path {
            String::new()
        } else {
            format!(": {} is closed", path.display())
        };
        let hint = self.helpful_group(path, need).map_or(String::new(), |group| {
            let user = self.name.split(':').next().unwrap_or_default();
            format!(" (its group may: user={user}:{group})")
        });
        text + &where_it_ends + &hint
    }

    /// The group that would help, if it is not root's.
    fn helpful_group(&self, path: &Path, need: PathAccess) -> Option<String> {
        let found = path.metadata().ok()?;
        let with = Credentials { gid: found.gid(), ..self.clone() };
        let helps = self.takes_group
            && found.gid() != 0
            && found.uid() != self.uid
            && with.may(&found, need);
        helps
            .then(|| Group::from_gid(found.gid().into()).ok().flatten().map(|group| group.name))
            .flatten()
    }

    /// By the mode bits (path_resolution(7)): the first class that fits decides.
    fn may(&self, found: &Metadata, need: PathAccess) -> bool {
        let bit = match need {
            PathAccess::Search => 0o1,
            PathAccess::Read => 0o4,
            PathAccess::Write => 0o2,
        };
        let shift = if found.uid() == self.uid {
            6
        } else if found.gid() == self.gid || self.groups.contains(&found.gid()) {
            3
        } else {
            0
        };
        self.uid == 0 || found.mode() >> shift & bit != 0
    }

    /// The accesses that the kernel refuses to a child with these ids; `None` if it cannot be
    /// asked.
    fn refused_by_the_kernel(
        &self,
        wanted: &[RequiredPath],
        until: Instant,
    ) -> Option<BTreeSet<(PathAccess, PathBuf)>> {
        const ASK: &str =
            r#"for one; do test "-${one%%:*}" "${one#*:}" || printf '%s\0' "$one"; done"#;
        let steps: BTreeSet<_> =
            wanted.iter().flat_map(|wanted| steps(&wanted.path, wanted.need)).collect();
        let flags = [(PathAccess::Search, "x"), (PathAccess::Read, "r"), (PathAccess::Write, "w")];
        let flag = |need: PathAccess| {
            flags.iter().find(|(one, _)| *one == need).map_or("", |(_, flag)| flag)
        };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", ASK, "sh"]);
        for (need, path) in &steps {
            let mut argument = std::ffi::OsString::from(format!("{}:", flag(*need)));
            argument.push(path);
            command.arg(argument);
        }
        // As root, std also drops our own supplementary groups when it changes the user.
        command.uid(self.uid).gid(self.gid).current_dir("/").env_clear();
        let refused = program::output(command, until).ok()?;
        let refused: BTreeSet<&str> = refused.split('\0').collect();
        let is_refused = |(need, path): &(PathAccess, PathBuf)| {
            path.to_str()
                .is_some_and(|path| refused.contains(format!("{}:{path}", flag(*need)).as_str()))
        };
        Some(steps.into_iter().filter(is_refused).collect())
    }
}

/// Every access that `path` needs: the folders from the root on, then the path itself.
fn steps(path: &Path, need: PathAccess) -> Vec<(PathAccess, PathBuf)> {
    let mut steps: Vec<_> =
        path.ancestors().skip(1).map(|folder| (PathAccess::Search, folder.to_owned())).collect();
    steps.reverse();
    steps.push((need, path.to_owned()));
    steps
}

/// The paths that a delivery with this configuration file needs; `config` if it is known.
pub(super) fn wanted(file: &Path, config: Option<&Config>) -> Vec<RequiredPath> {
    let read =
        |what, path: &Path| RequiredPath { what, path: resolved(path), need: PathAccess::Read };
    let mut wanted = vec![read("the configuration", file)];
    let fragments = file.with_file_name("conf.d");
    if fragments.is_dir() {
        wanted.push(read("the configuration's folder", &fragments));
        wanted.push(RequiredPath {
            what: "the configuration's folder",
            path: resolved(&fragments),
            need: PathAccess::Search,
        });
        let mut files: Vec<_> = std::fs::read_dir(&fragments)
            .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
            .unwrap_or_default();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        wanted.extend(files.iter().map(|path| read("the configuration", path)));
    }
    wanted.extend(config.map(named_by).unwrap_or_default());
    // Other findings report missing files.
    let is_there =
        |path: &Path| !matches!(path.metadata(), Err(error) if error.kind() == ErrorKind::NotFound);
    wanted.retain(|wanted| wanted.path.is_absolute() && is_there(&wanted.path));
    wanted
}

fn named_by(config: &Config) -> Vec<RequiredPath> {
    let mut wanted = Vec::new();
    for (what, path) in [
        ("ledger.password_file", &config.ledger.password_file),
        ("ledger.ca_file", &config.ledger.ca_file),
        ("store.password_file", &config.store.password_file),
        ("store.ca_file", &config.store.ca_file),
    ] {
        wanted.extend(path.as_deref().map(|path| RequiredPath {
            what,
            path: resolved(path),
            need: PathAccess::Read,
        }));
    }
    if let LedgerUrl::Sqlite { path } = &config.ledger.url {
        // SQLite creates files beside it.
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        wanted.push(RequiredPath {
            what: "the ledger's folder",
            path: nearest(&folder),
            need: PathAccess::Write,
        });
        wanted.push(RequiredPath {
            what: "the ledger",
            path: resolved(path),
            need: PathAccess::Write,
        });
    }
    if let StoreUrl::Maildir { root } = config.store.kind()
        && config.store.create_mailboxes
        && let Ok(place) = FolderTemplate::parse(&root)
    {
        wanted.push(RequiredPath {
            what: "the Maildirs' folder",
            path: nearest(place.root()),
            need: PathAccess::Write,
        });
    }
    wanted.extend(config.deliver.via.as_deref().map(socket));
    wanted
}

/// A Unix socket to connect to, which takes the right to write (unix(7)).
pub(super) fn socket(path: &Path) -> RequiredPath {
    RequiredPath { what: "the LMTP server's socket", path: resolved(path), need: PathAccess::Write }
}

/// The path without symbolic links, if it can be resolved.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The folder, or the nearest existing one above it.
fn nearest(folder: &Path) -> PathBuf {
    resolved(folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn mode_bits_are_read_as_the_kernel_does() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let found = file.path().metadata().expect("metadata");
        let (owner, group) = (found.uid(), found.gid());
        let one = |uid, gid, groups| Credentials {
            name: "x".to_owned(),
            uid,
            gid,
            groups,
            takes_group: true,
        };
        for (mode, identity, need, may) in [
            (0o400, one(owner, group, vec![]), PathAccess::Read, true),
            (0o040, one(owner + 1, group, vec![]), PathAccess::Read, true),
            (0o040, one(owner + 1, group + 1, vec![group]), PathAccess::Read, true),
            (0o040, one(owner + 1, group + 1, vec![]), PathAccess::Read, false),
            (0o004, one(owner + 1, group + 1, vec![]), PathAccess::Read, true),
            // The group's bits decide, not the others'.
            (0o004, one(owner + 1, group, vec![]), PathAccess::Read, false),
            (0o444, one(owner + 1, group, vec![]), PathAccess::Write, false),
            (0o010, one(owner + 1, group, vec![]), PathAccess::Search, true),
        ] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).expect("a mode");
            let found = file.path().metadata().expect("metadata");
            assert_eq!(identity.may(&found, need), may, "{mode:o} {identity:?} {need:?}");
        }
    }

    #[test]
    fn the_way_to_a_file_is_part_of_it() {
        let steps = steps(Path::new("/etc/onedrop/onedrop.toml"), PathAccess::Read);
        let shown: Vec<_> =
            steps.iter().map(|(need, path)| format!("{need:?} {}", path.display())).collect();
        assert_eq!(
            shown,
            ["Search /", "Search /etc", "Search /etc/onedrop", "Read /etc/onedrop/onedrop.toml"]
        );
    }
}
