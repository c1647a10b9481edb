"""Which machines a command speaks to, and every process it starts: seen by Python's audit hooks, and by strace
where there is one, which also sees Ray's and gRPC's compiled code."""

import ipaddress
import os
import re
import shutil
from pathlib import Path

HOOK = """
import os, sys
def heard(event, arguments):
    if event in ("socket.connect", "socket.sendto") and arguments[0].family in (2, 10):
        told = str(arguments[1][0])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        told = str(arguments[0])
    else:
        return
    with open(os.environ["NETWORK_LOG"], "a") as lines:
        lines.write(told + "\\n")
sys.addaudithook(heard)
"""
ADDRESS = re.compile(r'(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]+)"')
# strace stops a new thread at every call until one that it traces: so also at those that a thread begins with
CALLS = "connect,sendto,set_robust_list,rseq"
HERE = {"localhost", "None", "", "0.0.0.0", "::"}


class Watch:
    """`command` and `environment` for a process to be watched; `elsewhere()` afterwards."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(HOOK)
        self.heard, self.traced = folder / "heard.txt", folder / "trace.txt"
        searched = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        self.environment = {"PYTHONPATH": searched, "NETWORK_LOG": str(self.heard)}

    def command(self, *words: str) -> list[str]:
        if shutil.which("strace") is None:
            return list(words)
        return ["strace", "-f", "--seccomp-bpf", "-qq", "-e", f"trace={CALLS}", "-o", str(self.traced), *words]

    def addresses(self) -> set[str]:
        heard = self.heard.read_text().splitlines() if self.heard.exists() else []
        traced = ADDRESS.findall(self.traced.read_text(errors="replace")) if self.traced.exists() else []
        return {*heard, *traced}

    def elsewhere(self) -> set[str]:
        """All that is not this machine's loopback."""
        return {a for a in self.addresses() if a not in HERE and not _loopback(a)}


def _loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address == os.uname().nodename  # looking oneself up by name
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
