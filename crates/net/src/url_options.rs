//! The options in the URL of an SQL server that its other clients take and this program does not:
//! which of our keys serves instead. By name where the name is one that people know; any other may
//! be a piece of a password that was not percent-encoded, and is not quoted.

/// What is known elsewhere, in lower case without `-` and `_`, and what to do instead.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (
        &["sslrootcert", "sslca", "sslcapath", "serversslcert", "trustservercertificate"],
        "name the authority's certificate in ca_file, beside the URL",
    ),
    (
        &["sslcert", "sslkey", "sslpassword", "sslcertmode", "sslcipher", "sslidentity"],
        "there are no client certificates: the password is in password_file",
    ),
    (&["passfile"], "the password is in password_file"),
    (
        &["ssl", "usessl", "requiressl", "tls", "verifyservercertificate", "sslverifyservercert"],
        "write sslmode=verify-full, or sslmode=disable",
    ),
    (&["sslmode"], "write sslmode=verify-full, or sslmode=disable"),
    (&["socket", "unixsocket"], "write host=/FOLDER for Postgres, socket=/PATH for MariaDB"),
    (
        &["service", "servicefile", "defaultsfile", "defaultsgroup", "defaultfile"],
        "write host, database and user into the URL",
    ),
    (&["sslcrl", "sslcrldir"], "lists of revoked certificates are not read"),
    (&["sslminprotocolversion", "sslmaxprotocolversion", "tlsversion"], "TLS is 1.2 or 1.3"),
    (
        &["gssencmode", "krbsrvname", "gsslib", "gssdelegation", "requireauth", "requirepeer"],
        "the login is a password's or the socket's",
    ),
    (
        &["charset", "characterset", "characterencoding", "clientencoding", "collation"],
        "texts are UTF-8 always",
    ),
    (&["schema", "currentschema", "searchpath"], "for Postgres write options=-csearch_path%3DNAME"),
    (
        &["preparethreshold", "preparedstatements", "statementcachesize", "pgbouncer"],
        "ledger.prepare says whether statements are prepared",
    ),
    (
        &["poolsize", "maxpoolsize", "minpoolsize", "connectionlimit", "maxconnections"],
        "pool.ledger says how many sessions there are",
    ),
    (
        &[
            "connecttimeout",
            "logintimeout",
            "sockettimeout",
            "readtimeout",
            "writetimeout",
            "timeout",
            "pooltimeout",
            "statementtimeout",
            "keepalive",
            "tcpkeepalive",
        ],
        "each question has its own bound: leave it out",
    ),
    (&["keepalivescount"], "write keepalives_retries"),
    (&["applicationname", "fallbackapplicationname"], "Postgres takes application_name"),
    (
        &[
            "sslsni",
            "sslcompression",
            "replication",
            "reconnect",
            "autoreconnect",
            "parsetime",
            "loc",
            "servertimezone",
            "timezone",
            "useunicode",
            "allowpublickeyretrieval",
            "allowmultiqueries",
            "allownativepasswords",
            "usecompression",
            "compress",
            "driver",
        ],
        "leave it out",
    ),
];

/// That the option `name` is not known to a URL that takes `known`.
pub(super) fn unknown(name: &str, known: &[&str]) -> String {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
    let asked = plain(name);
    if let Some(ours) = known.iter().find(|ours| plain(ours) == asked) {
        return format!("it has an option that is not known: {name} (write {ours})");
    }
    match ELSEWHERE.iter().find(|(names, _)| names.contains(&asked.as_str())) {
        Some((_, instead)) => format!("it has an option that is not known: {name} ({instead})"),
        None => format!("it has an option that is not known (it takes {})", known.join(", ")),
    }
}

/// `text` without its percent-encoding; `None`: it is not one, or not UTF-8.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        bytes.push(match first {
            b'%' => {
                let (digits, behind) = rest.split_at_checked(2)?;
                rest = behind;
                let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
                let digits = std::str::from_utf8(digits).ok().filter(|_| is_hex)?;
                u8::from_str_radix(digits, 16).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}
