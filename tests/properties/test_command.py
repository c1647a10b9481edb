"""Command lines, made of the right words and of wrong ones."""

from hypothesis import strategies as st

from seeking import folder, is_told, odd_text, seek

EXPERIMENT = """
seeds = 1
noise_floor = false
[algorithms.fedavg]
[data]
name = "digits"
examples = 60
clients = 3
[model]
name = "linear"
[train]
rounds = 1
batch_size = 20
device = "cpu"
"""
SETTINGS = [
    "train.lr",
    "train.rounds",
    "data.clients",
    "data.seed",
    "semi_vred.beta",
    "seeds",
    "model.name",
    "x",
    "data",
]
amounts = st.sampled_from(
    ["0", "1", "-1", "2", "1.5", "1e400", "nan", "", "a", str(2**63), "[1, 2]", "{}", "true", "["]
)
word = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=6)
set_option = st.builds(
    lambda key, value: ["--set", f"{key}={value}"], st.sampled_from(SETTINGS), st.one_of(amounts, word)
)
entries = st.one_of(st.sampled_from(["fedavg", "vred,qffl", "semi_vred[beta=1]", "vred[beta=", "nonsense", ","]), word)
options_of_runs = st.one_of(
    set_option,
    st.builds(lambda text: ["--algorithms", text], entries),
    st.builds(lambda text: ["--rounds", text], amounts),
    st.builds(lambda text: ["--seeds", text], amounts),
    st.builds(lambda text: ["--format", text], st.sampled_from(["json", "csv", "text", "nonsense"])),
    st.builds(lambda text: ["--device", text], st.sampled_from(["cpu", "cuda:9", "meta", "", "\x1b[31m"])),
    st.builds(lambda text: ["--out", text], st.sampled_from(["out", "mine.toml", "/proc/x", "", "a\nb"])),
    st.builds(lambda text: [text], st.sampled_from(["--quick", "--quiet", "--verbose", "--nonsense", "--help"])),
    st.builds(lambda text: ["--track", text], st.sampled_from(["nonsense", "tensorboard[", "", "wandb[x=1]"])),
)


@seek(
    st.lists(options_of_runs, max_size=2),
    st.sampled_from(["mine.toml", "none.toml", "@nonsense", "folder", "bad.toml"]),
)
def test_compare(options, experiment):
    words = [word for option in options for word in option]
    with folder() as place:
        (place / "mine.toml").write_text(EXPERIMENT)
        (place / "bad.toml").write_bytes(b"\xff[\x00")
        (place / "folder").mkdir()
        small = ["--rounds", "1"] if "--rounds" not in words else []
        assert is_told(place, "compare", experiment, *words, *small, "--no-figures")


STORAGES = ["sqlite:///x.db", "mysql://ann:secret@nowhere/db", "nonsense", "journal.log", "", "redis://:secret@h"]


@seek(st.lists(options_of_runs, max_size=1), st.sampled_from(STORAGES), st.one_of(amounts, word))
def test_tune(options, storage, trials):
    words = [word for option in options for word in option]
    with folder() as place:
        (place / "mine.toml").write_text(EXPERIMENT)
        trials = trials if trials not in ("2", str(2**63)) else "1"
        small = ["--trials", trials, "--storage", storage]
        assert is_told(place, "tune", "mine.toml", *words, *small)


PLACES = ["mine.toml", "none", "runs", "x.csv", "clients.json", "", "-", "..", "/dev/null", "/dev/zero", "a" * 300]
REST = ["report", "audit", "algorithms", "experiments", "new", "choose", "pack", "fill", "data list", "data show"]
REST += ["data verify", "data add", "data fetch", "flower new", "nonsense", "", "--version"]
FLAGS = [
    "--full",
    "--format",
    "json",
    "--no-figures",
    "--paper",
    "--data",
    "--model",
    "--out",
    "--min-test",
    "--last-rounds",
]
FLAGS += [
    "--metric",
    "accuracy",
    "--baseline",
    "--clients",
    "--partition",
    "--seed",
    "--help",
    "--",
    "-x",
    "0",
    "-1",
    "a",
]


@seek(st.sampled_from(REST), st.lists(st.one_of(st.sampled_from(PLACES), st.sampled_from(FLAGS), word), max_size=4))
def test_other_commands(name, words):
    with folder() as place:
        (place / "mine.toml").write_text(EXPERIMENT)
        (place / "runs").mkdir()
        (place / "x.csv").write_text("client,accuracy\na,0.5\n=b,0.7\n")
        (place / "clients.json").write_text('{"a": 0.5, "b": [1]}')
        if name == "data fetch":
            words = ["nonsense", *words[1:]]
        assert is_told(place, *name.split(), *words)


@seek(
    odd_text.filter(lambda text: "\x00" not in text),
    st.sampled_from(["report", "audit", "compare", "algorithms", "new"]),
)
def test_names_of_files(name, command):
    with folder() as place:
        assert is_told(place, command, name)
