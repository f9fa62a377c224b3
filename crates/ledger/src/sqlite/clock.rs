//! The host's clocks. Times on record are the wall clock's; leases count by the boot clock, so that
//! a step of the wall clock means nothing, and say of which boot they are: after a restart a lease
//! lasts its own length from the boot on. A container may show some of its processes another boot
//! id than the others: a lease of another boot that could be of this one lasts as if it were. A
//! boot id that cannot be read is an error, never another boot's.

use std::fmt::Display;
use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use onedrop_core::ledger::LedgerError;

/// Of each boot of a host (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The clocks that a ledger in a file goes by: the host's, except in tests of clocks.
pub trait Clocks: Send + Sync {
    fn wall(&self) -> SystemTime;

    /// # Errors
    /// [`LedgerError::Clock`].
    fn boot(&self) -> Result<BootTime, LedgerError>;
}

/// A time by the clock that no step moves.
#[derive(Debug, Clone, PartialEq)]
pub struct BootTime {
    /// Since the boot, suspended or not (clock_gettime(2), CLOCK_BOOTTIME).
    pub secs: f64,
    /// Which boot.
    pub id: String,
}

/// The host's.
#[derive(Default)]
pub(super) struct HostClocks {
    boot_id: OnceLock<String>,
}

impl Clocks for HostClocks {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn boot(&self) -> Result<BootTime, LedgerError> {
        let id = match self.boot_id.get() {
            Some(id) => id.clone(),
            None => {
                let id = fs::read_to_string(BOOT_ID).map_err(|error| unread(&error))?;
                let id = boot_id(&id).map_err(|why| unread(&why))?;
                self.boot_id.get_or_init(|| id.to_owned()).clone()
            }
        };
        let clock = "the boot's clock cannot be read";
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME)
            .map_err(|error| LedgerError::Clock(format!("{clock}: {error}")))?;
        Ok(BootTime { secs: Duration::from(now).as_secs_f64(), id })
    }
}

fn unread(why: &dyn Display) -> LedgerError {
    LedgerError::Clock(format!(
        "{BOOT_ID}, the id of the boot, cannot be read: {why} (is /proc mounted whole? under \
         systemd ProcSubset=pid hides it)"
    ))
}

/// A UUID as the kernel writes it.
fn boot_id(text: &str) -> Result<&str, String> {
    let id = text.trim();
    let is_id = id.len() == 36 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if is_id { Ok(id) } else { Err(format!("{id:?} is no boot's id")) }
}

/// When the lease in a row ends, in seconds since this boot, as SQL; null where its column is.
/// `$now` and `$id` are the values of [`BootTime`].
macro_rules! lease_end {
    ($until:literal, $boot_id:literal, $lease_ms:literal, $now:literal, $id:literal) => {
        concat!(
            "(CASE WHEN ",
            concat!($until, " IS NULL OR ", $boot_id, " = ", $id, " THEN ", $until),
            concat!(" WHEN ", $until, " <= ", $now, " + ", $lease_ms, " / 1000.0"),
            concat!(" THEN max(", $until, ", ", $lease_ms, " / 1000.0)"),
            concat!(" ELSE ", $lease_ms, " / 1000.0 END)")
        )
    };
}
pub(super) use lease_end;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_writes_is_a_boots_id() {
        let id = "7d2e4f0a-98c1-4a53-b0c4-1f64a3c2d9ee";
        assert_eq!(boot_id(&format!("{id}\n")), Ok(id));
        for text in ["", "\n", "0", &id[1..], "7d2e4f0a-98c1-4a53-b0c4-1f64a3c2d9ex"] {
            let unread = boot_id(text).map_err(|why| unread(&why).to_string());
            assert!(unread.is_err_and(|why| why.contains("is no boot's id")), "{text:?}");
        }
    }
}
