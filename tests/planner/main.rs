//! When jobs run: schedules in time zones, and the planner, by the ledger's clock as each case
//! sets it. No process, no server, no clock of this machine.

mod rules;
mod schedules;
mod world;
