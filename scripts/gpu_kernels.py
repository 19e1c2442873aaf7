"""Which of Paddle's operations this project runs, and whether a GPU has a kernel for each.

    .venv/bin/python scripts/gpu_kernels.py > kernels.md
    .venv/bin/python scripts/gpu_kernels.py --record PYTHON

The operations are those that Paddle's profiler sees while tiny models are trained with every
mechanism, and translate in every way, and those in the programs of an export. The code takes the
way that it takes on a GPU, but Paddle computes on the CPU.

Kernels are registered per operation, device and data type. The wheel of paddlepaddle-gpu lists them
on a machine without a GPU, too. --record asks PYTHON, the Python of an environment of its own in
which paddlepaddle-gpu is installed, and writes what concerns this project to
scripts/gpu_kernels.json. Without --record, that file is read.

The table goes to stdout as Markdown. The exit code is 1 if a kernel is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import paddle

from transformer_mt import kernels
from transformer_mt.data.batches import Update
from transformer_mt.decoding.engine import Sentence
from transformer_mt.decoding.paddle_engine import PaddleEngine, engine_of
from transformer_mt.export.paddle_inference import write_model
from transformer_mt.kernels.gpu import GpuOperations
from transformer_mt.model import operations
from transformer_mt.training import examples

RECORD = Path(__file__).with_suffix(".json")
SEED = 1
DTYPES = ("float32", "float16", "bfloat16", "float64")
MECHANISMS = {
    "plain": {},
    "post-norm, dropout, clipping": {
        "model": {"dropout": 0.1, "attention_dropout": 0.1, "norm": "post"},
        "training": {"clip_norm": 0.01, "optimizer": "adam"},
    },
    "pre-norm, adamw, recompute": {
        "model": {"norm": "pre"},
        "training": {"optimizer": "adamw", "weight_decay": 0.1, "recompute": True},
    },
    "without biases, not tied": {"model": {"bias": False, "tie_embeddings": False}},
    # Autocasting casts nothing on a CPU, but the loss is scaled.
    "float16": {"training": {"precision": "float16"}},
    "copying": {"model": {"copying": True}},
    "guided attention, diagonal": {"guided_attention": {"by": "diagonal"}},
    "guided attention, alignment": {
        "guided_attention": {"by": "alignment", "alignments": "links", "weight": 1.0}
    },
    **{
        f"scheduled sampling, {mixing}": {
            "scheduled_sampling": {
                "decay": "linear", "k": 0.5, "mixing": mixing, "backpropagate": mixing == "top_k",
            }
        }
        for mixing in ("argmax", "sampled", "top_k")
    },
    "non-autoregressive, length": {"model": {"non_autoregressive": "length"}},
    "non-autoregressive, end": {"model": {"non_autoregressive": "end"}},
}  # fmt: skip
# Those whose models decode with operations of their own; how they were trained does not matter.
SEARCHED = ("plain", "copying", "non-autoregressive, length", "non-autoregressive, end")
SEARCHES = {
    "beam": {"beam_size": 4},
    "greedy": {"beam_size": 1},
    "sampling": {"sampling": True},
    "sampling, top_k": {"sampling": True, "top_k": 5},
    "sampling, top_p": {"sampling": True, "top_p": 0.9},
}
# Instructions of an exported program that compute nothing.
STRUCTURE = {"data", "fetch", "full_int_array", "builtin.combine", "builtin.parameter"}
# Operations of a model that never get half precision, and why.
FLOAT32_ONLY = {"any": "it reads a mask"}
# Operations that the wheel does not know, and what says that a GPU has them.
NEWER = {
    "masked_fill": "Paddle 3.3.1 documents float32, float64, float16, bfloat16 and integers",
    "masked_fill_grad": "the gradient of masked_fill",
    "div_scale": "a number divided by a tensor, since Paddle 3; in float32 or float64",
    "shape64": "the shape of a tensor, since Paddle 3; in an exported program only",
}
# Operations whose kernels the profiler does not see, by their nodes of the backward pass, which it
# does see. Found by comparing it with Paddle's log (GLOG_v=6).
UNSEEN = {"EmbeddingGradNode": "embedding_grad"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", metavar="PYTHON", help="read the kernels with this Python")
    options = parser.parse_args()
    used = operations_used()
    if options.record:
        record(options.record, used)
    table, missing = report(used, json.loads(RECORD.read_text("utf-8")))
    print(table)
    for line in missing:
        print(line, file=sys.stderr)
    return 1 if missing else 0


# ---- What is run ----


def operations_used() -> dict[str, set[str]]:
    """Returns the operations, each with what runs it: "model" is what autocasting sees, the forward
    and backward pass of a model; "training", "decoding" and "export" are everything there."""
    paddle.set_device("cpu")
    used: dict[str, set[str]] = defaultdict(set)
    with as_on_a_gpu():
        for name, sections in MECHANISMS.items():
            for what, run in (("model", model_passes), ("training", updates)):
                for operation in traced(partial(run, updater_of(sections))):
                    used[operation].add(what)
            if name in SEARCHED:
                for operation in traced(partial(searches, sections)):
                    used[operation].add("decoding")
    for operation in exported():
        used[operation].add("export")
    return dict(used)


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """A block in which the code treats every tensor as if it were on a GPU."""
    plain, choose = operations.is_on_cpu, kernels.choose
    operations.is_on_cpu = lambda x: False
    kernels.choose = lambda: operations.use(OnAGpu())
    try:
        yield
    finally:
        operations.is_on_cpu, kernels.choose = plain, choose


class OnAGpu(GpuOperations):
    """The operations for a GPU, whose tensors are on the CPU."""

    to_tensor = operations.Operations.to_tensor
    sent_ahead = operations.Operations.sent_ahead


def updater_of(sections: dict) -> object:
    return examples.make_updater(examples.make_config(**sections))


def small_update(seed: int) -> Update:
    """An update whose batches have alignments, which guided attention reads."""
    update = examples.make_update(seed)
    batches = [
        replace(batch, alignment=np.ones((*batch.target_output.shape, batch.source.shape[1]), "f4"))
        for batch in update.batches
    ]
    return replace(update, batches=batches)


def model_passes(updater) -> None:
    """The forward and backward pass of the model alone."""
    model = updater.model
    model.train()
    batch = small_update(SEED).batches[0]
    source, target = paddle.to_tensor(batch.source), paddle.to_tensor(batch.target_input)
    need_weights = updater.config.layers_read_by_the_loss
    found = model.logits(target, model.encode(source), source, need_weights=need_weights)
    logits, weights = found if need_weights else (found, [])
    total = logits.sum()
    for own in weights:
        if own is not None:
            total = total + own.sum()
    total.backward()


def updates(updater) -> None:
    for step in (1, 2):
        updater.apply(small_update(step), step)


def searches(sections: dict) -> None:
    """Makes a model, and translates with it in every way, with one model and with two, with
    prefixes; scores and aligns."""
    updater = updater_of(sections)
    engine = engine_of([updater.model], examples.make_subwords())
    sources = examples.make_sources(SEED, 4)
    sentences = [Sentence(source, source[:1], number) for number, source in enumerate(sources)]
    decoding = updater.config.decoding
    if updater.config.model.non_autoregressive:
        engine.search([Sentence(source) for source in sources], decoding)
        return
    engines = [engine, PaddleEngine([updater.model] * 2, examples.make_subwords())]
    for own in engines:
        for search in SEARCHES.values():
            own.search(sentences, decoding.model_copy(update=search))
        own.log_probs(sources, sources)
        own.cross_attention(sources, sources)


def traced(run: Callable[[], None]) -> set[str]:
    """The operations whose kernels a function launches, by the names of Paddle's profiler."""
    suffix = " kernel launch"
    profiler = paddle.profiler.Profiler(
        targets=[paddle.profiler.ProfilerTarget.CPU], on_trace_ready=lambda profiler: None
    )
    profiler.start()
    run()
    profiler.stop()
    found = set()

    def visit(node) -> None:
        if node.name.endswith(suffix):
            found.add(node.name.removesuffix(suffix))
        found.update(UNSEEN[name] for name in UNSEEN if node.name.endswith(f"_{name}"))
        for child in node.children_node:
            visit(child)

    for root in profiler.profiler_result.get_data().values():
        visit(root)
    return found


def exported() -> set[str]:
    """The operations of the programs of an export for Paddle Inference."""
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        updater = updater_of({})
        write_model(Path(folder), updater.model, updater.config, examples.make_subwords())
        paddle.enable_static()
        try:
            executor = paddle.static.Executor(paddle.CPUPlace())
            for path in Path(folder).glob("*.json"):
                program, *_ = paddle.static.load_inference_model(
                    str(path.with_suffix("")), executor
                )
                for operation in program.global_block().ops:
                    found.add(operation.name().removeprefix("pd_op."))
        finally:
            paddle.disable_static()
    return found - STRUCTURE


# ---- What a GPU has ----


def record(python: str, used: dict[str, set[str]]) -> None:
    """Writes scripts/gpu_kernels.json: the data types of the GPU's kernels of each operation, or
    null for an operation that the wheel does not know."""
    code = """
import json, zlib, paddle
kernels = paddle.base.core._get_registered_phi_kernels("function")
print(json.dumps({"version": paddle.__version__, "kernels": kernels}))
"""
    done = subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{python}: it can't list the kernels: {done.stderr[-500:]}")
    listed = json.loads(done.stdout.strip().split("\n")[-1])
    kernels = {}
    for operation in sorted(used):
        own = listed["kernels"].get(operation)
        kernels[operation] = None if own is None else sorted(dtypes_on_a_gpu(own))
    content = {"wheel": f"paddlepaddle-gpu {listed['version']}", "kernels": kernels}
    RECORD.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def dtypes_on_a_gpu(kernels: list[str]) -> set[str]:
    """Returns the dtypes of the kernels "(backend, layout, dtype)" for a GPU, with or without
    cuDNN."""
    listed = (kernel.strip("()").split(", ") for kernel in kernels)
    return {dtype for backend, _, dtype in listed if backend in ("GPU", "GPUDNN")}


# ---- What is missing ----


def report(used: dict[str, set[str]], recorded: dict) -> tuple[str, list[str]]:
    """Returns the table, and a line for each kernel that is missing."""
    lines = [
        f"{len(used)} operations; the kernels of {recorded['wheel']}.",
        "",
        f"| operation | run by | {' | '.join(DTYPES)} |",
        f"| --- | --- |{' --- |' * len(DTYPES)}",
    ]
    missing = []
    for operation, users in sorted(used.items()):
        dtypes = recorded["kernels"].get(operation)
        row = f"| {operation} | {', '.join(sorted(users))} |"
        if problem := problem_of(operation, users, recorded["kernels"]):
            missing.append(f"{operation} ({', '.join(sorted(users))}): {problem}")
        if dtypes is None:
            lines.append(f"{row} {NEWER.get(operation, 'unknown')} |" + " |" * (len(DTYPES) - 1))
        else:
            marks = ("yes" if dtype in dtypes else "–" for dtype in DTYPES)
            lines.append(f"{row} {' | '.join(marks)} |")
    return "\n".join(lines), missing


def problem_of(operation: str, users: set[str], kernels: dict[str, list[str] | None]) -> str | None:
    """Returns what is missing for an operation on a GPU, or None."""
    if operation not in kernels:
        return "it is not in the record. Run scripts/gpu_kernels.py --record PYTHON"
    dtypes = kernels[operation]
    if dtypes is None:
        return None if operation in NEWER else "the wheel does not know it. See NEWER"
    if not dtypes:
        return "it has no kernel for a GPU"
    is_floating = any(dtype.startswith(("float", "bfloat")) for dtype in dtypes)
    if not is_floating:  # of integers or bools
        return None
    needed = ["float32"]
    if "model" in users and operation not in FLOAT32_ONLY:
        needed += ["float16", "bfloat16"]
    lacking = [dtype for dtype in needed if dtype not in dtypes]
    return f"a GPU has no kernel for {' and '.join(lacking)}" if lacking else None


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    np.random.seed(SEED)
    sys.exit(main())
