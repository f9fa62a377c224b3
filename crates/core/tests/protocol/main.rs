//! The protocol (`crates/core/src/deliver/`) and `verify` with ledger and store in memory: fail
//! at each step, deliver again as Postfix would, and count. Whatever happens, each mailbox has one
//! copy in the end, and no delivery said "delivered" without one.

mod crashes;
mod endings;
mod failures;
mod filed;
mod forged;
mod handed;
mod late;
mod login_proof;
mod memory;
mod others;
mod phases;
mod script;
mod sent;
mod settle;
mod turns;
mod verify;
mod world;

use onedrop_core::testing::ports;
