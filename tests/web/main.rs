//! `onedrop web`: what it answers on the wire, what a browser makes of it, what it asks of each
//! ledger, and what its role there may read.

mod base;
mod browser;
mod doubts;
mod engines;
mod jobs;
mod lists;
mod pages;
mod proxies;
mod reader;
mod refused;
mod seen;
mod served;
mod sessions;
mod story;
mod turns;
mod wire;

use onedrop_kit as support;
