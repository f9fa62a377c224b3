//! `onedrop lmtp`: reads the configuration, opens the listeners (systemd's, else `--listen`, else
//! `[lmtp] listen`; and `[lmtp] users`), serves.

use std::fs::Permissions;
use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::sys::stat::Mode;
use nix::unistd::{Gid, Group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::lmtp::server::spool;
use crate::lmtp::{self, Control, Entrance};
use onedrop_locks::jobs::own_program::OwnProgram;
use onedrop_locks::jobs::ticker::Ticker;
use onedrop_net::listener::{Listener, SocketFile};
use onedrop_site::command_line::LmtpArgs;
use onedrop_site::config::{Listen, LmtpSettings, Loaded, Opens, RunIn};
use onedrop_site::service::{Adapters, Service, Site};

mod ends;

use ends::{CurrentSite, begin_to_look};

/// `umask` is the caller's, for jobs.
pub(super) fn run(
    args: &LmtpArgs,
    config: Option<&Path>,
    adapters: Adapters,
    umask: Mode,
) -> Result<(), String> {
    if args.check {
        let site = Site::new(load(args, true, config)?, adapters);
        return Service::new(&site).map(drop).map_err(|failure| failure.to_string());
    }
    // Before there are threads.
    keep_one_arena();
    // Before the log, which has a thread.
    let mut listeners: Vec<Entrance> = systemds_listeners()?.into_iter().map(entrance).collect();
    let _log = onedrop_site::telemetry::start_for_a_server();
    let config = config.map(Path::to_owned);
    let (program, of_look) = (OwnProgram { config: config.clone(), umask }, config.clone());
    let (args, has_listeners) = (args.clone(), !listeners.is_empty());
    let read = move || {
        load(&args, has_listeners, config.as_deref()).map(|loaded| Site::new(loaded, adapters))
    };
    let site = read()?;
    if !has_listeners {
        listeners = listen(&site.loaded.config.lmtp)?;
    }
    let service = service_of(&site)?;
    let (control, ticker) =
        catch_signals(program).map_err(|error| format!("cannot start: {error}"))?;
    let ticker = Arc::new(ticker);
    tick_if_wanted(&ticker, &site.loaded);
    let current: CurrentSite = Arc::new(Mutex::new(site));
    begin_to_look(Arc::clone(&current), of_look, control.gauges.clone());
    let reloading = Arc::clone(&ticker);
    let reload: lmtp::Reload = Box::new(move || {
        let site = read()?;
        let service = service_of(&site)?;
        tick_if_wanted(&reloading, &site.loaded);
        *current.lock().unwrap_or_else(PoisonError::into_inner) = site;
        Ok(service)
    });
    let served = lmtp::run(service, listeners, control, &reload);
    drop(reload);
    if let Some(ticker) = Arc::into_inner(ticker) {
        ticker.end();
    }
    served
}

/// Has all threads allocate from one place. By default glibc gives each thread one of up to eight
/// arenas a core, and what one thread has freed no other thread uses again before the arena's next
/// turn: a server with many short deliveries then grows by bytes a message for days. With one it
/// stays as it is over a million messages (`cargo bench --bench soak`).
fn keep_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) takes two numbers and changes the allocator's own settings; it may be
    // called at any time, and no other thread allocates yet.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1);
    }
}

fn tick_if_wanted(ticker: &Ticker, loaded: &Loaded) {
    let jobs = &loaded.config.jobs;
    // Each tick reports what is wrong with them, until it is mended.
    let has_any = !jobs.jobs.is_empty() || !loaded.job_problems.is_empty();
    ticker.want(jobs.run_in == RunIn::Server && has_any);
}

/// SIGTERM and SIGINT stop the server and its jobs, SIGHUP has it read its configuration again.
fn catch_signals(program: OwnProgram) -> io::Result<(Control, Ticker)> {
    let control = Control::new()?;
    let ticker = Ticker::start(program, Arc::clone(&control.stop))?;
    for (signal, flag) in
        [(SIGTERM, &control.stop), (SIGINT, &control.stop), (SIGHUP, &control.reload)]
    {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
        signal_hook::low_level::pipe::register(signal, control.waker.try_clone()?)?;
        signal_hook::low_level::pipe::register(signal, ticker.waker()?)?;
    }
    Ok((control, ticker))
}

fn service_of(site: &Site) -> Result<Arc<Service>, String> {
    for warning in &site.loaded.warnings {
        tracing::warn!("configuration: {warning}");
    }
    for problem in &site.loaded.job_problems {
        tracing::error!("configuration: {problem}; until that is mended this host runs no job");
    }
    // Small messages need none, and are delivered; a disk that hangs keeps none of them waiting.
    let spool_dir = site.loaded.config.lmtp.spool_dir.clone();
    let tries = thread::Builder::new().name("spool".to_owned()).spawn(move || {
        if let Err(failure) = spool::open(&spool_dir) {
            tracing::error!("{failure}; until that is mended, mail above lmtp.spool_bytes waits");
        }
    });
    if let Err(error) = tries {
        tracing::warn!(%error, "no thread to try lmtp.spool_dir");
    }
    let service = Service::new(site).map_err(|failure| failure.to_string())?;
    let service = Arc::new(service);
    service.begin_to_renew_the_proof();
    Ok(service)
}

/// The configuration, with what systemd and the command line say in its place.
fn load(args: &LmtpArgs, has_listeners: bool, config: Option<&Path>) -> Result<Loaded, String> {
    let mut loaded = super::load_despite_jobs(config, Opens::Everything)?;
    let lmtp = &mut loaded.config.lmtp;
    if has_listeners {
        (lmtp.listen, lmtp.users) = (Vec::new(), None);
    } else if !args.listen.is_empty() {
        lmtp.listen.clone_from(&args.listen);
    }
    if args.metrics.is_some() {
        lmtp.metrics = args.metrics;
    }
    Ok(loaded)
}

/// The name of the socket of onedrop-users.socket (FileDescriptorName=).
const FOR_USERS: &str = "users";
/// The mode of a socket to which all users may connect.
const ALL_USERS: u32 = 0o666;

fn entrance((listener, name): (Listener, String)) -> Entrance {
    Entrance { listener, is_for_users: name == FOR_USERS }
}

/// Each with its name.
pub(super) fn systemds_listeners() -> Result<Vec<(Listener, String)>, String> {
    let passed = sd_notify::listen_fds_with_names()
        .map_err(|error| format!("systemd's sockets: {error}"))?;
    let listener = |(fd, name)| {
        // SAFETY: sd_listen_fds(3): systemd passed this descriptor to this process for its own, and
        // nothing else in it takes it: this is the only call, before any thread is started.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let listener = Listener::from_fd(fd);
        Ok((listener.map_err(|error| format!("systemd's socket: {error}"))?, name))
    };
    passed.map(listener).collect()
}

fn listen(settings: &LmtpSettings) -> Result<Vec<Entrance>, String> {
    let group = group(&settings.socket_group)?;
    if settings.listen.is_empty() {
        let text =
            "nowhere to listen: give --listen, set lmtp.listen, or start it by systemd's socket";
        return Err(text.to_owned());
    }
    let group = group.map(|group| (group, settings.socket_group.as_str()));
    let listener = |place| {
        let listener = listen_at(place, group, settings.socket_mode.0)?;
        Ok(Entrance { listener, is_for_users: false })
    };
    let mut all: Vec<Entrance> =
        settings.listen.iter().map(listener).collect::<Result<_, String>>()?;
    if let Some(path) = &settings.users {
        let listener = listen_at(&Listen::Unix(path.clone()), None, ALL_USERS)?;
        all.push(Entrance { listener, is_for_users: true });
    }
    Ok(all)
}

/// A socket that is made here; a Unix socket's file gets the group and the mode.
pub(super) fn listen_at(
    place: &Listen,
    group: Option<(Gid, &str)>,
    mode: u32,
) -> Result<Listener, String> {
    let at = |error: io::Error| format!("cannot listen on {place}: {error}");
    let listener = match place {
        Listen::Tcp(address) => Listener::Tcp(TcpListener::bind(address).map_err(at)?),
        Listen::Unix(path) => {
            let listener = bind(path).map_err(at)?;
            let made = SocketFile::at(path).map_err(at)?;
            // It was made for our user alone (main's umask). The group comes first: it is never
            // open to another one.
            if let Some((group, name)) = group {
                lchown(path, None, Some(group.as_raw())).map_err(|error| {
                    format!(
                        "cannot listen on {place}: cannot give it to lmtp.socket_group \
                         \"{name}\": {error}; run as root or as a member of that group, and with \
                         the unit's SystemCallFilter=@chown"
                    )
                })?;
            }
            std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(at)?;
            Listener::Unix(listener, Some(made))
        }
    };
    listener.prepared().map_err(at)
}

/// The group of that name; none for an empty one.
fn group(name: &str) -> Result<Option<Gid>, String> {
    if name.is_empty() {
        return Ok(None);
    }
    let why = match Group::from_name(name) {
        Ok(Some(group)) => return Ok(Some(group.gid)),
        Ok(None) => format!("this host has no group \"{name}\""),
        Err(error) => format!("the group \"{name}\" cannot be looked up: {error}"),
    };
    Err(format!("lmtp.socket_group: {why}"))
}

/// A Unix socket at `path`. One that a dead server left is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let is_socket = path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}
