"""Rehearse without an account: fake marketplaces and a bucket on this computer, for a shell beside this one.

    python -m tests.cloud [vastai] [runpod]

prints the variables under which `tune` uses them, and reads commands: `ls`, `outbid ID`, `vanish ID`, `freeze ID`,
`thaw ID`, `cost`, `quit`. What is rented are processes on this computer; they end with this program.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.cloud.canaries import Canaries
from tests.cloud.world import ACCESS_KEY, KINDS, ROOT, Market, bucket, make_market


@contextlib.contextmanager
def rehearsal(root: Path, names: Sequence[str]) -> Iterator[tuple[Mapping[str, Market], Mapping[str, str]]]:
    """Marketplaces by name, and the variables under which they and the bucket are found."""
    secret = Canaries().values["AWS_SECRET_ACCESS_KEY"]
    variables = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "TUNE_STORAGE": ROOT,
        "TUNE_STATE_DIR": str(root / "state"),
        "TUNE_PROVIDER": ",".join(sorted(names)),
    }
    os.environ.update(variables)
    with contextlib.ExitStack() as stack:
        variables["AWS_ENDPOINT_URL"] = stack.enter_context(bucket(secret)).url
        markets = {}
        for name in names:
            market = make_market(name, root / f"{name}-machines")
            stack.callback(market.close)
            variables[KINDS[name].key_variable] = market.account_key
            variables[KINDS[name].url_variable] = market.url
            markets[name] = market
        yield markets, variables


def obey(line: str, markets: Mapping[str, Market]) -> str:
    """Carry out one command; what to say about it."""
    words = shlex.split(line)
    if words[:1] == ["ls"]:
        lines = [
            f"{one}  {market.meter.usd(one):.4f} USD" for market in markets.values() for one in market.meter.live()
        ]
        return "\n".join(lines) or "nothing is rented"
    if words[:1] == ["cost"]:
        return "\n".join(f"{name}: {market.meter.total_usd():.4f} USD in all" for name, market in markets.items())
    if len(words) != 2:
        return "ls, cost, outbid ID, vanish ID, freeze ID, thaw ID, quit"
    verb, instance_id = words
    for market in markets.values():
        if instance_id not in market.meter.live():
            continue
        if verb in ("outbid", "vanish"):
            market.preempt(instance_id, verb)
        elif verb in ("freeze", "thaw"):
            getattr(market.machines, verb)(instance_id)
        else:
            break
        return f"{instance_id}: {verb}"
    return f"no {instance_id} is rented, or {verb} is no command"


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        print(f"no such marketplace: {', '.join(unknown)}; there are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="rehearsal-") as root,
        rehearsal(Path(root), names or list(KINDS)) as (markets, variables),
    ):
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()), flush=True)
        print(
            "# rent with `tune launch recipes/tiny-local.yaml`; here: ls, outbid ID, vanish ID, cost, quit", flush=True
        )
        with contextlib.suppress(KeyboardInterrupt):
            for line in sys.stdin:
                if line.strip() == "quit":
                    break
                print(obey(line, markets), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
