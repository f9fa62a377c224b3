//! What `onedrop lmtp` reports to systemd (sd_notify(3)): that it serves, that it is alive, that it
//! stops.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::letters::{ANN, from_ann};
use crate::support::lmtp::Lmtp;
use crate::support::lmtp_client::LmtpClient;
use crate::support::site::{Files, Site};
use crate::support::{set_mode, wait_until};

const LONG: Duration = Duration::from_secs(30);
/// What systemd would say for `WatchdogSec=6`.
const WATCHDOG: Duration = Duration::from_secs(6);

/// systemd's end of the socket. Each assignment of a datagram is one word.
#[derive(Clone, Default)]
struct Manager {
    heard: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Manager {
    fn listen(socket: UnixDatagram, mut at_ready: impl FnMut() + Send + 'static) -> Manager {
        let manager = Manager::default();
        let heard = Arc::clone(&manager.heard);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = socket.recv(&mut bytes) {
                let text = String::from_utf8(bytes[..length].to_vec()).expect("UTF-8");
                for word in text.lines() {
                    if word == "READY=1" {
                        at_ready();
                    }
                    heard
                        .lock()
                        .expect("nobody panics with it")
                        .push((Instant::now(), word.to_owned()));
                }
            }
        });
        manager
    }

    fn words(&self) -> Vec<String> {
        self.heard
            .lock()
            .expect("nobody panics with it")
            .iter()
            .map(|(_, word)| word.clone())
            .collect()
    }

    fn times_of(&self, word: &str) -> Vec<Instant> {
        let heard = self.heard.lock().expect("nobody panics with it");
        heard.iter().filter(|(_, said)| said == word).map(|(at, _)| *at).collect()
    }

    #[track_caller]
    fn wait_for(&self, count: usize, word: &str) {
        assert!(
            wait_until(LONG, || self.times_of(word).len() >= count),
            "{count} {word} in {:?}",
            self.words()
        );
    }

    /// The words that change what systemd thinks of the service, in order.
    fn states(&self) -> Vec<String> {
        let mut words = self.words();
        words.retain(|word| !word.starts_with("STATUS=") && word != "WATCHDOG=1");
        words
    }
}

struct Service {
    site: Site<Files>,
    lmtp: Lmtp,
    manager: Manager,
}

impl Service {
    /// At READY=1 it listens: the first client is not refused.
    fn start() -> Service {
        let site = Site::embedded();
        let socket = site.root.join("notify");
        let listener = UnixDatagram::bind(&socket).expect("socket");
        set_mode(&socket, 0o666);
        let (path, micros) = (socket.display().to_string(), WATCHDOG.as_micros().to_string());
        let (tell, place) = mpsc::channel::<PathBuf>();
        let (answer, greeting) = mpsc::channel();
        let manager = Manager::listen(listener, move || {
            let called = place.recv().map(|place| LmtpClient::unix(&place, LONG));
            // After a second READY=1 no client is to connect.
            let _ = called.map(|client| answer.send(client.map(|client| client.greeting.code)));
        });
        let launch = site.launch("").env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", &micros);
        let lmtp = launch.begin();
        tell.send(lmtp.socket()).expect("somebody waits for it");
        drop(tell);
        manager.wait_for(1, "READY=1");
        let greeting = greeting.recv_timeout(LONG);
        assert!(matches!(greeting, Ok(Ok(220))), "{greeting:?}\n{}", lmtp.log());
        Service { site, lmtp, manager }
    }
}

#[test]
fn it_is_ready_when_it_listens_and_alive_twice_in_the_watchdogs_time() {
    let service = Service::start();
    let manager = &service.manager;
    let ready = manager.times_of("READY=1")[0];
    let seen = wait_until(LONG, || {
        manager.times_of("WATCHDOG=1").last().is_some_and(|at| *at > ready + 2 * WATCHDOG)
    });
    let alive = manager.times_of("WATCHDOG=1");
    assert!(seen, "{:?}", manager.words());
    let mut since = ready;
    for at in alive {
        assert!(at - since <= WATCHDOG / 2, "silent for {:?}: {:?}", at - since, manager.words());
        since = at;
    }
    let client = service.lmtp.client();
    manager.wait_for(1, "STATUS=1 clients, 0 deliveries, 0 overdue");
    let nobody = manager.times_of("STATUS=0 clients, 0 deliveries, 0 overdue").len();
    client.quit();
    manager.wait_for(nobody + 1, "STATUS=0 clients, 0 deliveries, 0 overdue");
    assert_eq!(manager.states(), ["READY=1"]);
}

/// By sd_notify(3)'s protocol for reloads: RELOADING=1 with its time, and READY=1 when it is done,
/// also where the old configuration stays.
#[test]
fn a_reload_leaves_it_ready() {
    let mut service = Service::start();
    for (count, is_right, said) in [(1, true, "was read again"), (2, false, "the old one stays")] {
        let config = service.site.config("server", "");
        if !is_right {
            fs::write(config, "nonsense").expect("configuration");
        }
        service.lmtp.reload();
        service.lmtp.wait_for_log(said);
        service.manager.wait_for(1 + count, "READY=1");
        let states = service.manager.states();
        let [.., reloading, time, ready] = &states[..] else { panic!("{states:?}") };
        assert_eq!((reloading.as_str(), ready.as_str()), ("RELOADING=1", "READY=1"));
        let time = time.strip_prefix("MONOTONIC_USEC=").map(str::parse::<u64>);
        assert!(matches!(time, Some(Ok(1..))), "{states:?}");
    }
}

/// While a delivery runs, the service is stopping and gets more time, until that has ended. To the
/// watchdog it says nothing more: systemd would turn it on again.
#[test]
fn it_is_stopping_and_alive_until_its_last_delivery_is_done() {
    let mut service = Service::start();
    let mut client = service.lmtp.client();
    let first = client.deliver(ANN, &["scuba@mail.axial.net"], from_ann("first"));
    assert!(first.expect("a reply")[0].is_ok(), "{}", service.lmtp.log());
    let ledger = service.site.sqlite();
    ledger.execute_batch("BEGIN IMMEDIATE").expect("the ledger's write lock");
    let accepted = client.begin(ANN, &["scuba@mail.axial.net"]).expect("replies");
    client.send_message(from_ann("held")).expect("a message");
    service.manager.wait_for(1, "STATUS=1 clients, 1 deliveries, 0 overdue");
    service.lmtp.begin_to_stop();
    service.manager.wait_for(1, "STOPPING=1");
    service.manager.wait_for(3, "STATUS=stopping: 1 clients, 1 deliveries");
    let stopping = service.manager.times_of("STOPPING=1");
    let alive = service.manager.times_of("WATCHDOG=1");
    assert!(alive.last() < stopping.first(), "{alive:?} {stopping:?}");
    assert!(!service.lmtp.has_ended(), "{}", service.lmtp.log());
    ledger.execute_batch("ROLLBACK").expect("its end");
    let replies = client.finish(accepted).expect("replies");
    assert!(replies[0].is_ok(), "{replies:?}");
    drop(client);
    let ended = service.lmtp.stop();
    assert!(ended.status.success(), "{ended:?}\n{}", service.lmtp.log());
    let (extended, states): (Vec<String>, Vec<String>) =
        service.manager.states().into_iter().partition(|state| state.starts_with("EXTEND_TIMEOUT"));
    assert_eq!(states, ["READY=1", "STOPPING=1"]);
    assert!(extended.iter().all(|state| state == "EXTEND_TIMEOUT_USEC=5000000"), "{extended:?}");
    assert!(extended.len() > 1, "systemd would kill it");
    service.site.inbox_has("scuba", ["first", "held"].map(from_ann));
}
