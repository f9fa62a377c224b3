//! A command on a terminal of its own (pty(7)) of a given width, and what is shown there.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use nix::pty::{OpenptyResult, Winsize, openpty};

/// Ends what is typed, at the beginning of a line (Ctrl-D).
pub const END: &str = "\u{4}";

/// What `command` shows until it has ended, and how it ended, where this is typed.
pub fn on_a_terminal(command: &mut Command, columns: u16, typed: &str) -> (String, Option<i32>) {
    let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None).expect("a terminal");
    let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
    command.stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().expect("a process");
    // Reading ends when no process has the terminal open any more.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(slave);
    let mut master = File::from(master);
    master.write_all(typed.as_bytes()).expect("typed");
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    // EIO: the last one has closed it.
    while let Ok(count @ 1..) = master.read(&mut part) {
        bytes.extend_from_slice(&part[..count]);
    }
    let shown = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
    (shown, child.wait().expect("its end").code())
}
