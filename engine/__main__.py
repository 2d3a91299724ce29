"""``python -m engine``."""

import sys

if __name__ == "__main__":
    try:
        from engine.cli import main

        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # while the modules were loading, or a second one while the first was being told of
        sys.stderr.write("\ninterrupted\n")
        code = 130
    sys.exit(code)
