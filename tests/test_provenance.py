"""Where results come from: the commit of the source, also from a worktree and on a busy machine."""

import subprocess

from evenfed.comparison.storage import provenance
from evenfed.comparison.storage.provenance import commit_of


def git(tree, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", "-C", tree, *names, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_of_a_tree(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    tree.mkdir()
    assert commit_of(tree) is None
    git(tree, "init", "-q")
    assert commit_of(tree) is None  # nothing is committed yet
    source = tree / "source.py"
    source.write_text("1\n")
    git(tree, "add", "source.py")
    git(tree, "commit", "-qm", "first")
    git(tree, "worktree", "add", "-q", "../second")
    commit = git(tree, "rev-parse", "HEAD")
    source.write_text("2\n")
    assert commit_of(tree) == f"{commit}-dirty"
    assert commit_of(tree, except_in=["source.py"]) == commit
    assert commit_of(tmp_path / "second") == commit
    whole = provenance._git

    def too_busy(tree, command, *words):
        if command == "status":
            raise subprocess.TimeoutExpired("git", 30)
        return whole(tree, command, *words)

    monkeypatch.setattr(provenance, "_git", too_busy)
    assert commit_of(tmp_path / "second") == f"{commit}-unchecked"


def test_a_command_is_kept_as_a_shell_takes_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/evenfed", "compare", "--out", "out dir", "--token", "secret"])
    assert provenance.provenance()["command"] == "evenfed compare --out 'out dir' --token '***'"
