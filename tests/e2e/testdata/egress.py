"""Connects as its arguments say and prints what came of each as a line of JSON.

get URL      as programs do that know of a proxy by their environment
ask LINE     LINE is the first line of a request to the proxy itself
straight IP  past the proxy
hold LINE    like ask; then waits until the connection ends
"""

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from urllib.parse import urlsplit


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return {"status": answer.status, "body": answer.read().decode()}
    except urllib.error.HTTPError as e:
        return {"status": e.code, "why": e.headers.get("X-Sandtrail-Egress", "")}
    except OSError as e:
        return {"status": 0, "why": str(e)}


def proxied(line):
    proxy = urlsplit(os.environ["HTTPS_PROXY"])
    s = socket.create_connection((proxy.hostname, proxy.port), timeout=60)
    s.sendall(line.encode() + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    head = b""
    while b"\r\n\r\n" not in head:
        more = s.recv(4096)
        if not more:
            break
        head += more
    lines = head.decode("latin-1").split("\r\n")
    why = [l.split(": ")[1] for l in lines if l.startswith("X-Sandtrail-Egress: ")]
    status = int(lines[0].split(" ")[1]) if " " in lines[0] else 0
    return s, {"status": status, "why": why[0] if why else ""}


def ask(line):
    return proxied(line)[1]


def hold(line):
    s, result = proxied(line)
    if result["status"] == 200:
        s.sendall(b"GET /held HTTP/1.1\r\nHost: held\r\n\r\n")
        s.settimeout(300)
        result["body"] = s.recv(4096).decode("latin-1")
        print(json.dumps(result), flush=True)
        try:
            while s.recv(4096):
                pass
        except ConnectionError:
            pass
        return {"status": 0, "why": "over"}
    return result


def straight(ip):
    try:
        socket.create_connection((ip, 80), timeout=10).close()
        return {"status": 200}
    except OSError as e:
        return {"status": 0, "why": str(e)}


for i in range(1, len(sys.argv), 2):
    what = {"get": get, "ask": ask, "straight": straight, "hold": hold}[sys.argv[i]]
    print(json.dumps(what(sys.argv[i + 1])), flush=True)
