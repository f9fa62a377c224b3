//! Which programs work with which ledgers: the one place that decides.
//!
//! A program works with ledgers of its own schema version and of the one before; with the next one
//! as long as the ledger says so (`onedrop_ledger.oldest_program`). So the new program goes to all
//! hosts first, then `onedrop migrate` runs, and old and new deliver side by side meanwhile. What
//! must decide within a statement does so by the same rule in SQL: `onedrop_record` and, in
//! `postgres/schema.rs`, `fits!`; the contract suite holds them against this file.

use std::fmt;

use super::LedgerError;

/// The schema version this program is made for; `onedrop migrate` brings a ledger to it.
pub const SCHEMA_VERSION: i64 = 11;

/// The version that an empty ledger begins with. Lower ones are of trials before the first release
/// and cannot be migrated.
pub const BASE_VERSION: i64 = 10;

/// A ledger's schema, as a program sees it. Its text says what to do where they do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaVersion {
    /// The ledger's; 0: it has no schema.
    pub found: i64,
    /// The lowest version of a program that may still use the ledger.
    pub oldest_program: i64,
    /// The version that the program is made for.
    pub program: i64,
}

impl SchemaVersion {
    /// Of a ledger that does not say which programs may use it: it has no schema, or one of before
    /// the base version.
    pub fn bare(found: i64, program: i64) -> SchemaVersion {
        SchemaVersion { found, oldest_program: found, program }
    }

    /// Whether the program may use the ledger.
    pub fn fits(&self) -> bool {
        self.found >= BASE_VERSION
            && self.found.abs_diff(self.program) <= 1
            && self.program >= self.oldest_program
    }

    /// # Errors
    /// [`LedgerError::Version`]: the program may not use the ledger.
    pub fn check(self) -> Result<(), LedgerError> {
        if self.fits() { Ok(()) } else { Err(LedgerError::Version(self)) }
    }

    /// Whether the program's migrations lead from the ledger's version to its own.
    ///
    /// # Errors
    /// [`LedgerError::Version`]
    pub fn check_migration(self) -> Result<(), LedgerError> {
        let known = BASE_VERSION..=self.program;
        match self.found == 0 || known.contains(&self.found) {
            true => Ok(()),
            false => Err(LedgerError::Version(self)),
        }
    }
}

impl fmt::Display for SchemaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SchemaVersion { found, oldest_program, program } = self;
        let before = program - 1;
        if *found == 0 {
            write!(f, "has no schema yet, this program needs version {program}: ")?;
            f.write_str("run `onedrop migrate`")
        } else if *found < BASE_VERSION {
            write!(
                f,
                "has schema version {found}, of a trial before the first release, which cannot be \
                 migrated to version {program}: drain Postfix's queue, name a new, empty database \
                 in ledger.url, and run `onedrop migrate`"
            )
        } else if self.fits() && found == program {
            write!(
                f,
                "has schema version {found} and takes programs of version {oldest_program} and \
                 later"
            )
        } else if self.fits() && found < program {
            write!(
                f,
                "has schema version {found}, the one before this program's: when every host has \
                 this program, run `onedrop migrate`"
            )
        } else if self.fits() {
            write!(
                f,
                "has schema version {found}, the one after this program's, which may still use it: \
                 install the newer onedrop on this host, too"
            )
        } else if found < program {
            write!(
                f,
                "has schema version {found}, this program works with {before} and {program}: put a \
                 release for version {} on every host and run its `onedrop migrate` first, which \
                 stops no mail; or, if no host has an older program than this one, run `onedrop \
                 migrate`",
                found + 1
            )
        } else {
            write!(
                f,
                "has schema version {found}, which takes programs of version {oldest_program} and \
                 later, and this one is of version {program}: install a newer onedrop on this host"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: i64 = BASE_VERSION;

    fn seen(found: i64, oldest_program: i64, program: i64) -> SchemaVersion {
        SchemaVersion { found, oldest_program, program }
    }

    #[test]
    fn a_program_works_with_its_version_the_one_before_and_the_next_that_lets_it() {
        for (found, oldest, program) in [
            (BASE, BASE, BASE),
            (BASE, BASE, BASE + 1),
            (BASE + 1, BASE, BASE),
            (BASE + 1, BASE + 1, BASE + 1),
        ] {
            assert!(seen(found, oldest, program).fits(), "{found} {oldest} {program}");
        }
        for (found, oldest, program) in [
            (0, 0, BASE),
            (BASE - 1, BASE - 1, BASE),
            (BASE, BASE, BASE + 2),
            (BASE + 1, BASE + 1, BASE),
            (BASE + 2, BASE, BASE),
            (BASE + 2, BASE + 1, BASE),
        ] {
            let seen = seen(found, oldest, program);
            assert!(!seen.fits(), "{found} {oldest} {program}");
            assert!(matches!(seen.check(), Err(LedgerError::Version(which)) if which == seen));
        }
    }

    #[test]
    fn migrations_lead_from_nothing_or_from_a_version_since_the_base() {
        let leads = |found| seen(found, found, BASE + 2).check_migration().is_ok();
        let versions: Vec<i64> = (0..BASE + 5).filter(|found| leads(*found)).collect();
        assert_eq!(versions, [0, BASE, BASE + 1, BASE + 2]);
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let text = |found, oldest, program| seen(found, oldest, program).to_string();
        assert!(text(0, 0, BASE).ends_with("run `onedrop migrate`"));
        assert!(text(BASE - 1, 0, BASE).contains("name a new, empty database"));
        let skipped = text(BASE, BASE, BASE + 2);
        assert!(skipped.contains("a release for version 11 on every host"), "{skipped}");
        assert!(text(BASE + 1, BASE, BASE + 1).ends_with("takes programs of version 10 and later"));
        let old = text(BASE + 2, BASE + 1, BASE);
        assert!(old.ends_with("install a newer onedrop on this host"), "{old}");
    }
}
