//! Dovecot's user database (`directory.userdb`): the real one, and one that is silent, lies or goes
//! away. Nothing but its own "no" to this very question may say that there is no such user.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use onedrop::directory::UserdbError;
use onedrop::userdb::Userdb;

use crate::support::dovecot::{Dovecot, users_in, write_users};
use crate::support::{TempRoot, set_mode};

const GREETING: &str = "VERSION\t1\t1\nSPID\t42\n";
/// No test lasts as long as this; a silent peer is given [`SHORT`].
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

fn ask(userdb: &Userdb, name: &str) -> Result<Option<String>, UserdbError> {
    userdb.user(name, Instant::now() + LONG)
}

fn knows(userdb: &Userdb, name: &str) -> Option<String> {
    ask(userdb, name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Users in a file, whose names Dovecot has in lower case and without their domain.
fn users(folder: &TempRoot, accounts: &[&str]) -> String {
    let file = folder.join("users");
    write_users(&file, accounts);
    format!("auth_cache_size = 0\nauth_username_format = %Ln\n{}", users_in(&file))
}

#[test]
fn the_real_one_tells_who_is_there_and_under_which_name() {
    let folder = TempRoot::new();
    let mut dovecot = Dovecot::start_with_users(&users(&folder, &["doug", "scuba", "rig-probe"]));
    let userdb = Userdb::new(dovecot.userdb_socket());
    for (name, user) in [
        ("doug", Some("doug")),
        ("SCUBA", Some("scuba")),
        ("Doug@mail.axial.net", Some("doug")),
        ("ghost", None),
        ("dou", None),
        // No user's name may hold these (auth_username_chars).
        ("do ug", None),
        ("do\tug", None),
        ("do\nug\nUSER\t2\tdoug", None),
        ("é", None),
    ] {
        assert_eq!(knows(&userdb, name).as_deref(), user, "{name:?}");
    }
    dovecot.kill();
    for _ in 0..2 {
        let away = ask(&userdb, "doug");
        assert!(matches!(&away, Err(UserdbError::Away(why)) if why.contains("auth-userdb")));
    }
    dovecot.start_again();
    assert_eq!(knows(&userdb, "doug").as_deref(), Some("doug"));
}

#[test]
fn the_real_one_that_cannot_tell_says_so_and_is_asked_again() {
    let folder = TempRoot::new();
    let (database, file) = (folder.join("users.db"), folder.join("sql.conf"));
    let users = rusqlite::Connection::open(&database).expect("a database");
    let table = "CREATE TABLE users (name TEXT PRIMARY KEY);
                 INSERT INTO users VALUES ('doug'), ('rig-probe')";
    users.execute_batch(table).expect("users");
    set_mode(&database, 0o644);
    let conf = format!(
        "driver = sqlite\nconnect = {}\n\
         user_query = SELECT name AS user FROM users WHERE name = '%u'\n",
        database.display()
    );
    fs::write(&file, conf).expect("sql.conf");
    let dovecot = Dovecot::start_with_users(&format!(
        "auth_cache_size = 0\npassdb {{\n  driver = static\n  args = password=x\n}}\n\
         userdb {{\n  driver = sql\n  args = {}\n\
           default_fields = uid=@USER@ gid=nogroup home=@ROOT@/mail/%u\n}}\n",
        file.display()
    ));
    let userdb = Userdb::new(dovecot.userdb_socket());
    let asks = || [knows(&userdb, "doug"), knows(&userdb, "ghost")];
    assert_eq!(asks(), [Some("doug".to_owned()), None]);
    users.execute_batch("ALTER TABLE users RENAME TO aside").expect("away");
    for name in ["doug", "ghost"] {
        let told = ask(&userdb, name);
        assert!(matches!(&told, Err(UserdbError::NotNow(why)) if why.contains(name)), "{told:?}");
    }
    users.execute_batch("ALTER TABLE aside RENAME TO users").expect("back");
    assert_eq!(asks(), [Some("doug".to_owned()), None]);
}

/// What a stand-in does with a connection once it was asked.
enum Deed {
    /// Says this, and waits until the client is gone.
    Say(&'static str),
    /// Says this, and closes.
    SayAndClose(&'static str),
    /// Says this again and again.
    Repeat(&'static str, Duration),
}

/// A stand-in that does one deed a connection, and then takes no more.
fn stand_in(folder: &TempRoot, deeds: Vec<Deed>) -> PathBuf {
    let path = folder.join("auth-userdb");
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    thread::spawn(move || {
        for deed in deeds {
            let Ok((stream, _)) = listener.accept() else { return };
            thread::spawn(move || perform(stream, deed));
        }
    });
    path
}

fn perform(mut stream: UnixStream, deed: Deed) {
    // The first question: what it is stands in the tests' answers.
    let mut asked = [0; 4096];
    let _ = stream.read(&mut asked);
    match deed {
        Deed::Say(text) => {
            let _ = stream.write_all(text.as_bytes());
            while stream.read(&mut asked).is_ok_and(|read| read > 0) {}
        }
        Deed::SayAndClose(text) => {
            let _ = stream.write_all(text.as_bytes());
        }
        Deed::Repeat(text, pause) => {
            while stream.write_all(text.as_bytes()).is_ok() {
                thread::sleep(pause);
            }
        }
    }
}

#[test]
fn nothing_but_a_no_to_this_question_says_that_there_is_no_user() {
    let folder = TempRoot::new();
    let greeted = |line: &str| -> &'static str { format!("{GREETING}{line}").leak() };
    let (away, setup, not_now) = (
        UserdbError::Away(String::new()),
        UserdbError::Setup(String::new()),
        UserdbError::NotNow(String::new()),
    );
    let cases = [
        ("silent", Deed::Say(""), &away),
        ("silent after its greeting", Deed::Say(GREETING), &away),
        ("a greeting without an end", Deed::Say("VERSION\t1\t1\n"), &away),
        ("another id", Deed::Say(greeted("NOTFOUND\t2\n")), &away),
        ("no id", Deed::Say(greeted("NOTFOUND\n")), &away),
        ("an id with more", Deed::Say(greeted("NOTFOUND\t1x\n")), &away),
        ("no name", Deed::Say(greeted("USER\t1\t\n")), &away),
        ("no field for a name", Deed::Say(greeted("USER\t1\n")), &away),
        ("an unknown word", Deed::Say(greeted("NOTFOUNDS\t1\n")), &away),
        ("in small letters", Deed::Say(greeted("notfound\t1\n")), &away),
        ("half an answer", Deed::SayAndClose(greeted("NOTFOUND\t1")), &away),
        ("an end before the answer", Deed::SayAndClose(GREETING), &away),
        ("an end before the greeting", Deed::SayAndClose(""), &away),
        ("no greeting", Deed::Say("NOTFOUND\t1\n"), &away),
        ("garbage", Deed::SayAndClose("\u{1}\u{2}\u{0}\n\n\n\u{7f}\n"), &away),
        ("HTTP", Deed::SayAndClose("HTTP/1.1 400 Bad Request\r\n\r\n"), &away),
        ("an endless line", Deed::Repeat("xxxxxxxxxxxxxxxxxxxxxxxxxxxx", Duration::ZERO), &away),
        ("endless lines", Deed::Repeat("VERSION\t1\t1\n", Duration::ZERO), &away),
        ("a drip", Deed::Repeat("V", Duration::from_millis(20)), &away),
        ("another version", Deed::Say("VERSION\t2\t0\nSPID\t42\nNOTFOUND\t1\n"), &setup),
        (
            "a socket for logins",
            Deed::Say("VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nSPID\t42\nCUID\t1\nDONE\n"),
            &setup,
        ),
        ("one without mechanisms", Deed::Say(greeted("CUID\t1\n")), &setup),
        ("a failure", Deed::Say(greeted("FAIL\t1\treason=LDAP is away\n")), &not_now),
    ];
    for (name, deed, expected) in cases {
        let userdb = Userdb::new(stand_in(&folder, vec![deed]));
        let told = userdb.user("doug", Instant::now() + SHORT);
        let Err(error) = &told else { panic!("{name}: {told:?}") };
        let kind = std::mem::discriminant(error);
        assert_eq!(kind, std::mem::discriminant(expected), "{name}: {error}");
        if name == "a failure" {
            assert!(error.to_string().contains("LDAP is away"), "{error}");
        }
    }
    for (answer, user) in [
        (greeted("NOTFOUND\t1\n"), None),
        (greeted("USER\t1\tdoug\tuid=1\thome=/x\n"), Some("doug")),
        (greeted("USER\t1\ta\u{1}tb\n"), Some("a\tb")),
    ] {
        let userdb = Userdb::new(stand_in(&folder, vec![Deed::Say(answer)]));
        assert_eq!(knows(&userdb, "doug").as_deref(), user);
    }
}
