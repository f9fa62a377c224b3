//! The commands, the configuration and the exit statuses, as an administrator or Postfix meets
//! them.

mod check;
mod command_line;
mod config;
mod exit_table;
mod jobs;
mod on_a_terminal;
mod one_ending;
mod secrets;
mod signals;
mod status;
mod trace;
mod unrecorded;
mod verify;
mod verify_servers;

use onedrop_kit as support;
