"""`python -m tfviz.model [preset ...]`: the exact parameter count of our presets and where each part of it lies."""

import sys

from tfviz.config import PRESETS
from tfviz.errors import TfvizError
from tfviz.model.parameters import count_parts_of
from tfviz.registry import choose


def main(names: list[str]) -> None:
    for name in names or PRESETS:
        config = choose(PRESETS, name, "preset")
        parts = count_parts_of(config)
        total = sum(part.count for part in parts)
        print(f"{name}: {total:,} parameters ({config.family}, vocabulary {config.vocab_size:,})")
        for part in parts:
            print(f"  {part.name:28}{part.count:>14,}{part.count / total:>8.1%}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TfvizError as mistake:
        sys.exit(str(mistake))
