//! Whether the mail store is there: no login, no mailbox, and no word to its delivery.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

use nix::unistd::{AccessFlags, access};

use onedrop_core::deliver::Failure;
use onedrop_core::directory::FolderTemplate;
use onedrop_core::ledger::Proofs;
use onedrop_core::mail_root::MailRoot;
use onedrop_net::lmtp::LmtpPlace;
use onedrop_net::socket::Socket;
use onedrop_site::config::{Config, StoreUrl};

/// Whether somebody listens there, or the folder may be written; and where `store.lmtp` is set,
/// whether somebody listens there, too.
///
/// # Errors
/// A sentence: what cannot be reached, and why.
pub fn answers(config: &Config, until: Instant) -> Result<(), String> {
    let store = &config.store;
    let url = store.kind();
    let answers = match &url {
        // It is made by the first delivery.
        StoreUrl::Maildir { root } if config.deliver.trial => in_time(root, until, may_be_made),
        StoreUrl::Maildir { root } => in_time(root, until, may_be_written),
        StoreUrl::Imap { host, port, .. } => Socket::connect_tcp(host, *port, until).map(drop),
    };
    answers.map_err(|why| format!("{url} cannot be reached: {why}"))?;
    let Some(place) = &store.lmtp else { return Ok(()) };
    let answers = match place {
        LmtpPlace::Unix(path) => {
            Socket::connect_unix(path, until.saturating_duration_since(Instant::now()))
        }
        LmtpPlace::Tcp { host, port } => Socket::connect_tcp(host, *port, until),
    };
    answers.map(drop).map_err(|why| format!("store.lmtp: {place} cannot be reached: {why}"))
}

/// Checks what [`answers`] does, and [`root_is_known`] where there is a ledger.
///
/// # Errors
/// The same.
pub fn serves<L: Proofs + ?Sized>(
    config: &Config,
    ledger: Option<&L>,
    until: Instant,
) -> Result<(), String> {
    answers(config, until)?;
    ledger.map_or(Ok(()), |ledger| root_is_known(config, ledger, until))
}

/// Whether the ledger knows the folder above all Maildirs; `Ok` where there is none, and where the
/// ledger cannot be asked, which has a finding of its own.
///
/// # Errors
/// A sentence: nothing is delivered there, and why.
pub fn root_is_known(
    config: &Config,
    ledger: &(impl Proofs + ?Sized),
    until: Instant,
) -> Result<(), String> {
    let StoreUrl::Maildir { root } = config.store.kind() else { return Ok(()) };
    if config.deliver.trial {
        return Ok(());
    }
    let template = FolderTemplate::parse(&root)?;
    let root = template.root();
    let found = in_time(root, until, |root| MailRoot::find(root).map_err(io::Error::other));
    match found.map_err(|why| why.to_string())?.is_known(root, ledger, until) {
        Ok(()) | Err(Failure::Ledger(_)) => Ok(()),
        Err(failure) => Err(failure.to_string()),
    }
}

fn may_be_made(root: &Path) -> io::Result<()> {
    let there = root.ancestors().find(|folder| folder.exists()).unwrap_or(root);
    if !there.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(there, AccessFlags::W_OK | AccessFlags::X_OK)?)
}

fn may_be_written(root: &Path) -> io::Result<()> {
    let template = FolderTemplate::parse(root).map_err(io::Error::other)?;
    let there = template.root().join(".");
    there.metadata().map_err(|error| match error.kind() {
        kind @ io::ErrorKind::NotFound => io::Error::new(kind, "it is not there"),
        kind => kind.into(),
    })?;
    Ok(access(&there, AccessFlags::W_OK | AccessFlags::X_OK)?)
}

/// Folders that are being looked at. One that hangs, as NFS does without its server, costs one
/// thread, however often it is asked for.
static LOOKED_AT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn looked_at() -> MutexGuard<'static, Vec<PathBuf>> {
    LOOKED_AT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `look` says of `root`, in a thread that is left if that comes too late.
fn in_time<T: Send + 'static>(
    root: &Path,
    until: Instant,
    look: fn(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the file system does not answer");
    {
        let mut looked_at = looked_at();
        if looked_at.iter().any(|one| one == root) {
            return Err(late());
        }
        looked_at.push(root.to_owned());
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let of_thread = root.to_owned();
    let work = move || {
        let found = look(&of_thread);
        looked_at().retain(|one| *one != of_thread);
        // Fails if the caller waits no more.
        let _ = sender.send(found);
    };
    if let Err(error) = thread::Builder::new().name("store".to_owned()).spawn(work) {
        looked_at().retain(|one| one != root);
        return Err(error);
    }
    let time = until.saturating_duration_since(Instant::now());
    receiver.recv_timeout(time).unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use onedrop_net::tls::Tls;

    #[test]
    fn a_delivery_of_the_mail_server_that_is_gone_is_named() {
        let (imap, lmtp) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let (imap, lmtp) = (imap.expect("a port"), lmtp.expect("a port"));
        let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
        let host = "127.0.0.1".to_owned();
        let mut config = Config::default();
        let store = &mut config.store;
        store.url = StoreUrl::Imap { host: host.clone(), port: port(&imap), tls: Tls::None };
        store.lmtp = Some(LmtpPlace::Tcp { host, port: port(&lmtp) });
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(answers(&config, until), Ok(()));
        config.store.lmtp = Some(LmtpPlace::Unix("/nowhere/lmtp".into()));
        let why = answers(&config, until).expect_err("nobody listens");
        assert!(why.starts_with("store.lmtp: unix:/nowhere/lmtp cannot be reached: "), "{why}");
    }

    #[test]
    fn a_file_system_that_hangs_is_waited_for_by_one_thread_alone() {
        let root = Path::new("/hangs");
        let hangs = |_: &Path| -> io::Result<()> {
            loop {
                thread::park();
            }
        };
        let until = Instant::now() + Duration::from_millis(20);
        let late = in_time(root, until, hangs).expect_err("it hangs");
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let long = Instant::now() + Duration::from_secs(3600);
        let again = in_time(root, long, hangs).expect_err("it hangs still");
        assert_eq!(again.kind(), io::ErrorKind::TimedOut);
        for _ in 0..2 {
            in_time(Path::new("/"), long, |_| Ok(())).expect("another answers");
        }
    }
}
