"""Every form in which a user may name an algorithm, and the mistakes that are refused."""

from dataclasses import InitVar, dataclass

import pytest
import torch

import evenfed
from evenfed import InputError, algorithms
from evenfed.algorithms import FedAvg, SemiVRed
from evenfed.comparison.variants import Variant, parse_list, with_baseline
from evenfed.core.algorithm import Algorithm, Plan, hyper
from evenfed.testing import check_algorithm


@dataclass(frozen=True)
class Leaning(Algorithm):
    """The mean loss and a part of the highest."""

    lean: float = hyper(0.5, "part of the highest", least=0, reason="it is a part", fedavg=0, grid=(0.1, 0.5))
    sums_to_one = False

    def objective(self, losses, shares):
        return shares @ losses + self.lean * losses.max()


class Undecorated(Algorithm):
    lean: float = hyper(0.5, "part of the highest")

    def objective(self, losses, shares):
        return shares @ losses + self.lean * losses.max()


def clients() -> list[evenfed.Client]:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(6, 4, generator=draw), torch.randint(0, 3, (6,), generator=draw)) for _ in range(3)]
    return [evenfed.Client(pair, pair) for pair in data]


def compared(entries) -> evenfed.Comparison:
    model = torch.nn.Linear(4, 3)
    return evenfed.compare(model, clients(), entries, seeds=1, noise_floor=False, rounds=1, device="cpu")


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is forgotten."""
    known = dict(algorithms._all())
    monkeypatch.setattr(algorithms, "_all", lambda: known)
    return known


def test_classes_and_several_instances_get_labels_of_their_own():
    found = compared([SemiVRed, SemiVRed(beta=0.5), SemiVRed(beta=1, safe=0.5), Leaning])
    labels = ["fedavg", "semi_vred", "semi_vred[beta=0.5]", "semi_vred[beta=1.0,safe=0.5]", "leaning"]
    assert list(found.results) == labels
    assert found.results["semi_vred[beta=0.5]"][0].algorithm == SemiVRed(beta=0.5)
    with pytest.raises(InputError, match="occurs twice"):
        compared([SemiVRed(), SemiVRed])


@pytest.mark.parametrize("one", [Leaning, Leaning(lean=0.1), Variant.parse("term")])
def test_one_entry_needs_no_list(one):
    assert len(compared(one).results) == 2


def test_an_instance_beside_options_of_the_run():
    found = compared({"damped": {"algorithm": Leaning(lean=1), "smooth": 0.1, "lr": 0.2}})
    result = found.results["damped"][0]
    assert (result.algorithm, result.settings.smooth, result.settings.lr) == (Leaning(lean=1), 0.1, 0.2)
    unlabelled = Variant.of_entry({"algorithm": SemiVRed(beta=1), "smooth": 0.1})
    assert unlabelled.label == "semi_vred[beta=1.0,smooth=0.1]"
    assert Variant.parse(unlabelled.label) == unlabelled
    changed = Variant.of_entry({"algorithm": Leaning, "lean": 2, "server_optimizer": {"name": "adam"}})
    assert changed.label == "leaning[lean=2.0,server_optimizer=adam]" and changed.algorithm == Leaning(lean=2)
    assert changed.changed("lean", 3).algorithm == Leaning(lean=3)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("q-ffl", "qffl"),
        ("q-FedAvg", "qffl"),
        ("TERM", "term"),
        ("Semi-VRed", "semi_vred"),
        ("SemiVRed", "semi_vred"),
        ("fedmgda+", "fedmgda"),
        ("delta-fl", "delta_fl"),
        ("Δ-FL", "delta_fl"),
        ("GiFair-FL", "gifair"),
        ("FedFV", "fedfv"),
    ],
)
def test_names_in_any_spelling_keep_their_label(written, name):
    variant = Variant.parse(written)
    assert (variant.algorithm.name, variant.label) == (name, written)
    assert algorithms.find(written).name == name


def test_fedavg_in_any_spelling_is_the_baseline():
    variants = with_baseline([Variant.parse("Semi-VRed"), Variant.parse("FedAvg")])
    assert [variant.label for variant in variants] == ["fedavg", "Semi-VRed"]


def test_fedprox_is_fedavg_with_a_pull():
    for variant in (Variant.parse("fedprox[mu=0.1]"), Variant.of("FedProx", {"mu": 0.1})):
        assert variant.algorithm == FedAvg() and variant.options == {"prox": 0.1}
    assert variant.changed("mu", 0.3).options == {"prox": 0.3} and variant.label == "FedProx"
    entries = ["fedprox[mu=0.7]", "fedavg[prox=0.7,local_epochs=3]", "fedprox[mu=0.7,local_epochs=3]"]
    results = compared({f"own {number}": entry for number, entry in enumerate(entries)}).results
    plain, prox, same = (results[label][0].model.weight for label in list(results)[1:])
    assert torch.equal(prox, same) and not torch.equal(prox, plain)
    with pytest.raises(InputError, match=r"write e.g. fedprox\[mu=0.1\]"):
        Variant.parse("fedprox")
    with pytest.raises(InputError, match="are the same option"):
        Variant.parse("fedprox[mu=0.1,prox=0.2]")


def test_a_registered_algorithm_is_known_by_name(registry):
    assert evenfed.register(Leaning) is Leaning
    assert algorithms.find("Leaning") is Leaning and "leaning" in algorithms.names()
    assert Variant.parse("leaning[lean=0.1]").algorithm == Leaning(lean=0.1)
    assert evenfed.register(Leaning) is Leaning  # again, as in a notebook

    @evenfed.register(name="other_way")
    @dataclass(frozen=True)
    class OtherWay(Algorithm):
        def objective(self, losses, shares):
            return losses.max()

    assert list(compared(["other-way"]).results) == ["fedavg", "other-way"] and OtherWay.name == "other_way"


def test_what_cannot_be_registered(registry):
    @dataclass(frozen=True)
    class Mine(Algorithm):
        name = "fedavg"

    with pytest.raises(InputError, match=r"'fedavg' is evenfed.algorithms.fedavg.FedAvg already"):
        evenfed.register(Mine)
    with pytest.raises(InputError, match="cannot be used"):
        evenfed.register(Mine, name="a[b]")
    with pytest.raises(InputError, match="not a subclass of Algorithm"):
        evenfed.register(dict)


def test_a_spelling_of_two_algorithms_names_both(registry):
    evenfed.register(dataclass(frozen=True)(type("SemiVRed", (Algorithm,), {"__module__": __name__})))
    assert algorithms.find("semivred").__module__ == __name__ and algorithms.find("semi_vred") is SemiVRed
    with pytest.raises(InputError, match="may be semi_vred and semivred"):
        algorithms.find("Semi-VRed")


@pytest.mark.parametrize(
    "use",
    [
        Undecorated,
        lambda: Undecorated(lean=0.1),
        lambda: evenfed.register(Undecorated),
        lambda: compared([Undecorated]),
        lambda: Variant.of_entry({"algorithm": Undecorated, "lean": 1}),
        lambda: check_algorithm(object.__new__(Undecorated)),
    ],
)
def test_a_forgotten_dataclass_is_named(use):
    with pytest.raises(InputError, match=r"Undecorated declares lean .* write @dataclass\(frozen=True\)"):
        use()


def with_init(self, beta=1.0):
    object.__setattr__(self, "beta", beta)


def with_late_init(self, beta):
    object.__setattr__(self, "kept", beta)


def own(parent, *, dataclass_too=False, **attributes):
    """A class of the user's own."""
    cls = type("Mine", (parent,), {"__module__": __name__, **attributes})
    return dataclass(frozen=True)(cls) if dataclass_too else cls


INIT_VAR = {"__annotations__": {"beta": InitVar[float]}, "beta": 1.0, "__post_init__": with_late_init}


@pytest.mark.parametrize(
    "cls",
    [
        own(Algorithm, __init__=with_init),
        own(Algorithm, __init__=with_init, dataclass_too=True),
        own(SemiVRed, __init__=with_init),
        own(own(Algorithm, __init__=with_init)),
        own(Algorithm, **INIT_VAR, dataclass_too=True),
    ],
)
def test_an_init_that_knows_what_the_fields_do_not_is_refused(cls):
    for use in (lambda: cls(5.0), lambda: compared([cls]), lambda: check_algorithm(object.__new__(cls))):
        with pytest.raises(InputError, match=r"Mine has __init__\(beta\), .* write @dataclass\(frozen=True\)"):
            use()


@pytest.mark.parametrize(
    "cls",
    [
        own(SemiVRed, beta=2.0),
        own(SemiVRed, beta=2.0, dataclass_too=True),
        own(own(SemiVRed, beta=2.0)),
        own(SemiVRed, beta=2.0, __annotations__={"beta": "ClassVar[float]"}),
    ],
)
def test_a_default_that_no_instance_would_have_is_refused(cls):
    with pytest.raises(InputError, match=r"sets beta without a type, .* Mine\(beta=\.\.\.\), or declare it again"):
        cls()


def test_defaults_declared_again_and_constants_that_became_fields_are_accepted():
    typed = {"__annotations__": {"beta": float}, "beta": 2.0}
    stronger = own(SemiVRed, **typed, dataclass_too=True)
    assert stronger().beta == 2.0 and own(stronger)(beta=3.0).beta == 3.0
    assert own(own(Algorithm, beta=1.0), **typed, dataclass_too=True)().beta == 2.0


def highest(self, losses, shares):
    return losses.max()


@pytest.mark.parametrize("parent", [Algorithm, SemiVRed])
@pytest.mark.parametrize(
    ("written", "value", "meant"),
    [
        ("objectve", highest, "objective"),
        ("Objective", highest, "objective"),
        ("paln", highest, "plan"),
        ("rescaled", highest, "rescale"),
        ("localLoss", staticmethod(len), "local_loss"),
        ("need", "norms", "needs"),
        ("sum_to_one", False, "sums_to_one"),
    ],
)
def test_a_misspelt_hook_is_told_its_name(parent, written, value, meant):
    misspelt = own(parent, dataclass_too=True, **{written: value})
    helped = own(misspelt)
    for use in (misspelt, helped, lambda: compared([misspelt]), lambda: check_algorithm(object.__new__(misspelt))):
        with pytest.raises(InputError, match=f"Mine.{written}: .* did you mean '{meant}'.* underscore: _{written}"):
            use()


def test_helpers_keep_their_names():
    beside_a_hook = own(Algorithm, objective=highest, objectives=highest, _plan=highest)
    unlike_any = own(Algorithm, total_loss=highest, weights=highest, mixed=highest, explain=highest, max=highest)
    assert beside_a_hook().objectives and unlike_any().total_loss
    hyper_parameter = own(Algorithm, dataclass_too=True, __annotations__={"need": float}, need=1.0)
    assert hyper_parameter(2.0).need == 2.0


def test_an_algorithm_without_any_hook_is_said_to_be_fedavg():
    for cls in (own(Algorithm), own(Algorithm, total_loss=highest), own(Algorithm, describe=lambda self: {})):
        with pytest.raises(AssertionError, match=r"neither `objective` nor another method .* trains FedAvg"):
            check_algorithm(cls())
    check_algorithm(own(FedAvg)())


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        (lambda self, losses, shares: 1.5, r"gave 1.5, which does not depend on `losses`"),
        (lambda self, losses, shares: losses.detach().max().item(), r"gave [\d.]+, which does not depend on `losses`"),
        (lambda self, losses, shares: losses.detach().max(), r"gave tensor\([\d.]+\), .* without float\(\), .item\(\)"),
        (lambda self, losses, shares: torch.ones(1, requires_grad=True).sum(), r"gave tensor\(1\), which does not"),
        (lambda self, losses, shares: shares * losses, r"gave a tensor of shape \[\d\]; return one number"),
        (lambda self, losses, shares: None, r"gave None; return one number, .* e.g. `shares @ losses`"),
    ],
)
def test_an_objective_whose_gradient_cannot_be_taken_is_told(objective, told):
    cls = own(Algorithm, objective=objective)
    for use in (lambda: compared([cls]), lambda: check_algorithm(cls())):
        with pytest.raises(InputError, match=rf"mine: objective\(losses, shares\) {told}"):
            use()


@pytest.mark.parametrize(
    ("name", "hook", "signature"),
    [
        ("objective", lambda self, losses: losses.mean(), r"objective\(self, losses, shares\): too many"),
        ("plan", lambda self, round: None, r"plan\(self, round, memory\)"),
        ("local_loss", lambda self, loss, extra: loss, r"local_loss\(self, loss\): missing a required"),
    ],
)
def test_a_hook_that_does_not_take_its_arguments_is_told(name, hook, signature):
    cls = own(Algorithm, **{name: hook})
    for use in (lambda: compared([cls]), lambda: check_algorithm(cls())):
        with pytest.raises(InputError, match=rf"\.{name} is called as {signature}"):
            use()
    assert own(Algorithm, objective=lambda self, *parts: parts[0].mean())()


def test_weights_that_are_not_finite_from_the_start_are_told():
    cls = own(Algorithm, objective=lambda self, losses, shares: (shares * (losses - 1e9).sqrt()).sum())
    with pytest.raises(InputError, match="mine: the weights are not finite in round 1, from finite losses"):
        compared([cls])


def test_an_objective_that_falls_with_the_losses_is_told():
    cls = own(Algorithm, objective=lambda self, losses, shares: -(shares @ losses))
    with pytest.warns(UserWarning, match="broke down.* Try an objective that grows with the clients' losses"):
        compared([cls])


def test_a_model_function_that_takes_arguments_is_told():
    for make in (lambda seed: torch.nn.Linear(4, 3), torch.nn.Linear):
        with pytest.raises(InputError, match="model cannot be called without arguments"):
            evenfed.compare(make, [evenfed.Client((torch.ones(2, 4), torch.zeros(2).long()))], ["fedavg"])


def test_an_objective_beside_a_plan_must_be_one_number():
    def plan(self, round, memory):
        return Plan(round.ids, round.shares), memory

    check_algorithm(own(Algorithm, plan=plan, objective=lambda self, losses, shares: float(losses.max()))())
    with pytest.raises(InputError, match=r"gave a tensor of shape \[\d\]; return one number"):
        check_algorithm(own(Algorithm, plan=plan, objective=lambda self, losses, shares: torch.ones(2))())


def test_a_class_without_hyper_parameters_needs_no_decorator():
    class Bare(Algorithm):
        reference = "nobody"

        def objective(self, losses, shares):
            return losses.max()

    assert list(compared([Bare]).results) == ["fedavg", "bare"]


@pytest.mark.parametrize("wrong", [3, dict, {"smooth": 0.1}, {"algorithm": 3}, [SemiVRed]])
def test_what_is_no_algorithm_is_refused(wrong):
    with pytest.raises(InputError):
        Variant.of_entry(wrong)


def test_a_file_entry_is_chosen_in_any_spelling():
    known = [Variant.parse("fedavg"), Variant.of("semi_vred", {"beta": 1})]
    chosen = parse_list("FedAvg,Semi-VRed,TERM", known)
    assert [variant.label for variant in chosen] == ["fedavg", "semi_vred", "TERM"]
    assert chosen[1].algorithm == SemiVRed(beta=1)
