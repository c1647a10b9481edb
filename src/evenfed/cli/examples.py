"""Examples for the help of every command. The tests parse all of them by the commands themselves."""

from collections.abc import Mapping

from rich.markup import escape

EXAMPLES: Mapping[str, Mapping[str, str]] = {  # command -> what to type -> what it does
    "compare": {
        "evenfed compare": "the demo, on handwritten digits",
        "evenfed compare mine.toml --set semi_vred.beta=0.5": "your own experiment, with one value changed",
        "evenfed compare @paper-cifar10 --quick": "a small version of an experiment of the paper",
        "evenfed compare --algorithms 'fedavg,semi_vred[beta=1,smooth=0.25]' --seeds 3": "only these entries",
        "evenfed compare mine.toml --quiet --format json > table.json": "the table as JSON, for a program",
        "evenfed compare mine.toml --device cuda:all": "one worker per GPU; --workers 4: processes",
        "evenfed compare mine.toml --cluster slurm:partition=gpu,gpus=1 --workers 8": "eight SLURM jobs; auto: Ray",
    },
    "watch": {
        "evenfed watch runs/demo": "while `evenfed compare` runs in another window",
        "evenfed watch runs/demo --port 0": "on any free port",
    },
    "new": {
        "evenfed new mine.toml": "runs as it is, on handwritten digits",
        "evenfed new mine.toml --data DIR --model net.Net": "your folder, and your model in net.py",
    },
    "experiments": {"evenfed experiments": "what `evenfed compare @NAME` can run"},
    "algorithms": {
        "evenfed algorithms": "all of them, one line each",
        "evenfed algorithms semi_vred": "formula, hyper-parameters and their dangers",
    },
    "report": {
        "evenfed report runs/demo": "the main table; all tables and figures go to runs/demo/report",
        "evenfed report runs/demo --full": "every table with every column",
        "evenfed report runs/demo/fedavg/seed-0": "one run, a row per client; also of a Flower run",
        "evenfed report runs/paper-cifar10 --paper": "next to the paper's numbers",
        "evenfed report runs/mine --format latex > table.tex": "for your paper",
    },
    "audit": {
        "evenfed audit clients.csv": "with columns such as client, accuracy, algorithm, seed, round",
        "evenfed audit clients.csv --baseline FedAvg --full": "every table",
        "evenfed audit results.parquet --metric test_loss --metric auc": "by two metrics",
        "evenfed audit logs --last-rounds 10": "TensorBoard's folder, averaged over the last ten steps",
    },
    "tune": {
        "evenfed tune mine.toml": "a grid, judged on a validation split",
        "evenfed tune mine.toml --method bayes --trials 30": "Bayesian search",
        "evenfed tune mine.toml --algorithms semi_vred --metric mean": "one entry, chosen by the mean",
        "evenfed tune mine.toml --workers 4 --batch 6": "by four processes, six candidates at a time",
    },
    "data list": {"evenfed data list": "known data sets, which are installed, terms of use"},
    "data fetch": {"evenfed data fetch cifar10": "resumes an interrupted download"},
    "data add": {"evenfed data add cifar10 cifar-10-binary.tar.gz": "a file that you already have"},
    "data verify": {"evenfed data verify": "all data sets in the cache", "evenfed data verify cifar10": "one"},
    "data show": {
        "evenfed data show digits --clients 20 --concentration 0.1": "sizes and classes of 20 clients",
        "evenfed data show folder --path DIR": "your own folder",
        "evenfed data show digits --out figures": "also as figures",
    },
    "flower new": {"evenfed flower new my-app": "a folder for `flwr run`"},
    "flower check": {
        "evenfed flower check my-app --sites 3": "data, model and one local step of three sites",
        "evenfed flower check my-app --run-config 'evenfed.lr=0.01'": "with one option changed",
    },
    "flower deploy-files": {
        "evenfed flower deploy-files --server fed.example.org --sites north,south,west": "in the folder deploy",
        "evenfed flower deploy-files --server 192.0.2.7:443 --sites 12 --out ours": "another port; twelve sites",
        "evenfed flower deploy-files --server fed.example.org --signed": "sites run only signed apps",
    },
    "flower sign": {"evenfed flower sign my-app --key release.key": "writes my-app.signature.json"},
    "flower admit": {"evenfed flower admit my-app.signature.json": "on the server"},
    "pack": {"evenfed pack runs/mine results/mine": "a file small enough to commit"},
    "choose": {
        "evenfed choose runs/search --out confirm.toml": "the best entry of each method",
        "evenfed choose runs/search --out confirm.toml --federations 3,4,5 --seeds 2": "confirms on other splits",
    },
    "fill": {
        "evenfed fill README.md": "bring its tables up to date",
        "evenfed fill README.md --check": "fail if one is out of date",
    },
}


def of(command: str) -> str:
    """The end of a command's help, which joins lines unless an empty one is between them."""
    lines = ["Examples:"]
    for typed, meaning in EXAMPLES[command].items():
        lines.append(f"[bold]{escape(typed)}[/]  [dim]# {escape(meaning)}[/]")
    return "\n\n".join(lines)
