//! Which users may use the LMTP server's Unix socket, and from which a SASL login name is believed
//! there. Needs root: the other users are real ones.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::libc;

use crate::support::letters;
use crate::support::lmtp::Launch;
use crate::support::lmtp_client::LmtpClient;
use crate::support::postfix::{Delivery, Postfix, PostfixSpec};
use crate::support::site::{Files, Site};
use crate::support::{free_port, onedrop_path, unix_user};

const SCUBA: &str = "scuba@mail.axial.net";
const DOUG: &str = "doug@mail.axial.net";
/// No user of this host has this number.
const OURS: u32 = 54_321;
const LONG: Duration = Duration::from_secs(120);

fn uid(name: &str) -> u32 {
    unix_user(name).uid.as_raw()
}

fn postfix_gid() -> u32 {
    unix_user("postfix").gid.as_raw()
}

/// Runs `work` as another user, in that user's own group and no other.
fn as_user<T: Send + 'static>(uid: u32, gid: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(move || {
        let none: *const libc::gid_t = std::ptr::null();
        // SAFETY: these calls change the credentials of this thread alone (setresuid(2), "C
        // library/kernel differences"), which ends with the work; the only pointer is null, which a
        // list of no groups may be.
        let changed = unsafe {
            [
                libc::syscall(libc::SYS_setgroups, 0, none),
                libc::syscall(libc::SYS_setresgid, gid, gid, gid),
                libc::syscall(libc::SYS_setresuid, uid, uid, uid),
            ]
        };
        assert_eq!(changed, [0; 3], "{}", io::Error::last_os_error());
        work()
    });
    thread.join().expect("work that ends well")
}

fn may_connect(site: &Site<Files>, uid: u32, gid: u32) -> io::Result<()> {
    let path = site.socket();
    as_user(uid, gid, move || UnixStream::connect(path).map(drop))
}

fn letter(name: &str) -> Vec<u8> {
    format!(
        "From: {DOUG}\nTo: {SCUBA}\nSubject: {name}\nMessage-ID: <{name}@x>\n\nthis is {name}\n"
    )
    .into_bytes()
}

/// Doug's letter to Scuba, from a client that says that Doug had logged in.
fn say_that_doug_logged_in(mut client: LmtpClient, name: &str) {
    let words = format!("MAIL FROM:<{DOUG}> AUTH={DOUG}\r\nRCPT TO:<{SCUBA}>\r\nDATA\r\n");
    let message = crate::support::lmtp_client::dot_stuffed(&letter(name));
    client.send(&[words.as_bytes(), &message, b".\r\n"].concat()).expect("a server");
    let codes = [(); 4].map(|()| client.reply().expect("a reply").code);
    assert_eq!(codes, [250, 250, 354, 250], "{name}");
}

#[test]
fn a_socket_is_open_to_its_owner_and_its_group_alone() {
    let site = Site::embedded();
    site.give_to(OURS);
    let launch = site.launch("[lmtp]\nsocket_group = \"postfix\"\n").bare();
    let _server = launch.member_of(postfix_gid()).start();
    let file = fs::metadata(site.socket()).expect("a socket");
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o660, OURS, postfix_gid()));
    may_connect(&site, OURS, OURS).expect("its owner");
    may_connect(&site, uid("postfix"), postfix_gid()).expect("its group");
    let refused =
        may_connect(&site, uid("nobody"), unix_user("nobody").gid.as_raw()).expect_err("nobody");
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
}

#[test]
fn without_a_group_it_has_the_servers_own() {
    let site = Site::embedded();
    let _server = site.launch("").bare().start();
    let file = fs::metadata(site.socket()).expect("a socket");
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o660, 0, 0));
    let refused = may_connect(&site, uid("postfix"), postfix_gid()).expect_err("postfix");
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
}

/// The order of the calls by which the socket is made: by a umask that leaves it to its owner, then
/// the group, then the mode.
#[test]
fn it_is_never_for_a_moment_more_open_than_it_is_to_be() {
    let site = Site::embedded();
    let trace = site.root.join("trace");
    let mut traced = Command::new("strace");
    let calls = "trace=umask,bind,chown,lchown,fchownat,chmod,fchmodat";
    traced.args(["-D", "-f", "-e", calls, "-o"]).arg(&trace);
    let more = "[lmtp]\nsocket_group = \"postfix\"\nsocket_mode = \"0640\"\n";
    let ended = site.launch(more).bare().by(&traced).start().stop();
    assert!(ended.status.success(), "{ended:?}");
    let text = fs::read_to_string(&trace).expect("a trace");
    let call = |line: &str| {
        let (_, call) = line.split_once(' ')?;
        let name = call.trim_start().split('(').next()?.to_owned();
        (name == "umask" && call.contains("(077)") || call.contains("lmtp.sock"))
            .then_some((name, line.to_owned()))
    };
    let calls: Vec<(String, String)> = text.lines().filter_map(call).collect();
    let names: Vec<&str> =
        calls.iter().map(|(name, _)| name.trim_start_matches('f').trim_end_matches("at")).collect();
    assert!(matches!(names[..], ["umask", "bind", "lchown" | "chown", "chmod"]), "{calls:#?}");
    assert!(calls[3].1.contains("0640"), "{}", calls[3].1);
}

#[test]
fn a_group_that_it_cannot_have_keeps_the_server_from_starting_and_leaves_no_socket() {
    let site = Site::embedded();
    let end_of = |launch: Launch| {
        let end = launch.bare().command().output().expect("the program");
        assert_eq!(end.status.code(), Some(75));
        assert!(!site.socket().exists(), "a socket that nobody serves");
        String::from_utf8_lossy(&end.stderr).into_owned()
    };
    let said = end_of(site.launch("[lmtp]\nsocket_group = \"no-such-group\"\n"));
    assert!(said.contains("lmtp.socket_group: this host has no group \"no-such-group\""), "{said}");
    site.give_to(OURS);
    let said = end_of(site.launch("[lmtp]\nsocket_group = \"postfix\"\n"));
    let expected = format!(
        "cannot listen on unix:{}: cannot give it to lmtp.socket_group \"postfix\": ",
        site.socket().display()
    );
    assert!(said.contains(&expected), "{said}");
    assert!(said.contains("run as root or as a member of that group"), "{said}");
}

#[test]
fn who_logged_in_is_believed_from_our_own_user_root_and_postfix_and_from_nobody_else() {
    let site = Site::embedded();
    let port = free_port();
    let more = format!(
        "[lmtp]\nsocket_mode = \"0666\"\nlisten = [\"unix:/nowhere\", \"127.0.0.1:{port}\"]\n"
    );
    site.give_to(OURS);
    let by_tcp = format!("127.0.0.1:{port}");
    let _server = site.launch(&more).bare().arg("--listen").arg(&by_tcp).start();
    let mut expected = Vec::new();
    let clients = [
        ("ours", OURS, true),
        ("root", 0, true),
        ("postfix", uid("postfix"), true),
        ("nobody", uid("nobody"), false),
    ];
    for (name, user, is_believed) in clients {
        let path = site.socket();
        as_user(user, user, move || say_that_doug_logged_in(LmtpClient::welcome(&path), name));
        expected.extend(is_believed.then(|| String::from_utf8(letter(name)).expect("text")));
        let mut sent: Vec<String> = site
            .copies("doug", ".Sent")
            .into_iter()
            .map(|copy| String::from_utf8(copy).expect("text"))
            .collect();
        sent.sort_by_key(|copy| expected.iter().position(|one| one == copy));
        assert_eq!(sent, expected, "after {name}");
    }
    // By TCP any user may connect: a login name is not believed, not even from root.
    let mut client = LmtpClient::tcp(port, LONG).expect("a server");
    assert!(client.command("LHLO test.example").expect("an answer").is_ok());
    say_that_doug_logged_in(client, "tcp");
    letters::are_these("doug's Sent", &site.copies("doug", ".Sent"), expected);
    let all = clients.map(|(name, ..)| letter(name)).into_iter().chain([letter("tcp")]);
    site.inbox_has("scuba", all);
}

#[test]
fn a_real_postfix_gets_in_by_its_group() {
    let site = Site::embedded();
    site.give_to(OURS);
    let launch = site.launch("[lmtp]\nsocket_group = \"postfix\"\n").bare();
    let _server = launch.member_of(postfix_gid()).start();
    let delivery = Delivery::Lmtp(format!("unix:{}", site.socket().display()));
    let postfix = Postfix::start(&PostfixSpec { delivery, ..PostfixSpec::new(onedrop_path()) });
    postfix.send("lisa@gmail.com", &[SCUBA], &letter("by-postfix"));
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    let copies = site.inbox("scuba");
    assert_eq!(copies.len(), 1, "{}", postfix.log());
    assert!(copies[0].ends_with(b"this is by-postfix\n"));
    assert_eq!(fs::metadata(site.socket()).expect("a socket").permissions().mode() & 0o777, 0o660);
}
