"""What a server says of its clients: the type of a failure, never its text; and headers without passwords."""

import json
import sys

import pytest
from flwr.app import Error, Message
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

import evenfed
from evenfed.comparison.storage.provenance import provenance
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.server import initial_arrays, options
from local_grid import OPTIONS, LocalGrid, on_flower, sites
from stranger import extended, fair, run
from worked_example import federation, small_model

SECRET = "patient 4711"  # pragma: allowlist secret
REASON = f"<class 'ValueError'>:<'no field age in the record of {SECRET}'>"


def failing(kinds, client=2):
    """A site whose exceptions quote its data."""

    def spoil(reply, by):
        if by == client and reply.metadata.message_type in kinds:
            metadata = reply.metadata
            reply = Message(Error(code=2, reason=REASON), reply_to=reply)
            reply.metadata.__dict__.update(metadata.__dict__)
        return reply

    return spoil


def everything_in(folder):
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.suffix in (".json", ".jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        (["query.loss"], {}),
        (["train"], {}),
        (["train"], {"trips": 1}),
        (["evaluate"], {"trips": 2}),
        (["train"], {"private": True}),
    ],
)
def test_of_a_failure_at_a_client_the_type_alone_is_told(kinds, options, caplog, tmp_path):
    clients = federation(sizes=(4, 3, 5, 6))
    held = sites(clients)
    app = client_app(small_model, lambda context: held[context.node_config["partition-id"]], device="cpu")
    for tell in (False, True):
        caplog.clear()
        grid = LocalGrid(app, 4, spoil=failing(kinds))
        chosen = {"rounds": 1, "local_epochs": 1, "timeout": 0.05, "tell_errors": tell, **options}
        on_flower("fedavg", clients, grid=grid, out=tmp_path / str(tell), **chosen)
        assert ("it failed (ValueError); its own log says why" in caplog.text) != tell
        assert (SECRET in caplog.text) == tell
        assert SECRET not in everything_in(tmp_path)


@pytest.mark.slow
def test_a_site_that_cannot_describe_itself_tells_the_type_alone():
    app = client_app(small_model, lambda context: None)
    for tell in (False, True):
        grid = LocalGrid(app, 1, spoil=failing(["query.describe"], client=0))
        with pytest.raises(evenfed.InputError) as told:
            on_flower("fedavg", federation(sizes=(4,)), grid=grid, wait=0.1, tell_errors=tell)
        assert "ValueError" in str(told.value) and (SECRET in str(told.value)) == tell


@pytest.mark.slow
def test_fair_tells_no_more_unless_asked(caplog):
    for tell in (False, True):
        caplog.clear()
        run(fair(trips=1, tell_errors=tell), extended(), rounds=1, spoil=failing(["train", "evaluate"]))
        assert "ValueError" in caplog.text and (SECRET in caplog.text) == tell


def test_a_run_configuration_may_ask_for_the_text():
    assert options({"evenfed.tell_errors": True}, {}) == {"tell_errors": True}
    with pytest.raises(evenfed.InputError, match="tell_errors='yes': give true or false"):
        FairStrategy(tell_errors="yes")


def test_a_stored_command_holds_no_token_or_password(monkeypatch):
    words = [
        "flwr-serverapp",
        "--insecure",
        "--token",
        "s3cret1",
        "--token=s3cret2",
        "--auth-password",
        "s3cret3",
        "--storage",
        "mysql://ann:s3cret4@host/db?password=s3cret5",  # pragma: allowlist secret
        "--api-key",
        "s3cret6",
        "--run-config",
        "evenfed.lr=0.1 token='s3cret 7'",
        "--tokenizer",
        "words",
        "rounds=3",
    ]
    monkeypatch.setattr(sys, "argv", words)
    command = provenance()["command"]
    assert "s3cret" not in command and "7'" not in command
    assert command.startswith("flwr-serverapp --insecure --token '***' '--token=***' --auth-password '***'")
    assert "mysql://ann:***@host/db" in command and command.endswith("--tokenizer words rounds=3")


@pytest.mark.slow
def test_privacy_settings_stand_in_the_header_and_others_are_refused(tmp_path):
    """Flower's wrapper around the strategy: another noise or norm is another run."""

    def run(noise, kind=DifferentialPrivacyServerSideFixedClipping, mods=(), rounds=1, **more):
        held = sites(federation())
        app = client_app(small_model, lambda c: held[c.node_config["partition-id"]], device="cpu", mods=mods)
        chosen = {**OPTIONS, "rounds": rounds, "out": tmp_path, **more}
        strategy = FairStrategy("fedavg", **chosen)
        wrapped = kind(strategy, noise, 1.0, 4) if kind else None
        strategy.start(LocalGrid(app, 5), initial_arrays(small_model()), wrapped=wrapped)

    run(0.01)
    header = json.loads((tmp_path / "fedavg" / "seed-0" / "header.json").read_text())
    assert header["config"]["privacy"] == {
        "wrapper": "DifferentialPrivacyServerSideFixedClipping",
        "noise_multiplier": 0.01,
        "clipping_norm": 1.0,
        "num_sampled_clients": 4,
    }
    with pytest.raises(evenfed.InputError, match=r"privacy.noise_multiplier: 0.01 there, 0.5 here"):
        run(0.5, rounds=2)
    with pytest.raises(evenfed.InputError, match=r"privacy.*there"):
        run(0.01, kind=None, rounds=2)
    with pytest.raises(evenfed.InputError, match=r"privacy.wrapper: .*ServerSide.* there, .*ClientSide"):
        run(0.01, kind=DifferentialPrivacyClientSideFixedClipping, mods=[fixedclipping_mod], rounds=2)
    run(0.01, rounds=2)
