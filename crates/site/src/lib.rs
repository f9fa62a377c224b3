//! What a host of a site is set up as, and the service that delivers by it, whatever the door.
//!
//! | part          | modules                                                                     |
//! |---------------|-----------------------------------------------------------------------------|
//! | set up        | `config`, `command_line` (what clap reads), `site_names`                    |
//! | whose mail    | `routing`, `filing`, `userdb`                                               |
//! | delivery      | `service`                                                                   |
//! | logs          | `telemetry`, `delivery_log`                                                 |
//!
//! Adapters are chosen by `main`: here stand their ports alone.

pub mod command_line;
pub mod config;
pub mod delivery_log;
pub mod filing;
pub mod routing;
pub mod service;
pub mod site_names;
pub mod telemetry;
pub mod userdb;
