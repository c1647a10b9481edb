"""A run of `Fair` on disk: begun with its first server, gone on with from where it was left."""

from dataclasses import dataclass
from typing import Any

from ..comparison.header import Header, Table
from ..core.server import Record, Server
from ..simulate.state import State
from .holding import Holding
from .journal import AboutClients, Journal
from .remembering import Losses, clients_of, notes_of, recall, recall_names, restored
from .resting import Resting
from .strangers import Keys, Strangers

ENGINE = "flower: clients of their own"


@dataclass
class Keeping:
    """What of the server and its clients goes into the journal."""

    journal: Journal
    strangers: Strangers
    holding: Holding
    keys: Keys
    resting: Resting
    drawn: Table  # who is asked, and how often
    has_begun: bool = False

    def stand(self) -> Losses:
        """Where the run was left, if it was begun before; returns the losses known of the current model."""
        journal = self.journal
        if journal.is_finished(self._config()):
            self.holding.stand(journal.ended_state().server)
            recall_names(self.strangers, journal.clients)
            return {}
        notes = journal.kept_notes()
        if not notes:
            return {}
        recall(self.strangers, notes)
        self.resting.recall(notes)
        fresh = self.holding.sized(self.strangers.counts())
        server, losses = restored(self.begin(fresh))
        self.holding.stand(server)
        return losses

    def begin(self, server: Server) -> State:
        """Begin the journal; where the run stands after that."""
        self.has_begun = True
        about = self._about()
        header = Header(
            label=self.journal.run.label,
            seed=self.journal.run.settings.seed,
            config=self._config(),
            clients=clients_of(self.strangers),
            device="the clients' own",
            metric=about.metric.recorded,
        )
        return self.journal.begin(header, State(server), ENGINE, about)

    def after_round(self, record: Record, losses: Losses) -> None:
        """Write the round down; one before any client has replied waits until there is a server."""
        server = self.holding.server
        if server is None:
            self.journal.postpone(record)
            return
        self.journal.clients = clients_of(self.strangers)
        self.journal.about = self._about()
        notes = notes_of(server, self.strangers, losses) | self.resting.notes()
        self.journal.after_round(record, server, notes)

    def _about(self) -> AboutClients:
        """As callbacks see them."""
        names = [self.strangers.name(position) for position in range(len(self.strangers.sizes))]
        return AboutClients(names, self.keys.metric)

    def _config(self) -> dict[str, Any]:
        """All that decides the result, as far as the server does."""
        run = self.journal.run
        listed = self.strangers.door.listed
        places = {} if listed is None else {"sites": len(listed)}
        return {
            "data": {"name": "flower"},
            "model": {"parameters": len(self.holding.current.theta)},
            "algorithm": run.algorithm.name,
            "hyper_parameters": run.algorithm.describe(),
            "train": run.settings.describe(),
            "fair": {
                **self.drawn,
                **places,
                "loss_from": self.keys.loss,
                "loss_in": self.keys.loss_in,
                "size_from": self.keys.size,
                "score_from": self.keys.score,
                "local_steps": self.holding.local_steps,
                "buffers": list(self.holding.buffers),
            },
            **self.journal.decides,
        }
