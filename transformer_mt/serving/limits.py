"""What the service accepts, so that no client can take all of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of the service.

    Attributes:
        max_body: the bytes of a request.
        max_lines: the lines of a request.
        max_subwords: the subwords of a request, of all its lines together.
        max_waiting: the sentences, of all requests together, that may wait for a model.
        max_batch: the sentences that are translated together. 1 translates each alone.
        timeout: the seconds that a request may take, from its last byte to its answer.
    """

    max_body: int = 1 << 20
    max_lines: int = 1_000
    max_subwords: int = 50_000
    max_waiting: int = 2_000
    max_batch: int = 64
    timeout: float = 60.0
