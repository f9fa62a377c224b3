//! Kills, frozen processes, failing disks, several hosts and load. Each test starts many processes,
//! so that nextest counts it for two (`.config/nextest.toml`).

mod base_ledger;
mod clocks;
mod disk;
mod durability;
mod host;
mod hosts;
mod kills;
mod lmtp_load;
mod lmtp_maildir;
mod look_backs;
mod patroni;
mod purges;
mod races;
mod retried;
mod soak;
mod standby;
mod start_line;
mod strace;
mod tally;
mod ticks;
mod upgrades;
mod vanished;
mod verify_scale;
mod wall_clock;
mod zombies;

use onedrop_kit::{self as support, bench::scale, next, sample, soak as soak_rig};
