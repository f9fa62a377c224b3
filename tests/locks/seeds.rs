//! The cases of the lock systems that came before, by the names of their tests: what each asserts,
//! or what differs here. A case that another file asserts already is named, and not repeated.
//!
//! Without a case: MutexFabricTest (names of implementors), testRepairTable (there is no such
//! table), SharedLockStoreTestTrait (there are no shared locks), UnserializableTestTrait,
//! testNoAutoReleaseWhenNotConfigured (an object gives its lock back; for one that outlives it
//! there is `CALL onedrop_lock`). CiviCRM has no test of its Lock, `IdempotentCommand` has none.
//!
//! `consul lock`: TestLockCommand, its NoShell and ChildExitCode (there 2 for any) are in
//! `passing.rs`, BadArgs, TryLock, OneShot, BadLimit in `endings.rs`, MonitorRetry in
//! `ledger_gone.rs`, ForceInvalidate and DeleteKey in `hold.rs`, Contend in `waiting.rs`,
//! LockUnlock in `programs.rs`, Conflict in `asking.rs` (here a warning). TrySemaphore is
//! [`mailings`]. Destroy and ReclaimLock have no like: rows stay, and no claim is taken twice.

use std::fs;
use std::process::Command;

use crate::moving::NINJA;
use crate::place::{Held, SOON};
use crate::programs::{Server, out, programs_of};
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::wait_until;

const HELPERS: &str = "
    function db() { static $db; return $db ??= $GLOBALS['connect'](); }
    function lock($name, $ttl = 60) { return new OnedropLock(db(), $name, 0, $ttl); }
    function has(...$all) { return array_map(fn($one) => $one->isAcquired(), $all); }
    function until(callable $is) {
        for ($end = microtime(true) + 60; !$is() && microtime(true) < $end; usleep(20000));
    }
    function says(callable $does) {
        try { $does(); return 'done'; }
        catch (PDOException $why) {
            return str_contains($why->getMessage(), ' lasts 1 to ') ? 'refused' : 'PDOException';
        } catch (RuntimeException $why) { return $why->getMessage(); }
    }
    function cut(PDO $db) {
        error_reporting(E_ERROR); // mysqlnd warns of it, too
        $ends = ['pgsql' => ['pg_backend_pid()', 'SELECT pg_terminate_backend(%d, 9000)'],
                 'mysql' => ['CONNECTION_ID()', 'KILL %d']];
        [$number, $end] = $ends[$db->getAttribute(PDO::ATTR_DRIVER_NAME)];
        db()->query(sprintf($end, $db->query(\"SELECT $number\")->fetchColumn()));
    }
    SharedLock::setConnection(db());\n";

/// A test's name, what it does in PHP, and what that returns as JSON.
type Case = (&'static str, &'static str, &'static str);

/// All in one process; what a case still holds at its end is given back.
#[track_caller]
fn holds(server: &Server, begin: &str, cases: &[Case]) {
    let does = cases.iter().map(|(test, does, _)| {
        format!("echo '{test} ', json_encode((function () {{ {does} }})()), PHP_EOL;\n")
    });
    let script = format!("{HELPERS}{begin}\n{}", does.collect::<String>());
    let returned = cases.iter().map(|(test, _, returns)| format!("{test} {returns}\n"));
    assert_eq!(out(&mut server.php(&script)), returned.collect::<String>());
}

/// mysql-shared-locks, in one process. testAssertTTL, testAssertTTLFailsNotEnoughRemaining:
/// `programs.rs`. testAssertTTLFailsNotLockedAnymore: `moving.rs`. There unlock() and assertTTL()
/// take a name as well; here they are the lock's alone.
#[rustfmt::skip]
const SHARED_LOCKS: [Case; 5] = [
    ("testAcquire", "$a = SharedLock::lock('n', 5, 60); return lock('n')->isFree();", "false"),
    // There it is kept. Here its object has to be.
    ("testAcquire, dropped", "SharedLock::lock('n', 5, 60); return lock('n')->isFree();", "true"),
    ("testLockReleaseFailsNotLockedAnymore",
     "$a = SharedLock::lock('n', 0, 60); exec('onedrop lock steal n --force');
      return says(fn() => $a->release());", r#""n was lost""#),
    // There it is free then, here at the end of its lease.
    ("testLockReleaseFailsConnectionLoss",
     "SharedLock::setConnection($db = $GLOBALS['connect']());
      $a = SharedLock::lock('m', 0, 60); cut($db);
      return [says(fn() => $a->release()), lock('m')->isFree()];", r#"["PDOException",false]"#),
    // Its destructor does not: it would end a program whose work is done.
    ("testAssertTTLFailsConnectionLoss",
     "SharedLock::setConnection($db = $GLOBALS['connect']());
      $a = SharedLock::lock('o', 0, 60); cut($db);
      return [says(fn() => $a->assertTTL(1)), says(function () use (&$a) { $a = null; })];",
     r#"["PDOException","done"]"#),
];

/// When the holder goes on, to its end: before the next asks, or while that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    Never,
    Before,
    Meanwhile,
}

const DIES: &str = "posix_kill(posix_getpid(), SIGKILL);";

/// mysql-shared-locks, in two processes: a test's name, the holder's TTL and its end, the seconds
/// that the next waits, and what it says.
#[rustfmt::skip]
const PROCESSES: [(&str, u32, Goes, &str, &str, &str); 6] = [
    ("testLockTimeout", 60, Goes::Never, "", "0.3", "testLockTimeout is held by another"),
    // symfony/lock: testBlockingLocks.
    ("testLockExplicitRelease", 60, Goes::Meanwhile, "$a->release(); sleep(600);", "60", "done"),
    ("testLockCleanDiedProcessesWhichHadLock", 60, Goes::Meanwhile, "exit;", "60", "done"),
    ("testLockCleanDiedProcessesWhichHadLockTimeout0", 60, Goes::Before, "exit;", "0", "done"),
    // There it is free at once as well, here only where the process ends by itself.
    ("killed", 60, Goes::Before, DIES, "0.3", "killed is held by another"),
    ("testLockCleanDiedProcessesWhichDidNotHaveLock", 1, Goes::Before, DIES, "60", "done"),
];

fn shared_locks(server: &Server) {
    holds(server, "", &SHARED_LOCKS);
    let php = |script: &str| server.php(&format!("{HELPERS}{script}"));
    for (test, ttl, goes, ends, waits, says) in PROCESSES {
        let holding = format!(
            "$a = SharedLock::lock('{test}', 0, {ttl}); touch('{test}.held');
             while (!file_exists('{test}.go')) usleep(20000);
             {ends}"
        );
        let asking = format!("echo says(fn() => SharedLock::lock('{test}', {waits}, 60));");
        let path = |end: &str| server.place.path(&format!("{test}.{end}"));
        let goes_on = || fs::write(path("go"), "").expect("a file");
        let mut holder = Held { child: php(&holding).spawn().expect("php") };
        assert!(wait_until(SOON, || path("held").exists()), "{test}");
        if goes == Goes::Before {
            goes_on();
            holder.code();
        }
        let said = std::thread::scope(|scope| {
            let next = scope.spawn(|| out(&mut php(&asking)));
            if goes == Goes::Meanwhile {
                let line = format!("{test} waits for 1/1 ");
                let is_waiting = || server.place.lock(&["list"]).out.contains(&line);
                assert!(wait_until(SOON, is_waiting), "{test}");
                goes_on();
            }
            next.join().expect("no panic")
        });
        assert_eq!(said, says, "{test}");
    }
}

/// In place of ninja-mutex's Mutex, which counts how often its object took the lock.
const MUTEX: &str = "
    require 'ninja.php';
    require 'OnedropMutex.php';
    class Mutex {
        private int $times = 0;
        function __construct(private string $name, private OnedropMutex $lock) {}
        function acquireLock($timeout = null) {
            $has = $this->times > 0 || $this->lock->acquireLock($this->name, $timeout);
            $this->times += (int) $has;
            return $has;
        }
        function releaseLock() {
            $gave = $this->times > 1 || $this->times && $this->lock->releaseLock($this->name);
            $this->times -= (int) $gave;
            return $gave;
        }
        function seen() { return [$this->times > 0, $this->lock->isLocked($this->name)]; }
    }
    function mutexes(...$names) {
        $lock = new OnedropMutex(db());
        return array_map(fn($name) => new Mutex($name, $lock), $names);
    }
    function two($ttl = 60) { return [new OnedropMutex(db()), new OnedropMutex(db(), $ttl)]; }\n";

/// ninja-mutex: LockTest, then MutexLocksTest, then what cuts a connection. In `moving.rs` are
/// testDisallowToAcquireSelfOwnedLock, testDisallowToAcquireLockOwnedByOtherLockImplementor,
/// testDisallowLockImplementorToReleaseLockAcquiredByOtherImplementor, LockTest's
/// testAcquireAndReleaseLock and testIfLockReleasedByOneImplementorCanBeAcquiredByOther. There the
/// other implementor is a clone, which here shares what it holds.
#[rustfmt::skip]
const MUTEXES: [Case; 10] = [
    ("testIfLocksAreNotSharedBetweenImplementors",
     "[$a, $b] = two(); return [$a->acquireLock('n', 0), $b->releaseLock('n'),
                                $b->acquireLock('n', 0), $a->releaseLock('n')];",
     "[true,false,false,true]"),
    ("testIfLockIsReleasedAfterLockImplementorIsDestroyed",
     "[$a, $b] = two(); $b->acquireLock('n', 0); unset($b); return $a->acquireLock('n', 0);",
     "true"),
    ("testExpiration",
     "[$a, $b] = two(1); return [$b->acquireLock('n', 0), $a->acquireLock('n', 60000),
                                 $b->releaseLock('n'), $a->isLocked('n'), $a->releaseLock('n')];",
     "[true,true,false,true,true]"),
    ("testAcquireAndReleaseLock",
     "[$a] = mutexes('n'); return [$a->acquireLock(0), $a->seen(), $a->releaseLock(), $a->seen()];",
     "[true,[true,true],true,[false,false]]"),
    ("testAllowToAcquireSelfOwnedLock, \
      testMultipleSelfAcquiredLocksRequiresMultipleReleasesToCompletelyReleaseMutex",
     "[$a] = mutexes('n');
      for ($n = 0; $n < 3; $n++) $said[] = [$a->acquireLock(0), ...$a->seen()];
      for ($n = 0; $n < 3; $n++) $said[] = [$a->releaseLock(), ...$a->seen()];
      return array_map(fn($all) => array_sum($all), $said);", "[3,3,3,3,3,1]"),
    ("testUnableToAcquireLockHeldByOtherLock, testUnableToReleaseLockHeldByOtherLock",
     "[$a, $b] = mutexes('n', 'n'); return [$a->acquireLock(0), $b->seen(), $b->acquireLock(0),
                                            $b->releaseLock(), $a->seen()];",
     "[true,[false,true],false,false,[true,true]]"),
    ("testAcquireLockWithTimeoutImmediately, testAcquireLockTimeout",
     "[[$a], [$b]] = [mutexes('n'), mutexes('n')];
      return [$a->acquireLock(100), $b->acquireLock(100)];", "[true,false]"),
    ("testAcquireAndReleaseSecondMutexWithoutReleaseTheFirstMutex",
     "[$a, $b] = mutexes('n', 'm'); return [$a->acquireLock(0), $b->acquireLock(0), $b->seen(),
                                            $a->seen(), $b->releaseLock(), $a->seen()];",
     "[true,true,[true,true],[true,true],true,[true,true]]"),
    ("testIfMutexIsReusableAfterSeveralAcquireReleaseCycles",
     "[$a, $b] = mutexes('n', 'n');
      return [$a->acquireLock(), $a->releaseLock(), $a->acquireLock(), $a->releaseLock(),
              $b->acquireLock(), $b->releaseLock()];", "[true,true,true,true,true,true]"),
    // There it throws, or gives the lock back when the backend is back. Here the lock stays to its
    // lease's end.
    ("testIfLockDestructorThrowsWhenBackendIsUnavailable",
     "[$a, $b] = [new OnedropMutex($db = $GLOBALS['connect']()), new OnedropMutex(db())];
      $said = [$a->isLocked('o'), $a->acquireLock('o', 0), $a->isLocked('o')]; cut($db);
      return [...$said, says(function () use (&$a) { $a = null; }), $b->isLocked('o')];",
     r#"[false,true,true,"done",true]"#),
];

fn mutexes(server: &Server) {
    programs_of("docs/moving-symfony.md", &server.place);
    fs::write(server.place.path("ninja.php"), NINJA).expect("a file");
    holds(server, MUTEX, &MUTEXES);
}

/// symfony/lock: AbstractStoreTestCase, ExpiringStoreTestTrait and PdoStoreTest, a Key and its
/// store being one `OnedropLock`. testSetExpiration, testSaveAfterConflict, LockTest's
/// testReleaseOnDestruction: `programs.rs`. testEmptyStringIsLockable: refused (`endings.rs`).
#[rustfmt::skip]
const STORES: [Case; 10] = [
    ("testSave",
     "$a = lock('n'); return [...has($a), $a->acquire(), ...has($a), $a->release(), ...has($a)];",
     "[false,true,true,true,false]"),
    ("testSaveWithDifferentResources",
     "[$a, $b] = [lock('n'), lock('m')];
      return [$a->acquire(), has($a, $b), $b->acquire(), has($a, $b),
              $a->release(), has($a, $b), $b->release(), has($a, $b)];",
     "[true,[true,false],true,[true,true],true,[false,true],true,[false,false]]"),
    ("testSaveWithDifferentKeysOnSameResources",
     "[$a, $b] = [lock('n'), lock('n')];
      return [$a->acquire(), has($a, $b), $b->acquire(), has($a, $b), $a->release(), has($a, $b),
              $b->acquire(), has($a, $b), $b->release(), has($a, $b)];",
     "[true,[true,false],false,[true,false],true,[false,false],\
       true,[false,true],true,[false,false]]"),
    ("testSaveTwice",
     "$a = lock('n'); return [$a->acquire(), $a->acquire(), $a->release(), $a->isFree()];",
     "[true,true,true,true]"),
    ("testDeleteIsolated",
     "[$a, $b] = [lock('n'), lock('m')]; return [$a->acquire(), $b->release(), has($a, $b)];",
     "[true,false,[true,false]]"),
    ("testExpiration, testRefreshLock",
     "$a = lock('n'); $said = [$a->acquire(), $a->left(1) == 1]; until(fn() => !$a->isAcquired());
      return [...$said, ...has($a)];", "[true,true,false]"),
    // There LockExpiredException. Here it lasts again, unless another has claimed it.
    ("testAbortAfterExpiration",
     "$a = lock('n', 1); $a->acquire(); until(fn() => !$a->isAcquired());
      return [$a->left(60) == 60, ...has($a)];", "[true,true]"),
    ("testExpiredLockCleaned",
     "[$a, $b] = [lock('n', 1), lock('n')];
      return [$a->acquire(), $b->acquire(60), $a->left(60) == 0, $a->release(), has($a, $b)];",
     "[true,true,true,false,[false,true]]"),
    ("testInvalidTtl",
     "$a = lock('n'); return [$a->acquire(), says(fn() => $a->left(0.1)), ...has($a)];",
     r#"[true,"refused",true]"#),
    ("testInvalidTtlConstruct", "return says(fn() => lock('n', 0.1)->acquire());", r#""refused""#),
];

/// PostgreSqlStoreTest.
#[rustfmt::skip]
const POSTGRES_STORE: Case = (
    "testWaitAndSaveAfterConflictReleasesLockFromInternalStore",
    "[$a, $b] = [lock('n'), new OnedropLock($db = $GLOBALS['connect'](), 'n', 60)];
     $said = [$a->acquire()]; $db->exec('SET statement_timeout = 300');
     $said[] = says(fn() => $b->acquire()); $db->exec('SET statement_timeout = 0');
     return [...$said, $a->release(), $b->acquire(), has($a, $b)];",
    r#"[true,"PDOException",true,true,[false,true]]"#,
);

fn stores(server: &Server) {
    holds(server, "", &STORES);
    if server.pdo.starts_with("pgsql") {
        holds(server, "", &[POSTGRES_STORE]);
    }
}

/// How many workers are started together, how many may send at a time, and how many do.
const MAILINGS: [(usize, usize, usize); 8] =
    [(1, 1, 1), (2, 1, 1), (3, 1, 1), (3, 2, 2), (4, 2, 2), (3, 3, 3), (4, 3, 3), (2, 5, 2)];

/// CiviCRM's cron job with slots around it, or with the locks inside it, of which each worker tries
/// all, in any order.
fn worker(server: &Server, way: &str, most: usize, row: &str) -> Command {
    if way == "around" {
        let slots = most.to_string();
        let sends = format!("echo sent >>{row}; while [ ! -e {row}.go ]; do sleep 0.1; done");
        return server.place.shell(&["civimail", "--slots", &slots, "--on-busy", "quiet"], &sends);
    }
    let mut php = server.php(&format!(
        "require 'civicrm.settings.php';
         $slots = range(1, {most});
         shuffle($slots);
         foreach ($slots as $slot) {{
             $lock = (CIVICRM_WORK_LOCK)(\"worker.mailing.send.$slot\");
             if (!$lock->acquire(0)) continue;
             file_put_contents('{row}', \"sent\\n\", FILE_APPEND);
             while (!file_exists('{row}.go')) usleep(20000);
             break;
         }}"
    ));
    php.env("ONEDROP_DSN", &server.pdo).env("ONEDROP_USER", &server.user);
    php.env("ONEDROP_PASSWORD", "");
    php
}

/// CiviCRM's JobProcessMailingTest, testConcurrency. Its rows of mailerJobsMax = 0, which is no
/// limit, take no lock of a worker.
fn mailings(server: &Server) {
    let place = &server.place;
    programs_of("docs/moving-civimail.md", place);
    let rows = ["around", "inside"].into_iter().flat_map(|way| MAILINGS.map(|row| (way, row)));
    for (way, (workers, most, senders)) in rows {
        let row = format!("{way}.{workers}.{most}");
        let start = |_| {
            let child = worker(server, way, most, &row).spawn().expect("a worker");
            Held { child }
        };
        let mut all: Vec<Held> = (0..workers).map(start).collect();
        let sent = || place.text(&row).lines().count();
        let all_know = wait_until(SOON, || {
            let gone = all.iter_mut().filter_map(|one| one.child.try_wait().expect("our child"));
            gone.count() + sent() == workers
        });
        assert!(all_know && sent() == senders, "{row}: {} send", sent());
        fs::write(place.path(&format!("{row}.go")), "").expect("a file");
        assert!(all.iter_mut().all(|one| one.code() == Some(0)), "{row}");
    }
}

macro_rules! on_each_engine {
    ($($name:ident: $holds:ident),*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn on_postgres() {
                $holds(&Server::postgres(&Postgres::shared()));
            }

            #[test]
            fn on_mariadb() {
                $holds(&Server::mariadb(&Mariadb::shared()));
            }
        }
    )*};
}

on_each_engine!(
    mysql_shared_locks: shared_locks, ninja_mutex: mutexes, symfony_lock: stores, civicrm: mailings
);
