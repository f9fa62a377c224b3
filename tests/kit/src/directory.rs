//! Tables of users of well-known programs, and the queries that the page on addresses has for them.

const PAGE: &str = include_str!("../../../docs/addresses.md");

/// The tables as the programs make them, as far as mail is concerned.
pub const TABLES: &str = "
CREATE DATABASE mailserver; CREATE DATABASE postfix; CREATE DATABASE mailcow;
CREATE TABLE mailserver.virtual_users (id INT AUTO_INCREMENT PRIMARY KEY,
    domain_id INT NOT NULL, email VARCHAR(100) NOT NULL UNIQUE, password VARCHAR(150),
    quota BIGINT NOT NULL DEFAULT 0);
INSERT INTO mailserver.virtual_users (domain_id, email) VALUES (1, 'doug@a.example');
CREATE TABLE postfix.mailbox (username VARCHAR(255) NOT NULL PRIMARY KEY,
    password VARCHAR(255) NOT NULL DEFAULT '', name VARCHAR(255) NOT NULL DEFAULT '',
    maildir VARCHAR(255) NOT NULL DEFAULT '', quota BIGINT NOT NULL DEFAULT 0,
    local_part VARCHAR(255) NOT NULL DEFAULT '', domain VARCHAR(255) NOT NULL DEFAULT '',
    active TINYINT(1) NOT NULL DEFAULT 1, KEY domain (domain)) CHARACTER SET latin1;
INSERT INTO postfix.mailbox (username, active) VALUES ('doug@a.example', 1), ('gone@a.example', 0);
CREATE TABLE mailcow.mailbox (username VARCHAR(255) NOT NULL PRIMARY KEY,
    name VARCHAR(255), attributes JSON, kind VARCHAR(100) NOT NULL DEFAULT '',
    active TINYINT(1) NOT NULL DEFAULT 1) CHARACTER SET utf8mb4;
INSERT INTO mailcow.mailbox (username, active)
    VALUES ('doug@a.example', 1), ('inner@a.example', 2), ('gone@a.example', 0);";

/// What the page has a program's tables asked in this engine.
pub fn query(program: &str, engine: &str) -> String {
    let line = format!("| {program} | {engine} | `");
    let rest = PAGE.split_once(&line).unwrap_or_else(|| panic!("no line {line}")).1;
    rest.split_once('`').expect("a query").0.to_owned()
}
