//! LMTP (RFC 2033): the server that Postfix's lmtp(8) talks to, over the same `deliver` as the
//! command; and the client by which the command hands a message to that server.
//!
//! The protocol's form is `net::lmtp`. In `server`: `protocol` (what is said), `connection` (one
//! client, be it a socket or a script), `session` (one client's socket, and the work on what it
//! says), `caller` (who a client is), `delivery` (one message), `overdue` (deliveries that hang).

pub mod client;
pub mod server;

pub use server::{Control, Entrance, Reload, run};
