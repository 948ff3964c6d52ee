#!/usr/bin/env python3
"""Parses an .eml file with Python's email package and prints what it understood as JSON: the tests' second opinion.

    subject     decoded, or null
    from, to, cc  lists of {name, address}
    headers     name -> decoded value; a list of values when the header occurs more than once
    structure   the tree of types, such as multipart/mixed(text/plain, image/png)
    defects     everything the parser had to forgive, in the message, its headers and its parts
    parts       the leaves in order: {type, disposition, filename, cid, charset, size, sha256, text}, where size and
                sha256 are of the decoded bytes and text is there for text parts only
"""

import email
import email.policy
import hashlib
import json
import sys


def main(path):
    with open(path, "rb") as file:
        message = email.message_from_binary_file(file, policy=email.policy.default)
    # Decoding a part may find further defects, so defects are gathered after everything was read.
    report = {
        "subject": plain(message["subject"]),
        "from": addresses(message["from"]),
        "to": addresses(message["to"]),
        "cc": addresses(message["cc"]),
        "headers": headers(message),
        "structure": structure(message),
        "parts": [describe(part) for part in leaves(message)],
    }
    report["defects"] = [defect for part in message.walk() for defect in defects(part)]
    print(json.dumps(report, indent=1))


def leaves(part):
    """An attached message is a leaf: its own parts are its own affair."""
    if part.get_content_maintype() != "multipart" or not part.is_multipart():
        return [part]
    return [leaf for child in part.iter_parts() for leaf in leaves(child)]


def structure(part):
    if part.get_content_maintype() != "multipart" or not part.is_multipart():
        return part.get_content_type()
    return f"{part.get_content_type()}({', '.join(structure(child) for child in part.iter_parts())})"


def describe(part):
    if part.is_multipart():
        content = b"".join(child.as_bytes() for child in part.iter_parts())
    else:
        content = part.get_payload(decode=True) or b""
    described = {
        "type": part.get_content_type(),
        "disposition": part.get_content_disposition(),
        "filename": plain(part.get_filename()),
        "cid": plain(part["content-id"].strip().strip("<>")) if part["content-id"] else None,
        "charset": part.get_content_charset(),
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    if part.get_content_maintype() == "text":
        described["text"] = decoded(part, content)
    return described


def decoded(part, content):
    """Text that is not in the charset it claims is a defect of the part, read as best we can."""
    try:
        return content.decode(part.get_content_charset() or "ascii")
    except (LookupError, UnicodeDecodeError) as error:
        part.defects.append(error)
        return content.decode("utf-8", "replace")


def headers(message):
    found = {}
    for name, value in message.items():
        found.setdefault(name, []).append(plain(value))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def addresses(header):
    listed = header.addresses if header is not None else ()
    return [{"name": plain(one.display_name), "address": plain(one.addr_spec)} for one in listed]


def defects(part):
    where = part.get_content_type()
    for defect in part.defects:
        yield f"{where}: {type(defect).__name__}: {defect}"
    for name, value in part.items():
        for defect in getattr(value, "defects", ()):
            yield f"{where}: {name}: {type(defect).__name__}: {defect}"
    # The parser forgives these without a word.
    for name, value in part.raw_items():
        if not str(value).isascii():
            yield f"{where}: {name}: bytes outside ASCII"


def plain(value):
    """Undecodable bytes come as lone surrogates, which are not JSON: shown as escapes."""
    return None if value is None else str(value).encode("utf-8", "backslashreplace").decode("utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
