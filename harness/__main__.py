"""``python -m harness``."""

import sys

if __name__ == "__main__":
    try:
        from harness.cli import main

        main()
    except KeyboardInterrupt:  # while the modules were loading, or a second one while the first was being told of
        sys.stderr.write("harness: interrupted\n")
        raise SystemExit(130) from None
