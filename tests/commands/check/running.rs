//! What `onedrop check` says of a server that has read other files than those of now.

use crate::support::onedrop;
use crate::support::site::Site;

#[test]
fn a_server_that_has_not_read_the_files_of_now_is_told_with_the_keys() {
    let site = Site::embedded();
    let socket = site.socket().display().to_string();
    let more = |secs: u32, quota: &str| {
        format!(
            "[deliver]\nvia = \"{socket}\"\n[lock]\nwait_secs = {secs}\n\
             [store]\nover_quota = \"{quota}\"\n[web]\nshow_subjects = false\n"
        )
    };
    let mut server = site.server(&more(7, "defer"));
    let config = site.root.join("server/onedrop.toml");
    let told = || {
        let mut command = onedrop();
        command.args(["check", "--account", "scuba", "--config"]).arg(&config);
        let output = command.env("PATH", "/nonexistent").output().expect("onedrop");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let ours = told.lines().filter(|line| line.contains("lmtp: the server at "));
        ours.map(str::to_owned).collect::<Vec<_>>()
    };
    let has_read = [format!("ok      lmtp: the server at unix:{socket} has read these files")];
    assert_eq!(told(), has_read);
    site.config("server", &more(8, "bounce"));
    let differs = format!(
        "warning lmtp: the server at unix:{socket} runs with other values than the files have now: \
         lock.wait_secs, store.over_quota; reload it (systemctl reload onedrop-lmtp), and see in \
         its log whether it took them"
    );
    assert_eq!(told(), [differs]);
    server.reload();
    server.wait_for_log("was read again");
    assert!(crate::support::wait_until(std::time::Duration::from_secs(10), || told() == has_read));
}
