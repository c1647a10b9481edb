"""Whose place is whose: the first node's, as long as it is connected; and a list of those that may join."""

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.node_pb2 import NodeInfo

import evenfed
from evenfed.comparison.storage import record_json
from evenfed.flower import FairStrategy, client_app
from evenfed.flower.roster import Roster
from evenfed.flower.server import initial_arrays
from evenfed.flower.sites import Admission, read_sites
from local_grid import OPTIONS, LocalGrid, node_of, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow
SIZES = (4, 3, 5)
SECOND = 1  # a node id below all others: it is asked first


def grid_of(nodes=3, **options):
    held = sites(federation(sizes=SIZES))
    app = client_app(small_model, lambda context: held[context.node_config["partition-id"]], device="cpu")
    return LocalGrid(app, nodes, **options)


def with_second_claimant(grid, node=SECOND, partition=0):
    """Another node that says it is the same client."""
    context = type(grid.contexts[node_of(partition)])
    first = grid.contexts[node_of(partition)]
    grid.contexts[node] = context(1, node, dict(first.node_config), first.state, {})
    return grid


def run(grid, rounds=2, listen=(), **options):
    settings = {**OPTIONS, "local_epochs": 1, "rounds": rounds, "wait": 1, "timeout": 0.1}
    strategy = FairStrategy("fedavg", listen=listen, **{**settings, **options})
    strategy.start(grid, initial_arrays(small_model()))
    return strategy


def test_a_second_node_does_not_take_a_held_place(caplog):
    grid = grid_of()

    def join(progress):
        if progress.round == 1:
            with_second_claimant(grid)

    strategy = run(grid, rounds=3, listen=join)
    assert strategy.roster.nodes[0] == node_of(0)
    refusal = f"node {SECOND}: partition-id=0 is held by node {node_of(0)}, which is connected"
    assert [record.refused for record in strategy.records] == [(), (refusal,), ()]
    assert caplog.text.count(f"refused: {refusal}") == 2  # in the log, and in the round's line
    again = record_json.from_json(record_json.to_json(strategy.records[1]))
    assert again.refused == (refusal,)
    assert "refused" not in record_json.to_json(strategy.records[0])


def test_of_two_that_arrive_together_one_holds_the_place_and_the_other_is_named(caplog):
    grid = with_second_claimant(grid_of())
    strategy = run(grid, rounds=1)
    assert sorted(strategy.roster.nodes) == [0, 1, 2] and len(strategy.roster.refused) == 1
    (refused,) = strategy.roster.refused
    assert {refused, strategy.roster.nodes[0]} == {SECOND, node_of(0)}
    assert strategy.records[0].refused[0].startswith(f"node {refused}: partition-id=0 is held by node")


def test_a_holder_that_has_gone_gives_its_place_up():
    grid = grid_of()

    def leave(progress):
        if progress.round == 1:
            with_second_claimant(grid)  # it is back under another id, and Flower has not noticed that it was gone
        if progress.round == 2:
            del grid.contexts[node_of(0)]

    strategy = run(grid, rounds=3, listen=leave)
    assert strategy.roster.nodes[0] == SECOND and not strategy.roster.refused
    assert [record.dropped for record in strategy.records] == [(), (), ()]


def key_pair(tmp_path, name):
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    text = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (tmp_path / f"{name}.pub").write_bytes(text)
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class KeyedGrid(LocalGrid):
    """Nodes with keys, as Flower's SuperLink knows them."""

    keys = {}

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.contexts]


def test_listed_sites_alone_may_join_under_the_name_and_up_to_the_size_of_the_list(tmp_path, caplog):
    grid = grid_of()
    grid.__class__ = KeyedGrid
    grid.keys = {node_of(0): key_pair(tmp_path, "ward"), SECOND: key_pair(tmp_path, "stranger")}
    with_second_claimant(grid)  # first to be asked, if it were asked
    listed = tmp_path / "sites.toml"
    listed.write_text(
        f"""
        [[site]]
        partition = 0
        name = "ward 3"
        key = "ward.pub"
        largest = 2
        [[site]]
        partition = 1
        node = {node_of(1)}
        [[site]]
        partition = 2
        node = {node_of(2)}
        """
    )
    strategy = run(grid, rounds=1, sites=listed, guard="on")
    roster = strategy.roster
    assert roster.nodes == {k: node_of(k) for k in range(3)} and roster.name(0) == "ward 3"
    assert roster.admission.turned_away == {SECOND: "it is not in sites.toml"}
    assert ("query.describe", 0) in grid.log and grid.log.count(("query.describe", 0)) == 1
    (record,) = strategy.records
    assert record.refused == (f"node {SECOND}: it is not in sites.toml",)
    assert strategy.server.sizes.tolist() == [2, 3, 5]
    assert [(clip.client, clip.what, clip.counted) for clip in record.clipped] == [(0, "size", 2)]
    assert np.allclose(record.weights, np.array([2, 3, 5]) / 10)
    assert "client 0 says 4 training examples, and sites.toml allows 2" in caplog.text


def test_a_site_that_says_another_partition_than_the_list_is_left_out(tmp_path):
    listed = tmp_path / "sites.toml"
    places = {0: 1, 1: 0, 2: 2}
    rows = [f"[[site]]\npartition = {place}\nnode = {node_of(k)}\n" for k, place in places.items()]
    listed.write_text("".join(rows))
    roster = Roster(admission=Admission.of(listed))
    with pytest.raises(evenfed.InputError, match=r"1 of 3 clients.*says partition-id=0, and sites.toml gives it 1"):
        roster.wait_for_clients(grid_of(), wait=0.1)


BAD_FILES = {
    "not toml": ("[[site", "not TOML"),
    "empty": ("", r"one \[\[site\]\] for each"),
    "other tables": ("[server]\na = 1", r"one \[\[site\]\] for each"),
    "no identity": ("[[site]]\npartition = 0", "site 1: give key or node"),
    "two identities": ('[[site]]\npartition = 0\nnode = 1\nkey = "x"', "give key or node, one of the two"),
    "no place": ("[[site]]\nnode = 1", "partition is missing"),
    "a misspelt field": ("[[site]]\npartiton = 0\nnode = 1", "did you mean 'partition'"),
    "a negative place": ("[[site]]\npartition = -1\nnode = 1", "partition=-1: give a whole number"),
    "a gap": ("[[site]]\npartition = 1\nnode = 1", r"partitions 1; 1 sites have the places 0 .. 0"),
    "one node twice": ("[[site]]\npartition = 0\nnode = 1\n[[site]]\npartition = 1\nnode = 1", "the same node"),
    "no such key": ('[[site]]\npartition = 0\nkey = "x.pub"', "there is no file"),
    "no key": ('[[site]]\npartition = 0\nkey = "ssh-rsa x"', "not a public key"),
    "a size of zero": ("[[site]]\npartition = 0\nnode = 1\nlargest = 0", "largest=0"),
    "a name that is a number": ("[[site]]\npartition = 0\nnode = 1\nname = 3", "name=3: give text"),
}


def test_bad_files_are_told(tmp_path):
    path = tmp_path / "sites.toml"
    with pytest.raises(evenfed.InputError, match="there is no such file"):
        read_sites(path)
    for text, told in BAD_FILES.values():
        path.write_text(text)
        with pytest.raises(evenfed.InputError, match=f"(?s)sites.toml.*{told}"):
            read_sites(path)
    path.write_text("[[site]]\npartition = 0\nnode = 1")
    with pytest.raises(evenfed.InputError, match=r"clients=2, but .* lists 1 sites"):
        FairStrategy("fedavg", clients=2, sites=path)
