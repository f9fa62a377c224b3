#!/usr/bin/env python3
"""Who a message is, written a second time and only from what the documents say, so that a change of the one in
crates/core/src/message/identity.rs does not go unseen (tests/values/golden.rs compares them).

    python3 tests/values/identity_reference.py FILE...

prints a line for each message: the file's name without its suffix, the id hash, the digest and the hash of scuba's copy
in INBOX; then digest and copy hash with dedup.by = "message-id"; then the variant where filters run, and the one where
NUL is kept, or "-". Hexadecimal, separated by tabs.
"""

import calendar
import hashlib
import os
import re
import sys

AUTHORED = """from sender reply-to to cc subject date message-id in-reply-to references mime-version mail-followup-to
mail-reply-to autocrypt disposition-notification-to return-receipt-to""".encode().split()
FILTERS_HEED = "auto-submitted list-id precedence x-spam x-spam-flag x-spam-status".encode().split()
SPACE = b" \t\n\x0c\r"
MONTHS = b"jan feb mar apr may jun jul aug sep oct nov dec".split()
HOURS = {b"est": -5, b"edt": -4, b"cst": -6, b"cdt": -5, b"mst": -7, b"mdt": -6, b"pst": -8, b"pdt": -7}
DATE = re.compile(
    rb"_*(?:(?:mon|tue|wed|thu|fri|sat|sun)_*,_*)?"
    rb"(\d{1,2})(?!\d)_*([a-z]+)_*(\d{2,4})(?!\d)_*"
    rb"(\d{2})_*:_*(\d{2})(?!\d)_*(?::_*(\d{2})(?!\d)_*)?"
    rb"(?:([+-])(\d\d)(\d\d)|([a-z]+))_*".replace(b"_", rb"[ \t\r\n]"),
    re.IGNORECASE,
)


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def without_mbox_line(data):
    match = re.match(rb"From (?! *:)[^\r\n]*\r?\n(?=.)", data, re.DOTALL)
    return data[match.end():] if match else data


def header_and_rest(data):
    """The fields as (name, raw value), and what follows the last one."""
    found, rest = [], data
    while rest:
        line = re.match(rb"[^\n]*\n?", rest).group()
        if found and line[0] in b" \t":
            found[-1][1] += line
        elif field := re.match(rb"([!-9;-~]+)[ \t\n\x0c\r]*:", line):
            found.append([field.group(1).lower(), line[field.end():]])
        else:
            break
        rest = rest[len(line):]
    return found, rest


def unfolded(value):
    return re.sub(rb"\r?\n", b"", value).strip(SPACE)


def relaxed(value):
    return re.sub(rb"[ \t\r\n]+", b" ", value).strip(b" ")


def without_comments(value):
    out, depth, at = b"", 0, 0
    while at < len(value):
        byte = value[at:at + 1]
        if byte == b"(":
            depth += 1
            out += b" "
        elif byte == b")" and depth:
            depth -= 1
        elif byte == b"\\" and depth:
            at += 1
            if at == len(value):
                return None
        elif not depth:
            out += byte
        at += 1
    return None if depth else out


def seconds(value):
    """Seconds since 1970 of an RFC 5322 date-time, obsolete forms included; None if it is none."""
    plain = without_comments(value)
    match = plain is not None and DATE.fullmatch(plain)
    if not match or match[2].lower() not in MONTHS:
        return None
    year, month = int(match[3]), MONTHS.index(match[2].lower()) + 1
    if len(match[3]) < 4:
        year += 2000 if len(match[3]) == 2 and year < 50 else 1900
    day, hour, minute, second = (int(match[n] or 0) for n in (1, 4, 5, 6))
    days = 29 if month == 2 and calendar.isleap(year) else calendar.mdays[month]
    if not 1 <= day <= days or hour > 23 or minute > 59 or second > 60:
        return None
    if match[7]:
        if int(match[9]) > 59:
            return None
        ahead = (int(match[8]) * 3600 + int(match[9]) * 60) * (-1 if match[7] == b"-" else 1)
    else:
        ahead = HOURS.get(match[10].lower(), 0) * 3600
    # Python's calendar begins with the year 1; 400 years have 146097 days.
    years, earlier = (400, 146097 * 86400) if year == 0 else (0, 0)
    return calendar.timegm((year + years, month, day, hour, minute, second)) - earlier - ahead


def says_something(dates, received):
    date = seconds(unfolded(dates[0])) if dates else None
    if date is None or date < calendar.timegm((1990, 1, 1, 0, 0, 0)):
        return False
    _, semicolon, behind = unfolded(received).rpartition(b";")
    received = seconds(behind) if semicolon else None
    return received is None or received - 7 * 24 * 3600 <= date <= received + 2 * 24 * 3600


def names_something(message_id):
    """A letter, a digit or a byte above 127 before the first @; comments in front do not count."""
    rest = message_id
    while match := re.match(rb"[ \t]*\(", rest):
        depth, at = 1, match.end()
        while depth and at < len(rest):
            depth += {b"(": 1, b")": -1}.get(rest[at:at + 1], 0)
            at += 2 if rest[at:at + 1] == b"\\" else 1
        if depth:
            break
        rest = rest[at:]
    return re.search(rb"[0-9A-Za-z\x80-\xff]", rest.partition(b"@")[0]) is not None


def is_authored(name):
    if name in (b"content-length", b"resent-bcc"):
        return False
    return name in AUTHORED or name.startswith((b"content-", b"resent-"))


def identity(data):
    """Message-ID (or None), id hash, digest, variant where NUL is kept."""
    fields, rest = header_and_rest(data)
    ids = [unfolded(value).replace(b"\0", b"\x80") for name, value in fields if name == b"message-id"]
    message_id = ids[0] if ids and len(ids[0]) <= 4096 and names_something(ids[0]) else None

    text = b""
    counted = [field for field in fields if is_authored(field[0])]
    received = [value for name, value in fields if name == b"received" and b"(Onedrop) with " not in relaxed(value)]
    dates = [value for name, value in fields if name == b"date"]
    if received and not (message_id and says_something(dates, received[-1])):
        counted.append((b"received", received[-1]))
    for name, value in counted:
        text += name + b":" + (unfolded(value) if name.startswith(b"content-") else relaxed(value)) + b"\r\n"
    separator = re.match(rb"\r?\n|\r\Z", rest)
    body = rest[separator.end():] if separator else rest
    text += b"\r\n" if separator or not body else b"\n"
    lines = re.sub(rb"\r*\n|\r+\Z", b"\n", body).rstrip(b"\n")
    text += lines.replace(b"\n", b"\r\n") + b"\r\n" if lines else b""
    digest = sha256(text.replace(b"\0", b"\x80"))
    variant = variant_of(b"onedrop/1/nul\0", sha256(text)) if b"\0" in text else "-"
    id_hash = sha256(b"onedrop/1/message\0", message_id) if message_id else sha256(b"onedrop/1/content\0", digest)
    return message_id, id_hash, digest, variant


def variant_of(domain, data):
    return "\\" + sha256(domain, data)[:8].hex()


def filter_variant(data):
    said = set()
    for name, value in header_and_rest(data)[0]:
        value = unfolded(value).lower()
        head, bracket, inner = value.rpartition(b"<")
        if bracket and b">" in inner:
            value = inner.partition(b">")[0].strip(SPACE)
        elif b"=?" in value:
            pass
        elif re.search(rb"(?<!ba)yes|yes(?!_)" if name == b"x-spam-status" else rb"yes", value):
            value = b"yes"
        else:
            if name.startswith(b"x-"):
                value = re.split(rb"[ \t\n\x0c\r,;]", value)[0]
            else:
                value = b" ".join(word for word in re.split(rb"[ \t\n\x0c\r]", value) if word)
            if value in (b"", b"no", b"false", b"0"):
                continue
        if name in FILTERS_HEED:
            said.add(name + b":" + value + b"\r\n")
    return variant_of(b"onedrop/1/fields\0", b"".join(sorted(said))) if said else "-"


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            data = without_mbox_line(file.read())
        message_id, id_hash, digest, by_nul = identity(data)
        by_id = id_hash if message_id else digest
        copies = [sha256(b"onedrop/1/copy\0", id_hash, one, b"scuba\0INBOX") for one in (digest, by_id)]
        name = os.path.basename(path).removesuffix(".eml")
        hashes = (each.hex() for each in (id_hash, digest, copies[0], by_id, copies[1]))
        print(name, *hashes, filter_variant(data), by_nul, sep="\t")


main()
