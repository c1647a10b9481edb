"""The state of `Fair`: a model known by its arrays, and a server that grows with the clients it meets."""

import dataclasses
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from ...core.algorithm import Algorithm
from ...core.average import Average, ModelState
from ...core.errors import InputError
from ...core.guard import bounded
from ...core.scalars import is_number
from ...core.server import Server, Update
from ...core.server_step import with_model
from ...settings import Settings
from ..array_layout import ArrayLayout


class FairState:
    """The model, and the server once a client's size is known."""

    def __init__(
        self,
        algorithm: Algorithm,
        settings: Settings,
        local_steps: int | None,
        lr_is_given: bool,
        buffers: Iterable[str],
    ) -> None:
        self.algorithm = algorithm
        self.settings = settings
        self.local_steps = local_steps
        self.lr_is_given = lr_is_given
        self.buffers = buffers  # patterns of names that are not trained
        self.server: Server | None = None
        self.average_before: Average | None = None
        self.skipped = 0  # rounds before there was a server
        self._layout: ArrayLayout | None = None
        self._first: ModelState | None = None  # until there is a server
        self._arrays: ArrayRecord | None = None

    @property
    def layout(self) -> ArrayLayout:
        assert self._layout is not None
        return self._layout

    @property
    def arrays(self) -> ArrayRecord:
        if self._arrays is None:
            raise InputError("the strategy has not begun; call start(grid, initial_arrays)")
        return self._arrays

    @property
    def current(self) -> ModelState:
        if self.server is not None:
            return self.server.current
        assert self._first is not None
        return self._first

    @property
    def deployed(self) -> ArrayRecord:
        if self.server is None or self.settings.average is None:
            return self.arrays
        return self.layout.arrays(self.server.deployed)

    def adopt(self, arrays: ArrayRecord) -> bool:
        """Continue from the model that Flower holds: the first one, or ours with noise. True if not ours."""
        if arrays is self._arrays:
            return False
        if self._layout is None:
            self._layout = ArrayLayout.by_pattern(arrays, self.buffers)
        model = self._layout.read(arrays)
        self._arrays = arrays
        if self.server is None:
            self._first = model
            return True
        self.server = with_model(self.server, model, self.average_before)
        return True

    def restore(self, server: Server) -> None:
        self.server = server
        self._arrays = self.layout.arrays(server.current)

    def advance(self, server: Server, skipped: bool) -> None:
        if self.server is not None and not skipped:
            self.average_before = self.server.average
        self.server = server
        self._arrays = self.layout.arrays(server.current)

    def update(self, position: int, trained: ModelState) -> Update:
        theta = self.current.theta
        rows = {name: values[None] for name, values in trained.buffers.items()}
        return Update(position, theta - trained.theta.to(theta), buffers=rows)

    def sized(self, sizes: Tensor) -> Server:
        """The server over all clients [n], of which some are new."""
        if self.server is not None:
            self.server = self.server.with_sizes(sizes)
            return self.server
        settings = self.settings
        first = self.current
        clients = len(sizes)
        server = Server.start(
            self.algorithm,
            first.theta,
            [1] * clients,
            lr=settings.lr,
            seed=settings.seed,
            server_lr=settings.server_lr,
            local_steps=[self.local_steps or 1] * clients,
            smooth=settings.smooth,
            average=settings.average,
            optimizer=settings.optimizer_factory(),
            buffers=first.buffers,
            guard=settings.guarding(),
        )
        counted, oversized = bounded(server.guard, sizes)
        self.server = dataclasses.replace(
            server,
            layout=self.layout.layout,
            sizes=counted,
            memory=self.algorithm.init(counted / counted.sum()),
            oversized=oversized,
            index=self.skipped,
        )
        return self.server

    def set_rate(self, config: ConfigRecord) -> None:
        """The clients' learning rate, where the step needs it: as given, or in the configuration that clients get."""
        needed = self.algorithm.needs == "norms" or self.algorithm.needs_path
        if self.lr_is_given or not needed:
            return
        lr = config.get("lr")
        if not is_number(lr) or not lr > 0:
            raise InputError(
                f"the step of {self.algorithm.name} needs the clients' learning rate; give Fair(lr=...), or 'lr' in "
                "train_config"
            )
        self.settings = dataclasses.replace(self.settings, lr=float(lr))
        if self.server is not None:
            self.server = dataclasses.replace(self.server, lr=float(lr))
