//! The door for Postfix's lmtp(8): a long-running LMTP server (RFC 2033) over the same `deliver`,
//! with sessions kept in pools.
//!
//! Read `protocol` (what is said), `data` (what a message's bytes are), `connection` (one client,
//! be it a socket or a script), `client` (a client of the server), `delivery` (one message for all
//! its recipients), `lent` (the sessions it takes), `calls` and `mailboxes` (what it does with
//! others that are at it at the same time, by `together`), `service` (what they share), `server`
//! (from the first listener to the last client), `flights` (deliveries under way).

mod calls;
pub mod client;
mod delivery;
mod lent;
mod mailboxes;
pub mod server;
mod service;
mod together;
pub mod wire;

pub use server::{Control, Reload, run};
pub use service::Service;
