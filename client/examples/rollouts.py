"""200 rollouts of several steps each, in one run: what a training job does with Sandman.

    python client/examples/rollouts.py [--rollouts 200] [--concurrency 50] [--steps 4]

Each rollout gets a sandbox of its own, writes a small program, runs it step by step, and reads the reward back from a file. A
semaphore bounds how many are alive at once; the run owns all of them, so whatever happens to this process (an exception, Ctrl-C,
kill -9), the service takes every sandbox back. Failures of the infrastructure are told apart from the task's own, because a
reward must not be learned from the former.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import sandman

PROGRAM = """
import json, pathlib, sys
state = pathlib.Path("state.json")
numbers = json.loads(state.read_text()) if state.exists() else []
numbers.append(int(sys.argv[1]))
state.write_text(json.dumps(numbers))
print("step", len(numbers), "sum", sum(numbers), flush=True)
pathlib.Path("reward.txt").write_text(str(sum(numbers)))
"""


@dataclass
class Figures:
    outcomes: Counter[str] = field(default_factory=Counter)
    ready_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)


async def rollout(run: sandman.AsyncRun, number: int, steps: int, figures: Figures) -> float:
    started = time.monotonic()
    async with run.create(labels={"rollout": str(number)}) as sandbox:
        figures.ready_seconds.append(time.monotonic() - started)
        await sandbox.files.write("program.py", PROGRAM)
        for step in range(steps):
            begun = time.monotonic()
            result = await sandbox.exec(["python3", "program.py", str(number + step)], timeout=60)
            figures.step_seconds.append(time.monotonic() - begun)
            if not result.ok:
                raise RuntimeError(f"step {step} ended with {result.exit_code}: {result.stderr[-200:]}")
        return float(await sandbox.files.read_text("reward.txt"))


async def attempt(
    run: sandman.AsyncRun, gate: asyncio.Semaphore, number: int, steps: int, figures: Figures
) -> None:
    async with gate:
        try:
            reward = await rollout(run, number, steps, figures)
            expected = sum(number + step for step in range(steps))
            figures.outcomes["done" if reward == expected else "wrong reward"] += 1
        except sandman.SandmanError as error:
            # cause "infra": mask the rollout; "task": it counts as the policy's own failure.
            figures.outcomes[f"{error.cause}: {type(error).__name__}"] += 1
        except RuntimeError:
            figures.outcomes["task: failed step"] += 1


async def report_progress(total: int, figures: Figures) -> None:
    while True:
        await asyncio.sleep(1)
        print(f"  {figures.outcomes.total()}/{total} rollouts, {len(figures.step_seconds)} steps", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    figures = Figures()
    started = time.monotonic()
    async with sandman.AsyncClient() as client, client.run("rollouts", lease_seconds=30) as run:
        progress = asyncio.create_task(report_progress(options.rollouts, figures))
        gate = asyncio.Semaphore(options.concurrency)
        async with asyncio.TaskGroup() as group:
            for number in range(options.rollouts):
                group.create_task(attempt(run, gate, number, options.steps, figures))
        progress.cancel()
    seconds = time.monotonic() - started
    print(
        f"{options.rollouts} rollouts x {options.steps} steps in {seconds:.1f} s "
        f"({options.rollouts / seconds:.1f} rollouts/s): {dict(figures.outcomes)}; "
        f"ready p50 {middle(figures.ready_seconds):.2f} s, step p50 {middle(figures.step_seconds) * 1000:.0f} ms"
    )
    return 0 if figures.outcomes["done"] == options.rollouts else 1


def middle(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
