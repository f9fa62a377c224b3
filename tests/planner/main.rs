//! When jobs run: schedules in time zones, and the planner, by the ledger's clock as each case
//! sets it. No process, no server, no clock of this machine.

mod chance_runs;
mod crontab;
mod crontabber;
mod odd;
mod rules;
mod schedules;
mod twice;
mod world;

use onedrop_core::testing::chance;
