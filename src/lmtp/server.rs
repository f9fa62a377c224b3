//! The life of the server: listeners, clients up to a number, systemd. Its caller's [`Control`]
//! ends it when what is in flight is done, or has it take another configuration; it keeps the old
//! one if the new is wrong.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Uid;

use onedrop_admin::http;
use onedrop_admin::status::StatusGauges;
use onedrop_core::envelope::Envelope;
use onedrop_net::listener::Listener;
use onedrop_net::lmtp::{ServerReply, reply};
use onedrop_net::socket::Socket;
use onedrop_site::config::{LmtpSettings, WhenFull};
use onedrop_site::service::Service;

mod caller;
pub mod connection;
mod delivery;
mod metrics;
pub mod overdue;
pub mod protocol;
pub mod queue_id;
mod session;
pub mod spool;

use caller::{ClientIdentity, UserClients};
use delivery::MessageDelivery;
use metrics::Metrics;
use overdue::OverdueWatch;

/// How often pools are looked at and systemd hears that all is well.
const TICK: Duration = Duration::from_secs(1);
/// How much longer systemd waits for a stop, each time that it hears of one.
const EXTENDED_USEC: u32 = 5_000_000;

/// What all connections share for the life of the server.
struct ServerState {
    /// The users from whom a SASL login name is believed.
    believed: Vec<Uid>,
    /// The clients that came by `lmtp.users`.
    user_clients: Arc<UserClients>,
    metrics: Arc<Metrics>,
    service: RwLock<Arc<Service>>,
    draining: AtomicBool,
    /// The deliveries that run, and look-ups of recipients.
    under_way: OverdueWatch,
    /// Names deliveries in Received fields and logs.
    deliveries: AtomicU64,
    /// Comes to its end when the server stops: what idle clients' threads wait for beside their
    /// client.
    stopping: UnixStream,
    /// Wakes the server's loop.
    waker: UnixStream,
}

/// A client's place among those that are there at a time; free when dropped.
struct ClientSlot(Arc<ServerState>);

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
        self.0.wake();
    }
}

/// Lives as long as a delivery runs, or the look-up of a recipient.
struct UnderWay {
    server: Arc<ServerState>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.server.under_way.end(self.number);
        if self.server.is_draining() {
            self.server.wake();
        }
    }
}

impl ServerState {
    /// What counts now.
    fn service(&self) -> Arc<Service> {
        Arc::clone(&self.service.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The look-up of a recipient begins, which must have ended when it is `due`; the guard is to
    /// be kept until it is over. One that hangs is counted and logged; its client waits.
    fn begin_look_up(self: &Arc<Self>, due: Instant, envelope: &Envelope) -> UnderWay {
        let number = self.under_way.begin(due, envelope, || {});
        UnderWay { server: Arc::clone(self), number }
    }

    /// A delivery for `client` begins; the guard is to be kept until it is over.
    fn begin(self: &Arc<Self>, delivery: &Arc<MessageDelivery>, client: &Arc<Socket>) -> UnderWay {
        let (hanging, client) = (Arc::clone(delivery), Arc::clone(client));
        let answer = move || {
            if hanging.claim_replies().is_ok() {
                let recipients = hanging.envelope.recipients.len();
                // As much as the client takes.
                let _ = client.write_now(&reply(&hanging.overdue().outcome).repeat(recipients));
                client.shut();
            }
        };
        let number = self.under_way.begin(delivery.due(), &delivery.envelope, answer);
        UnderWay { server: Arc::clone(self), number }
    }

    fn delivery_number(&self) -> u64 {
        1 + self.deliveries.fetch_add(1, Ordering::Relaxed)
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _ = nix::unistd::write(&self.waker, b"w");
    }
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
    /// What is served with the server's own metrics; the caller sets them.
    pub gauges: StatusGauges,
}

impl Control {
    pub fn new() -> io::Result<Control> {
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let gauges = StatusGauges::default();
        Ok(Control { stop: Arc::default(), reload: Arc::default(), waker, wakes, gauges })
    }
}

/// A place where clients come in.
pub struct Entrance {
    pub listener: Listener,
    /// All users of this host may connect, each for its own account.
    pub is_for_users: bool,
}

/// Serves until `control` says stop, and then until what is in flight is done. `reload` is called
/// when `control` says so.
///
/// # Errors
/// A sentence that says what keeps it from serving.
pub fn run(
    service: Arc<Service>,
    listeners: Vec<Entrance>,
    control: Control,
    reload: &Reload,
) -> Result<(), String> {
    let setup = |error: io::Error| format!("cannot start: {error}");
    let waker = control.waker.try_clone().map_err(setup)?;
    let (stop, stopping) = UnixStream::pair().map_err(setup)?;
    let at_start = service.config().lmtp.clone();
    let state = Arc::new(ServerState {
        believed: caller::believed(),
        user_clients: Arc::default(),
        metrics: Arc::new(Metrics::with(&control.gauges)),
        service: RwLock::new(service),
        draining: AtomicBool::new(false),
        stopping,
        under_way: OverdueWatch::default(),
        deliveries: AtomicU64::new(0),
        waker,
    });
    if let Some(address) = at_start.metrics {
        let asked = Arc::clone(&state);
        let text = move || {
            let service = asked.service();
            asked.metrics.text(
                service.connections().into_iter().map(|(pool, one)| (pool, one.count())),
                service.look_backs(),
            )
        };
        // Mail does not wait for who measures it.
        if let Err(error) = http::serve(address, http::metrics(text)) {
            tracing::error!("lmtp.metrics {address}: {error}: this server serves no metrics");
        }
    }
    let server = LmtpServer { state, listeners, control, at_start };
    tell_systemd(&[sd_notify::NotifyState::Ready]);
    tracing::info!("serving");
    server.serve(reload);
    tell_systemd(&[sd_notify::NotifyState::Stopping]);
    let LmtpServer { state, listeners, control, .. } = server;
    // A client that comes now is turned away by the system, or waits in the queue of a socket that
    // systemd keeps.
    drop(listeners);
    drain(&state, &control.wakes, stop);
    Ok(())
}

struct LmtpServer {
    state: Arc<ServerState>,
    listeners: Vec<Entrance>,
    control: Control,
    /// What counted at the start, and counts until the end.
    at_start: LmtpSettings,
}

impl LmtpServer {
    fn serve(&self, reload: &Reload) {
        let mut last_tick = Instant::now();
        while !self.control.stop.load(Ordering::SeqCst) {
            if self.control.reload.swap(false, Ordering::SeqCst) {
                // Type=notify-reload knows the reload by its time.
                let now = sd_notify::NotifyState::monotonic_usec_now().ok();
                let reloading = [Some(sd_notify::NotifyState::Reloading), now];
                tell_systemd(&reloading.into_iter().flatten().collect::<Vec<_>>());
                match reload() {
                    Ok(service) => self.change_to(service),
                    Err(error) => {
                        tracing::error!(%error, "the new configuration is wrong, the old one stays")
                    }
                }
                tell_systemd(&[sd_notify::NotifyState::Ready]);
            }
            for listener in self.wait() {
                self.accept(listener);
            }
            if last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    fn tick(&self) {
        let (state, service) = (&self.state, self.state.service());
        service.connections().iter().for_each(|(_, one)| one.close_idle());
        state.under_way.answer(Instant::now());
        let overdue = state.under_way.overdue(Instant::now());
        state.metrics.overdue.set(overdue as i64);
        let (clients, deliveries) = (state.metrics.connections.get(), state.under_way.count());
        let status = format!("{clients} clients, {deliveries} deliveries, {overdue} overdue");
        tell_systemd(&[sd_notify::NotifyState::Status(&status)]);
        // Its end would also be that of all other deliveries: not for a few that hang.
        if 2 * overdue < service.config().lmtp.connections {
            tell_systemd(&[sd_notify::NotifyState::Watchdog]);
        }
    }

    fn change_to(&self, service: Arc<Service>) {
        let (lmtp, before) = (&service.config().lmtp, &self.at_start);
        let is_made_here = |one: &Entrance| !one.is_for_users && one.listener.is_made_here();
        let has_socket = self.listeners.iter().any(is_made_here);
        for (key, has_changed) in [
            ("lmtp.listen", lmtp.listen != before.listen),
            ("lmtp.users", lmtp.users != before.users),
            ("lmtp.socket_mode", has_socket && lmtp.socket_mode != before.socket_mode),
            ("lmtp.socket_group", has_socket && lmtp.socket_group != before.socket_group),
            ("lmtp.metrics", lmtp.metrics != before.metrics),
        ] {
            if has_changed {
                tracing::warn!("{key} has changed: that counts from the next start");
            }
        }
        let mut current = self.state.service.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, service);
        drop(current);
        before.connections().iter().for_each(|(_, one)| one.retire());
        tracing::info!("the configuration was read again");
    }

    fn is_full(&self) -> bool {
        let most = self.state.service().config().lmtp.connections;
        self.state.metrics.connections.get() >= most as i64
    }

    /// Waits for a TICK at most; returns listeners that have clients.
    fn wait(&self) -> Vec<&Entrance> {
        let waits =
            self.is_full() && self.state.service().config().lmtp.when_full == WhenFull::Wait;
        let listeners = if waits { &[] } else { &self.listeners[..] };
        let mut fds = vec![PollFd::new(self.control.wakes.as_fd(), PollFlags::POLLIN)];
        fds.extend(
            listeners.iter().map(|one| PollFd::new(one.listener.as_fd(), PollFlags::POLLIN)),
        );
        // Interrupted or not: what is ready now is looked at, the rest the next time.
        let _ = poll(&mut fds, PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO));
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if is_ready(&fds[0]) {
            clear(&self.control.wakes);
        }
        listeners.iter().zip(&fds[1..]).filter(|(_, fd)| is_ready(fd)).map(|(one, _)| one).collect()
    }

    fn accept(&self, entrance: &Entrance) {
        match entrance.listener.accept() {
            Ok(client) if entrance.is_for_users => {
                let caller = ClientIdentity::of(&client, &self.state.believed);
                self.serve_client(Arc::new(client), caller);
            }
            Ok(client) => self.serve_client(Arc::new(client), ClientIdentity::Believed),
            Err(error)
                if [io::ErrorKind::WouldBlock, io::ErrorKind::ConnectionAborted]
                    .contains(&error.kind()) => {}
            Err(error) => {
                // No more descriptors, most likely: they come back when clients leave.
                tracing::error!(%error, "cannot accept a client");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn serve_client(&self, client: Arc<Socket>, caller: ClientIdentity) {
        let metrics = &self.state.metrics;
        let turn_away = |why: ServerReply| {
            metrics.refused.inc();
            // A client that does not take the few bytes at once is gone.
            let _ = client.write_now(format!("{}\r\n", why.line()).as_bytes());
        };
        if self.is_full() {
            return turn_away(ServerReply::TooManyConnections);
        }
        let user_slot = match caller.counts_for() {
            None => None,
            Some(user) => {
                let most = self.state.service().config().lmtp.connections.div_ceil(2);
                let Some(slot) = self.state.user_clients.enter(user, most) else {
                    return turn_away(ServerReply::TooManyConnections);
                };
                Some(slot)
            }
        };
        metrics.connections.inc();
        let (slot, socket) = (ClientSlot(Arc::clone(&self.state)), Arc::clone(&client));
        let spawned = thread::Builder::new().name("client".to_owned()).spawn(move || {
            let _user_slot = user_slot;
            // A panic ends this client; the hook has logged it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                session::serve(socket, caller, &slot.0)
            }));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for a client");
            turn_away(ServerReply::OutOfResources);
        }
    }
}

/// Waits until every client has its answers and every delivery has ended, as long as a delivery may
/// take.
fn drain(state: &ServerState, wakes: &UnixStream, stop: UnixStream) {
    state.draining.store(true, Ordering::SeqCst);
    drop(stop);
    let service = state.service();
    let limits = &service.config().limits;
    let mut until =
        Instant::now() + Duration::from_secs(limits.deadline_secs + limits.answer_secs) + TICK;
    loop {
        state.under_way.answer(Instant::now());
        // A message whose data came to its end since may take its time as well.
        // For one that hangs the server answers once its grace is over.
        let last = |due| until.max(due + overdue::GRACE + TICK);
        until = state.under_way.last_due().map_or(until, last);
        let (clients, deliveries) = (state.metrics.connections.get(), state.under_way.count());
        if clients == 0 && deliveries == 0 || Instant::now() >= until {
            tracing::info!(clients, deliveries, "stopped");
            return;
        }
        let status = format!("stopping: {clients} clients, {deliveries} deliveries");
        // No WATCHDOG=1: systemd has turned its watchdog off, and that would turn it on again, for
        // the time after this, in which jobs end.
        tell_systemd(&[
            sd_notify::NotifyState::Status(&status),
            // Past TimeoutStopSec= as well.
            sd_notify::NotifyState::ExtendTimeoutUsec(EXTENDED_USEC),
        ]);
        let _ = poll(&mut [PollFd::new(wakes.as_fd(), PollFlags::POLLIN)], 100u16);
        clear(wakes);
    }
}

fn clear(mut wakes: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!(wakes.read(&mut bytes), Ok(read) if read == bytes.len()) {}
}

fn tell_systemd(states: &[sd_notify::NotifyState<'_>]) {
    // Without NOTIFY_SOCKET systemd did not start us, and this fails.
    let _ = sd_notify::notify(states);
}
