//! Locks that programs take by SQL and by the pipe: the clients of docs/locks-programs.md as they
//! stand.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::place::{Held, Place, SOON, ended};
use crate::support::mariadb::Mariadb;
use crate::support::page::Page;
use crate::support::postgres::Postgres;
use crate::support::shared::unique_name;
use crate::support::{fixture_text, onedrop_path, wait_until};

/// Where the clients connect to.
pub struct Server {
    pub place: Place,
    /// PDO's name of it, and its user.
    pub pdo: String,
    pub user: String,
}

impl Server {
    pub fn postgres(postgres: &Postgres) -> Server {
        Server::postgres_in(&postgres.socket_dir(), postgres)
    }

    /// Its socket is in this folder.
    pub fn postgres_in(folder: &Path, postgres: &Postgres) -> Server {
        let (folder, port) = (folder.display().to_string(), postgres.port());
        let database = postgres.database();
        let url = format!("postgres://onedrop@/{database}?host={folder}&port={port}");
        Server::with(
            Place::with(&format!("[ledger]\nurl = \"{url}\"\n")),
            format!("pgsql:host={folder};port={port};dbname={database}"),
            "onedrop".to_owned(),
            format!(
                "import psycopg2\ndef connect():\n    db = psycopg2.connect(host='{folder}', \
                 port={port}, dbname='{database}', user='onedrop')\n    db.autocommit = True\n    \
                 return db\n"
            ),
        )
    }

    pub fn mariadb(mariadb: &Mariadb) -> Server {
        Server::mariadb_at(&mariadb.socket(), mariadb)
    }

    pub fn mariadb_at(socket: &Path, mariadb: &Mariadb) -> Server {
        let (own, socket) = (mariadb.socket().display().to_string(), socket.display().to_string());
        let database = mariadb.database();
        Server::with(
            Place::with(&mariadb.toml().replace(&own, &socket)),
            format!("mysql:unix_socket={socket};dbname={database}"),
            "root".to_owned(),
            format!(
                "import pymysql\ndef connect():\n    return pymysql.connect(unix_socket='{socket}',\
                 database='{database}', user='root', autocommit=True)\n"
            ),
        )
    }

    fn with(place: Place, pdo: String, user: String, connects: String) -> Server {
        programs_of("docs/locks-programs.md", &place);
        programs_of("docs/locks-clients.md", &place);
        fs::write(place.path("connects.py"), &connects).expect("a file");
        Server { place, pdo, user }
    }

    pub fn php(&self, script: &str) -> Command {
        let begin = format!(
            "ini_set('display_errors', 'stderr'); error_reporting(E_ALL);
             require 'SharedLock.php';
             $connect = fn() => new PDO('{}', '{}');\n",
            self.pdo, self.user
        );
        let mut command = within(&self.place, "php");
        command.args(["-r", &format!("{begin}{script}")]);
        command
    }

    fn python(&self, script: &str) -> Command {
        python(&self.place, &format!("from connects import connect\n{script}"))
    }
}

fn python(place: &Place, script: &str) -> Command {
    let begin = "import sys; sys.path.insert(0, '.')\n";
    let mut command = within(place, "/usr/bin/python3");
    command.args(["-c", &format!("{begin}{script}")]);
    command
}

/// A program in the place's folder, which finds `onedrop` and its configuration.
pub fn within(place: &Place, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(&*place.site.root);
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = onedrop_path().parent().expect("a folder").display().to_string();
    command.env("PATH", format!("{folder}:{path}")).env("ONEDROP_CONFIG", &place.config);
    command.env_remove("MAIL_CONFIG");
    command
}

/// The programs of a page, under the names that they say.
pub fn programs_of(page: &str, place: &Place) {
    for block in Page::read(page).blocks() {
        let comment = match block.language.as_str() {
            "php" => "<?php // ",
            "python" => "# ",
            _ => continue,
        };
        let name = block.text.lines().next().and_then(|line| line.strip_prefix(comment));
        let name = name.expect("the first line names the file");
        let count = block.text.lines().count();
        assert!(count <= 30, "{name} is long: {count}");
        fs::write(place.path(name), &block.text).expect("a file");
    }
}

#[track_caller]
pub fn out(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("a program");
    let err = String::from_utf8_lossy(&stderr);
    assert!(status.success() && err.is_empty(), "{status}: {err}");
    String::from_utf8_lossy(&stdout).into_owned()
}

fn clients_hold(server: &Server) {
    let script = "
        $one = new OnedropLock($connect(), 'civi', 0.2); $two = new OnedropLock($connect(), 'civi');
        $said = [$one->isFree(), $one->isAcquired(), $one->release(), $one->acquire(),
            $one->acquire(), $one->isAcquired(), $two->isFree(), $two->acquire(0.2),
            $two->isAcquired(), $one->release(), $two->acquire(), $one->isAcquired(),
            $two->left(60) == 60, $two->left() > 59 && $two->left() < 60];
        unset($two);
        echo json_encode([...$said, $one->isFree()]), PHP_EOL;
        SharedLock::setConnection($connect());
        $lock = SharedLock::lock('shared', 5, 10);
        $lock->assertTTL(5);
        foreach ([fn() => $lock->assertTTL(11), fn() => SharedLock::lock('shared', 0, 10),
                  fn() => $lock->release(), fn() => $lock->release()] as $step) {
            try { $step(); echo 'done', PHP_EOL; } catch (RuntimeException $e) {
                echo $e->getMessage(), PHP_EOL; }
        }
        $short = new OnedropLock($connect(), 'short', 0, 1);
        $next = new OnedropLock($connect(), 'short');
        $said = [$short->acquire(), usleep(1500000), $next->acquire(), $short->acquire()];
        echo json_encode($said), PHP_EOL;
        $db = $connect();
        $db->beginTransaction();
        try { (new OnedropLock($db, 'within'))->acquire(); } catch (PDOException $e) {
            echo str_contains($e->getMessage(), 'transaction') ? 'refused' : $e->getMessage(); }";
    assert_eq!(
        out(&mut server.php(script)),
        "[true,false,false,true,true,true,false,false,false,true,true,false,true,true,true]\n\
         shared does not last\nshared is held by another\ndone\nshared was lost\n\
         [true,null,true,false]\nrefused"
    );
    let script = "
from onedrop_lock import *
a, b = connect(), connect()
with OnedropLock(a, 'import', ttl=60) as lock:
    lock.check(59)
    for step in [lambda: lock.check(61), lambda: OnedropLock(b, 'import', wait=0.1).__enter__()]:
        try: step()
        except (Busy, Lost) as why: print(type(why).__name__)
    lock.check(59, renew=True)
    print(lock.slot, lock.epoch, lock.call('lock_holder')[0])
    with OnedropLock(b, 'import', slots=2) as other:
        print(other.slot, other.epoch, lock.call('lock_holder')[0])
try:
    with OnedropLock(a, 'import') as lock: lock.call('unlock', lock.owner)
except Lost as why: print('lost', why)
";
    assert_eq!(out(&mut server.python(script)), "Lost\nBusy\n1 1 1\n2 1 2\nlost import\n");
    // with-lock sees them, and they see with-lock.
    let script = "
import subprocess
from onedrop_lock import *
run = lambda *args: subprocess.run(['onedrop', *args], capture_output=True, text=True)
with OnedropLock(connect(), 'both') as lock:
    print(run('with-lock', 'both', '--', 'true').returncode)
    print(run('lock', 'assert', f'both#{lock.slot}:{lock.epoch}').returncode)
    print(run('lock', 'steal', 'both', '--force').returncode)
    try: lock.check()
    except Lost: print('lost')
    run('with-lock', 'both', '--', '/usr/bin/python3', '-c', '''
import sys; sys.path.insert(0, '.')
from connects import connect
from onedrop_lock import *
try: OnedropLock(connect(), 'both').__enter__()
except Busy: open('seen', 'w').write('busy')''')
    print(open('seen').read())
    lock.owner = OnedropLock(connect(), 'both').__enter__().owner
";
    assert_eq!(out(&mut server.python(script)), "200\n0\n0\nlost\nbusy\n");
}

#[test]
fn the_clients_of_the_page_hold_locks_on_postgres() {
    clients_hold(&Server::postgres(&Postgres::shared()));
}

#[test]
fn the_clients_of_the_page_hold_locks_on_mariadb() {
    clients_hold(&Server::mariadb(&Mariadb::shared()));
}

/// `$says`: how a call of each procedure ends, each in a session of its own by `$connect`, and
/// within a transaction where `$begin`.
const CALLS: &str = "
    $says = function ($connect, $begin = false) {
        foreach (['lock(?, 60, 0, 1)', 'renew(?, null, 60)', 'unlock(?, null)',
                  'lock_holder(?)'] as $call) {
            try {
                $db = $connect();
                if ($begin) { $db->beginTransaction(); }
                $db->prepare(\"CALL onedrop_$call\")->execute(['n']);
                echo 'done ';
            } catch (PDOException $why) {
                preg_match('/transaction|denied/', $why->getMessage(), $word);
                echo $word[0] ?? $why->getMessage(), ' ';
            }
        }
    };\n";

/// A ROLLBACK would take away what the program believes to have.
fn none_is_called_within_a_transaction(server: &Server) {
    let said = out(&mut server.php(&format!("{CALLS} $says($connect, true); $says($connect);")));
    assert_eq!(said, "transaction transaction transaction transaction done done done done ");
}

#[test]
fn no_procedure_is_called_within_a_transaction_on_postgres() {
    none_is_called_within_a_transaction(&Server::postgres(&Postgres::shared()));
}

#[test]
fn no_procedure_is_called_within_a_transaction_on_mariadb() {
    none_is_called_within_a_transaction(&Server::mariadb(&Mariadb::shared()));
}

/// There each question begins a transaction.
#[test]
fn a_session_without_autocommit_takes_a_lock_each_time_on_mariadb() {
    let script = "
        $db = $connect();
        $db->exec('SET autocommit = 0');
        $call = function ($sql) use ($db) {
            $rows = $db->query($sql);
            $row = $rows->fetch(PDO::FETCH_NUM);
            $rows->closeCursor();
            return $row;
        };
        foreach ([1, 2, 3] as $time) {
            [$owner, , $epoch] = $call(\"CALL onedrop_lock('own', 60, 0, 1)\");
            $held = $call(\"CALL onedrop_lock_holder('own')\")[0];
            echo $epoch, $held, $call(\"CALL onedrop_unlock('own', '$owner')\")[0], ' ';
        }\n";
    let mariadb = Mariadb::shared();
    let server = Server::mariadb(&mariadb);
    assert_eq!(out(&mut server.php(script)), "111 211 311 ");
}

/// By a time to come every lease has run out.
#[test]
fn a_session_of_mariadb_that_has_a_clock_of_its_own_gets_no_lock() {
    let mariadb = Mariadb::shared();
    let server = Server::mariadb(&mariadb);
    let script = "
        $calls = ['lock(?, 60, 0, 1)', 'renew(?, NULL, 60)', 'assert_lock(?, 1, 1, NULL)',
                  'lock_holder(?)'];
        foreach ([2000000000, 'DEFAULT'] as $time) {
            foreach ($calls as $call) {
                try {
                    $db = $connect();
                    $db->exec(\"SET timestamp = $time\");
                    $db->prepare(\"CALL onedrop_$call\")->execute(['n']);
                    echo 'done ';
                } catch (PDOException $why) {
                    preg_match('/a clock of its own/', $why->getMessage(), $words);
                    echo $words[0] ?? $why->getMessage(), ' ';
                }
            }
        }";
    let refused = "a clock of its own ".repeat(4);
    assert_eq!(out(&mut server.php(script)), format!("{refused}done done done done "));
}

/// A backup keeps commits waiting, and the session waits for a second at most: what it could not
/// commit it does not have.
#[test]
fn a_lock_whose_commit_comes_to_nothing_is_not_had_on_mariadb() {
    let mariadb = Mariadb::start();
    let server = Server::mariadb(&mariadb);
    let script = "
        $call = function ($db, $sql) {
            $rows = $db->query($sql);
            $row = $rows->fetch(PDO::FETCH_NUM);
            $rows->closeCursor();
            return json_encode($row);
        };
        $take = \"CALL onedrop_lock('n', 60, 0, 1)\";
        $db = $connect();
        $owner = json_decode($call($db, $take))[0];
        $call($db, \"CALL onedrop_unlock('n', '$owner')\");
        $backup = $connect();
        foreach (['START', 'FLUSH', 'BLOCK_DDL', 'BLOCK_COMMIT'] as $stage) {
            $backup->exec(\"BACKUP STAGE $stage\");
        }
        $db->exec('SET lock_wait_timeout = 1');
        echo $call($db, $take);
        $backup->exec('BACKUP STAGE END');
        echo $call($db, 'SELECT epoch, lease_until FROM onedrop_lock_lease');
        echo json_decode($call($db, $take))[2];";
    assert_eq!(out(&mut server.php(script)), "[null,null,null][1,null]2");
}

/// What the page names is enough: EXECUTE, and no right on the tables.
fn a_role_calls_what_was_granted(server: &Server, sql: &dyn Fn(&str), role: &str, user: &str) {
    let says = |more: &str| {
        let connect = format!("$role = fn() => new PDO('{}', '{role}', 'secret');", server.pdo);
        out(&mut server.php(&format!("{CALLS} {connect} $says($role); {more}")))
    };
    let grant = |what: &str| sql(&format!("GRANT EXECUTE ON {what} TO {user}"));
    let is_postgres = server.pdo.starts_with("pgsql");
    grant("PROCEDURE onedrop_lock_holder");
    if is_postgres {
        grant("FUNCTION onedrop_lock_seen");
    }
    assert_eq!(says(""), "denied denied denied done ");
    for procedure in ["onedrop_lock", "onedrop_renew", "onedrop_unlock"] {
        grant(&format!("PROCEDURE {procedure}"));
    }
    if is_postgres {
        assert_eq!(says(""), "denied denied denied done ");
        grant("FUNCTION onedrop_lock_step, onedrop_lock_keep");
    }
    let table = "try { $role()->query('SELECT * FROM onedrop_lock_lease'); } \
                 catch (PDOException $why) { echo 'no table'; }";
    assert_eq!(says(table), "done done done done no table");
}

#[test]
fn a_role_takes_locks_by_what_the_page_grants_on_postgres() {
    let (postgres, role) = (Postgres::shared(), unique_name());
    postgres.psql(&format!("CREATE ROLE {role} LOGIN"));
    let server = Server::postgres(&postgres);
    a_role_calls_what_was_granted(&server, &|sql| drop(postgres.psql(sql)), &role, &role);
    postgres.psql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_role_takes_locks_by_what_the_page_grants_on_mariadb() {
    let (mariadb, role) = (Mariadb::shared(), unique_name());
    let user = format!("{role}@'%'");
    mariadb.sql(&format!("CREATE USER {user} IDENTIFIED BY 'secret'"));
    let server = Server::mariadb(&mariadb);
    a_role_calls_what_was_granted(&server, &|sql| drop(mariadb.sql(sql)), &role, &user);
    mariadb.sql(&format!("DROP USER {user}"));
}

/// While a program waits, another's transaction gets the rows of the lock, of its lease and of who
/// waits: not always, as the program asks again and again, but more than now and then.
fn who_waits_keeps_no_row_locked(server: &Server) {
    assert_eq!(out(&mut server.php(&format!("{CALLS} $says($connect);"))), "done done done done ");
    let waits = "$connect()->query(\"CALL onedrop_lock('n', 60, 50, 1)\");";
    let mut waiting = Held { child: server.php(waits).spawn().expect("php") };
    let script = "
        $db = $connect();
        $waits = fn() => $db->query('SELECT count(*) FROM onedrop_lock_waiter')->fetchColumn();
        for ($end = microtime(true) + 20; !$waits() && microtime(true) < $end; usleep(10000));
        for ($tries = $got = 0; $tries < 40; $tries++, usleep(rand(30000, 90000))) {
            $db->beginTransaction();
            try {
                foreach (['lock', 'lock_lease', 'lock_waiter'] as $table) {
                    $db->query(\"SELECT * FROM onedrop_$table FOR UPDATE NOWAIT\")->fetchAll();
                }
                $got++;
            } catch (PDOException $why) {}
            $db->rollBack();
        }
        echo $waits() && $got >= 10 ? 'got' : \"$got of $tries\";";
    assert_eq!(out(&mut server.php(script)), "got");
    assert_eq!(waiting.child.try_wait().expect("our child"), None, "it was to wait");
}

#[test]
fn who_waits_by_sql_keeps_no_row_locked_on_postgres() {
    who_waits_keeps_no_row_locked(&Server::postgres(&Postgres::shared()));
}

#[test]
fn who_waits_by_sql_keeps_no_row_locked_on_mariadb() {
    who_waits_keeps_no_row_locked(&Server::mariadb(&Mariadb::shared()));
}

/// It asks again and again, each time before the place of the call before has run out.
fn who_asks_again_keeps_its_place(server: &Server) {
    let place = &server.place;
    let waits_in_order = |round: u32| {
        let name = format!("again{round}");
        let php = |script: &str| {
            let lock = format!("$lock = new OnedropLock($connect(), '{name}');");
            Held { child: server.php(&format!("{lock} {script}")).spawn().expect("php") }
        };
        let lasts = |count: usize| {
            let lines = || place.lock(&["list"]).out;
            let of_it = || lines().lines().filter(|line| line.starts_with(&name)).count();
            assert!(wait_until(SOON, || of_it() >= count), "{name}: {}", lines());
        };
        let turn =
            |who: &str| format!("file_put_contents('{name}.journal', '{who}', FILE_APPEND);");
        let until = |file: &str| {
            format!("for (; !file_exists('{name}.{file}'); clearstatcache(), usleep(10000));")
        };
        let holds = php(&format!("$lock->acquire(0); {}", until("free")));
        lasts(1);
        let asks_again = php(&format!(
            "for (; !file_exists('{name}.joined'); clearstatcache()) $lock->acquire(0.3);
             touch('{name}.last'); if ($lock->acquire(60)) {{ {} }}",
            turn("a")
        ));
        lasts(2);
        let joins = php(&format!("if ($lock->acquire(60)) {{ {} }}", turn("b")));
        lasts(3);
        fs::write(place.path(&format!("{name}.joined")), "").expect("a file");
        assert!(wait_until(SOON, || place.path(&format!("{name}.last")).exists()), "{name}");
        lasts(3);
        fs::write(place.path(&format!("{name}.free")), "").expect("a file");
        for mut one in [holds, asks_again, joins] {
            assert_eq!(one.code(), Some(0), "{name}");
        }
        place.text(&format!("{name}.journal")) == "ab"
    };
    // A host that stands still for half a second between two calls makes the first the last.
    assert!((0..5).any(waits_in_order), "the other was before it each time");
}

#[test]
fn who_asks_again_at_once_by_sql_keeps_its_place_on_postgres() {
    who_asks_again_keeps_its_place(&Server::postgres(&Postgres::shared()));
}

#[test]
fn who_asks_again_at_once_by_sql_keeps_its_place_on_mariadb() {
    who_asks_again_keeps_its_place(&Server::mariadb(&Mariadb::shared()));
}

/// Of its two examples the one in Python is a file, and the other is run as it stands.
#[test]
fn the_pipes_of_the_page_hold_locks() {
    let place = Place::new();
    programs_of("docs/locks-programs.md", &place);
    let script = "
from held import Held
with Held('import') as lock:
    lock.check()
    print(lock.token)
    try: Held('import').__enter__()
    except RuntimeError as why: print(why)
# What renews it is stopped: it is lost, and nothing has ended.
import os, signal, time
lock = Held('stopped', '--ttl', '10s', '--grace', '1s').__enter__()
os.kill(lock.holder.pid, signal.SIGSTOP)
for _ in range(600):
    try: lock.check()
    except RuntimeError as why:
        print(why, lock.holder.poll())
        lock.holder.stdin.close()
        break
    time.sleep(0.1)
os.kill(lock.holder.pid, signal.SIGCONT)
print(lock.holder.wait())
";
    let said = out(python(&place, script).stderr(Stdio::null()));
    assert_eq!(said, "import#1:1\nnot held: exit status 200\nlost None\n201\n");
    let page = fixture_text("docs/locks-programs.md");
    let bash = page.split("```bash\n").nth(1).and_then(|rest| rest.split("```").next());
    let bash = bash.expect("a script");
    let mut shell = within(&place, "bash");
    shell.args(["-c", bash]);
    assert_eq!(out(&mut shell), "working as import#1:2\n");
    assert_eq!(place.lock(&["list"]).out, "");
    // A shell forgets a co-process that has ended, and its descriptors.
    let work = "echo \"working as $token\"\n";
    assert!(bash.contains(work), "{bash}");
    let lost = bash.replace(work, "kill \"$holder\"; wait \"$holder\"; echo lost\n");
    let mut shell = within(&place, "bash");
    shell.args(["-c", &format!("{lost}echo 'works on'\n")]);
    let end = ended(&mut shell);
    assert_eq!((end.code, &*end.out), (Some(75), "lost\n"), "{end:?}");
}

/// The statements of the page for SQLite.
pub fn statements_into(place: &Place) {
    let page = fixture_text("docs/locks-programs.md");
    let sql = page.rsplit("```sql\n").next().and_then(|rest| rest.split("```").next());
    fs::write(place.path("statements.sql"), sql.expect("statements")).expect("a file");
}

#[test]
fn the_statements_of_the_page_hold_locks_on_sqlite() {
    let place = Place::new();
    statements_into(&place);
    let script = "
import hashlib, os, sqlite3, subprocess, time
db = sqlite3.connect('ledger.db', isolation_level=None)
text = open('statements.sql').read()
texts = [part.split('\\n', 1)[1] for part in text.split('-- ')[1:]]
parts = dict(zip(('take', 'renew', 'back'), texts))
values = {'hash': hashlib.sha256(b'onedrop/1/name\\0n').digest(), 'name': 'n', 'ttl': 60,
          'boot_id': open('/proc/sys/kernel/random/boot_id').read().strip()}
def does(what, owner, **more):
    changed = []
    for one in parts[what].split(';')[:-1]:
        values.update(boot=time.clock_gettime(time.CLOCK_BOOTTIME), owner=owner, **more)
        changed.append(db.execute(one, values).rowcount)
    return changed[3 if what == 'take' else 0] == 1
run = lambda *args: subprocess.run(['onedrop', *args], capture_output=True, text=True)
a, b = os.urandom(16), os.urandom(16)
print(does('take', a), does('take', b), does('renew', a), does('renew', b))
print(run('with-lock', 'n', '--', 'true').returncode, run('lock', 'assert', 'n#1:1').returncode)
print(does('back', a), does('take', b), run('lock', 'assert', 'n#1:2').returncode)
print(run('lock', 'steal', 'n', '--force').returncode, does('renew', b), does('back', b))
with_lock = run('with-lock', 'n', '--', 'true').returncode
print(with_lock, does('take', a), run('lock', 'assert', 'n#1:5').returncode)
";
    assert_eq!(
        out(&mut python(&place, script)),
        "True False True False\n200 0\nTrue True 0\n0 False False\n0 True 0\n"
    );
}
