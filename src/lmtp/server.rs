//! The life of the server: listeners, clients up to a number, systemd. Its caller's [`Control`]
//! ends it when what is in flight is done, or has it take another configuration; it keeps the old
//! one if the new is wrong.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Uid, User, geteuid};

use super::wire::reply;
use crate::config::{LmtpSettings, WhenFull};
use crate::net::listener::Listener;
use crate::net::socket::Socket;
use crate::service::Service;
use crate::web;

pub mod connection;
mod delivery;
mod log;
pub(super) mod metrics;
mod overdue;
mod pace;
pub mod protocol;
mod queue_id;
mod session;
mod spool;

use delivery::MessageDelivery;
use metrics::{Metrics, Sessions};
use overdue::OverdueWatch;

/// How often pools are looked at and systemd is told that all is well.
const TICK: Duration = Duration::from_secs(1);
/// Said to a client for whom there is no room.
const FULL: &[u8] = b"421 4.3.2 Too many connections, try again\r\n";
const NO_THREAD: &[u8] = b"421 4.3.2 Out of resources, try again\r\n";

/// What all connections share for the life of the server.
pub struct Shared {
    /// The users whose word is taken for who logged in: our own, root, and Postfix's.
    pub believed: Vec<Uid>,
    pub metrics: Arc<Metrics>,
    service: RwLock<Arc<Service>>,
    draining: AtomicBool,
    /// The deliveries under way.
    under_way: OverdueWatch,
    /// Names deliveries in Received fields and logs.
    deliveries: AtomicU64,
    /// Comes to its end when the server stops: what idle clients' threads wait for beside their
    /// client.
    pub stopping: UnixStream,
    /// Wakes the server's loop.
    waker: UnixStream,
}

/// A client's place among those that are there at a time; free when dropped.
struct ClientSlot(Arc<Shared>);

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Ordering::SeqCst);
        self.0.wake();
    }
}

/// The answers to a delivery: the connection's thread gives them, or the server when that hangs.
/// Only one does.
#[derive(Clone, Default)]
pub struct ReplyClaim(Arc<AtomicBool>);

impl ReplyClaim {
    /// They are the caller's to give from now on.
    ///
    /// # Errors
    /// The other one gave them, and hung up.
    pub fn take(&self) -> io::Result<()> {
        match self.0.swap(true, Ordering::SeqCst) {
            false => Ok(()),
            true => Err(io::Error::other("the delivery was answered when it was overdue")),
        }
    }
}

/// Lives as long as a delivery is under way.
pub struct UnderWay {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.shared.under_way.end(self.number);
        if self.shared.is_draining() {
            self.shared.wake();
        }
    }
}

impl Shared {
    /// What counts now.
    pub fn service(&self) -> Arc<Service> {
        Arc::clone(&self.service.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// A delivery for `client` begins: to be kept until it is over, and the right to answer.
    pub fn begin(
        self: &Arc<Self>,
        delivery: &Arc<MessageDelivery>,
        client: &Arc<Socket>,
    ) -> (UnderWay, ReplyClaim) {
        let answers = ReplyClaim::default();
        let (late, hanging, client) = (answers.clone(), Arc::clone(delivery), Arc::clone(client));
        let answer = move || {
            if late.take().is_ok() {
                let recipients = hanging.envelope.recipients.len();
                // As much as the client takes.
                let _ = client.write_now(&reply(&hanging.overdue()).repeat(recipients));
                client.shut();
            }
        };
        let number = self.under_way.begin(delivery.due(), &delivery.envelope, Box::new(answer));
        (UnderWay { shared: Arc::clone(self), number }, answers)
    }

    pub fn delivery_number(&self) -> u64 {
        1 + self.deliveries.fetch_add(1, Ordering::Relaxed)
    }

    fn clients(&self) -> u64 {
        self.metrics.connections.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _ = nix::unistd::write(&self.waker, b"w");
    }
}

/// The pools' state, for metrics.
fn sessions(service: &Service) -> Vec<Sessions> {
    let of = |(pool, (used, idle))| {
        [("used", used), ("idle", idle)].map(|(state, count)| Sessions { pool, state, count })
    };
    let counts = service.connections().map(|(pool, one)| (pool, one.count()));
    counts.into_iter().flat_map(of).collect()
}

/// A configuration read anew.
pub type Reload = Box<dyn Fn() -> Result<Arc<Service>, String>>;

/// What the server's caller asks of it: a flag is set, then a byte written to `waker`. A signal
/// handler may do both.
pub struct Control {
    pub stop: Arc<AtomicBool>,
    pub reload: Arc<AtomicBool>,
    pub waker: UnixStream,
    wakes: UnixStream,
}

impl Control {
    /// # Errors
    /// No sockets are to be had.
    pub fn new() -> io::Result<Control> {
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        Ok(Control { stop: Arc::default(), reload: Arc::default(), waker, wakes })
    }
}

/// Serves until `control` says stop, and then until what is in flight is done. `reload` is called
/// when `control` says so.
///
/// # Errors
/// What keeps it from serving, in words.
pub fn run(
    service: Arc<Service>,
    listeners: Vec<Listener>,
    control: Control,
    reload: &Reload,
) -> Result<(), String> {
    let setup = |error: io::Error| format!("cannot start: {error}");
    let waker = control.waker.try_clone().map_err(setup)?;
    let (stop, stopping) = UnixStream::pair().map_err(setup)?;
    let at_start = service.config().lmtp.clone();
    let shared = Arc::new(Shared {
        believed: believed(),
        metrics: Arc::default(),
        service: RwLock::new(service),
        draining: AtomicBool::new(false),
        stopping,
        under_way: OverdueWatch::default(),
        deliveries: AtomicU64::new(0),
        waker,
    });
    if let Some(address) = at_start.metrics {
        let asked = Arc::clone(&shared);
        let text = move || asked.metrics.text(&sessions(&asked.service()));
        web::serve(address, web::metrics(text))
            .map_err(|error| format!("lmtp.metrics {address}: {error}"))?;
    }
    let server = Server { shared, listeners, control, at_start };
    tell_systemd(&[sd_notify::NotifyState::Ready]);
    tracing::info!("serving");
    server.serve(reload);
    tell_systemd(&[sd_notify::NotifyState::Stopping]);
    let Server { shared, listeners, control, .. } = server;
    // Whoever comes now is turned away by the system, or waits in the queue of a socket that
    // systemd keeps.
    drop(listeners);
    drain(&shared, &control.wakes, stop);
    Ok(())
}

fn believed() -> Vec<Uid> {
    // A host without Postfix has no such user; one whose users cannot be looked up now takes nobody
    // else's word.
    let postfix = User::from_name("postfix").ok().flatten();
    let believed = [geteuid(), Uid::from_raw(0)].into_iter().chain(postfix.map(|user| user.uid));
    // In a user namespace (systemd's PrivateUsers=) this stands for everybody who has no number
    // there: user_namespaces(7).
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow =
        Uid::from_raw(overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(65_534));
    believed.filter(|user| *user != overflow).collect()
}

struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    control: Control,
    /// What counted at the start, and counts until the end.
    at_start: LmtpSettings,
}

impl Server {
    fn serve(&self, reload: &Reload) {
        let mut last_tick = Instant::now();
        while !self.control.stop.load(Ordering::SeqCst) {
            if self.control.reload.swap(false, Ordering::SeqCst) {
                self.reload(reload);
            }
            let ready = self.wait();
            for listener in ready {
                self.accept(listener);
            }
            if last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    fn tick(&self) {
        let (shared, service) = (&self.shared, self.shared.service());
        service.connections().iter().for_each(|(_, one)| one.close_idle());
        shared.under_way.answer(Instant::now());
        let overdue = shared.under_way.overdue(Instant::now());
        shared.metrics.overdue.store(overdue as u64, Ordering::Relaxed);
        let (clients, deliveries) = (shared.clients(), shared.under_way.count());
        let status = format!("{clients} clients, {deliveries} deliveries, {overdue} overdue");
        tell_systemd(&[sd_notify::NotifyState::Status(&status)]);
        // Its end would also be that of all other deliveries: not for a few that hang.
        if 2 * overdue < service.config().lmtp.connections {
            tell_systemd(&[sd_notify::NotifyState::Watchdog]);
        }
    }

    fn reload(&self, reload: &Reload) {
        match reload() {
            Ok(service) => {
                let (lmtp, before) = (&service.config().lmtp, &self.at_start);
                let has_socket = self.listeners.iter().any(Listener::is_made_here);
                for (key, is_as_before) in [
                    ("lmtp.listen", lmtp.listen == before.listen),
                    ("lmtp.socket_mode", !has_socket || lmtp.socket_mode == before.socket_mode),
                    ("lmtp.socket_group", !has_socket || lmtp.socket_group == before.socket_group),
                    ("lmtp.metrics", lmtp.metrics == before.metrics),
                ] {
                    if !is_as_before {
                        tracing::warn!("{key} has changed: that counts from the next start");
                    }
                }
                let mut current =
                    self.shared.service.write().unwrap_or_else(PoisonError::into_inner);
                let before = std::mem::replace(&mut *current, service);
                drop(current);
                before.connections().iter().for_each(|(_, one)| one.retire());
                tracing::info!("the configuration was read again");
            }
            Err(error) => {
                tracing::error!(%error, "the new configuration is wrong, the old one stays")
            }
        }
    }

    fn is_full(&self) -> bool {
        self.shared.clients() >= self.shared.service().config().lmtp.connections as u64
    }

    /// Listeners where somebody knocks.
    fn wait(&self) -> Vec<&Listener> {
        let waits =
            self.is_full() && self.shared.service().config().lmtp.when_full == WhenFull::Wait;
        let mut fds = vec![PollFd::new(self.control.wakes.as_fd(), PollFlags::POLLIN)];
        if !waits {
            fds.extend(
                self.listeners
                    .iter()
                    .map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)),
            );
        }
        // Interrupted or not: what is ready now is looked at, the rest the next time.
        let _ = poll(&mut fds, PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO));
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if ready(&fds[0]) {
            clear(&self.control.wakes);
        }
        self.listeners
            .iter()
            .zip(&fds[1..])
            .filter(|(_, fd)| ready(fd))
            .map(|(listener, _)| listener)
            .collect()
    }

    fn accept(&self, listener: &Listener) {
        match listener.accept() {
            Ok(stream) => self.seat(stream),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted
                ) => {}
            Err(error) => {
                // No more descriptors, most likely: they come back when clients leave.
                tracing::error!(%error, "cannot accept a client");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn seat(&self, client: Socket) {
        let shared = &self.shared;
        if self.is_full() {
            shared.metrics.refused.inc();
            return turn_away(&client, FULL);
        }
        shared.metrics.connections.fetch_add(1, Ordering::SeqCst);
        let seat = ClientSlot(Arc::clone(shared));
        // A thread that cannot be made takes with it what it was given.
        let (hand_over, handed_over) = sync_channel(1);
        let spawned = thread::Builder::new().name("client".to_owned()).spawn(move || {
            let Ok(client) = handed_over.recv() else { return };
            // A panic ends this client; the hook has logged it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                session::serve(client, &seat.0)
            }));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for a client");
            shared.metrics.refused.inc();
            return turn_away(&client, NO_THREAD);
        }
        // It is there to take it.
        let _ = hand_over.send(client);
    }
}

/// A client that does not take the few bytes at once is gone.
fn turn_away(client: &Socket, why: &[u8]) {
    let _ = client.write_now(why);
}

/// Waits until every client has its answers and every delivery has ended, as long as a delivery may
/// take.
fn drain(shared: &Shared, wakes: &UnixStream, stop: UnixStream) {
    shared.draining.store(true, Ordering::SeqCst);
    drop(stop);
    let service = shared.service();
    let limits = &service.config().limits;
    let mut until =
        Instant::now() + Duration::from_secs(limits.deadline_secs + limits.answer_secs) + TICK;
    loop {
        shared.under_way.answer(Instant::now());
        // A message whose data came to its end since may take its time as well.
        until = shared.under_way.last_due().map_or(until, |due| until.max(due + TICK));
        let (clients, deliveries) = (shared.clients(), shared.under_way.count());
        if clients == 0 && deliveries == 0 || Instant::now() >= until {
            tracing::info!(clients, deliveries, "stopped");
            return;
        }
        let status = format!("stopping: {clients} clients, {deliveries} deliveries");
        tell_systemd(&[sd_notify::NotifyState::Status(&status), sd_notify::NotifyState::Watchdog]);
        let mut fds = [PollFd::new(wakes.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, 100u16);
        clear(wakes);
    }
}

fn clear(mut wakes: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!(wakes.read(&mut bytes), Ok(read) if read == bytes.len()) {}
}

fn tell_systemd(states: &[sd_notify::NotifyState<'_>]) {
    // Nobody listens where systemd did not start us.
    let _ = sd_notify::notify(states);
}
