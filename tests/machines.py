"""Machines of a deployment, all on this one: what `install.sh` puts there, run as systemd and nginx would."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

WRAPPED = """daemon off;
pid {place}/nginx.pid;
error_log {place}/error.log;
worker_processes 1;
events {{}}
http {{
    access_log {place}/access.log;
    client_body_temp_path {place}/client;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    include {place}/etc/nginx/conf.d/*.conf;
}}
"""


@dataclass(frozen=True)
class Machine:
    """A folder in place of `/`; `bin` in place of `/opt/evenfed/bin`, and ports that are free here."""

    place: Path
    bin: Path
    ports: dict[str, int]

    def install(self, files: Path) -> None:
        """By its own script, and then at these places and ports."""
        self.place.mkdir()
        subprocess.run(["sh", str(files / "install.sh")], env={"DESTDIR": str(self.place), "PATH": PATH}, check=True)
        for path in self.place.rglob("*"):
            if path.suffix in (".service", ".conf"):
                path.write_text(self.moved(path.read_text()))

    def moved(self, text: str) -> str:
        """With this machine's places and ports."""
        text = re.sub(r"(?<![\w/])(/etc/flower|/var/lib/flower)", rf"{self.place}\1", text)
        text = text.replace("/opt/evenfed/bin", str(self.bin))
        for usual, port in self.ports.items():
            text = re.sub(rf"\b{usual}\b", str(port), text)
        return text

    def service(self, name: str) -> str:
        """What systemd would run, as a script for bash."""
        unit = (self.place / "etc" / "systemd" / "system" / f"{name}.service").read_text()
        lines = ["set -eu"]
        for file in re.findall(r"^EnvironmentFile=(.*)$", unit, re.MULTILINE):
            lines.append(f"set -a && . {file} && set +a")
        for pairs in re.findall(r"^Environment=(.*)$", unit, re.MULTILINE):
            lines.append(f"export {pairs}")
        state = re.search(r"^WorkingDirectory=(.*)$", unit, re.MULTILINE)[1]
        credentials = self.place / "run" / "credentials" / name
        lines.append(f"mkdir -p {state} {credentials}")
        for known, source in re.findall(r"^LoadCredential=(.*?):(.*)$", unit, re.MULTILINE):
            lines.append(f"cp {source} {credentials / known}")
        lines.append(f"export CREDENTIALS_DIRECTORY={credentials}")
        lines.append(f"cd {state}")
        command = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)[1]
        lines.append(f"exec {command}")
        return "\n".join(lines)

    def nginx(self) -> list[str]:
        wrapped = self.place / "nginx.conf"
        wrapped.write_text(WRAPPED.format(place=self.place))
        return ["nginx", "-p", str(self.place), "-c", str(wrapped), "-e", str(self.place / "error.log")]


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
