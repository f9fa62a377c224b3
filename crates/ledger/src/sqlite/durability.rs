//! What a commit outlives, by SQLite's settings and the file system under the file.

use std::path::Path;
use std::time::Instant;

use nix::sys::statfs::{self, FsType, statfs};

use super::{SqliteLedger, first};
use onedrop_core::ledger::{Durability, Lasting, LedgerError};

impl Durability for SqliteLedger {
    fn durability(&self, until: Instant) -> Result<Vec<Lasting>, LedgerError> {
        self.call(until, |session| {
            let asked = |sql: &str| first::<String>(&session.connection, sql, []);
            let level = asked("SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous")?
                .unwrap_or_default();
            let mode = asked("SELECT journal_mode FROM pragma_journal_mode")?.unwrap_or_default();
            let path = session.connection.path().unwrap_or_default().to_owned();
            let kind = statfs(Path::new(&path)).ok().map(|found| found.filesystem_type());
            Ok(words(&level, &mode, kind))
        })
    }
}

fn words(level: &str, mode: &str, kind: Option<FsType>) -> Vec<Lasting> {
    let (name, trouble) = kind.map_or(("a file system of unknown kind", None), known);
    let outlives = match (level, mode) {
        ("2" | "3", "wal") => Lasting::Outlives(format!(
            "a commit outlives a crash of the host, if the disk keeps what it was told to sync, \
             but not the loss of the disk (synchronous = FULL, WAL, {name})"
        )),
        _ => Lasting::MayBeLost(format!(
            "a crash of the host may undo the last commits: synchronous = {level}, journal_mode = \
             {mode}, where FULL (2) and wal are meant"
        )),
    };
    match trouble {
        None => vec![outlives],
        Some(trouble) => vec![Lasting::MayBeLost(format!("the ledger is on {name}: {trouble}"))],
    }
}

/// The kind's name, and why a ledger is not safe there.
fn known(kind: FsType) -> (&'static str, Option<&'static str>) {
    const MEMORY: &str = "it is gone when the host starts again";
    const NETWORK: &str = "SQLite's WAL and locks need a file system of this host";
    // What nix has no name for, everywhere or with musl; from statfs(2).
    const XFS: FsType = FsType(0x5846_5342);
    const RAMFS: FsType = FsType(0x8584_58f6);
    const CIFS: FsType = FsType(0xff53_4d42);
    const SMB2: FsType = FsType(0xfe53_4d42);
    match kind {
        statfs::TMPFS_MAGIC => ("tmpfs", Some(MEMORY)),
        RAMFS => ("ramfs", Some(MEMORY)),
        statfs::NFS_SUPER_MAGIC => ("NFS", Some(NETWORK)),
        statfs::SMB_SUPER_MAGIC | CIFS | SMB2 => ("SMB", Some(NETWORK)),
        statfs::EXT4_SUPER_MAGIC => ("ext4", None),
        XFS => ("XFS", None),
        statfs::BTRFS_SUPER_MAGIC => ("Btrfs", None),
        statfs::OVERLAYFS_SUPER_MAGIC => ("overlayfs", None),
        _ => ("a file system of another kind", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_keeps_nothing_is_named() {
        let of = |kind| words("2", "wal", Some(kind)).remove(0);
        assert!(matches!(of(statfs::EXT4_SUPER_MAGIC), Lasting::Outlives(_)));
        for (kind, name) in [(statfs::TMPFS_MAGIC, "tmpfs"), (statfs::NFS_SUPER_MAGIC, "NFS")] {
            assert!(matches!(of(kind), Lasting::MayBeLost(text) if text.contains(name)));
        }
        for (level, mode) in [("1", "wal"), ("0", "wal"), ("2", "delete")] {
            let lasting = words(level, mode, Some(statfs::EXT4_SUPER_MAGIC)).remove(0);
            assert!(matches!(lasting, Lasting::MayBeLost(_)), "{level} {mode}");
        }
    }
}
