//! A session on its way from one process to another of its host and user, by a Unix socket: its
//! descriptor (unix(7), SCM_RIGHTS), and what the new one must know of it.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// The server's process and its secret, for a request to cancel (protocol 3.0 of Postgres).
pub(crate) type CancelKey = [u8; 8];

/// A file, apart from any other that is or was in its place.
pub(crate) type FileId = [u8; 32];

/// A session that another process has opened, and uses no more.
#[derive(Debug)]
pub struct HandedSession {
    pub(crate) socket: OwnedFd,
    pub(crate) key: CancelKey,
    /// The socket of the server, as the other process sees it.
    pub(crate) server: FileId,
}

const LENGTH: usize = size_of::<CancelKey>() + size_of::<FileId>();

/// Two processes may see different servers at one path, in different roots.
///
/// # Errors
/// There is no such file.
pub(crate) fn id_of(path: &Path) -> io::Result<FileId> {
    let file = fs::metadata(path)?;
    let parts = [
        file.dev().to_ne_bytes(),
        file.ino().to_ne_bytes(),
        file.ctime().to_ne_bytes(),
        file.ctime_nsec().to_ne_bytes(),
    ];
    let mut id = FileId::default();
    id.copy_from_slice(parts.as_flattened());
    Ok(id)
}

/// Sends the session of `socket`, which must be open; whether it went out.
pub(crate) fn send(to: &UnixDatagram, socket: RawFd, key: &CancelKey, server: &FileId) -> bool {
    let bytes = [IoSlice::new(key), IoSlice::new(server)];
    let rights = [ControlMessage::ScmRights(&[socket])];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(to.as_raw_fd(), &bytes, &rights, flags, None).is_ok()
}

/// The session that has been sent, if there is one.
pub(crate) fn receive(from: &UnixDatagram) -> Option<HandedSession> {
    let (mut key, mut server) = (CancelKey::default(), FileId::default());
    let mut space = nix::cmsg_space!(RawFd);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let mut bytes = [IoSliceMut::new(&mut key), IoSliceMut::new(&mut server)];
    let message = recvmsg::<()>(from.as_raw_fd(), &mut bytes, Some(&mut space), flags).ok()?;
    let is_whole = message.bytes == LENGTH;
    let mut sockets = Vec::new();
    for control in message.cmsgs().ok()? {
        if let ControlMessageOwned::ScmRights(found) = control {
            // SAFETY: the kernel has made these descriptors for this call, and nothing else knows
            // their numbers.
            sockets.extend(found.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let socket = sockets.pop().filter(|_| is_whole)?;
    Some(HandedSession { socket, key, server })
}
