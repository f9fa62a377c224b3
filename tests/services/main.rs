//! What we ship for systemd and Postfix, the documentation, and the commands in it.

mod machine;
mod manual_pages;
mod monitoring;
mod package;
mod packages_built;
mod pages;
mod postfix_stop;
mod readme;
mod reference;
mod set_up;
mod systemd;
mod tour;
mod web_unit;

use onedrop_kit::{self as support, page, shown};
