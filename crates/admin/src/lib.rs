//! What an administrator asks: `check` (is it set up right), `status` (is all well), `replay`
//! (deliver an archive), and the pages of `web`.
//!
//! They know the ports, and no adapter.

pub mod check;
pub mod http;
pub mod replay;
pub mod status;
pub mod web;
