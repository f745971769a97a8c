"""`make bench`: every figure the project states, printed by the program that measures it."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys

import tests.benchmarks as home


def main() -> int:
    names = sorted(m.name for m in pkgutil.iter_modules(home.__path__) if not m.name.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "only", nargs="*", metavar="BENCHMARK", help=f"one or more of: {', '.join(names)}; all when left out"
    )
    wanted = parser.parse_args().only or names
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    for name in wanted:
        module = importlib.import_module(f"tests.benchmarks.{name}")
        print(f"\n== {name}: {(module.__doc__ or '').strip().splitlines()[0]}", flush=True)
        module.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
