//! What a call does in a connection that dies, or to a server that hangs, at any step: the same on
//! each engine, after another number of requests and answers.

use super::handles::{Call, Prepared, calls};
use super::support::proxy::{Fault, Proxy, Stage};
use super::*;

/// A ledger whose handles may come through a proxy. It counts the answers of Postgres, and the
/// requests to MariaDB.
pub trait ProxiedRig: Rig + Sized {
    /// How many of them a call in a kept connection has at most; the last one is to its COMMIT.
    const OF_A_CALL: usize;
    /// How many the first turn of a new connection has, with the login where it counts.
    const OF_A_TURN: usize;

    fn proxy(&self) -> Proxy;

    fn through(&self, proxy: &Proxy) -> Host;
}

impl ProxiedRig for PostgresRig {
    // A statement alone has one.
    const OF_A_CALL: usize = 3;
    // One to the login, two to the turn.
    const OF_A_TURN: usize = 3;

    fn proxy(&self) -> Proxy {
        PostgresRig::proxy(self)
    }

    fn through(&self, proxy: &Proxy) -> Host {
        PostgresRig::through(self, proxy)
    }
}

impl ProxiedRig for MariadbRig {
    const OF_A_CALL: usize = 2;
    // One begins the session, one the turn.
    const OF_A_TURN: usize = 2;

    fn proxy(&self) -> Proxy {
        MariadbRig::proxy(self)
    }

    fn through(&self, proxy: &Proxy) -> Host {
        MariadbRig::through(self, proxy)
    }
}

/// A ledger through a proxy that fails connections at a stage of theirs.
pub struct Failing<R> {
    // Declared first: its connections end before the server does.
    pub proxy: Proxy,
    pub rig: R,
    pub prepared: Arc<Prepared>,
    /// What the proxy has counted of a handle that was used once.
    counted: usize,
}

impl<R: ProxiedRig> Failing<R> {
    pub fn on(rig: R) -> Failing<R> {
        let proxy = rig.proxy();
        let prepared = Prepared::by(&Host::of(&rig), "failing");
        let mut failing = Failing { proxy, rig, prepared, counted: 0 };
        failing.used();
        failing.counted = failing.proxy.answers();
        failing
    }

    pub fn through(&self) -> Host {
        self.rig.through(&self.proxy)
    }

    /// A handle with a connection that is kept.
    fn used(&self) -> Host {
        let host = self.through();
        assert!(!host.has_placed_copy("another"));
        assert_eq!(host.0.count(), (0, 1));
        host
    }

    /// A handle whose one connection is kept and fails later; those that it opens then do not.
    fn kept(&self, stage: Stage, fault: Fault) -> Host {
        self.proxy.plan(stage, fault);
        let host = self.used();
        self.proxy.plan(Stage::Request(usize::MAX), Fault::Cut);
        host
    }
}

fn a_kept_connection_that_dies_at_a_call_costs_one_more_connection_and_no_error<R: ProxiedRig>(
    rig: R,
) {
    let failing = Failing::on(rig);
    for (name, call) in calls(&failing.prepared) {
        let before = failing.proxy.reached();
        let host = failing.kept(Stage::Request(failing.counted), Fault::Cut);
        let result = call(&*host.0, soon());
        assert!(result.is_ok(), "{name}: {result:?}");
        // The proof opens connections of its own.
        let expected = usize::from(name != "prove_exclusion");
        assert_eq!(failing.proxy.reached() - before, expected, "{name}");
        assert_eq!(host.0.count(), (0, 1), "{name}");
    }
}

fn a_call_in_a_new_connection_is_made_once<R: ProxiedRig>(rig: R) {
    let failing = Failing::on(rig);
    for (name, call) in calls(&failing.prepared) {
        let before = failing.proxy.reached();
        failing.proxy.plan(Stage::Request(1), Fault::Cut);
        let host = failing.through();
        let result = call(&*host.0, soon());
        assert!(matches!(result, Err(LedgerError::Unavailable(_))), "{name}: {result:?}");
        assert_eq!(failing.proxy.reached() - before, 1, "{name}");
        assert_eq!(host.0.count(), (0, 0), "{name}: what failed is not kept");
    }
}

fn a_call_whose_answer_is_lost_finds_what_it_did<R: ProxiedRig>(rig: R) {
    let failing = Failing::on(rig);
    let own = &failing.prepared;
    for (name, call) in calls(own) {
        if !["record", "claim", "confirm", "release", "keep", "finish"].contains(&name) {
            continue;
        }
        for answer in 1..=R::OF_A_CALL {
            let host = failing.kept(Stage::Reply(failing.counted + answer), Fault::Cut);
            // The session that was cut may hold the message's lock for a moment still.
            let mut result = call(&*host.0, soon());
            while matches!(result, Err(LedgerError::Contended)) {
                result = call(&*host.0, soon());
            }
            assert!(result.is_ok(), "{name}, answer {answer}: {result:?}");
            let copies = [inbox(), sent()].map(|one| {
                let state = host.claim_again(own.recorded.message, &[one], &own.by, LEASE);
                state.into_iter().next().expect("a state")
            });
            let is_placed = matches!(name, "confirm" | "release" | "keep" | "finish");
            match is_placed {
                true => assert_eq!(copies[0], CopyState::Placed(uid(1)), "{name} {answer}"),
                false => assert_eq!(copies[0], CopyState::Claimed(own.own), "{name} {answer}"),
            }
            let shared = claimed(&copies[1]);
            assert!(!shared.in_doubt, "{name} {answer}: {shared:?}");
        }
    }
    assert!(failing.proxy.reached() >= 6, "each call lost an answer");
}

fn each_call_returns_in_time_from_a_server_that_hangs<R: ProxiedRig>(rig: R) {
    const TIME: Duration = Duration::from_millis(400);
    const SLACK: Duration = Duration::from_secs(5);
    let failing = Failing::on(rig);
    let calls = calls(&failing.prepared);
    let in_time = |name: &str, host: &Host, call: &Call| {
        let began = Instant::now();
        let result = call(&*host.0, began + TIME);
        assert!(matches!(result, Err(LedgerError::Unavailable(_))), "{name}: {result:?}");
        assert!(began.elapsed() < TIME + SLACK, "{name}: {:?}", began.elapsed());
    };
    // When it is asked to let us in; at the first call; at a call in a connection that was kept.
    for (stage, is_kept) in [
        (Stage::Greeting, false),
        (Stage::Request(1), false),
        (Stage::Request(failing.counted), true),
    ] {
        let hosts: Vec<Host> = calls
            .iter()
            .map(|_| match is_kept {
                true => failing.kept(stage, Fault::Freeze),
                false => failing.through(),
            })
            .collect();
        if !is_kept {
            failing.proxy.plan(stage, Fault::Freeze);
        }
        at_once(calls.len(), |n| {
            let (name, call) = &calls[n];
            // It opens connections of its own, which do not fail here.
            if *name != "prove_exclusion" || !is_kept {
                in_time(name, &hosts[n], call);
            }
        });
    }
}

fn a_turn_is_over_in_time_when_the_server_hangs<R: ProxiedRig>(rig: R) {
    const TIME: Duration = Duration::from_secs(3);
    let failing = Failing::on(rig);
    let (own, key) = (failing.prepared.own, copy_key(&failing.prepared.mail, &inbox()));
    for confirms in [true, false] {
        failing.proxy.plan(Stage::Request(R::OF_A_TURN), Fault::Freeze);
        let host = failing.through();
        let turn = host.0.take_turn(&own, &key, Instant::now() + TIME).expect("a turn");
        let (turn, began) = (Taken::from(turn), Instant::now());
        assert_eq!(turn, OURS);
        match confirms {
            true => {
                let confirmed = turn.try_confirm_until(&own, &uid(1), began + TIME);
                assert!(matches!(confirmed, Err(LedgerError::Unavailable(_))), "{confirmed:?}");
            }
            false => drop(turn),
        }
        assert!(began.elapsed() < 5 * TIME, "{:?}", began.elapsed());
        failing.proxy.heal();
        let other = Host::of(&failing.rig);
        assert_eq!(other.turn_when_free(&own, &key), OURS, "its session ended with it");
    }
}

macro_rules! on_each_engine {
    ($($fact:ident),* $(,)?) => {
        on_each_engine!(on_postgres, PostgresRig: $($fact)*);
        on_each_engine!(on_mariadb, MariadbRig: $($fact)*);
    };
    ($engine:ident, $rig:ident: $($fact:ident)*) => {
        mod $engine {
            $(
                #[test]
                fn $fact() {
                    super::$fact(super::$rig::shared());
                }
            )*
        }
    };
}

on_each_engine!(
    a_kept_connection_that_dies_at_a_call_costs_one_more_connection_and_no_error,
    a_call_in_a_new_connection_is_made_once,
    a_call_whose_answer_is_lost_finds_what_it_did,
    each_call_returns_in_time_from_a_server_that_hangs,
    a_turn_is_over_in_time_when_the_server_hangs,
);
