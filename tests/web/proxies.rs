//! The proxies' configurations that we ship, in front of the pages: Debian's nginx and Caddy, each
//! as its own user in a temporary folder, with TLS. A page is reached by the Unix socket, with its
//! fields; the proxy's password holds, and stays with it; another host's name is refused.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::served::{Answer, Served};
use crate::support::server::{Server, guarded, tail};
use crate::support::site::{Files, Site, delivered};
use crate::support::{
    TempRoot, chown_recursive, fixture_text, free_port, letters, run, set_mode, unix_user,
    wait_until,
};

const HOST: &str = "onedrop.example.org";
const LONG: Duration = Duration::from_secs(60);
/// What `caddy hash-password` makes of the password, at less cost.
const HASH: &str = "$2a$04$jSm6Cq3nP0hs2aq4Q8Fz.eTN99.WlCdv5n/cLBY6qqs3FwxBzUKs.";
const FIELDS: [&str; 4] =
    ["content-security-policy", "x-content-type-options", "referrer-policy", "cache-control"];

/// The pages, through a proxy.
struct Proxied {
    // Declared first: they are dropped before their folder goes.
    proxy: Server,
    served: Served,
    port: u16,
    /// Whom the client trusts.
    authority: PathBuf,
    log: PathBuf,
    _site: Site<Files>,
    root: TempRoot,
}

/// The pages at a socket for this group, and the folder of a proxy to be. `web` is more of `[web]`.
fn pages(user: &str, web: &str) -> (Site<Files>, TempRoot, Served, PathBuf) {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("web", &format!("[web]\nlisten = \"unix:$DIR/web.sock\"\n{web}"));
    set_mode(&site.root, 0o755);
    delivered(&config, &["-d", "scuba@mail.axial.net"], letters::from_ann("one").as_bytes());
    let secret = config.with_file_name("web.password");
    // The proxy's: it would do, if it were passed on.
    fs::write(&secret, "s3cret").expect("a file");
    set_mode(&secret, 0o600);
    let socket = config.with_file_name("web.sock");
    let served = Served::begin(&config, &[], 0);
    assert!(wait_until(LONG, || UnixStream::connect(&socket).is_ok()), "{}", tail(&served.log));
    // As usermod -aG onedrop-web does it for the proxy's user.
    chown(&socket, None, Some(unix_user(user).gid.as_raw())).expect("chown");
    let root = TempRoot::new();
    set_mode(&root, 0o755);
    (site, root, served, socket)
}

/// Each piece stands in the file as it is shipped, once, and is put in another's place.
fn changed(shipped: &str, pieces: &[(&str, &str)]) -> String {
    pieces.iter().fold(fixture_text(shipped), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from} in {shipped}");
        text.replace(from, to)
    })
}

fn at(path: &Path) -> String {
    path.display().to_string()
}

fn nginx(web: &str) -> Proxied {
    let (site, root, served, socket) = pages("www-data", web);
    let (key, authority) = (root.join("key.pem"), root.join("cert.pem"));
    let name = format!("/CN={HOST}");
    let alternative = format!("subjectAltName=DNS:{HOST}");
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", &name]);
    openssl.args(["-addext", &alternative, "-keyout"]).arg(&key).arg("-out").arg(&authority);
    run(openssl.stderr(Stdio::null()));
    let hash = run(Command::new("openssl").args(["passwd", "-apr1", "s3cret"]));
    let password = root.write("htpasswd", format!("you:{hash}"));
    let port = free_port();
    let shipped = changed(
        "conf/nginx/onedrop-web.conf",
        &[
            ("listen 443 ssl;", &format!("listen 127.0.0.1:{port} ssl;")),
            ("    listen [::]:443 ssl;\n", ""),
            ("/etc/letsencrypt/live/onedrop.example.org/fullchain.pem", &at(&authority)),
            ("/etc/letsencrypt/live/onedrop.example.org/privkey.pem", &at(&key)),
            (
                "auth_basic_user_file /etc/nginx/onedrop.htpasswd",
                &format!("auth_basic_user_file {}", at(&password)),
            ),
            ("unix:/run/onedrop/web.sock", &format!("unix:{}", at(&socket))),
        ],
    );
    let folder = at(&root);
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders: String =
        kinds.iter().map(|kind| format!("{kind}_temp_path {folder}/{kind};\n")).collect();
    let all = root.write(
        "nginx.conf",
        format!(
            "daemon off;\npid {folder}/pid;\nerror_log {folder}/log;\nevents {{}}\n\
             http {{\naccess_log off;\n{folders}{shipped}}}\n"
        ),
    );
    chown_recursive(&root, "www-data");
    let log = root.join("log");
    let mut command = guarded("/usr/sbin/nginx", Some("www-data"), Signal::SIGKILL);
    command.args(["-e", &at(&log), "-c", &at(&all)]).stdin(Stdio::null());
    let mut proxy = Server::start("nginx", command, Signal::SIGTERM, &log);
    proxy.wait_ready(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
    Proxied { proxy, served, port, authority, log, _site: site, root }
}

fn caddy(web: &str) -> Proxied {
    let (site, root, served, socket) = pages("caddy", web);
    let shipped = changed(
        "conf/caddy/Caddyfile",
        &[
            ("you HASH", &format!("you {HASH}")),
            ("unix//run/onedrop/web.sock", &format!("unix/{}", at(&socket))),
        ],
    );
    let port = free_port();
    // Its own authority in place of Let's Encrypt.
    let global = format!(
        "{{\n\tadmin off\n\thttps_port {port}\n\tauto_https disable_redirects\n\tlocal_certs\n\
         \tskip_install_trust\n\tstorage file_system {}\n}}\n",
        at(&root.join("storage"))
    );
    let all = root.write("Caddyfile", global + &shipped);
    chown_recursive(&root, "caddy");
    let log = root.join("log");
    let mut command = guarded("/usr/bin/caddy", Some("caddy"), Signal::SIGKILL);
    command.args(["run", "--adapter", "caddyfile", "--config", &at(&all)]);
    command.env("HOME", &*root).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(&log).expect("a log"));
    let mut proxy = Server::start("caddy", command, Signal::SIGTERM, &log);
    let authority = root.join("storage/pki/authorities/local/root.crt");
    // It listens before it has its certificate.
    let known = format!("{HOST}:{port}:127.0.0.1");
    proxy.wait_ready(|| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--resolve", &known, "--cacert"]).arg(&authority);
        curl.arg(format!("https://{HOST}:{port}/")).stdout(Stdio::null());
        curl.status().is_ok_and(|status| status.success())
    });
    Proxied { proxy, served, port, authority, log, _site: site, root }
}

impl Proxied {
    /// Asks like a browser that believes the proxy's certificate.
    #[track_caller]
    fn ask(&mut self, path: &str, more: &[&str]) -> Answer {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--include", "--http1.1", "--max-time", "60"]);
        curl.arg("--cacert").arg(&self.authority);
        curl.args(["--resolve", &format!("{HOST}:{}:127.0.0.1", self.port)]).args(more);
        let output = curl.arg(format!("https://{HOST}:{}{path}", self.port)).output();
        let output = output.expect("curl");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !self.proxy.ended(), "{told}{}", tail(&self.log));
        Answer::of(&output.stdout)
    }

    #[track_caller]
    fn with_password(&mut self, path: &str, more: &[&str]) -> Answer {
        self.ask(path, &[&["--user", "you:s3cret"], more].concat())
    }
}

fn hosts(name: &str) -> String {
    format!("hosts = [\"{name}\"]\n")
}

fn serves(mut proxied: Proxied, refused_method: u16) {
    for (password, status) in
        [(None, 401), (Some("you:s3cre"), 401), (Some("you:"), 401), (Some("you:s3cret"), 200)]
    {
        let more: Vec<&str> = password.iter().flat_map(|user| ["--user", *user]).collect();
        let answer = proxied.ask("/", &more);
        assert_eq!(answer.status, status, "{password:?}: {answer:?}");
        assert_eq!(answer.body.contains("<h1>Now</h1>"), status == 200, "{answer:?}");
    }
    let direct = {
        let mut client = UnixStream::connect(proxied.served.log.with_file_name("web.sock"));
        let client = client.as_mut().expect("the pages");
        std::io::Write::write_all(client, b"GET /locks HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("the pages");
        let mut answer = Vec::new();
        std::io::Read::read_to_end(client, &mut answer).expect("an answer");
        Answer::of(&answer)
    };
    let page = proxied.with_password("/locks", &[]);
    // Each says when it was made.
    let body = |page: &Answer| page.body.split("<footer>").next().map(str::to_owned);
    assert_eq!((page.status, body(&page)), (200, body(&direct)));
    for name in FIELDS {
        let all: Vec<_> = page.fields.iter().filter(|(known, _)| known == name).collect();
        assert_eq!(all.len(), 1, "{name}: {page:?}");
        assert_eq!(page.field(name), direct.field(name), "{name}");
    }
    // A search leads to a story, on the same host.
    let found = proxied.with_password("/search?q=scuba@mail.axial.net", &[]);
    assert_eq!((found.status, found.field("location")), (303, Some("/m/1")), "{found:?}");
    assert!(proxied.with_password("/m/1", &[]).body.contains("placed"));
    let posted = proxied.with_password("/", &["--request", "POST", "--data", "x=1"]);
    assert_eq!(posted.status, refused_method, "{posted:?}");
    // By a name that is not the site's nothing is shown.
    let other = proxied.with_password("/", &["--header", "Host: evil.example"]);
    assert!(!other.body.contains("Onedrop on"), "{other:?}");
}

/// Onedrop sees no password of the proxy's, and refuses names that `web.hosts` does not have.
fn refuses(start: fn(&str) -> Proxied) {
    let mut another = start(&hosts("another.example.org"));
    let answer = another.with_password("/", &[]);
    assert_eq!(answer.status, 421, "{answer:?}");
    assert!(answer.body.contains("web.hosts"), "{answer:?}");
    drop(another);
    let more = format!("{}password_file = \"$DIR/web.password\"\n", hosts(HOST));
    let mut guarded = start(&more);
    let answer = guarded.with_password("/", &[]);
    assert_eq!((answer.status, answer.body.as_str()), (401, "a password is needed\n"));
    assert!(guarded.root.exists());
}

#[test]
fn nginx_as_it_is_shipped_serves_the_pages() {
    let mut proxied = nginx(&hosts(HOST));
    // Every name comes to the only server of this nginx, and from there to the pages.
    let other = proxied.with_password("/", &["--header", "Host: evil.example"]);
    assert_eq!(other.status, 421, "{other:?}");
    serves(proxied, 403);
}

#[test]
fn nginx_keeps_its_password_and_names_are_the_pages_to_judge() {
    refuses(nginx);
}

#[test]
fn caddy_as_it_is_shipped_serves_the_pages() {
    serves(caddy(&hosts(HOST)), 405);
}

#[test]
fn caddy_keeps_its_password_and_names_are_the_pages_to_judge() {
    refuses(caddy);
}
