//! What we ship for systemd and Postfix, and the README's commands.

mod postfix_stop;
mod readme;
#[path = "../support/mod.rs"]
mod support;
mod systemd;
mod systemd_boot;
