#![cfg(any())]
//! `deliver` and `verify` with ledger and store in memory.

#[path = "../ports/mod.rs"]
mod ports;
mod protocol;
mod verify;
