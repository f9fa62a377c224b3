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
#[path = "../support/next.rs"]
mod next;
mod patroni;
mod purges;
mod races;
mod retried;
mod sample;
#[path = "../../benches/verify/scale.rs"]
mod scale;
mod soak;
#[path = "../../benches/soak/rig/mod.rs"]
#[allow(dead_code)] // The benchmark's part.
mod soak_rig;
mod standby;
mod start_line;
mod strace;
#[path = "../support/mod.rs"]
mod support;
mod tally;
mod ticks;
mod upgrades;
mod vanished;
mod verify_scale;
mod wall_clock;
mod zombies;
