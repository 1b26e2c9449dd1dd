"""What the adaptive width does under a cost model: a table over acceptance ratios and costs.

    python benchmarks/adaptive_grid.py [--tokens 4096] [--seeds 2] [--noise 0.1] [--json FILE]

Each line is a decode on the scripted runtime: acceptance of every depth (``0.3>0.8``: it changes after an eighth of the tokens), cost of
one more row, of a head step, and of a span as such, in serial steps; then the best fixed width in hindsight and its speed against serial,
the adaptive width's speed against that, the largest time of any 256 tokens against serial (losses of probes left out), and the share
of probes. Costs are judged by the model; noise is only in what the engine sees.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import adaptive_worlds as worlds  # pyright: ignore[reportMissingImports]

ACCEPTANCES = ((0.0, 0.0), (0.3, 0.3), (0.5, 0.5), (0.7, 0.7), (0.9, 0.9), (0.3, 0.8), (0.9, 0.0))
MODELS = (
    worlds.Model(0.02, 0.05),
    worlds.Model(0.05, 0.1),
    worlds.Model(0.05, 0.1, 0.3),
    worlds.Model(0.1, 0.2, 0.2),
    worlds.Model(0.3, 0.3),
    worlds.Model(1.0, 1.0),
    worlds.Model(0.0, 0.0, 1.2),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.0, help="costs vary by so much, and one in 200 is 50 times as large")
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()
    table: list[dict[str, object]] = []
    print("acceptance  row   head  span | best  gain | speed  window  probes")
    for before, after in ACCEPTANCES:
        for model in MODELS:
            for seed in range(args.seeds):
                turning = args.tokens // 8
                out = worlds.simulate(
                    model,
                    lambda at, depth, a=before, b=after, turning=turning: a if at < turning else b,
                    tokens=args.tokens,
                    seed=seed,
                    noise=args.noise,
                )
                name = f"{before}" if before == after else f"{before}>{after}"
                print(
                    f"{name:10}  {model.row:.2f}  {model.head:.2f}  {model.span:.2f} | {out.best:4}  {out.gain:4.2f} | "
                    f"{out.speed:.3f}  {out.window:.3f}  {out.probes:.3f}",
                    flush=True,
                )
                figures = {key: getattr(out, key) for key in ("best", "gain", "speed", "window", "probes")}
                table.append({"acceptance": name, "row": model.row, "head": model.head, "span": model.span, "seed": seed, **figures})
    speeds = [row["speed"] for row in table]
    print(f"{len(table)} runs: least speed {min(speeds):.3f}, mean {sum(speeds) / len(speeds):.3f}")  # type: ignore[type-var, arg-type]
    if args.json:
        Path(args.json).write_text(json.dumps({"tokens": args.tokens, "noise": args.noise, "runs": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
