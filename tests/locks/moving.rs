//! The pages for those who move here from another system: their programs, commands and statements
//! as they stand, beside what stands in for that system (CiviCRM's `cv`, Symfony's console,
//! ninja-mutex's interface, crontabber's classes and table).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::place::{Place, ended};
use crate::programs::{Server, out, programs_of, within};
use crate::support::mariadb::Mariadb;
use crate::support::page::Page;
use crate::support::postgres::Postgres;
use crate::support::shown::{is_as_shown, said_and_shown};

/// The ledger's server, with the programs of a page.
fn server_for(page: &str, server: Server) -> Server {
    programs_of(page, &server.place);
    fs::create_dir(server.place.path("bin")).expect("a folder");
    server
}

fn shell(place: &Place, script: &str) -> Command {
    let mut command = within(place, "sh");
    command.args(["-e", "-c", &format!("PATH=$PWD/bin:$PATH\n{script}")]);
    command
}

/// What the commands of a page say and the page does not show.
#[track_caller]
fn follow(page: &str, place: &Place) -> String {
    let blocks = said_and_shown(&Page::read(page));
    assert!(!blocks.is_empty(), "{page}");
    let mut more = String::new();
    for block in blocks {
        let said = out(&mut shell(place, &block.commands));
        match block.shown {
            Some(shown) => assert!(is_as_shown(&said, &shown), "{page} shows {shown}said: {said}"),
            None => more += &said,
        }
    }
    more
}

fn program(place: &Place, name: &str, text: &str) {
    fs::write(place.path(name), text).expect("a file");
    fs::set_permissions(place.path(name), Permissions::from_mode(0o755)).expect("a mode");
}

#[test]
fn the_page_of_all_moves_shows_a_lock_that_two_cannot_have() {
    assert_eq!(follow("docs/moving-locks.md", &Place::new()), "");
}

#[test]
fn the_page_for_civimail_holds() {
    let page = "docs/moving-civimail.md";
    let mariadb = Mariadb::shared();
    let server = server_for(page, Server::mariadb(&mariadb));
    let place = &server.place;
    program(place, "bin/cv", "#!/bin/sh\necho cv \"$@\"\n");
    assert_eq!(follow(page, place), "cv api Job.process_mailing\n");
    // CiviCRM's LockManager calls the function that the constant names.
    let script = "
        require 'civicrm.settings.php';
        $create = fn($name) => call_user_func_array(CIVICRM_WORK_LOCK, [$name]);
        [$one, $two] = [$create('worker.mailing.send.1'), $create('worker.mailing.send.2')];
        $other = $create('worker.mailing.send.1');
        $said = [$one->acquire(), $two->acquire(null), $one->isAcquired(), $two->isAcquired(),
            $other->isFree(), $other->acquire(0), $other->isAcquired()];
        passthru('onedrop lock holder example.org/worker.mailing.send.1 >holder');
        $said = [...$said, $one->release(), $other->acquire(0), $one->isAcquired()];
        unset($other);
        $db = (new ReflectionFunction('onedrop_lock'))->getStaticVariables()['db'];
        $idle = (int) $db->query('SELECT @@wait_timeout')->fetchColumn();
        echo json_encode([...$said, $one->isFree(), $idle]);";
    let mut php = server.php(script);
    php.env("ONEDROP_DSN", &server.pdo).env("ONEDROP_USER", &server.user);
    let said = out(php.env("ONEDROP_PASSWORD", ""));
    assert_eq!(said, "[true,true,true,true,false,false,false,true,true,false,true,7200]");
    let holder = place.text("holder");
    assert!(holder.contains("example.org/worker.mailing.send.1"), "{holder}");
}

pub const NINJA: &str = "<?php
namespace NinjaMutex\\Lock;
interface LockInterface {
    public function acquireLock($name, $timeout = null);
    public function releaseLock($name);
    public function isLocked($name);
}
";

#[test]
fn the_page_for_idempotent_commands_holds() {
    let page = "docs/moving-symfony.md";
    let postgres = Postgres::shared();
    let server = server_for(page, Server::postgres(&postgres));
    let place = &server.place;
    program(place, "bin/console", "<?php echo implode(' ', array_slice($argv, 1));");
    assert_eq!(follow(page, place), "app:import acme");
    fs::write(place.path("ninja.php"), NINJA).expect("a file");
    let script = "
        require 'ninja.php';
        require 'OnedropMutex.php';
        [$a, $b] = [new OnedropMutex($connect()), new OnedropMutex($connect(), 60)];
        $said = [$a->isLocked('x'), $a->acquireLock('x', 0), $a->acquireLock('x', 0),
            $b->isLocked('x'), $b->acquireLock('x', 100), $b->releaseLock('x'),
            $a->releaseLock('x'), $b->acquireLock('x'), $b->releaseLock('x'), $b->releaseLock('x')];
        $b->acquireLock('y', 1000);
        exec('onedrop lock steal y --force');
        echo json_encode([...$said, $b->releaseLock('y')]);";
    let said = out(&mut server.php(script));
    assert_eq!(said, "[false,true,false,true,false,false,true,true,true,false,false]");
}

/// A lock that is lost while its transaction is open takes the rows with it.
fn shared_locks(server: Server, refused: &str) {
    let server = server_for("docs/moving-shared-locks.md", server);
    let script = "
        ini_set('error_log', 'errors');
        require 'transfer.php';
        require 'report.php';
        $db = $connect();
        $db->exec('CREATE TABLE moved (n INT)');
        $steal = fn($name) => exec(\"onedrop lock steal $name --force\");
        $tried = function (callable $what) {
            try { $what(); } catch (Exception $e) {
                echo $e instanceof PDOException ? $e->getCode() : $e->getMessage(), PHP_EOL; } };
        $insert = fn($n) => $db->exec(\"INSERT INTO moved VALUES ($n)\");
        $tried(fn() => transfer($db, fn() => $insert(1)));
        $tried(fn() => transfer($db, fn() => $insert(2) && $steal('transfer')));
        $tried(fn() => transfer($db, fn() => $insert(3)));
        echo json_encode($db->query('SELECT n FROM moved ORDER BY n')->fetchAll(PDO::FETCH_COLUMN)),
            PHP_EOL;
        $say = function ($word) { echo $word, PHP_EOL; };
        $tried(fn() => report($db, fn() => $say('one'), fn() => $steal('report'),
                              fn() => $say('never')));
        $tried(fn() => report($db, fn() => $say('last')));";
    let said = out(&mut server.php(script));
    let said = said.replace("[\"1\",\"3\"]", "[1,3]");
    assert_eq!(said, format!("{refused}\n[1,3]\none\nreport does not last\nlast\n"));
    let errors = server.place.text("errors");
    assert_eq!(errors.matches("transfer was lost").count(), 1, "{errors}");
}

#[test]
fn the_page_for_shared_locks_holds_on_postgres() {
    shared_locks(Server::postgres(&Postgres::shared()), "OD002");
}

#[test]
fn the_page_for_shared_locks_holds_on_mariadb() {
    shared_locks(Server::mariadb(&Mariadb::shared()), "45000");
}

/// Classes as crontabber starts them: one with a date, one whose dependency is a string.
const APPS: &str = "
class App:
    depends_on = ()
    def __init__(self, config, job_information):
        self.config = config
    def say(self, *words):
        with open('ran', 'a') as ran: print(self.app_name, *words, file=ran)
class Fetch(App):
    app_name = 'fetch'
    _is_backfill_app = True
    def run(self, date): self.say(date)
class Cleanup(App):
    app_name = 'cleanup'
    depends_on = 'fetch'
    def run(self): self.say()
class Poll(App):
    app_name = 'poll'
    def run(self): raise RuntimeError(self.config.ONEDROP_JOB_NAME)
";

const STATE: &str = "
CREATE TABLE crontabber (app_name text NOT NULL UNIQUE, next_run timestamptz, first_run timestamptz,
    last_run timestamptz, last_success timestamptz, error_count integer DEFAULT 0,
    depends_on text[], last_error json, ongoing timestamptz);
INSERT INTO crontabber (app_name, last_success)
VALUES ('fetch', date_trunc('day', now(), 'UTC') - interval '46 hours'), ('new', NULL),
       ('cleanup', now() - interval '1 hour'), ('poll', now() - interval '1 hour')";

#[test]
fn the_page_for_crontabber_holds() {
    let page = "docs/moving-crontabber.md";
    let postgres = Postgres::shared();
    let server = server_for(page, Server::postgres(&postgres));
    let place = &server.place;
    fs::write(place.path("apps.py"), APPS).expect("a file");
    assert_eq!(follow(page, place), "");
    let jobs = place.text("jobs.toml");
    for line in ["schedule = \"0 2 * * *\"", "every = \"3d at 04:00\"", "every = \"5m\""] {
        assert_eq!(jobs.matches(line).count(), 1, "{jobs}");
    }
    assert_eq!((jobs.matches("[jobs.").count(), jobs.matches("\"all\"").count()), (3, 1), "{jobs}");
    let state = format!("[jobs]\nstate_dir = \"{}\"\n", place.path("state").display());
    place.site.config("etc", &format!("{}{state}{jobs}", postgres.toml()));
    postgres.psql(STATE);
    let statement = Page::read(page).blocks().into_iter().find(|block| block.language == "sql");
    let marks = postgres.psql(&statement.expect("a statement").text);
    assert_eq!(marks.lines().count(), 3, "{marks}");
    let said = out(&mut shell(place, &marks));
    assert!(said.starts_with("cleanup is done for ") && said.contains("; due next at "), "{said}");
    assert_eq!(said.matches("; due now").count(), 2, "{said}");
    // The days since the last success, the job that failed or is late, and not that of three days.
    let jobs = |script: &str| ended(&mut shell(place, &format!("exec onedrop jobs {script}")));
    let tick = jobs("tick");
    assert_eq!(tick.code, Some(1), "{tick:?}");
    assert!(tick.err.contains("RuntimeError: poll"), "{tick:?}");
    let ran = place.text("ran");
    assert!(ran.lines().all(|line| line.starts_with("fetch ")), "{ran}");
    let next = "SELECT 'fetch ' || (last_success + interval '1 day') AT TIME ZONE 'UTC'
                FROM crontabber WHERE app_name = 'fetch'";
    assert_eq!(ran.lines().next(), Some(&*postgres.psql(next)), "{ran}");
    let list = jobs("list").out;
    for (job, state) in [("fetch", "ok"), ("cleanup", "ok"), ("poll", "failing")] {
        let mut lines = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert!(lines.any(|words| words[..2] == [job, state]), "{list}");
    }
}
