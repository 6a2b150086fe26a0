"""What a plan is asked for, and what it says: facts without behaviour."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from lightning_hangcheck.planning.from_config.weights import Dtype, Sureness

GB = 10**9
"""Bytes of a GB, as accelerate reads ``"72GB"``; a GPU sold as 80 GB has a little more."""
SpeedClass = Literal["fast", "good", "acceptable", "slow", "too slow"]
SPEEDS: tuple[SpeedClass, ...] = get_args(SpeedClass)
"""The classes, the fastest first."""


class Extra(Struct, frozen=True):
    """A module kept beside the model: on the first GPU, or in main memory."""

    name: str
    size: int
    on_cpu: bool = False


class Machine(Struct, frozen=True, kw_only=True):
    """Where the model shall run.

    Attributes:
        gpus: Bytes of each GPU.
        cpu: Bytes of main memory that the weights may take.
        source: ``given``, or what found it.
    """

    gpus: tuple[int, ...]
    cpu: int
    source: str = "given"


class Use(Struct, frozen=True, kw_only=True):
    """What shall be done with the model.

    Attributes:
        dtype: Format of the weights.
        context: Tokens of prompt and answer together.
        batch: Sequences at a time.
        extras: What is kept beside it.
    """

    dtype: Dtype
    context: int
    batch: int = 1
    extras: tuple[Extra, ...] = ()


class Share(Struct, frozen=True, kw_only=True):
    """What one device holds.

    Attributes:
        device: ``0``, ``1``, ... for GPUs, ``cpu``, ``disk``.
        memory: Its bytes, 0 for the disk, whose room is not asked.
        limit: Bytes of weights that ``max_memory`` allows it.
        layers: Whole layers on it.
        weights: Bytes of weights on it.
        cache: Bytes of keys and values.
        activations: Bytes in flight.
        extras: Bytes of modules beside the model.
        headroom: Bytes left; below 0 it does not fit.
    """

    device: str
    memory: int = 0
    limit: int = 0
    layers: int = 0
    weights: int = 0
    cache: int = 0
    activations: int = 0
    extras: int = 0
    headroom: int = 0


class WayOut(Struct, frozen=True, kw_only=True):
    """A change that was planned too.

    Attributes:
        change: What to do, in words.
        outcome: What came of it, in words.
        fits: Whether nothing would be offloaded then.
        speed: The class then.
    """

    change: str
    outcome: str
    fits: bool
    speed: SpeedClass


class PhasePlan(Struct, frozen=True, kw_only=True):
    """What a phase comes to if the model is placed for it alone.

    Attributes:
        beside: Bytes kept beside the model then.
        least_left: Bytes left on the fullest device; below 0 it does not fit.
    """

    name: str
    context: int
    batch: int
    cache: int
    activations: int
    beside: int
    least_left: int
    speed: SpeedClass
    reason: str


class Plan(Struct, frozen=True, kw_only=True):
    """Whether a model fits, where its parts go, and how fast it will be.

    Attributes:
        model: As the user named it.
        parameters: Number of weights.
        sureness: How the weights were found; `source` says it in words.
        weights: Bytes of all weights in the format asked for; so are the following.
        extras: Bytes by name.
        shares: What each device holds; devices without a part are left out, but not GPUs.
        max_memory: Ready for ``from_pretrained``; keys of GPUs are their numbers.
        offloaded_layers: Layers that are not on a GPU, although there are GPUs.
        offloaded: Bytes of weights that are not on a GPU.
        seconds_per_token: About what one token takes, wherever the weights are; no measurement.
        seconds_per_pass: Least time to carry offloaded weights once, for each token; 0 if none.
        placed_by: Whose rules placed the layers.
        unused: What is paid for and stays empty, in words; nothing where that is little.
        notes: What was assumed, and how sure it is.
        phases: Each by itself; all else is that of the phase that needs the most.
        ways_out: Only where something is offloaded or does not fit.
    """

    model: str
    parameters: int
    sureness: Sureness
    source: str
    machine: Machine
    use: Use
    layers: int
    weights: int
    cache: int
    activations: int
    extras: dict[str, int]
    shares: tuple[Share, ...]
    max_memory: dict[str, str]
    offloaded_layers: int
    offloaded: int
    seconds_per_token: float
    seconds_per_pass: float
    speed: SpeedClass
    reason: str
    placed_by: str
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    phases: tuple[PhasePlan, ...] = ()
    ways_out: tuple[WayOut, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether everything is on GPUs (without any: in main memory) with room to spare."""
        enough = all(share.headroom >= 0 for share in self.shares)
        return enough and not self.offloaded and all(s.device != "disk" for s in self.shares)
