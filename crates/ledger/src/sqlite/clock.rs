//! The host's clocks. Times on record are the wall clock's; leases count by the boot clock, so that
//! a step of the wall clock means nothing, and say of which boot they are: after a restart a lease
//! lasts its own length from the boot on. A container may show some of its processes another boot
//! id than the others: a lease of another boot that could be of this one lasts as if it were. A
//! boot id that cannot be read is an error, never another boot's. A time namespace moves the clock
//! for its processes; leases count by the clock outside of it.

use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use onedrop_core::ledger::LedgerError;

/// Of each boot of a host (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// By how much this process' clocks are moved (time_namespaces(7)).
const OFFSETS: &str = "/proc/self/timens_offsets";

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
    offset_secs: OnceLock<f64>,
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
        let now = Duration::from(now).as_secs_f64();
        Ok(BootTime { secs: now - self.offset_secs()?, id })
    }
}

impl HostClocks {
    fn offset_secs(&self) -> Result<f64, LedgerError> {
        if let Some(offset) = self.offset_secs.get() {
            return Ok(*offset);
        }
        let offset = match fs::read_to_string(OFFSETS) {
            Ok(offsets) => boot_offset(&offsets),
            // A kernel without time namespaces.
            Err(error) if error.kind() == ErrorKind::NotFound => Some(0.0),
            Err(_) => None,
        };
        let offset = offset.ok_or_else(|| {
            LedgerError::Clock(format!("{OFFSETS} does not say how clocks are moved"))
        })?;
        Ok(*self.offset_secs.get_or_init(|| offset))
    }
}

/// In seconds: `boottime SECONDS NANOSECONDS` is one of the lines.
fn boot_offset(offsets: &str) -> Option<f64> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (secs, nanos) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(secs as f64 + nanos as f64 * 1e-9)
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
    fn a_time_namespace_says_how_far_its_clock_is_moved() {
        let offsets = "monotonic           0         0\nboottime      100000 500000000\n";
        assert_eq!(boot_offset(offsets), Some(100_000.5));
        assert_eq!(boot_offset("boottime  -7  250000000\n"), Some(-6.75));
        for text in ["", "monotonic 0 0\n", "boottime 1\n", "boottime x 0\n"] {
            assert_eq!(boot_offset(text), None, "{text:?}");
        }
    }

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
