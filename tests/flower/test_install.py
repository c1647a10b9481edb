"""The install scripts as root, in a root folder that is thrown away: users, owners and modes. systemd is absent."""

import os
import re
import shutil
import subprocess

import pytest

from evenfed.flower.deployment.deploy import federation, write_files
from machines import PATH

pytestmark = pytest.mark.slow
# a copy of this machine's files that nobody else sees; what is written there goes to memory
INSIDE = """
set -eu
mount -t tmpfs none "$PLACE"
mkdir "$PLACE/written" "$PLACE/work" "$PLACE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$PLACE/written,workdir=$PLACE/work" "$PLACE/root"
mount --bind /proc "$PLACE/root/proc"
mount --bind /dev "$PLACE/root/dev"
cp -r "$FILES" "$PLACE/root/files"
cp "$SCRIPT" "$PLACE/root/script"
rm -f "$PLACE/root/usr/bin/systemctl" "$PLACE/root/bin/systemctl"
printf '#!/bin/sh\\necho "systemctl $*"\\n' >"$PLACE/root/usr/bin/systemctl"
chmod 755 "$PLACE/root/usr/bin/systemctl"
exec chroot "$PLACE/root" sh -eu /script
"""
SCRIPT = """
sh /files/sites/south/install.sh || echo "refused: $?"
mkdir -p /opt/evenfed/bin /root/hidden
cp /bin/true /root/hidden/python
chmod 700 /root
ln -sf /root/hidden/python /opt/evenfed/bin/python
sh /files/server/install.sh || echo "refused: $?"
sh /files/sites/north/install.sh || echo "refused: $?"
ls /etc/flower /etc/flower-site && exit 1
ln -sf /bin/true /opt/evenfed/bin/python
sh /files/server/install.sh
sh /files/sites/north/install.sh
echo "NODE_CONFIG='changed'" >/etc/flower-site/site.env
sh /files/server/install.sh
sh /files/sites/north/install.sh
grep changed /etc/flower-site/site.env
getent passwd flower flower-node flower-app
stat -c '%U:%G %a %n' /etc/flower /etc/flower/* /etc/flower-site /etc/flower-site/*
for user in flower flower-node flower-app; do
    for file in /etc/flower/* /etc/flower-site/*; do
        setpriv --reuid=$user --regid=$user --clear-groups test -r $file && echo "$user reads $file"
        setpriv --reuid=$user --regid=$user --clear-groups test -w $file && echo "$user writes $file"
    done
done
true
"""
SECRET = {"proxy.key", "superlink.key", "key", "tls.key", "secret"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> str:
    """What the script above says."""
    for command in ("unshare", "nginx", "setpriv", "useradd"):
        if shutil.which(command, path=PATH) is None:
            pytest.skip(f"{command} is not installed")
    folder = tmp_path_factory.mktemp("install")
    write_files(folder / "files", federation("fed.example.org", "north,south", signed=True))
    (folder / "files" / "sites" / "south" / "key").unlink()
    (folder / "place").mkdir()
    (folder / "script").write_text(SCRIPT)
    values = {"PATH": PATH, "PLACE": str(folder / "place"), "FILES": str(folder / "files")}
    values["SCRIPT"] = str(folder / "script")
    words = ["unshare", "--mount", "sh", "-c", INSIDE]
    done = subprocess.run(words, env=values, capture_output=True, text=True, check=False)
    if re.search("mount|unshare", done.stderr.lower()) and done.returncode:
        pytest.skip(f"no throw-away root here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_services_are_enabled_and_restarted_each_time(installed):
    for units in ("flower-superlink nginx", "flower-supernode flower-superexec"):
        assert installed.count(f"systemctl enable {units}\nsystemctl restart {units}\n") == 2


def test_users_cannot_log_in_and_are_made_once(installed):
    users = re.findall(r"^(flower[\w-]*):x:(\d+):\d+::(/var/lib/[\w-]+):/usr/sbin/nologin$", installed, re.MULTILINE)
    assert [(name, home) for name, _, home in users] == [
        ("flower", "/var/lib/flower"),
        ("flower-node", "/var/lib/flower-node"),
        ("flower-app", "/var/lib/flower-app"),
    ]
    assert all(0 < int(number) < 1000 for _, number, _ in users)


def test_files_are_roots_and_no_service_reads_a_secret_or_writes_anything(installed):
    """Secrets come to services from systemd, each to its own (`LoadCredential`)."""
    files = re.findall(r"^root:root (\d+) (.*)$", installed, re.MULTILINE)
    modes = {os.path.basename(path): mode for mode, path in files}
    assert {name for name, mode in modes.items() if mode == "600"} == SECRET
    assert {mode for name, mode in modes.items() if name not in SECRET} == {"644", "755"}
    assert len(re.findall(r"^\S+:\S+ \d+ /etc", installed, re.MULTILINE)) == len(files)
    read = set(re.findall(r"^flower[\w-]* reads /etc/.*/(.*)$", installed, re.MULTILINE))
    assert {"ca.crt", "quiet.env", "trusted.yaml"} <= read and not read & SECRET
    assert " writes " not in installed


def test_what_was_changed_at_a_site_stays(installed):
    assert "NODE_CONFIG='changed'" in installed


def test_a_missing_key_and_a_python_that_services_cannot_run_are_told_before_files_are_copied(installed):
    assert installed.count("refused: 1") == 3 and "Put the private key here" in installed
    for user in ("flower", "flower-node"):
        assert f"The user {user} cannot run /opt/evenfed/bin/python" in installed
